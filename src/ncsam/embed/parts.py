"""Vectors that take long to compute, kept part by part: after a kill only the part under way is lost."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._files import atomic_path, read_array, read_json

Floats = npt.NDArray[np.float32]
_PART = re.compile(r"about\.json|.+-\d{8,}\.npy|\..+")


class Parts:
    """A folder beside the final file. Parts of another model or other data, by what `about` says, are thrown away."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.folder = folder
        note = folder / "about.json"
        wanted = json.loads(json.dumps(about))
        if _noted(note) != wanted:
            self.remove()
        with atomic_path(note) as temporary:
            temporary.write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")

    def rows(
        self,
        name: str,
        samples: int,
        part: int,
        compute: Callable[[int, int], Iterable[Floats]],
        done: Callable[[int], None],
    ) -> Floats:
        """All rows of a split: `compute(start, stop)` gives those that no part holds yet, in pieces.

        `part` is how many samples a part has; `done(n)` is told how many are there.
        """
        found: list[Floats] = []
        for start in range(0, samples, part):
            stop = min(samples, start + part)
            path = self.folder / f"{name}-{start:08d}.npy"
            if (kept := _kept(path, stop - start)) is None:
                pieces = []
                there = start
                for piece in compute(start, stop):
                    pieces.append(piece)
                    there += len(piece)
                    done(there)
                kept = np.concatenate(pieces).astype(np.float32)
                with atomic_path(path) as temporary, temporary.open("wb") as file:
                    np.save(file, kept)
            found.append(kept)
            done(stop)
        return np.concatenate(found)

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Remove the folder again if the block fails before a part of it is there."""
        try:
            yield
        except BaseException:
            if not any(self.folder.glob("*.npy")):
                self.remove()
            raise

    def remove(self) -> None:
        """Remove the folder, if nothing is in it but parts."""
        if not self.folder.is_dir() or self.folder.is_symlink():
            return
        for path in self.folder.iterdir():
            if _PART.fullmatch(path.name):
                path.unlink()
        with suppress(OSError):  # something of the user's own
            self.folder.rmdir()


def _noted(note: Path) -> dict[str, Any] | None:
    try:
        return read_json(note)
    except (OSError, ValueError):
        return None


def _kept(path: Path, rows: int) -> Floats | None:
    """A part that was written before, if it is whole."""
    with suppress(OSError, ValueError):
        part = read_array(path)
        if part.dtype == np.float32 and part.ndim == 2 and len(part) == rows:
            return part.astype(np.float32, copy=False)
    return None
