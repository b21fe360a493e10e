"""What a checkpoint holds: everything that decides how a run goes on, and what is needed to use its network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from ncsam._version import __version__
from ncsam.data.modalities import saved_modality
from ncsam.engine.checkpoint import fitting, random_state, restore_random_state
from ncsam.engine.config import RunConfig
from ncsam.errors import RunError
from ncsam.runs.reader import is_record, refuse_another

if TYPE_CHECKING:
    from ncsam.engine.trainer import Trainer

#: What the end of a run asks of the record of every epoch.
_SUMMARIZED = {"test_accuracy", "val_accuracy", "train_accuracy_observed", "memorized"}


def take_snapshot(trainer: Trainer) -> tuple[dict[str, Any], dict[str, Any]]:
    """The whole state, and a few words about it. Every rank must call it: each adds its generators and sums."""
    learners = [learner.state_dict() for learner in trainer.learners]
    own = {"random": random_state(), "sums": trainer.sums.state_dict()}
    ranks: list[Any] = [own]
    if trainer.fabric.world_size > 1:
        ranks = [None] * trainer.fabric.world_size
        dist.all_gather_object(ranks, own)
    dataset = trainer.task.original
    about = {
        "version": __version__,
        "epoch": trainer.epoch,
        "batch": trainer.batch,
        "labels_sha256": trainer.task.labels_sha256,
        "data": {
            "name": dataset.name,
            "classes": list(dataset.classes),
            **saved_modality(trainer.task.original_modality),
        },
    }
    state = {
        **about,
        "config": trainer.config.to_dict(),
        "learners": learners,
        "method": trainer.method.state_dict(),
        "samples": trainer.samples.state_dict(),
        "precision": trainer.fabric.strategy.precision.state_dict(),
        "ranks": ranks,
        "history": trainer.history,
        **trainer.settling.state_dict(),
        "seconds": trainer.seconds,
    }
    return state, about


def restore_snapshot(trainer: Trainer, state: Mapping[str, Any]) -> None:
    """Put a trainer where the snapshot was taken.

    `RunError` if options, labels or the number of processes have changed, or the snapshot is not one of this run.
    """
    refuse_another(trainer.folder, trainer.config, RunConfig.from_dict(state["config"]))
    then, now = state["labels_sha256"], trainer.task.labels_sha256
    if then != now:
        raise RunError(
            f"the training labels have changed since {trainer.folder} was begun (SHA-256 {then[:12]} then, {now[:12]} "
            "now): put the old ones back, or choose another folder"
        )
    processes = trainer.fabric.world_size
    if len(state["ranks"]) != processes:
        raise RunError(f"{trainer.folder} was begun by {len(state['ranks'])} processes, and {processes} cannot go on")
    epoch, batch, epochs, batches = state["epoch"], state["batch"], trainer.config.epochs, trainer.steps_per_epoch
    if not (0 <= epoch <= epochs and 0 <= batch < batches and epoch * batches + batch <= epochs * batches):
        raise RunError(f"the checkpoint of {trainer.folder} stands at epoch {epoch}, batch {batch}, which it cannot")
    if len(state["history"]) != epoch:
        raise RunError(f"the checkpoint of {trainer.folder} has {len(state['history'])} epochs behind it, not {epoch}")
    if not all(is_record(row) and row.keys() >= _SUMMARIZED for row in state["history"]):
        raise RunError(f"the checkpoint of {trainer.folder} has records of epochs that no run writes")
    with fitting(trainer.folder):
        _restore(trainer, state)


def _restore(trainer: Trainer, state: Mapping[str, Any]) -> None:
    for learner, saved in zip(trainer.learners, state["learners"], strict=True):
        learner.load_state_dict(saved)
    trainer.method.load_state_dict(state["method"])
    trainer.samples.load_state_dict(state["samples"])
    trainer.fabric.strategy.precision.load_state_dict(state["precision"])
    trainer.epoch, trainer.batch = state["epoch"], state["batch"]
    trainer.history, trainer.seconds = state["history"], state["seconds"]
    trainer.settling.load_state_dict(state)
    own = state["ranks"][trainer.fabric.global_rank]
    trainer.sums.load_state_dict(own["sums"])
    restore_random_state(own["random"])
