"""What ends a command early, in one sentence: 1 the run failed, 2 the user's mistake, 130 interrupted."""

from __future__ import annotations

import contextlib
import errno
import os
import traceback
from collections.abc import Iterator
from typing import IO, Any

import click

from ncsam._errors import DamagedFileError, unexpected
from ncsam._text import printable_lines

FAILED, MISTAKE, INTERRUPTED = 1, 2, 130
#: A path that is not there, that is of another kind, or that one may not use; and those that cannot be.
_NO_SUCH_PLACE = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
_NO_PATH = (errno.ENAMETOOLONG, errno.ELOOP)


class Failure(click.ClickException):
    """An exception as the user sees it: a sentence, an exit code, and the traceback only under NCSAM_DEBUG=1."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click reads it from the instance

    def show(self, file: IO[Any] | None = None) -> None:
        if os.environ.get("NCSAM_DEBUG") and self.__cause__ is not None:
            click.echo("".join(traceback.format_exception(self.__cause__)), file=file, err=True)
        word = "Stopped" if self.exit_code == INTERRUPTED else "Error"
        said = printable_lines(self.message)  # it may name a file of any bytes
        click.echo(f"{word}: {said}", file=file, err=True)


def as_failure(error: BaseException) -> Failure:
    """The sentence and the exit code for an exception that reached the command."""
    text = str(error)
    if isinstance(error, KeyboardInterrupt):
        return Failure(text or "interrupted; the same command goes on where it stopped", INTERRUPTED)
    if isinstance(error, DamagedFileError):
        return Failure(text, FAILED)
    if type(error).__name__ == "RunError":  # of ncsam.engine, which help and completion do not import
        return Failure(text, FAILED)
    if isinstance(error, (ValueError, ImportError, FileNotFoundError)) and _is_ours(error):
        return Failure(text, MISTAKE)
    if isinstance(error, OSError) and (isinstance(error, _NO_SUCH_PLACE) or error.errno in _NO_PATH):
        return Failure(f"{error.filename}: {error.strerror}" if error.filename else text, MISTAKE)
    if isinstance(error, OSError):
        return Failure(text, FAILED)
    return Failure(unexpected(error), FAILED)


@contextlib.contextmanager
def can_skip_damaged() -> Iterator[None]:
    """For a command with `--skip-damaged`, which the error for a file that cannot be read then names."""
    try:
        yield
    except DamagedFileError as error:
        raise DamagedFileError(f"{error}. --skip-damaged leaves such files out") from error


def _is_ours(error: BaseException) -> bool:
    """Whether ncsam itself raised it: then its sentence is for the user. One from deeper down is a failure."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and str(frame.tb_frame.f_globals.get("__name__", "")).startswith("ncsam.")
