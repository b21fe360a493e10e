"""Disks that are full, broken or read-only, and limits of the system: a sentence, and the run goes on later."""

from __future__ import annotations

import builtins
import errno
import io
import os
import random
import resource
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ncsam.auto import auto
from ncsam.embed import embed, picture_encoder
from ncsam.engine import RunConfig, RunError, train
from torture.small import difference, small_config, small_data
from torture.tally import Tally

_ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT, errno.EACCES, errno.EMFILE)


def run(tally: Tally, trials: int | None = None) -> None:
    chance = random.Random(tally.seed)
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        for work in WORKS:
            work(top / f"whole {work.__name__}")
        number = 0
        while tally.time_left if trials is None else number < trials:
            work = chance.choice([train_it, train_it, race_it, embed_it])
            kind = chance.choice(["operation", "operation", "operation", "size", "files"])
            if kind == "operation":
                place, code = chance.randrange(150), chance.choice(_ERRORS)
                what, fault = f"file operation {place} fails with {errno.errorcode[code]}", failing(top, place, code)
            elif kind == "size":
                size = chance.randrange(1, 40_000)
                what, fault = f"files end at {size} bytes", limited(resource.RLIMIT_FSIZE, size)
            else:
                more = chance.randrange(0, 12)
                what, fault = f"{more} more files may be open", limited(resource.RLIMIT_NOFILE, _open_files() + more)
            tally.held(*trial(top, work, top / str(number), what, fault))
            number += 1
    for folder in ("/proc/x", "/dev/null", "/dev/null/x"):
        tally.held(*refused(Path(folder)))


def train_it(out: Path) -> Callable[[Path], str | None]:
    """Each of these works writes `out`, and returns what tells the difference to another one's."""
    train(small_config(method="mixup"), out, dataset=small_data(), console=False)
    return lambda other: difference(other, out)


def race_it(out: Path) -> Callable[[Path], str | None]:
    config = RunConfig(data="small", val_share=0.0)
    auto(config, out, folds=2, budget=1e-9, dataset=small_data(), say=lambda text: None)
    return lambda other: _different_files(out, other, "oof_probs.npy", "suspects.csv")


def embed_it(out: Path) -> Callable[[Path], str | None]:
    torch.manual_seed(0)
    encoder = picture_encoder("cnn_small", pretrained=False, size=(6, 6))
    embed(small_data(pictures=True), encoder, out / "features.npz", batch_size=4, say=lambda text: None)
    return lambda other: _different_arrays(out / "features.npz", other / "features.npz")


WORKS: tuple[Any, ...] = (train_it, race_it, embed_it)


def _different_files(one: Path, other: Path, *names: str) -> str | None:
    return next((name for name in names if (one / name).read_bytes() != (other / name).read_bytes()), None)


def _different_arrays(one: Path, other: Path) -> str | None:
    with np.load(one) as first, np.load(other) as second:
        return next((name for name in first.files if not np.array_equal(first[name], second[name])), None)


def trial(top: Path, work: Any, out: Path, what: str, fault: Any) -> tuple[bool, str]:
    """What is done under a fault ends in a sentence or at its end; without the fault it ends with the same bits."""
    what = f"{work.__name__}, {what}"
    try:
        with fault:
            work(out)
    except RunError:
        pass
    except OSError as error:
        if not error.strerror:
            return False, f"faults, {what}: {error!r}"
    except BaseException as error:
        return False, f"faults, {what}: {error!r}"
    try:
        found = work(out)(top / f"whole {work.__name__}")
    except BaseException as error:
        return False, f"faults, {what}, then without it: {error!r}"
    return found is None, f"faults, {what}: {found} differs"


def refused(folder: Path) -> tuple[bool, str]:
    try:
        train_it(folder)
    except RunError:
        return True, ""
    except BaseException as error:
        return False, f"faults, run folder {folder}: {error!r}"
    return False, f"faults, run folder {folder}: it was not refused"


@contextmanager
def failing(top: Path, place: int, code: int) -> Iterator[None]:
    """The `place`-th opening for writing, writing, flushing to disk or renaming below `top` fails, and all later ones.

    That is how a disk is: once full, it stays full.
    """
    count = [0]

    def tick() -> None:
        count[0] += 1
        if count[0] > place:
            raise OSError(code, os.strerror(code))

    def counting(function: Callable[..., Any], concerns: Callable[..., bool]) -> Callable[..., Any]:
        def called(*args: Any, **options: Any) -> Any:
            if concerns(*args, **options):
                tick()
            return function(*args, **options)

        return called

    def writes(path: Any, mode: str = "r", *_: Any, **__: Any) -> bool:
        return str(path).startswith(str(top)) and any(letter in mode for letter in "wax+")

    def below(path: Any, *_: Any, **__: Any) -> bool:
        return str(path).startswith(str(top))

    patched: list[tuple[Any, str, Any]] = [
        (builtins, "open", counting(builtins.open, writes)),
        (io, "open", counting(io.open, writes)),
        (os, "fsync", counting(os.fsync, lambda *_: True)),
        (os, "replace", counting(os.replace, below)),
        (os, "link", counting(os.link, below)),
        (os, "mkdir", counting(os.mkdir, below)),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in patched]
    for module, name, function in patched:
        setattr(module, name, function)
    try:
        yield
    finally:
        for module, name, function in before:
            setattr(module, name, function)


@contextmanager
def limited(what: int, value: int) -> Iterator[None]:
    """A limit of the system on this process."""
    soft, hard = resource.getrlimit(what)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(what, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(what, (soft, hard))
        with suppress(TypeError):
            signal.signal(signal.SIGXFSZ, handler)


def _open_files() -> int:
    return max(map(int, os.listdir("/proc/self/fd")))
