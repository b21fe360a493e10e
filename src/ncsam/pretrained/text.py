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
    """The texts as a list.

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
    """Places of the texts, the longest first, in batches whose padded size is at most `most_tokens`.

    Sorted by length, texts of one batch need little padding; the longest come first so that a lack of memory shows at
    once. A batch holds at least one text and at most `most_rows`.

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
