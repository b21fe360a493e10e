"""Empty and badly encoded texts, and texts in a different language from the others."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ncsam.auditing.findings import CHECKS, Finding, finding, reached
from ncsam.auditing.samples import beyond_quartile

Floats = npt.NDArray[np.float64]
_LETTERS = re.compile(r"[^\W\d_]+")
_LEAST = 20  # letters of a text whose language is judged
_LEAST_TEXTS = 20
#: What UTF-8 looks like when it is read as Windows-1252: a lead byte, then continuation bytes.
_MISREAD = re.compile(
    r"[\u00c2-\u00f4][\u0080-\u00bf\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc\u2013-\u203a\u20ac\u2122]+"
)
_UNREADABLE = re.compile(r"[\ufffd\u0080-\u009f\x00-\x08\x0b\x0c\x0e-\x1f]")


def is_empty(text: str) -> bool:
    """Return whether a text has no letter, digit or symbol such as an emoji.

    Args:
        text: any text.
    """
    return not any(unicodedata.category(c)[0] in "LN" or unicodedata.category(c) == "So" for c in text)


def misread_share(text: str) -> float:
    r"""Return the share of characters that are replacements, controls, or UTF-8 read as Windows-1252 or Latin-1.

    Args:
        text: any text.

    Examples:
        >>> misread_share("d\u00c3\u00a9j\u00c3\u00a0"), misread_share("d\u00e9j\u00e0")
        (0.6666666666666666, 0.0)
    """
    if not text:
        return 0.0
    count = len(_UNREADABLE.findall(text))
    count += sum(len(found[0]) for found in _MISREAD.finditer(text) if _decodes(found[0]))
    return min(1.0, count / len(text))


def _decodes(part: str) -> bool:
    for encoding in ("cp1252", "latin-1"):
        try:
            part.encode(encoding).decode("utf-8")
        except UnicodeError:
            continue
        return True
    return False


def trigrams(text: str) -> Counter[str]:
    """Count the sequences of three letters, in lower case, with spaces around words.

    Args:
        text: any text.
    """
    joined = f" {' '.join(_LETTERS.findall(text.lower()))} "
    return Counter(joined[i : i + 3] for i in range(len(joined) - 2))


def language_bits(texts: Sequence[str]) -> Floats:
    r"""Return the bits per trigram of every text under the trigram frequencies of all other texts.

    With counts n of all texts and m of this one, V distinct trigrams and N, M totals, a trigram costs :math:`-\log_2 (n
    - m + 1/2) / (N - M + V / 2)`.

    Args:
        texts: all texts of the split.

    Returns:
        Bits (n,); NaN for texts with fewer than 20 trigrams.
    """
    counts = [trigrams(text) for text in texts]
    every: Counter[str] = Counter()
    for each in counts:
        every.update(each)
    total, kinds = sum(every.values()), len(every)
    bits = np.full(len(texts), np.nan)
    for i, each in enumerate(counts):
        own = sum(each.values())
        if own < _LEAST:
            continue
        shares = np.array([(every[t] - n + 0.5) / (total - own + kinds / 2) for t, n in each.items()])
        bits[i] = float(-(np.fromiter(each.values(), dtype=np.float64) * np.log2(shares)).sum() / own)
    return bits


def find_texts(texts: Sequence[str]) -> list[Finding]:
    """Find empty and badly encoded texts and texts in another language.

    Args:
        texts: texts of the training split, in order.

    Returns:
        Findings grouped by check, largest score first. Language is judged from 20 texts on.
    """
    found = []
    for i, text in enumerate(texts):
        scores = {
            "empty_text": (float(is_empty(text)), "no letter, digit or symbol"),
            "bad_encoding": (share := misread_share(text), f"{100 * share:.1f} % of the characters are misread"),
        }
        for check, (score, evidence) in scores.items():
            if score >= CHECKS[check].threshold:
                found.append(finding(check, score, split="train", index=i, evidence=evidence))
    bits = language_bits(texts)
    known = np.flatnonzero(np.isfinite(bits))
    if len(known) >= _LEAST_TEXTS:
        beyond = np.full(len(bits), -np.inf)
        beyond[known] = beyond_quartile(bits[known])
        for i in reached("other_language", beyond):
            said = f"{bits[i]:.1f} bits per trigram; the median is {np.median(bits[known]):.1f}"
            found.append(finding("other_language", beyond[i], split="train", index=i, evidence=said))
    return sorted(found, key=lambda each: (each.check, -each.score))
