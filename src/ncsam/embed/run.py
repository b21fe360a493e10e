"""A dataset turned into vectors by a pretrained network, once, in a file that trains like any other."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value
from ncsam._files import atomic_path
from ncsam.data.loading.loader import Loader
from ncsam.data.types import DataSet, Split
from ncsam.embed.encoder import Encoder
from ncsam.embed.parts import Floats, Parts

_PART = 16  # batches in a part
_SPEAK = 10.0  # seconds between two lines of progress


def embed(
    dataset: DataSet,
    encoder: Encoder,
    out: str | os.PathLike[str],
    *,
    batch_size: int = 64,
    workers: int = 0,
    say: Callable[[str], None] = print,
) -> Path:
    """Write the features of every split, with labels, class names and the names of the files, to the `.npz` `out`.

    What is computed is kept in `OUT.parts/` on the way, so that the same call goes on after a kill.
    """
    if dataset.size is None:
        raise bad_value("data", dataset.name, "images")
    splits = {name: split for name, split in dataset.splits.items() if name not in dataset.extra}

    def rows(name: str, parts: Parts, done: Callable[[int], None]) -> Floats:
        split = splits[name]

        def compute(start: int, stop: int) -> Iterator[Floats]:
            loader = image_loader(split, encoder, batch_size, workers, np.arange(start, stop))
            for batch in loader.iterate(0):
                yield encoder(batch.views[0]).cpu().numpy()

        return parts.rows(name, len(split), _PART * batch_size, compute, done)

    about = {
        "encoder": encoder.fingerprint(),
        "splits": {name: fingerprint(split) for name, split in splits.items()},
        "batch_size": batch_size,
    }
    return write_features(dataset, Path(out), about, rows, say)


def image_loader(split: Split, encoder: Encoder, batch_size: int, workers: int, subset: Any = None) -> Loader:
    """A split's images as the encoder wants them, in order."""
    files = not split.in_memory
    return Loader(
        split,
        batch_size,
        mean=encoder.mean,
        std=encoder.std,
        size=encoder.size if files else None,
        resize=round(max(encoder.size) * 8 / 7) if files and min(encoder.size) >= 128 else None,
        workers=workers,
        subset=subset,
        device=encoder.device,
    ).evaluation(batch_size)


def write_features(
    dataset: DataSet,
    out: Path,
    about: dict[str, Any],
    rows: Callable[[str, Parts, Callable[[int], None]], Floats],
    say: Callable[[str], None],
) -> Path:
    """The `.npz` that `ncsam.data.from_npz` reads; `rows(split, parts, done)` computes or finds a split's vectors."""
    if out.suffix != ".npz":
        raise bad_value("out", str(out), "a file that ends in .npz")
    parts = Parts(out.with_name(out.name + ".parts"), about)
    arrays: dict[str, npt.NDArray[Any]] = {"classes": np.array(dataset.classes)}
    for name, split in dataset.splits.items():
        if name in dataset.extra:
            continue
        suffix = "" if name == "train" else f"_{name}"
        with parts.begun():
            arrays[f"x{suffix}"] = rows(name, parts, _Progress(name, len(split), say))
        arrays[f"y{suffix}"] = split.labels
        if split.clean is not None and name != "val":
            arrays[f"y{suffix}_clean"] = split.clean
        if split.has_paths:
            arrays[f"paths{suffix}"] = np.array([split.path(i) for i in range(len(split))])
    with atomic_path(out) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    parts.remove()
    say(f"{out}: {len(dataset.train):,} training samples, {arrays['x'].shape[1]:,} features")
    return out


class _Progress:
    """A line now and then: how many samples are done, how fast, how long it will still take."""

    def __init__(self, name: str, samples: int, say: Callable[[str], None]) -> None:
        self.name, self.samples, self.say = name, samples, say
        self.began = self.spoke = time.monotonic()
        self.first: int | None = None

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if self.first is None:
            self.first = done
        if now - self.spoke < _SPEAK or done == self.first:
            return
        self.spoke = now
        speed = (done - self.first) / (now - self.began)
        left = (self.samples - done) / speed
        self.say(f"{self.name}: {done:,} of {self.samples:,} samples, {speed:.0f} a second, {left / 60:.1f} min left")


def fingerprint(split: Split) -> str:
    """SHA-256 of which samples a split has: the pixels of images in memory; of files, name, size and time."""
    digest = hashlib.sha256()
    if isinstance(split.inputs, np.ndarray):
        digest.update(np.ascontiguousarray(split.inputs).tobytes())
        return digest.hexdigest()
    for i in range(len(split)):
        path = split.path(i)
        if path is None:
            digest.update(np.ascontiguousarray(split.inputs[i]).tobytes())
        else:
            status = os.stat(path)
            digest.update(repr((path, status.st_size, status.st_mtime_ns)).encode())
    return digest.hexdigest()
