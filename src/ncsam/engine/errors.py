"""How a run ends before its time."""

from __future__ import annotations


class RunError(RuntimeError):
    """A run cannot start or go on; the message says why in a sentence. The last good checkpoint is untouched."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or a request to terminate; the run can be continued by the same command. A command exits with 130."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else "interrupted"
