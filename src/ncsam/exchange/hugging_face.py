"""Hugging Face `datasets`: export label issues as a `Dataset`, and read decisions from one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value, need
from ncsam.data.tables.columns import read_columns
from ncsam.exchange.answers import DECISION, REVIEWER, Answer, answers_of_columns

_LABELS = ("given_label", "predicted_label", "suggested_label", "clean_label")


def to_dataset(
    columns: Mapping[str, npt.NDArray[Any]], classes: Sequence[str] | None = None, dataset: Any = None
) -> Any:
    """Convert label issues to a `datasets.Dataset`, or add their columns to an existing one.

    The columns `decision` and `reviewer` are empty, to be filled in.

    Args:
        columns: columns of label issues, with class numbers.
        classes: class names, for `ClassLabel` features. `None` keeps class numbers.
        dataset: the `Dataset` of the samples, whose row i is the sample of index i. Its order is kept. `None`: a new
            one, in the order of `columns`.

    Returns:
        The `Dataset`.

    Raises:
        UsageError: if the rows of `dataset` do not match, or its columns have names of label issues.
    """
    datasets = need("datasets", None, "exchange with Hugging Face")
    index = columns["index"]
    if dataset is not None and not np.array_equal(np.sort(index), np.arange(len(dataset))):
        raise bad_value("dataset", f"{len(dataset):,} rows", f"a row for each of the {len(index):,} samples")
    order = np.argsort(index, kind="stable") if dataset is not None else np.arange(len(index))
    label = None if classes is None else datasets.ClassLabel(names=list(classes))
    values: dict[str, list[Any]] = {}
    features: dict[str, Any] = {}
    for name, column in columns.items():
        values[name] = [None if each != each else each for each in column[order].tolist()]
        kind = (
            label if name in _LABELS and label is not None and column.min(initial=0) >= 0 else _kind(datasets, column)
        )
        features[name] = kind
    values |= {name: [None] * len(index) for name in (DECISION, REVIEWER)}
    features |= {name: datasets.Value("string") for name in (DECISION, REVIEWER)}
    made = datasets.Dataset.from_dict(values, features=datasets.Features(features))
    if dataset is None:
        return made
    shared = [name for name in made.column_names if name in dataset.column_names]
    if taken := [name for name in shared if name not in ("index", "path", "text")]:
        raise bad_value("dataset", taken, "columns with other names than those of label issues")
    added = made.remove_columns(shared)
    return datasets.concatenate_datasets([dataset, added], axis=1)


def read(source: Any) -> list[Answer]:
    """Read answers from a `Dataset`, or from the folder (`save_to_disk`) or Parquet file it was saved to.

    Files are read and validated as Arrow tables, without the `datasets` library.

    Args:
        source: the `Dataset` or the path.

    Raises:
        UsageError: if it is neither, or its columns are not those of answers.
    """
    if isinstance(source, (str, os.PathLike)):
        return answers_of_columns(read_columns(Path(source)), str(source))
    if not hasattr(source, "with_format"):
        raise bad_value("dataset", type(source).__name__, "a datasets.Dataset, or the path of a saved one")
    wanted = [name for name in ("index", DECISION, REVIEWER, "given_label") if name in source.column_names]
    table = source.select_columns(wanted).with_format("arrow")[:]
    columns = {name: table.column(name).to_pylist() for name in wanted}
    kind = source.features.get("given_label")
    if hasattr(kind, "names"):
        columns["given_label"] = [kind.names[each] for each in columns["given_label"]]
    return answers_of_columns(columns, "the dataset")


def _kind(datasets: Any, column: npt.NDArray[Any]) -> Any:
    names = {"b": "bool", "i": "int64", "u": "int64", "f": "float64"}
    return datasets.Value(names.get(column.dtype.kind, "string"))
