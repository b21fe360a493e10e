"""What text encoders share: the protocol, checks of the input, and batches of similar length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value

Floats = npt.NDArray[np.float32]


class TextEncoder(Protocol):
    """Anything that turns texts into embeddings; `fingerprint` differs between encoders with different outputs."""

    num_features: int

    def __call__(self, texts: Sequence[str]) -> Floats:
        """Embeddings (N, num_features) of N texts, in their order."""

    def fingerprint(self) -> str: ...


def checked(texts: Sequence[str]) -> list[str]:
    """Check that the input is a sequence of texts, and return it as a list.

    Args:
        texts: A sequence of strings, not one string.

    Raises:
        ValueError: `texts` is one string, or an element is not a string.
    """
    if isinstance(texts, str):
        raise bad_value("texts", texts, "a sequence of texts, not one")
    found = list(texts)
    for place, text in enumerate(found):
        if not isinstance(text, str):
            raise bad_value(f"texts[{place}]", text, "a text")
    return found


def batches_by_length(lengths: Sequence[int], most_tokens: int, most_rows: int = 256) -> list[npt.NDArray[np.int64]]:
    """Group texts of similar length into batches whose padded size is at most `most_tokens`.

    Texts are sorted by length, so a batch needs little padding. The longest come first, so that a lack of memory shows
    at once.

    Args:
        lengths: Number of tokens of each text.
        most_tokens: Largest padded size of a batch, in tokens; a single longer text forms its own batch.
        most_rows: Largest number of texts in a batch.

    Returns:
        The positions of the texts in each batch.

    Examples:
        >>> [batch.tolist() for batch in batches_by_length([2, 9, 3, 8], most_tokens=18)]
        [[1, 3], [2, 0]]
    """
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    batches = []
    start = 0
    while start < len(order):
        rows = min(most_rows, max(1, most_tokens // max(1, lengths[order[start]])))
        batches.append(order[start : start + rows])
        start += rows
    return batches
