"""Where a training run reports to: the run folder, its metrics and checkpoints, and the console with its Ctrl-C."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from ncsam._text import printable_lines
from ncsam.engine.checkpoint import (
    load_checkpoint,
    mismatch_as_run_error,
    restore_trainer,
    save_checkpoint,
    to_stderr,
    trainer_state,
)
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
        """Before the first step; the trainer is where its checkpoint was.

        Args:
            trainer: The trainer that calls.
        """

    def on_step_end(self, trainer: Trainer) -> None:
        """After every optimizer step.

        Args:
            trainer: The trainer that calls; `epoch` and `batch` count what is finished.
        """

    def on_epoch_end(self, trainer: Trainer, record: Mapping[str, Any]) -> None:
        """After every epoch, with its metrics.

        Args:
            trainer: The trainer that calls.
            record: The metrics of the epoch by name, the last of `trainer.history`.
        """

    def on_message(self, text: str) -> None:
        """A sentence for the user.

        Args:
            text: The sentence.
        """

    def on_interrupt(self, trainer: Trainer) -> None:
        """Training stops after the current step.

        Args:
            trainer: The trainer that calls.
        """

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
    """Writes `metrics.jsonl` and `metrics.csv`, and sends the same to the loggers of the configuration.

    Args:
        folder: The run folder.
    """

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

        Args:
            trainer: A new trainer, which is changed in place.

        Returns:
            Whether there was a checkpoint.

        Raises:
            RunError: The checkpoint is damaged or of another run.
        """
        say = to_stderr if trainer.fabric.is_global_zero else lambda text: None
        state = load_checkpoint(self.folder, say)
        if state is None:
            return False
        refuse_another(self.folder.parent, trainer.config, RunConfig.from_dict(state["config"]))
        with mismatch_as_run_error(self.folder.parent):
            restore_trainer(trainer, state)
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
        """Write a checkpoint. Every rank must call it.

        Args:
            trainer: The trainer whose state is written, by the first rank alone.
        """
        began = time.perf_counter()
        state = trainer_state(trainer)
        if trainer.fabric.is_global_zero:
            self.check()
            save_checkpoint(self.folder, state, {name: state[name] for name in _NOTES})
        self._saved_at = time.perf_counter()
        self._save_seconds = self._saved_at - began


_REDRAW = 0.1  # seconds
_FIRST_LINE, _MOST_PATIENCE = 10.0, 60.0  # seconds between lines in a pipe: from, doubling, to
_MEASURED = 2.0  # seconds of steps after the first, from which the remaining time is estimated
_LONG_ENOUGH = 60.0  # seconds of training that deserve an estimate
_LONG = 3600.0
#: What shortens a run on a CPU, by the kind of data.
_SHORTER = {
    "images": "embeddings of a pretrained model take minutes (model timm:NAME, pretrained true, freeze backbone; or "
    "`ncsam embed` and `ncsam auto`). Otherwise a smaller model (resnet8 or cnn9, see ncsam.models.names()), smaller "
    "images (data_options size=[32,32]), or fewer epochs",
    "": "a smaller model (see ncsam.models.names()), or fewer epochs",
}


class ConsoleSink(Sink):
    """Lines on standard output; on a terminal with `rich`, a bar for the running epoch below them.

    After some steps it says how long training will take, and how to shorten hours. In a pipe, a long epoch prints a
    line from time to time.

    Args:
        enabled: Print at all.
        epochs: Epochs of the run.
        batches: Batches per epoch.
        device: Name of the device.
        data: Name of the modality.
    """

    def __init__(self, enabled: bool, epochs: int, batches: int, device: str = "cpu", data: str = "") -> None:
        self.enabled = enabled
        self.epochs = epochs
        self.batches = batches
        self.device = device
        self.data = data
        self._bar: Any = None
        self._drawn = 0.0
        self._said = time.monotonic()
        self._patience = _FIRST_LINE
        self._steps = 0
        self._first = 0.0  # when the first step of this process ended, which is slower
        self._per_batch: float | None = None
        if enabled and sys.stdout.isatty():
            try:
                from rich.progress import Progress
            except ImportError:
                return
            self._bar = Progress(transient=True)
            self._task = self._bar.add_task("", total=batches)
            self._bar.start()

    def say(self, text: str) -> None:
        """One line.

        Args:
            text: The line; control characters are not printed as they are.
        """
        if not self.enabled:
            return
        self._said = time.monotonic()
        if self._bar is None:
            print(printable_lines(text), flush=True)
        else:
            self._bar.console.print(printable_lines(text), highlight=False, markup=False, soft_wrap=True)

    def step(self, epoch: int, done: int) -> None:
        """After a step: move the bar, or print the position.

        Args:
            epoch: The current epoch, from 1.
            done: Its finished batches.
        """
        if not self.enabled:
            return
        now = time.monotonic()
        if self._per_batch is None:
            self._measure(now, (self.epochs - epoch + 1) * self.batches - done)
        if self._bar is not None:
            if now - self._drawn >= _REDRAW:
                self._drawn = now
                self._bar.update(self._task, completed=done, description=f"epoch {epoch}/{self.epochs}")
        elif now - self._said >= self._patience:
            self._patience = min(2 * self._patience, _MOST_PATIENCE)
            self.say(f"epoch {epoch}/{self.epochs}: {done:,} of {self.batches:,} batches")

    def _measure(self, now: float, left: int) -> None:
        """Estimate the remaining time from the steps after the first, and print it once if it is long."""
        self._steps += 1
        if self._steps == 1:
            self._first = now
        spent = now - self._first
        if self._steps < 2 or spent < _MEASURED:
            return
        self._per_batch = spent / (self._steps - 1)
        total = left * self._per_batch
        if total < _LONG_ENOUGH:
            return
        self.say(
            f"{self._per_batch:.2g} s per batch on {self.device}: about {duration(self._per_batch * self.batches)} per "
            f"epoch and {duration(total)} in total, without evaluation"
        )
        if total >= _LONG and self.device.startswith("cpu"):
            shorter = _SHORTER.get(self.data, _SHORTER[""])
            self.say(f"this is long for a CPU; Ctrl-C keeps what is done. Faster: {shorter}")

    def epoch(self, record: Mapping[str, Any]) -> None:
        """The line of a finished epoch.

        Args:
            record: The metrics of the epoch by name.
        """
        shown = (("test", "test_accuracy"), ("val", "val_accuracy"), ("memorized", "memorized"))
        parts = [f"{name} {record[key]:6.2f} %" for name, key in shown if record[key] is not None]
        width = len(str(self.epochs))
        self.say(
            f"epoch {record['epoch']:>{width}}/{self.epochs}  loss {record['train_loss']:.4f}  "
            + "  ".join([*parts, f"{record['seconds']:.1f} s"])
        )

    def on_message(self, text: str) -> None:
        self.say(text)

    def on_step_end(self, trainer: Trainer) -> None:
        self.step(trainer.epoch + 1, trainer.batch)

    def on_epoch_end(self, trainer: Trainer, record: Mapping[str, Any]) -> None:
        self.epoch(record)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def duration(seconds: float) -> str:
    """Seconds for people: 45 s, 12 min, 3 h 20 min, 2 days 5 h.

    Args:
        seconds: A number of seconds, 0 or larger.
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} day{'s' * (days > 1)} {hours} h" if hours else f"{days} day{'s' * (days > 1)}"


class Interrupt:
    """While entered, Ctrl-C and a request to terminate only set `requested`; a second one has its usual effect."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._put_back()

    def _put_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._put_back()
