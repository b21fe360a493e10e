"""Checkpoints: written completely or not at all, verified, and read without running any code in them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from ncsam._files import atomic_path
from ncsam._text import printable_lines
from ncsam._version import __version__
from ncsam.data.modalities import saved_modality
from ncsam.engine.learner import is_plain, refuse_other_method
from ncsam.errors import RunError
from ncsam.runs import layout
from ncsam.runs.reader import is_record
from ncsam.runs.writer import writing

if TYPE_CHECKING:
    from ncsam.engine.trainer import Trainer

#: What the summary of a run needs of every epoch's record.
_SUMMARIZED = {"test_accuracy", "val_accuracy", "train_accuracy_observed", "memorized"}


def trainer_state(trainer: Trainer) -> dict[str, Any]:
    """Everything that decides how the run continues, and what using its model needs.

    Every rank must call it: each adds its generators and sums.

    Args:
        trainer: A trainer between two steps.

    Raises:
        DivergedError: If a weight is not finite.
    """
    trainer.check_weights()
    trainer.samples.synchronize()
    learners = [learner.state_dict() for learner in trainer.learners]
    own = {"random": random_state(), "sums": trainer.sums.state_dict()}
    ranks: list[Any] = [own]
    if trainer.fabric.world_size > 1:
        ranks = [None] * trainer.fabric.world_size
        dist.all_gather_object(ranks, own)
    dataset = trainer.task.original
    return {
        "version": __version__,
        "epoch": trainer.epoch,
        "batch": trainer.batch,
        "labels_sha256": trainer.task.labels_sha256,
        "data": {
            "name": dataset.name,
            "classes": list(dataset.classes),
            **saved_modality(trainer.task.original_modality),
        },
        "config": trainer.config.to_dict(),
        "learners": learners,
        "method": trainer.method.state_dict(),
        "samples": trainer.samples.state_dict(),
        "precision": trainer.fabric.strategy.precision.state_dict(),
        "ranks": ranks,
        "history": trainer.history,
        **trainer.control.state_dict(),
        "early_stopping": trainer.stopping.state_dict(),
        "seconds": trainer.seconds,
    }


def restore_trainer(trainer: Trainer, state: Mapping[str, Any]) -> None:
    """Continue from what `trainer_state` returned.

    Args:
        trainer: A new trainer of the same configuration; it is changed in place.
        state: A checkpoint as `load_checkpoint` returns it.

    Raises:
        RunError: The labels or the number of processes have changed, or the state is not one of this run.
    """
    then, now = state["labels_sha256"], trainer.task.labels_sha256
    if then != now:
        raise RunError(
            f"the training labels have changed since the run started (SHA-256 {then[:12]} then, {now[:12]} now): "
            "restore the old ones or choose another folder"
        )
    processes = trainer.fabric.world_size
    if len(state["ranks"]) != processes:
        raise RunError(f"the run was started by {len(state['ranks'])} processes and cannot be resumed by {processes}")
    epoch, batch, epochs, batches = state["epoch"], state["batch"], trainer.config.epochs, trainer.steps_per_epoch
    if not (0 <= epoch <= epochs and 0 <= batch < batches and epoch * batches + batch <= epochs * batches):
        raise RunError(f"the checkpoint is at epoch {epoch}, batch {batch}, which this run does not have")
    history = state["history"]
    if len(history) != epoch or not all(_is_record(row) for row in history):
        raise RunError(f"the checkpoint of epoch {epoch} has records of {len(history)} epochs, or invalid ones")
    for learner, saved in zip(trainer.learners, state["learners"], strict=True):
        learner.load_state_dict(saved)
    if type(trainer.method).__module__.startswith("ncsam."):  # what your own method keeps is its affair
        refuse_other_method(trainer.method.state_dict(), state["method"])
    trainer.method.load_state_dict(state["method"])
    trainer.samples.load_state_dict(state["samples"])
    trainer.fabric.strategy.precision.load_state_dict(state["precision"])
    trainer.epoch, trainer.batch = epoch, batch
    trainer.history, trainer.seconds = history, state["seconds"]
    trainer.control.load_state_dict(state)
    trainer.stopping.load_state_dict(state["early_stopping"])
    own = state["ranks"][trainer.fabric.global_rank]
    trainer.sums.load_state_dict(own["sums"])
    restore_random_state(own["random"])


def _is_record(row: Any) -> bool:
    """Whether a record of an epoch has what the summary needs, in the right types."""
    return isinstance(row, dict) and row.keys() >= _SUMMARIZED and is_record(row)


def seed_all(seed: int) -> None:
    """Seed the global generators of torch, numpy and Python.

    Args:
        seed: A whole number from 0; numpy takes it modulo 2^32.
    """
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - code we call may use it
    random.seed(seed)


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
    """Put back what `random_state` took.

    Args:
        state: The states by generator; those of devices that this machine lacks are ignored.
    """
    torch.set_rng_state(state["torch"])
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    if "mps" in state and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"])


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Leave the global generators as they were, whatever is drawn inside."""
    before = random_state()
    try:
        yield
    finally:
        restore_random_state(before)


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

    Args:
        folder: The folder of the checkpoints; it is made if the run folder exists.
        state: Tensors and plain values, as `trainer_state` returns them.
        about: Plain values for `last.json`.

    Raises:
        RunError: The disk is full or the folder cannot be written.
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
    """Print what matters even if a run is quiet.

    Args:
        sentence: The text; control characters are not printed as they are.
    """
    print(printable_lines(sentence), file=sys.stderr, flush=True)


def load_checkpoint(folder: Path, say: Callable[[str], None] = to_stderr) -> dict[str, Any] | None:
    """What `save_checkpoint` wrote, on the CPU; `None` if there is none yet.

    Its checksum is verified first. If the last checkpoint is damaged, the one before is used, and `say` gets a message.

    Args:
        folder: The folder of the checkpoints.
        say: Gets a sentence if the last checkpoint is damaged; standard error by default.

    Raises:
        RunError: There are checkpoints, and all of them are damaged.
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
    """Turn errors of loading the parts of a checkpoint into a `RunError`.

    Args:
        folder: The run folder, for the message.

    Raises:
        RunError: In place of what the block raised.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, RunError):
            raise
        raise RunError(
            f"the checkpoint of {folder} does not match this model, method or optimizer: it is of another version, or "
            "was not written by a run"
        ) from error
