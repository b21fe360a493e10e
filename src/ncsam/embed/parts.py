"""Vectors that take long to compute, kept part by part: after a kill only the part under way is lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._files import atomic_path

Floats = npt.NDArray[np.float32]


class Parts:
    """A folder beside the final file. Parts of another model or other data, by what `about` says, are thrown away."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.folder = folder
        note = folder / "about.json"
        wanted = json.loads(json.dumps(about))
        if folder.is_dir() and (not note.is_file() or json.loads(note.read_text(encoding="utf-8")) != wanted):
            shutil.rmtree(folder)
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
            if not path.is_file():
                pieces = []
                there = start
                for piece in compute(start, stop):
                    pieces.append(piece)
                    there += len(piece)
                    done(there)
                with atomic_path(path) as temporary, temporary.open("wb") as file:
                    np.save(file, np.concatenate(pieces).astype(np.float32))
            found.append(np.load(path, allow_pickle=False))
            done(stop)
        return np.concatenate(found)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
