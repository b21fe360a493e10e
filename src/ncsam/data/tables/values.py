"""Single values of a table: which are missing, and how words become numbers, truth values and dates."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timezone
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value

Values = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

#: Words for a value that is missing, in lower case; an infinite number says no more than that.
MISSING = frozenset(
    ("", "-", "--", "?", "#n/a", "<na>", "n/a", "na", "nan", "nat", "nil", "none", "null", "inf", "+inf", "-inf")
)
_TRUTH = ({"true": 1.0, "false": 0.0}, {"yes": 1.0, "no": 0.0}, {"t": 1.0, "f": 0.0}, {"y": 1.0, "n": 0.0})
_GROUPED = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
_CODE = re.compile(r"0\d+")  # such as a postal code: its leading zero would be lost in a number
_FORMATS = (
    *("%Y/%m/%d", "%Y.%m.%d", "%Y-%m"),
    *("%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%m/%d/%y", "%d/%m/%y", "%d.%m.%y"),
    *("%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%d-%b-%Y", "%d-%b-%y"),
)
_TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
#: Ways to read a date: ISO 8601 first, then each format alone and with a time of day.
DATE_FORMATS = ("iso", *(day + time for day in _FORMATS for time in _TIMES))


def columns_of(frame: Any) -> dict[str, Values]:
    """The columns of a pandas DataFrame or of a mapping from names to sequences, missing values as `None` or NaN.

    Numbers and truth values of numpy keep their type; everything else becomes an array of Python objects.

    Args:
        frame: A pandas DataFrame, or columns by name.

    Raises:
        ValueError: Two columns have the same name, or columns differ in length.
        TypeError: `frame` is neither a DataFrame nor a mapping.
    """
    if isinstance(frame, Mapping):
        named = [(str(name), _array(values)) for name, values in frame.items()]
    elif hasattr(frame, "iloc") and hasattr(frame, "columns"):
        named = [(str(name), _of_series(frame.iloc[:, place])) for place, name in enumerate(frame.columns)]
    else:
        raise TypeError(f"frame is a {type(frame).__name__}: expected a pandas DataFrame or columns by name")
    names = [name for name, _ in named]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise bad_value("columns", repeated, "names that occur once")
    lengths = {len(values) for _, values in named}
    if len(lengths) > 1:
        raise bad_value("frame", {name: len(values) for name, values in named}, "columns of equal length")
    return dict(named)


def _of_series(series: Any) -> Values:
    """A pandas column; its own marks of missing values become `None`."""
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "biuf":
        return np.asarray(series)
    values = _array(series.tolist())
    values[np.asarray(series.isna(), dtype=bool)] = None
    return values


def _array(values: Any) -> Values:
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "biuf":
        return values
    found = np.empty(len(values), dtype=object)
    for place, value in enumerate(values):  # one by one: numpy would unpack cells that are sequences
        found[place] = value
    return found


def is_missing(value: Any) -> bool:
    """Whether a value says nothing: `None`, NaN, NaT, an infinite number, or a word for one of these.

    Args:
        value: A cell of a table; text is compared with `MISSING`, whatever its case.
    """
    if value is None:
        return True
    if isinstance(value, str):
        return value.strip().lower() in MISSING
    if isinstance(value, (float, np.floating)):
        return not math.isfinite(value)
    try:
        return bool(value != value)  # NaT, and NaN of other types, differ from themselves
    except (TypeError, ValueError):  # pandas.NA; an array
        return not hasattr(value, "__len__")


def missing_in(values: Values) -> npt.NDArray[np.bool_]:
    """Where a column has no value.

    Args:
        values: (rows,), as `columns_of` returns a column.
    """
    if values.dtype.kind in "biu":
        return np.zeros(len(values), dtype=bool)
    if values.dtype.kind == "f":
        return ~np.isfinite(values)
    return np.fromiter((is_missing(value) for value in values), dtype=bool, count=len(values))


def number(value: Any) -> float:
    """A finite number, or NaN for anything else. "1,234.5" is one; "007" is a code, and none.

    Args:
        value: A cell of a table.
    """
    if isinstance(value, str):
        text = value.strip()
        if _GROUPED.fullmatch(text):
            text = text.replace(",", "")
        if "_" in text or _CODE.fullmatch(text):  # Python itself would read "1_0" as 10
            return math.nan
    elif isinstance(value, numbers.Real) or hasattr(value, "__float__"):
        text = value
    else:
        return math.nan
    try:
        found = float(text)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return found if math.isfinite(found) else math.nan


def truth(words: Sequence[str]) -> dict[str, float] | None:
    """The truth value of each word, if these are the words of one pair such as yes and no.

    Args:
        words: The different values of a column, in any case.
    """
    lower = {word.strip().lower() for word in words}
    return next((pair for pair in _TRUTH if lower and lower <= pair.keys()), None)


def numbers_in(values: Values) -> Floats:
    """A column as finite numbers; NaN where it is missing, infinite or no number. Words such as yes count as 1.

    Args:
        values: (rows,), as `columns_of` returns a column.
    """
    if values.dtype.kind in "biuf":
        found = values.astype(np.float64)
        return np.where(np.isfinite(found), found, np.nan)
    words = {word: value for pair in _TRUTH for word, value in pair.items()}

    def one(value: Any) -> float:
        if isinstance(value, str) and (known := words.get(value.strip().lower())) is not None:
            return known
        return number(value)

    return np.fromiter((one(value) for value in values), dtype=np.float64, count=len(values))


def word(value: Any) -> str:
    """A value as a category: 1, 1.0 and "1" are the same one, and so are a word and the same word in spaces.

    Args:
        value: A cell of a table that is not missing.
    """
    if isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_)):
        found = float(value)
        if found.is_integer() and abs(found) < 2**53:
            return str(int(found))
        return str(found)
    return str(value).strip()


def date_reader(form: str) -> Callable[[Any], datetime | None]:
    """A function that reads dates of one of `DATE_FORMATS`, in UTC where they name a time zone; `None` for others.

    Args:
        form: "iso", or a format of `datetime.strptime`; dates that are no text are read by any.
    """

    def read(value: Any) -> datetime | None:
        if isinstance(value, date):  # a datetime is one
            found = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
        elif isinstance(value, np.datetime64):
            return read(value.astype("datetime64[us]").item())
        elif isinstance(value, str):
            text = value.strip()
            try:
                found = _iso(text) if form == "iso" else datetime.strptime(text, form)
            except ValueError:
                return None
        else:
            return None
        return found.astimezone(timezone.utc).replace(tzinfo=None) if found.tzinfo else found

    return read


def _iso(text: str) -> datetime:
    if not (len(text) >= 10 and text[4] == text[7] == "-"):  # Python 3.11 would read "20240131" and weeks as well
        raise ValueError("not a date")
    return datetime.fromisoformat(text.replace("Z", "+00:00"))  # Python 3.10 does not know the Z


def date_format(values: Sequence[Any], share: float) -> str | None:
    """The format that reads most of the values, if it reads at least `share` of them; of equal ones the first.

    Args:
        values: At least one, none of them missing.
        share: In [0, 1].
    """
    best, most = None, max(1.0, share * len(values))
    for form in DATE_FORMATS:
        read = date_reader(form)
        if form != "iso" and read(values[0]) is None and read(values[-1]) is None and len(values) > 2:
            continue  # most formats read none of the values: not worth a look at all of them
        count = sum(read(value) is not None for value in values)
        if count >= most and (best is None or count > most):
            best, most = form, count
            if count == len(values):
                break
    return best
