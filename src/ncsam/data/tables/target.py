"""Whether a column can be the label of a classification: neither measurements nor names of single rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from ncsam._text import shortened
from ncsam.data.types import is_missing

#: Fewer rows than this may all differ.
_FEW_ROWS = 20
#: More fractions than this are measurements; fewer may be grades in steps of a half.
_MOST_FRACTIONS = 20


def check_target(values: Sequence[Any], column: str, where: str) -> None:
    """Refuse numbers to predict (a regression target) and identifiers in the place of labels.

    Args:
        values: The labels as the table has them.
        column: Name of the column.
        where: What error messages call the table.

    Raises:
        ValueError: The column holds more than 20 different fractions, or a value of its own in most rows.
    """
    if len(values) < _FEW_ROWS:
        return
    words = np.array([str(value).strip() for value in values if not is_missing(value)], dtype=np.str_)
    different = np.unique(words)
    numbers = _numbers(different)
    fractions = numbers is not None and bool((numbers != np.round(numbers)).any())
    if len(different) <= (_MOST_FRACTIONS if fractions else len(words) / 2):
        return
    what, expected = (
        ("texts", "expected classes, with several samples each")
        if numbers is None
        else ("numbers", "ncsam classifies and has no regression; pandas.cut, for example, turns numbers into classes")
    )
    raise ValueError(
        f"{where}: the label column {column!r} has {len(different):,} different {what} in {len(values):,} rows, "
        f"such as {shortened(str(words[0]), 40)!r}: {expected}. Another column is chosen by label_column=NAME"
    )


def _numbers(words: np.ndarray[Any, np.dtype[np.str_]]) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """The numbers that texts spell, or `None` if one of them is no number."""
    try:
        return words.astype(np.float64)
    except ValueError:
        return None


def alike(classes: Sequence[str]) -> list[str]:
    """Names of classes that differ from another one only in upper and lower case.

    Args:
        classes: Their names.

    Examples:
        >>> alike(["Cat", "cat", "dog"])
        ['Cat', 'cat']
    """
    count = Counter(name.casefold() for name in classes)
    return [name for name in classes if count[name.casefold()] > 1]
