"""The features of a table: plain numbers as they are, mixed columns by a preprocessing that is fitted and stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value
from ncsam.data.modalities.rows import TableRows
from ncsam.data.readers.arrays import statistics
from ncsam.data.tables.columns import COLUMN_NAMES, ROW_NUMBERS, Columns, is_numeric, numbers, without_cleaned
from ncsam.data.tables.preprocess import Preprocessing, fit_transform
from ncsam.data.types import Encoding
from ncsam.pretrained.text import TextEncoder
from ncsam.pretrained.wordllama import WordLlama

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TableFeatures:
    """What `DataSet` and `Split` hold of a table of features.

    Attributes:
        inputs: (rows, features).
        names: Of the features.
        mean, std: That normalize them.
        encoding, original: The fitted preprocessing and the rows as they were; `None` for a table of plain numbers.
        notes: What became of each column.
    """

    inputs: Floats
    names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    encoding: Encoding | None
    original: TableRows | None
    notes: tuple[str, ...]


def table_features(
    rest: Columns, asked: Sequence[str] | None, train: npt.NDArray[np.int64], where: str
) -> TableFeatures:
    """The features of all rows; everything that is fitted is fitted to the training rows.

    Args:
        rest: The columns beside labels and splits.
        asked: The columns to use, in this order. Default: all but those that number the rows.
        train: The training rows.
        where: What error messages call the table.
    """
    used = _wanted(rest, asked, where)
    unused = [name for name in rest if name not in used]
    notes = (f"columns that are not used: {', '.join(unused)}",) if unused else ()
    if not _plain(rest, used):
        table = {name: rest[name] for name in used}
        fitted, inputs = _encoded(table, train, len(next(iter(rest.values()))), where)
        if fitted.dropped:
            notes = (f"columns that were dropped: {_listed(fitted.dropped)}", *notes)
        used = tuple(fitted.columns)
        if not _plain(rest, used):
            names = tuple(fitted.feature_names)
            notes = (f"{len(used)} columns became {len(names)} features: {_listed(fitted.columns)}", *notes)
            encoding = Encoding({"kind": "table", "preprocessing": fitted.to_dict()})
            original = TableRows({name: rest[name] for name in without_cleaned(rest)})
            return TableFeatures(inputs, names, (0.0,), (1.0,), encoding, original, notes)
    inputs = numbers(rest, used, where)
    return TableFeatures(inputs, used, *statistics(inputs[train]), None, None, notes)


def _plain(rest: Columns, names: Sequence[str]) -> bool:
    """Whether every value of these columns is a number, so that nothing has to be encoded."""
    return all(is_numeric(rest[name], strict=True) for name in names)


def encode_table(encoder: Mapping[str, Any], table: Any) -> Floats:
    """The features of new rows (a dict of columns or a DataFrame) by the preprocessing that a dataset stored.

    Args:
        encoder: `Encoding.encoder` of the dataset, with the key `preprocessing`.
        table: With the columns of the training table; others are ignored.

    Returns:
        (rows, features).
    """
    return Preprocessing.from_dict(encoder["preprocessing"], text_encoder=text_encoder()).transform(table)


def _encoded(table: Columns, train: npt.NDArray[np.int64], rows: int, where: str) -> tuple[Preprocessing, Floats]:
    """The preprocessing fitted to the training rows, and the features of all rows; no text is embedded twice."""
    try:
        fitted, found = fit_transform(_rows(table, train), text_encoder=text_encoder())
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    if len(train) == rows:
        return fitted, found
    inputs = np.empty((rows, found.shape[1]), dtype=np.float32)
    others = np.setdiff1d(np.arange(rows), train)
    inputs[train], inputs[others] = found, fitted.transform(_rows(table, others))
    return fitted, inputs


def _rows(table: Columns, index: npt.NDArray[np.int64]) -> Columns:
    return {name: [values[row] for row in index] for name, values in table.items()}


def text_encoder() -> TextEncoder | None:
    """What embeds columns of free text: static embeddings, which are fast and need no torch."""
    return WordLlama() if WordLlama.installed() else None


def _wanted(rest: Columns, asked: Sequence[str] | None, where: str) -> tuple[str, ...]:
    if asked is not None:
        missing = [name for name in asked if name not in rest]
        if missing:
            raise bad_value("columns", missing, f"columns of {where}: {', '.join(rest)}")
        return tuple(asked)
    found = tuple(name for name in without_cleaned(rest) if name.lower() not in ROW_NUMBERS)
    if not found:
        known = ", ".join(COLUMN_NAMES["path"][:3] + COLUMN_NAMES["text"][:3])
        raise ValueError(
            f"{where} has no column of paths or texts ({known}, ...) and no other column beside the label: pass "
            f"path_column=NAME, text_column=NAME or columns=[NAME, ...]; columns: {', '.join(rest) or 'no others'}"
        )
    return found


def _listed(columns: Mapping[str, Any]) -> str:
    return "; ".join(f"{name} ({about})" for name, about in columns.items())
