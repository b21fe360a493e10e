"""Checkpoints: written whole or not at all, and read back without running anything that they might contain."""

from __future__ import annotations

import errno
import io
import json
import pickle
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ncsam._files import atomic_path
from ncsam.engine.errors import RunError

FORMAT = "ncsam checkpoint 1"
NAME = "last.ckpt"


def save_checkpoint(folder: Path, state: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Replace `folder/last.ckpt`, and `last.json` with a few words about it. On failure both stay as they were."""
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **state}, buffer)
    with writing(folder / NAME), atomic_path(folder / NAME) as temporary:
        temporary.write_bytes(buffer.getbuffer())
    with writing(folder / "last.json"), atomic_path(folder / "last.json") as temporary:
        temporary.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """What `save_checkpoint` wrote, on the CPU; `None` if there is none yet."""
    path = folder / NAME
    if not path.is_file():
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise RunError(f"{path} is not a checkpoint of this kind ({FORMAT!r})")
    return state


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write `path` into one sentence."""
    try:
        yield
    except OSError as error:
        full = " (the disk is full)" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise RunError(
            f"{path} could not be written: {error.strerror or error}{full}. "
            "The last good checkpoint is intact; once there is room, the same command goes on from it"
        ) from error


def random_state() -> dict[str, Any]:
    """The state of the global generators of torch (every device in use), numpy and Python, as plain values."""
    legacy: Any = np.random.get_state(legacy=True)  # noqa: NPY002 - others may use it
    kind, keys, position, has_gauss, cached = legacy
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": (str(kind), torch.from_numpy(keys.astype(np.int64)), int(position), int(has_gauss), float(cached)),
        "python": random.getstate(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Put back what `random_state` took."""
    torch.set_rng_state(state["torch"])
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    if "mps" in state and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"])
