"""Whatever people have their data in, as a `DataSet`: paths, arrays, lists, DataFrames, datasets of other libraries."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ncsam._arguments import coerce_options
from ncsam._errors import bad_value, refuse_unknown
from ncsam.data.images.files import IMAGE_SUFFIXES
from ncsam.data.readers.arrays import from_arrays
from ncsam.data.readers.texts import from_texts
from ncsam.data.readers.torch_dataset import as_items, from_dataset
from ncsam.data.registry import load
from ncsam.data.tables.columns import TABLE_SUFFIXES, Columns, is_numeric
from ncsam.data.tables.table import SPLIT_NAMES, from_columns
from ncsam.data.types import DataSet
from ncsam.noise import NoisyLabels

_ACCEPTED = (
    "a path, the name of a dataset, (X, y), a DataFrame, a torch Dataset, a Hugging Face dataset or an ncsam DataSet"
)
_LABEL, _SPLIT = "label", "split"


def as_dataset(
    source: Any,
    *,
    label_column: str | None = None,
    input_column: str | Sequence[str] | None = None,
    test: Any = None,
    **options: Any,
) -> DataSet:
    """A `DataSet` from whatever holds the data.

    Args:
        source: One of

            - a name or a path, as `load` takes it;
            - `(X, y)`: arrays or tensors (uint8 images, or features of any shape), a list of texts, a list of
              `pathlib.Path`s of images, or a DataFrame; and the labels, as class names or numbers, or an
              `ncsam.noise.NoisyLabels`, whose true labels reach metrics only;
            - a pandas DataFrame, or a dict of columns;
            - a torch `Dataset` (or any sequence) of (inputs, label) items or of dicts with a label;
            - a Hugging Face `Dataset` or `DatasetDict`;
            - a `DataSet`, which is returned as it is.
        label_column: Column of the labels, for tables. Default: found by its name, such as `label` or `target`.
        input_column: Column of the images or texts, or a list of columns that are features, for tables. Default:
            found by name; else all other columns are features.
        test: Test samples in the same form as `source`. Not for paths, whose readers find the test split.
        options: What the reader takes besides, such as `classes`, `y_clean` or `clean_column`; see `from_arrays`,
            `from_texts`, `from_table` and `from_dataset`.

    Returns:
        The dataset. Its `notes` say what was left out.

    Raises:
        UsageError: `source` is none of these, or an option does not apply to it.

    Examples:
        >>> import numpy as np
        >>> as_dataset((np.eye(4), ["cat", "dog", "cat", "dog"]))
        <DataSet 'arrays': 2 classes, train=4>
        >>> as_dataset((["good", "bad film", "fine"], [1, 0, 1])).classes
        ('0', '1')
        >>> as_dataset({"age": [31, 45, 28], "label": ["no", "yes", "no"]}).columns
        ('age',)
    """
    if isinstance(source, DataSet):
        return _unchanged(source, label_column=label_column, input_column=input_column, test=test, **options)
    if isinstance(source, str | os.PathLike):
        if test is not None:
            raise bad_value("test", test, "nothing for a path, whose reader finds the test split")
        return load(source, **_path_options(source, label_column, input_column), **options)
    if isinstance(source, tuple) and len(source) == 2 and not _is_item(source):
        return _from_pair(source, test, label_column, input_column, options)
    if _is_table(source):
        columns, names = _table(source, test)
        return _from_columns(columns, label_column, input_column, {"class_names": names, **options})
    is_array = isinstance(source, bytes) or hasattr(source, "ndim")  # samples without labels
    if hasattr(source, "__getitem__") and hasattr(source, "__len__") and not is_array:
        for name, value in (("label_column", label_column), ("input_column", input_column)):
            if value is not None:
                raise bad_value(name, value, "None for a torch Dataset, whose items are (inputs, label) pairs")
        return _from_items(source, test, options)
    raise bad_value("data", type(source).__name__, _ACCEPTED)


def _unchanged(source: DataSet, **options: Any) -> DataSet:
    given = {name: value for name, value in options.items() if value is not None}
    if given:
        raise bad_value(next(iter(given)), next(iter(given.values())), "nothing for data that is a DataSet already")
    return source


def _called(reader: Callable[..., DataSet], *given: Any, **options: Any) -> DataSet:
    """What a reader makes of checked options."""
    refuse_unknown(reader.__name__, options, list(inspect.signature(reader).parameters)[len(given) :])
    return reader(*given, **coerce_options(reader, options))


def _path_options(source: Any, label: str | None, inputs: str | Sequence[str] | None) -> dict[str, Any]:
    """Columns by the names that `from_table` has for them."""
    found: dict[str, Any] = {} if label is None else {"label_column": label}
    if inputs is None:
        return found
    if not isinstance(inputs, str):
        return {**found, "columns": list(inputs)}
    if Path(source).suffix.lower() not in TABLE_SUFFIXES:
        raise bad_value("input_column", inputs, f"nothing for {os.fspath(source)!r}, which is no table")
    from ncsam.data.tables.columns import read_columns

    table = read_columns(Path(source).expanduser())
    return {**found, **_input_option(table, inputs)}


def _input_option(table: Columns, name: str) -> dict[str, Any]:
    """The option of `from_columns` for a column of images, texts or numbers."""
    if name not in table:
        raise bad_value("input_column", name, f"a column of the table: {', '.join(table)}")
    first = next((value for value in table[name] if value is not None), "")
    if isinstance(first, bytes | Mapping | os.PathLike) or str(first).lower().endswith(IMAGE_SUFFIXES):
        return {"path_column": name}
    return {"columns": [name]} if is_numeric(table[name]) else {"text_column": name}


# --- tables


def is_frame(source: Any) -> bool:
    """Whether this is a pandas DataFrame.

    Args:
        source: Any object; pandas is not imported.
    """
    return hasattr(source, "iloc") and hasattr(source, "columns")


def _is_hugging_face(source: Any) -> bool:
    return hasattr(source, "column_names") and hasattr(source, "features") and hasattr(source, "with_format")


def _is_table(source: Any) -> bool:
    return is_frame(source) or _is_hugging_face(source) or isinstance(source, Mapping)


def _table(source: Any, test: Any) -> tuple[Columns, dict[str, list[str]]]:
    """Columns with a column `split` where there are several parts, and names of classes."""
    if isinstance(source, Mapping) and source and all(map(_is_hugging_face, source.values())):
        parts = {name: part for name, part in source.items() if str(name).lower() in SPLIT_NAMES}
        if not parts:
            raise bad_value("data", list(source), f"splits named {', '.join(dict.fromkeys(SPLIT_NAMES.values()))}")
    else:
        parts = {"train": source}
    if test is not None:
        parts["test"] = test
    tables = {name: _columns(part) for name, part in parts.items()}
    first, names = next(iter(tables.values()))
    if len(tables) == 1:
        return first, names
    columns: Columns = {name: [] for name in first}
    splits: list[str] = []
    for split, (part, _) in tables.items():
        if lacking := [name for name in first if name not in part]:
            raise bad_value(str(split), list(part), f"the columns of the training table, also {', '.join(lacking)}")
        for name, values in columns.items():
            values += part[name]
        splits += [str(split)] * len(next(iter(part.values()), ()))
    return {**columns, _SPLIT: splits}, names


def _columns(source: Any) -> tuple[Columns, dict[str, list[str]]]:
    if is_frame(source):
        return frame_columns(source), {}
    if _is_hugging_face(source):
        table = source.with_format("arrow")[:]  # images stay encoded
        names = {name: list(kind.names) for name, kind in source.features.items() if hasattr(kind, "names")}
        return {name: table.column(name).to_pylist() for name in table.column_names}, names
    if not isinstance(source, Mapping):
        raise bad_value("test", type(source).__name__, "test samples in the same form as the data")
    try:
        columns = {str(name): list(values) for name, values in source.items()}
    except TypeError as error:
        raise bad_value("data", source, "columns, each a list or an array") from error
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise bad_value("data", lengths, "columns of equal length, with at least one row")
    return columns, {}


def frame_columns(frame: Any) -> Columns:
    """The columns of a pandas DataFrame as lists; missing values are `None`.

    Args:
        frame: A DataFrame with at least one row.

    Raises:
        UsageError: Two columns have the same name, or there are no rows.
    """
    names = [str(name) for name in frame.columns]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise bad_value("columns", repeated, "names that occur once")
    if not len(frame):
        raise bad_value("data", "a DataFrame without rows", "at least one row")
    columns: Columns = {}
    for place, name in enumerate(names):
        series = frame.iloc[:, place]
        missing = series.isna().tolist()
        columns[name] = [None if gone else value for value, gone in zip(series.tolist(), missing, strict=True)]
    return columns


def _from_columns(
    table: Columns, label: str | None, inputs: str | Sequence[str] | None, options: Mapping[str, Any]
) -> DataSet:
    chosen: dict[str, Any] = {}
    if isinstance(inputs, str):
        chosen = _input_option(table, inputs)
    elif inputs is not None:
        chosen = {"columns": list(inputs)}
    return _called(from_columns, table, **{"label_column": label, **chosen, **options})


# --- pairs


def _is_item(source: tuple[Any, ...]) -> bool:
    """Whether a tuple holds two items of a dataset rather than X and y: both are (inputs, label) pairs themselves."""
    return all(isinstance(part, tuple) and len(part) == 2 and np.ndim(part[1]) == 0 for part in source)


def _from_pair(
    pair: tuple[Any, Any],
    test: Any,
    label: str | None,
    inputs: str | Sequence[str] | None,
    options: dict[str, Any],
) -> DataSet:
    if test is not None and not (isinstance(test, tuple) and len(test) == 2):
        raise bad_value("test", type(test).__name__, "(X, y), as the data")
    if isinstance(pair[1], NoisyLabels):
        return _with_noise(_from_pair((pair[0], pair[1].clean), test, label, inputs, options), pair[1])
    x, y = pair[0], plain(pair[1])
    if label is not None:
        raise bad_value("label_column", label, "None where the labels are given beside the data")
    if is_frame(x):
        table, _ = _table(_with_labels(x, y), None if test is None else _with_labels(test[0], plain(test[1])))
        return _from_columns(table, _LABEL, inputs, options)
    if inputs is not None:
        raise bad_value("input_column", inputs, "None for data that is no table")
    others = {} if test is None else {"y_test": plain(test[1])}
    if is_texts(x):
        texts = {} if test is None else {"texts_test": _list(test[0])}
        return _called(from_texts, _list(x), y, **texts, **others, **options)
    if is_paths(x):
        columns, _ = _table(_path_table(x, y), None if test is None else _path_table(test[0], plain(test[1])))
        return _called(from_columns, columns, path_column="path", **options)
    arrays = {} if test is None else {"x_test": as_array(test[0])}
    return _called(from_arrays, as_array(x), y, **arrays, **others, **options)


def _with_noise(clean: DataSet, record: NoisyLabels) -> DataSet:
    """The dataset with the noisy labels of a record, whose clean ones reach metrics only."""
    if (len(clean.train), clean.num_classes) != (len(record), record.num_classes):
        found = f"{len(clean.train)} training samples of {clean.num_classes} classes"
        expected = f"a record of the {found} in its clean labels; otherwise pass y=record.noisy, y_clean=record.clean"
        raise bad_value("y", record, expected)
    return replace(clean, train=clean.train.with_labels(record.noisy, record.clean))


def _with_labels(frame: Any, y: Any) -> Columns:
    columns = frame_columns(frame)
    if _LABEL in columns:
        raise bad_value("X", list(columns), f"columns without {_LABEL!r}, for the labels are given as y")
    if len(y) != len(frame):
        raise bad_value("y", f"{len(y)} labels", f"one for each of the {len(frame)} rows")
    return {**columns, _LABEL: list(y)}


def _path_table(paths: Sequence[Any], y: Any) -> Columns:
    found = [str(Path(path).absolute()) for path in paths]
    if len(found) != len(y):
        raise bad_value("y", f"{len(y)} labels", f"one for each of the {len(found)} images")
    return {"path": found, _LABEL: list(y)}


def _list(values: Any) -> list[Any]:
    return list(values.tolist()) if hasattr(values, "tolist") else list(values)


def is_texts(x: Any) -> bool:
    """Whether these are texts: a list, an array or a pandas column of them.

    Args:
        x: Any object; every element is looked at.
    """
    if isinstance(x, str | Mapping) or not hasattr(x, "__len__") or len(x) == 0 or getattr(x, "ndim", 1) != 1:
        return False
    return all(isinstance(text, str) for text in _list(x))


def is_paths(x: Any) -> bool:
    """Whether this is a list of path objects; texts that look like paths are texts.

    Args:
        x: Any object.
    """
    return isinstance(x, list | tuple) and len(x) > 0 and all(isinstance(path, os.PathLike) for path in x)


def plain(values: Any) -> Any:
    """Tensors as arrays; everything else as it is.

    Args:
        values: Tensors are copied from their device.
    """
    return values.detach().cpu().numpy() if hasattr(values, "detach") else values


def as_array(x: Any) -> Any:
    """Arrays, tensors and nested lists as numpy arrays, numbers of a table as floats; nested arrays as they are.

    Args:
        x: Integers become float32, except uint8 arrays that are not (N, F), which are images.

    Raises:
        UsageError: Rows have different lengths.
    """
    if isinstance(x, Mapping | tuple):
        return x
    try:
        found = np.asarray(plain(x))
    except ValueError:
        raise bad_value("X", type(x).__name__, "an array with rows of equal length") from None
    integers = found.dtype.kind in "iub" and (found.dtype != np.uint8 or found.ndim == 2)
    return found.astype(np.float32) if integers else found


# --- datasets of items


def _from_items(source: Any, test: Any, options: dict[str, Any]) -> DataSet:
    """Texts are read now; all else as `from_dataset` does."""
    if len(source) == 0:
        raise bad_value("data", type(source).__name__, "a dataset with at least one item")
    inputs, _ = as_items(source[0])
    if isinstance(inputs, Mapping) and len(inputs) == 1:
        (inputs,) = inputs.values()
    if not isinstance(inputs, str):
        return _called(from_dataset, source, test, **options)
    texts, labels = _texts_of(source)
    others: dict[str, Any] = {}
    if test is not None:
        others["texts_test"], others["y_test"] = _texts_of(test)
    classes = getattr(source, "classes", None)
    if classes is not None:
        others["classes"] = [str(name) for name in classes]
    return replace(_called(from_texts, texts, labels, **{**others, **options}), source=type(source).__name__)


def _texts_of(source: Any) -> tuple[list[str], list[Any]]:
    texts, labels = [], []
    for place in range(len(source)):
        inputs, label = as_items(source[place])
        text = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs
        if not isinstance(text, str):
            raise bad_value(f"data[{place}]", text, "a text, as the first item is")
        texts.append(text)
        labels.append(label.item() if hasattr(label, "item") else label)
    return texts, labels
