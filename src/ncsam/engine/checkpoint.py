"""Checkpoints: written completely or not at all, verified, and read without running any code in them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ncsam._files import atomic_path
from ncsam._text import printable_lines
from ncsam.engine.states import is_plain
from ncsam.errors import RunError
from ncsam.runs import layout
from ncsam.runs.writer import writing

FORMAT = "ncsam checkpoint 2"
NAME, BEFORE = layout.LAST, layout.PREVIOUS
#: The comment that ends the file, which is a zip archive: a mark, and the SHA-256 of everything before it.
_MARK = FORMAT.encode() + b" sha256 "
_COMMENT = len(_MARK) + 64
#: The parts that every checkpoint has, with their types.
_PARTS: dict[str, type | tuple[type, ...]] = {
    "epoch": int,
    "batch": int,
    "labels_sha256": str,
    "data": dict,
    "config": dict,
    "learners": list,
    "method": dict,
    "samples": dict,
    "ranks": list,
    "history": list,
    "seconds": (int, float),
}


def save_checkpoint(folder: Path, state: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Replace `folder/last.ckpt`, and `last.json` with a few words about it. On failure both stay as they were.

    The checkpoint before is kept as `previous.ckpt`.
    """
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **state}, buffer)
    _seal(buffer)
    path = folder / NAME
    with writing(path):
        folder.mkdir(exist_ok=True)  # not what is above it: a run folder that was removed is not made again
        with atomic_path(path, make_folder=False) as temporary:
            temporary.write_bytes(buffer.getbuffer())
            _keep(path, folder / BEFORE)
        _note_sound(path)
    notes = folder / layout.LAST_NOTES
    with writing(notes), atomic_path(notes, make_folder=False) as temporary:
        temporary.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def to_stderr(sentence: str) -> None:
    """Print what matters even if a run is quiet."""
    print(printable_lines(sentence), file=sys.stderr, flush=True)


def load_checkpoint(folder: Path, say: Callable[[str], None] = to_stderr) -> dict[str, Any] | None:
    """What `save_checkpoint` wrote, on the CPU; `None` if there is none yet.

    Its checksum is verified first. If the last checkpoint is damaged, the one before is used, and `say` gets a message.
    """
    problems = []
    for path in (folder / NAME, folder / BEFORE):
        if not path.exists():
            continue
        try:
            state = _read(path)
        except RunError as error:
            problems.append(str(error))
            continue
        if problems:
            say(f"{problems[0]}; the one before it, of epoch {state['epoch']}, is used instead")
        return state
    if problems:
        raise RunError(f"{'; '.join(problems)}. There is no other: remove {folder} to start again")
    return None


def _read(path: Path) -> dict[str, Any]:
    """A sound checkpoint; its content is unpickled only if the checksum fits, and then as tensors and plain values."""
    if not path.is_file():
        raise RunError(f"{path} is not a regular file")
    try:
        comment, expected = _seal_of(path)
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}") from error
    if not comment.startswith(_MARK):
        raise RunError(f"{path} is not a complete checkpoint of this version: it does not end with its checksum")
    if comment != expected:
        raise RunError(f"{path} is damaged: its checksum does not match its content")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a forged archive makes torch raise; torch's advice does not apply to it
        raise RunError(
            f"{path} cannot be read: it contains more than tensors and plain values, or is no archive"
        ) from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise RunError(f"{path} is not a checkpoint of this kind ({FORMAT!r})")
    for part, kind in _PARTS.items():
        if not isinstance(state.get(part), kind):
            raise RunError(f"{path} is not a checkpoint of a run: its part {part!r} is missing or of a wrong type")
    if not all(map(is_plain, (state["config"], state["data"], state["history"]))):
        raise RunError(f"{path} is not a checkpoint of a run: its options and records contain tensors")
    _note_sound(path)
    return state


def _seal(archive: io.BytesIO) -> None:
    """Give an archive its checksum as its comment, whose length is in the two bytes before it."""
    comment = _MARK + hashlib.sha256(archive.getbuffer()).hexdigest().encode()
    archive.seek(-2, io.SEEK_END)
    archive.write(struct.pack("<H", len(comment)) + comment)


def _seal_of(path: Path) -> tuple[bytes, bytes]:
    """The comment that a file ends with, and the one that fits its content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        left = max(0, os.fstat(file.fileno()).st_size - _COMMENT - 2)
        while left and (block := file.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
        comment = file.read()[2:]
    digest.update(b"\0\0")  # no comment: the archive as torch wrote it
    return comment, _MARK + digest.hexdigest().encode()


_sound: dict[Path, tuple[int, int, int]] = {}  # files that this process wrote or verified


def _note_sound(path: Path) -> None:
    _sound[path.absolute()] = _identity(path)


def _identity(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _keep(path: Path, before: Path) -> None:
    """Make a sound checkpoint the one before; a damaged one must not take the place of a good one."""
    if not path.is_file():
        return
    if _sound.get(path.absolute()) != _identity(path):
        try:
            _read(path)
        except RunError:
            return
    before.unlink(missing_ok=True)
    try:
        os.link(path, before)  # so that there is a last one at every moment
    except OSError:  # a file system without links
        path.replace(before)


@contextmanager
def mismatch_as_run_error(folder: Path) -> Iterator[None]:
    """Turn errors of loading the parts of a checkpoint into a `RunError`."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, RunError):
            raise
        raise RunError(
            f"the checkpoint of {folder} does not match this model, method or optimizer: it is of another version, or "
            "was not written by a run"
        ) from error
