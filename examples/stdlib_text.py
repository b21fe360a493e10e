"""Real text that every Python brings: sentences of the standard library's own docstrings, by package."""

from __future__ import annotations

import importlib
import inspect
import re
import zlib
from collections.abc import Iterator

import numpy as np

PACKAGES = ("argparse", "datetime", "decimal", "email", "logging", "unittest")
MODULES = {"email": ("email.message", "email.policy"), "unittest": ("unittest", "unittest.mock")}
VOCABULARY, LENGTH = 2048, 24


def sentences() -> tuple[list[str], np.ndarray]:
    """Sentences of at least six words, each once, and the number of the package they come from."""
    found: dict[str, int] = {}
    for number, package in enumerate(PACKAGES):
        for name in MODULES.get(package, (package,)):
            for text in docstrings(name):
                for sentence in re.split(r"(?<=[.!?])\s", text):
                    if len(sentence.split()) >= 6:
                        found.setdefault(sentence, number)
    return list(found), np.array(list(found.values()))


def docstrings(module: str) -> Iterator[str]:
    """Those of a module's classes, their methods, and its functions."""
    for _, part in inspect.getmembers(importlib.import_module(module)):
        if inspect.isclass(part):
            yield from (_words(member) for _, member in inspect.getmembers(part, inspect.isroutine))
        if inspect.isclass(part) or inspect.isroutine(part):
            yield _words(part)


def _words(part: object) -> str:
    return " ".join((inspect.getdoc(part) or "").split())


def tokens(texts: list[str]) -> np.ndarray:
    """Words as numbers from 2 by a checksum, 0 for padding; the package's own name would give it away, and is 1."""
    rows = np.zeros((len(texts), LENGTH), dtype=np.int64)
    for row, text in zip(rows, texts, strict=True):
        words = re.findall(r"\w+", text.lower())[:LENGTH]
        row[: len(words)] = [1 if w in PACKAGES else 2 + zlib.crc32(w.encode()) % (VOCABULARY - 2) for w in words]
    return rows
