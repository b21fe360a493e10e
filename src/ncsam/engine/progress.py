"""What a person sees while a run goes on: a bar on a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

_REDRAW = 0.1  # seconds; a bar that moves more often only costs time


class Console:
    """Lines on standard output; on a terminal with `rich`, a bar for the running epoch below them."""

    def __init__(self, enabled: bool, epochs: int, batches: int) -> None:
        self.enabled = enabled
        self.epochs = epochs
        self._bar: Any = None
        self._drawn = 0.0
        if enabled and sys.stdout.isatty():
            try:
                from rich.progress import Progress
            except ImportError:
                return
            self._bar = Progress(transient=True)
            self._task = self._bar.add_task("", total=batches)
            self._bar.start()

    def say(self, text: str) -> None:
        """One line."""
        if not self.enabled:
            return
        if self._bar is None:
            print(text, flush=True)
        else:
            self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def step(self, epoch: int, done: int) -> None:
        """Move the bar."""
        if self._bar is None or time.monotonic() - self._drawn < _REDRAW:
            return
        self._drawn = time.monotonic()
        self._bar.update(self._task, completed=done, description=f"epoch {epoch}/{self.epochs}")

    def epoch(self, record: Mapping[str, Any]) -> None:
        """The line of a finished epoch."""
        shown = (("test", "test_accuracy"), ("val", "val_accuracy"), ("memorised", "memorised"))
        parts = [f"{name} {record[key]:6.2f} %" for name, key in shown if record[key] is not None]
        width = len(str(self.epochs))
        self.say(
            f"epoch {record['epoch']:>{width}}/{self.epochs}  loss {record['train_loss']:.4f}  "
            + "  ".join([*parts, f"{record['seconds']:.1f} s"])
        )

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
