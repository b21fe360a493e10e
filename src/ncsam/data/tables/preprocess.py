"""Mixed tables as numbers: fitted once to the training rows, stored as JSON, applied to new rows.

Numbers are imputed and standardized, categories one-hot encoded, dates taken apart, texts embedded. Columns that cannot
help a classifier are dropped, each with a reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value
from ncsam.data.tables.column_encoders import Categorical, Dates, Numeric, Text
from ncsam.data.tables.values import Values, columns_of, date_format, missing_in, number, numbers_in, truth, word
from ncsam.pretrained.text import TextEncoder

AnyEncoder = Numeric | Categorical | Dates | Text
_KINDS: dict[str, type[AnyEncoder]] = {each.kind: each for each in (Numeric, Categorical, Dates, Text)}
_VERSION = 1
_PARSED = 0.95  # share of a column's values that have to be numbers, or dates
_DISTINCT = 0.95  # share of distinct values from which on words are identifiers
_WORDS = 4  # mean number of words from which on a column is text
_CATEGORIES = 32
_LEAST = 2  # rows of a category that has a feature of its own
_MANY = 20  # rows from which on consecutive numbers are taken for row numbers
_STRANGE = (bytes, dict, list, np.ndarray, set, tuple)
_ID_NAMES = ("id", "index", "row", "uuid", "guid", "")


class _Dropped(Exception):  # noqa: N818 - not an error: the reason why a column is of no use
    pass


@dataclass(frozen=True)
class Preprocessing:
    """A fitted preprocessing; make one with `fit`.

    Attributes:
        columns: The encoder of each column that is used, in order.
        dropped: The reason for each column that is not.
        rows: Rows that it was fitted to.
        text_encoder: What embeds the text columns. It is not stored: `from_dict` takes it again.
    """

    columns: Mapping[str, AnyEncoder]
    dropped: Mapping[str, str]
    rows: int
    text_encoder: TextEncoder | None = field(default=None, compare=False)

    @property
    def feature_names(self) -> list[str]:
        """A name for each feature."""
        return [name for column, encoder in self.columns.items() for name in encoder.names(column)]

    def transform(self, frame: Any) -> npt.NDArray[np.float32]:
        """The features (rows, F) of new rows; columns that were not used in fitting are ignored.

        Args:
            frame: A pandas DataFrame, or columns by name.

        Raises:
            ValueError: A column is missing, or the text encoder is not the one of fitting.
        """
        found = columns_of(frame)
        if lacking := [name for name in self.columns if name not in found]:
            raise bad_value("columns", sorted(found), f"also {', '.join(map(repr, lacking))}")
        return _joined([self._features(name, found[name]) for name in self.columns])

    def _features(self, name: str, values: Values) -> npt.NDArray[np.float64]:
        encoder = self.columns[name]
        if not isinstance(encoder, Text):
            return encoder.transform(values)
        given = None if self.text_encoder is None else self.text_encoder.fingerprint()
        if self.text_encoder is None or given != encoder.encoder:
            raise bad_value("text_encoder", given, f"{encoder.encoder!r}, which embedded the column {name!r}")
        return encoder.transform(values, self.text_encoder)

    def to_dict(self) -> dict[str, Any]:
        """Plain values that JSON can store."""
        return {
            "version": _VERSION,
            "rows": self.rows,
            "columns": [{"name": name, **encoder.to_dict()} for name, encoder in self.columns.items()],
            "dropped": dict(self.dropped),
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any], *, text_encoder: TextEncoder | None = None) -> Preprocessing:
        """The preprocessing that `to_dict` described.

        Args:
            state: What `to_dict` returned.
            text_encoder: Needed by `transform` where there are text columns.

        Raises:
            ValueError: `state` is damaged or of another version.
        """
        if not isinstance(state, Mapping) or state.get("version") != _VERSION:
            raise bad_value("preprocessing", state, f"a stored preprocessing of version {_VERSION}")
        try:
            columns: dict[str, AnyEncoder] = {}
            for column in state["columns"]:
                rest = {key: value for key, value in column.items() if key != "name"}
                columns[str(column["name"])] = _KINDS[rest["kind"]].from_dict(rest)
            return cls(columns, dict(state["dropped"]), int(state["rows"]), text_encoder)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"the stored preprocessing is damaged: {error}") from error

    def report(self) -> str:
        """What became of each column, for people."""
        lines = [f"{len(self.columns)} columns used, {len(self.feature_names)} features"]
        lines += [f"  {name}: {encoder}" for name, encoder in self.columns.items()]
        if self.dropped:
            lines.append(f"{len(self.dropped)} columns dropped")
            lines += [f"  {name}: {reason}" for name, reason in self.dropped.items()]
        return "\n".join(lines)


def fit(
    frame: Any,
    *,
    exclude: Sequence[str] = (),
    text_encoder: TextEncoder | None = None,
    max_categories: int = _CATEGORIES,
) -> Preprocessing:
    """Fit a preprocessing to the training rows of a table.

    Args:
        frame: A pandas DataFrame, or columns by name.
        exclude: Columns that are no inputs, such as the labels.
        text_encoder: Embeds columns of free text; without it they are dropped.
        max_categories: Categories of a column with a feature of their own.

    Raises:
        ValueError: There are no rows, a name occurs twice, or no column is of use.

    Examples:
        >>> table = {"age": [31, None, 45, 28], "city": ["Oslo", "Rome", "Oslo", "Rome"], "unit": ["kg"] * 4}
        >>> fitted = fit(table)
        >>> print(fitted.report())
        2 columns used, 4 features
          age: numbers, missing ones replaced by 31
          city: 2 categories
        1 columns dropped
          unit: every value is 'kg'
        >>> fitted.transform({"age": [31], "city": ["Lima"]}).shape
        (1, 4)
    """
    return fit_transform(frame, exclude=exclude, text_encoder=text_encoder, max_categories=max_categories)[0]


def fit_transform(
    frame: Any,
    *,
    exclude: Sequence[str] = (),
    text_encoder: TextEncoder | None = None,
    max_categories: int = _CATEGORIES,
) -> tuple[Preprocessing, npt.NDArray[np.float32]]:
    """As `fit`, with the features of the training rows: texts are embedded only once.

    Args:
        frame: A pandas DataFrame, or columns by name.
        exclude: Columns that are no inputs, such as the labels.
        text_encoder: Embeds columns of free text; without it they are dropped.
        max_categories: Categories of a column with a feature of their own.

    Returns:
        The preprocessing, and float32 features (rows, F).
    """
    if max_categories < 1:
        raise bad_value("max_categories", max_categories, "a positive number")
    found = columns_of(frame)
    if unknown := [name for name in exclude if name not in found]:
        raise bad_value("exclude", unknown, f"columns of the table: {', '.join(found)}")
    rows = len(next(iter(found.values()), ()))
    if rows == 0:
        raise bad_value("frame", f"{len(found)} columns, 0 rows", "a table with rows")
    columns: dict[str, AnyEncoder] = {}
    dropped: dict[str, str] = {}
    features = []
    for name, values in found.items():
        if name in exclude:
            continue
        try:
            encoder, part = _fitted(name, values, text_encoder, max_categories)
        except _Dropped as reason:
            dropped[name] = str(reason)
        else:
            columns[name] = encoder
            features.append(part)
    if not columns:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in dropped.items())
        raise bad_value("frame", list(found), f"a column of use ({reasons or 'all are excluded'})")
    return Preprocessing(columns, dropped, rows, text_encoder), _joined(features)


def _fitted(
    name: str, values: Values, text_encoder: TextEncoder | None, most: int
) -> tuple[AnyEncoder, npt.NDArray[np.float64]]:
    """The encoder of a column and its features, or `_Dropped` with the reason."""
    there = values[~missing_in(values)]
    if len(there) == 0:
        raise _Dropped("all values are missing")
    strange = next((each for each in there if isinstance(each, _STRANGE)), None)
    if strange is not None:
        raise _Dropped(f"its values are of type {type(strange).__name__}")
    encoder = _plain_encoder(name, values, there, most)
    if encoder is not None:
        return encoder, encoder.transform(values)
    if text_encoder is None:
        raise _Dropped('free text, which needs a text encoder: pip install "ncsam[text]"')
    return Text.fit(values, text_encoder)


def _plain_encoder(name: str, values: Values, there: Values, most: int) -> Numeric | Categorical | Dates | None:
    """The encoder of a column that is no text, `None` for text."""
    constant = len(there) == len(values)  # otherwise it is known which values are missing
    if values.dtype.kind == "b" or all(isinstance(each, (bool, np.bool_)) for each in there):
        return _numeric(name, values, constant, boolean=True)
    if truth([str(each) for each in there]) is not None:
        return _numeric(name, values, constant, boolean=True)
    if np.isfinite(numbers_in(there)).mean() >= _PARSED and not _only_words(there):
        return _numeric(name, values, constant)
    if _may_be_dates(there) and (form := date_format(list(there), _PARSED)) is not None:
        dates = Dates.fit(values, form)
        if not dates.parts and not dates.indicator:
            raise _Dropped(f"every value is {str(there[0])!r}")
        return dates
    words = [word(each) for each in there]
    distinct = len(set(words))
    if distinct == 1 and constant:
        raise _Dropped(f"every value is {words[0]!r}")
    if distinct / len(words) >= 0.5 and _is_text(words):
        return None
    if distinct == len(words) > 1 or (len(words) >= _MANY and distinct / len(words) >= _DISTINCT):
        raise _Dropped(f"an identifier: {distinct:,} different values in {len(words):,} rows")
    return Categorical.fit(values, most, _LEAST)


def _numeric(name: str, values: Values, constant: bool, boolean: bool = False) -> Numeric:
    found = numbers_in(values)
    there = found[np.isfinite(found)]
    if len(there) == 0:
        raise _Dropped("no value is a finite number")
    encoder = Numeric.fit(values, boolean)
    if encoder.std == 0 and not encoder.indicator:
        raise _Dropped(f"every value is {there[0]:g}")
    if not boolean and len(there) == len(found) and _numbers_rows(name, there):
        raise _Dropped("it numbers the rows")
    return encoder


def _numbers_rows(name: str, there: npt.NDArray[np.float64]) -> bool:
    """Whether numbers only tell rows apart: consecutive ones, or different whole ones in a column called so."""
    if not (there == np.round(there)).all():
        return False
    if len(there) >= _MANY and (np.diff(there) == 1).all():
        return True
    last = name.strip().lower().replace("-", "_").rpartition("_")[2]
    named = last in _ID_NAMES or name.strip().lower().startswith("unnamed:") or name.endswith(("Id", "ID"))
    return named and len(there) > 1 and len(np.unique(there)) == len(there)


def _only_words(there: Values) -> bool:
    """Whether no value is a number: words such as yes count as numbers only beside some."""
    return not any(np.isfinite(number(each)) for each in there[:100])


def _may_be_dates(there: Values) -> bool:
    return all(isinstance(each, (str, date, np.datetime64)) for each in there)


def _is_text(words: Sequence[str]) -> bool:
    """Whether these are sentences: of several words or, in scripts without spaces, of many letters beyond ASCII."""
    if sum(len(each.split()) for each in words) / len(words) >= _WORDS:
        return True
    letters = sum(map(len, words))
    beyond = sum(not each.isascii() for text in words for each in text)
    return letters / len(words) >= 12 and beyond / letters > 0.5


def _joined(parts: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float32]:
    return np.concatenate(parts, axis=1).astype(np.float32)
