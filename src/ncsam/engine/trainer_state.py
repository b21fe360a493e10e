"""The state of a trainer: everything that decides how a run continues, generators included."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from ncsam._version import __version__
from ncsam.data.modalities import saved_modality
from ncsam.engine.states import refuse_other_method
from ncsam.errors import RunError
from ncsam.runs.reader import is_record

if TYPE_CHECKING:
    from ncsam.engine.trainer import Trainer

#: What the summary of a run needs of every epoch's record.
_SUMMARIZED = {"test_accuracy", "val_accuracy", "train_accuracy_observed", "memorized"}


def trainer_state(trainer: Trainer) -> dict[str, Any]:
    """Everything that decides how the run continues, and what using its model needs.

    Every rank must call it: each adds its generators and sums.
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
    """Seed the global generators of torch, numpy and Python."""
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
