"""cleanlab's Datalab: its arguments and its table of issues."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value, need
from ncsam._files import atomic_path

#: Columns of a Datalab's issues that say something about labels.
_LABEL = ("is_label_issue", "label_score", "given_label", "predicted_label")


def issues_table(columns: Mapping[str, npt.NDArray[Any]], names: Sequence[str] | None = None) -> Any:
    """Convert label issues to the form of `Datalab.get_issues("label")`.

    Args:
        columns: columns of label issues, with class numbers, in any order.
        names: class names. `None` keeps class numbers.

    Returns:
        A `pandas.DataFrame` in the order of the data.
    """
    pandas = need("pandas", "tables", "a table of label issues")
    order = np.argsort(columns["index"], kind="stable")

    def named(numbers: npt.NDArray[Any]) -> Any:
        return numbers if names is None else np.array(list(names), dtype=object)[numbers]

    return pandas.DataFrame(
        {
            "is_label_issue": columns["is_label_issue"][order].astype(bool),
            "label_score": columns["label_quality"][order],
            "given_label": named(columns["given_label"][order]),
            "predicted_label": named(columns["predicted_label"][order]),
        },
        index=columns["index"][order],
    )


def label_columns(issues: Any, classes: Sequence[str] | None = None) -> tuple[dict[str, npt.NDArray[Any]], list[str]]:
    """Convert `Datalab.get_issues("label")` to columns of label issues.

    Args:
        issues: the `pandas.DataFrame`, one row per sample.
        classes: class names, in the order of their numbers. `None`: the names in the table, sorted.

    Returns:
        The columns, lowest score first, and the class names.

    Raises:
        UsageError: if a column of label issues is missing, or a class is unknown.
    """
    if missing := [name for name in _LABEL if name not in getattr(issues, "columns", ())]:
        raise bad_value("issues", missing, 'the table of Datalab.get_issues("label")')
    given, predicted = ([str(each) for each in issues[name].tolist()] for name in _LABEL[2:])
    names = sorted(set(given) | set(predicted)) if classes is None else [str(each) for each in classes]
    number = {name: i for i, name in enumerate(names)}
    if odd := sorted((set(given) | set(predicted)) - number.keys()):
        raise bad_value("issues", odd[0], f"one of the classes {names}")
    score = issues["label_score"].to_numpy(dtype=np.float64)
    order = np.argsort(score, kind="stable")
    unknown = np.full(len(score), np.nan)
    columns = {
        "index": np.arange(len(score)),
        "given_label": np.array([number[each] for each in given], dtype=np.int64),
        "predicted_label": np.array([number[each] for each in predicted], dtype=np.int64),
        "label_quality": score,
        "p_wrong": unknown,
        "is_label_issue": issues["is_label_issue"].to_numpy(dtype=bool),
        "suggested_label": np.array([number[each] for each in predicted], dtype=np.int64),
        "p_suggested": unknown,
    }
    return {name: values[order] for name, values in columns.items()}, names


def save(path: str | os.PathLike[str], **arrays: Any) -> None:
    """Write Datalab's arguments and the issues to an `.npz` file.

    Args:
        path: the file, which must end in `.npz`.
        **arrays: arrays by name, such as `labels`, `pred_probs`, `features`, `label_score`; `None` is left out.

    Raises:
        UsageError: if the path does not end in `.npz`.
    """
    if not str(path).lower().endswith(".npz"):
        raise bad_value("path", os.fspath(path), "a file that ends in .npz")
    kept = {name: np.asarray(value) for name, value in arrays.items() if value is not None}
    plain = {name: value.astype(str) if value.dtype == object else value for name, value in kept.items()}
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **plain)  # type: ignore[arg-type]
