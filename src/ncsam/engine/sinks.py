"""Where a training run reports to: the run folder, its metrics and checkpoints. The console is in `progress`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncsam.engine.checkpoint import fitting, load_checkpoint, save_checkpoint, to_stderr
from ncsam.engine.config import RunConfig
from ncsam.engine.loggers import Logger, open_loggers
from ncsam.runs.reader import refuse_another

if TYPE_CHECKING:
    from ncsam.engine.trainer import Trainer

_NOTES = ("version", "epoch", "batch", "labels_sha256", "data")  # of a checkpoint, in a file to read
_SHARE = 20  # a checkpoint after an epoch may take a twentieth of the time


class Sink:
    """Receives what happens during training; by default it does nothing.

    Sinks are called in the order in which `Trainer.fit` gets them. With several ranks, each rank calls its own.
    """

    def on_train_start(self, trainer: Trainer) -> None:
        """Before the first step; the trainer is where its checkpoint was."""

    def on_step_end(self, trainer: Trainer) -> None:
        """After every optimizer step."""

    def on_epoch_end(self, trainer: Trainer, record: Mapping[str, Any]) -> None:
        """After every epoch, with its metrics."""

    def on_message(self, text: str) -> None:
        """A sentence for the user."""

    def on_interrupt(self, trainer: Trainer) -> None:
        """Training stops after the current step."""

    def close(self) -> None:
        """Training is over, successfully or not."""


class FolderSink(Sink):
    """Starts the run folder after the first step, when the options are known to work, and checks that it still exists.

    Args:
        begin: Writes what a run folder has from the start.
        check: Raises `RunError` if the folder was removed or replaced.
        begun: The folder has been started already.
    """

    def __init__(self, begin: Callable[[], None], check: Callable[[], None], *, begun: bool = False) -> None:
        self.begin = begin
        self.check = check
        self.begun = begun

    def on_step_end(self, trainer: Trainer) -> None:
        if not self.begun:
            self.check()
            self.begin()
            self.begun = True

    def on_epoch_end(self, trainer: Trainer, record: Mapping[str, Any]) -> None:
        self.check()


class MetricsSink(Sink):
    """Writes `metrics.jsonl` and `metrics.csv`, and sends the same to the loggers of the configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loggers: list[Logger] = []

    def on_train_start(self, trainer: Trainer) -> None:
        config = trainer.config
        self.loggers = open_loggers(config.loggers, self.folder, config.to_dict(), trainer.history)

    def on_epoch_end(self, trainer: Trainer, record: Mapping[str, Any]) -> None:
        for logger in self.loggers:
            logger.log(record)

    def close(self) -> None:
        for logger in self.loggers:
            logger.close()


class CheckpointSink(Sink):
    """Writes checkpoints after epochs, and every `checkpoint_every` steps. All ranks need one.

    After epochs so short that writing would take more than a twentieth of the time, some are left out: what a kill
    loses is computed again to the same bits. Ranks would not agree on the time, so with several none is left out.

    Args:
        folder: The folder of the checkpoints.
        check: Raises `RunError` if the run folder was removed or replaced.
    """

    def __init__(self, folder: Path, check: Callable[[], None] = lambda: None) -> None:
        self.folder = folder
        self.check = check
        self._saved_at = self._save_seconds = 0.0

    def resume(self, trainer: Trainer) -> bool:
        """Put the trainer where the last checkpoint was taken, if there is one.

        Raises:
            RunError: The checkpoint is damaged or of another run.
        """
        say = to_stderr if trainer.fabric.is_global_zero else lambda text: None
        state = load_checkpoint(self.folder, say)
        if state is None:
            return False
        refuse_another(self.folder.parent, trainer.config, RunConfig.from_dict(state["config"]))
        with fitting(self.folder.parent):
            trainer.load_state_dict(state)
        return True

    def on_step_end(self, trainer: Trainer) -> None:
        every = trainer.config.checkpoint_every
        if every and trainer.steps_done % every == 0 and trainer.batch < trainer.steps_per_epoch:
            self.save(trainer)

    def on_epoch_end(self, trainer: Trainer, record: Mapping[str, Any]) -> None:
        always = trainer.config.checkpoint_every or trainer.fabric.world_size > 1 or trainer.is_finished
        if always or time.perf_counter() - self._saved_at >= _SHARE * self._save_seconds:
            self.save(trainer)

    def on_interrupt(self, trainer: Trainer) -> None:
        if trainer.fabric.world_size == 1:  # ranks stop at different steps: the last common one is on disk
            self.save(trainer)

    def save(self, trainer: Trainer) -> None:
        """Write a checkpoint. Every rank must call it."""
        began = time.perf_counter()
        state = trainer.state_dict()
        if trainer.fabric.is_global_zero:
            self.check()
            save_checkpoint(self.folder, state, {name: state[name] for name in _NOTES})
        self._saved_at = time.perf_counter()
        self._save_seconds = self._saved_at - began
