"""The exceptions of ncsam. Each is also one of Python's own, so that `except ValueError` works as expected."""

from __future__ import annotations


class NcsamError(Exception):
    """Base class of all errors that ncsam raises on purpose."""


class UsageError(NcsamError, ValueError):
    """An argument, option or input is invalid; the message names it, shows its value and says what is expected."""


class DamagedFileError(UsageError):
    """A file exists but cannot be read: the input is damaged, and no argument was wrong."""


class RunError(NcsamError, RuntimeError):
    """A run cannot start or continue; the message says why. The last good checkpoint is untouched."""


class DivergedError(RunError):
    """Training diverged: the loss, the weights or the predictions are not finite."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or a request to terminate. Rerunning the command resumes the run; a command exits with 130."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else "interrupted"
