"""Errors as the shell shows them: a sentence and an exit code. 1: the run failed; 2: a mistake; 130: interrupted."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import traceback
from collections.abc import Collection, Iterator
from typing import IO, Any

import click

from ncsam._errors import unexpected
from ncsam._text import printable_lines
from ncsam.errors import DamagedFileError, RunError, UsageError

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


def as_failure(error: BaseException, options: Collection[str] = ()) -> Failure:
    """The sentence and the exit code for an exception that reached the command.

    Args:
        error: the exception.
        options: Python names of the command's options, which the sentence then calls as the shell does.
    """
    text = str(error)
    if isinstance(error, KeyboardInterrupt):
        return Failure(text or "interrupted; rerun the command to resume", INTERRUPTED)
    if isinstance(error, (DamagedFileError, RunError)):
        return Failure(text, FAILED)
    if isinstance(error, UsageError):
        return Failure(as_in_the_shell(text, options), MISTAKE)
    if isinstance(error, (ValueError, ImportError, FileNotFoundError)) and _is_ours(error):
        return Failure(as_in_the_shell(text, options), MISTAKE)
    if isinstance(error, OSError) and (isinstance(error, _NO_SUCH_PLACE) or error.errno in _NO_PATH):
        return Failure(f"{error.filename}: {error.strerror}" if error.filename else text, MISTAKE)
    if isinstance(error, OSError):
        return Failure(text, FAILED)
    return Failure(unexpected(error), FAILED)


def as_in_the_shell(text: str, options: Collection[str]) -> str:
    """A message about Python arguments as one about options: `label_column='x'` becomes `--label-column='x'`."""
    for name in options:
        flag = "--" + name.replace("_", "-")
        ending = r"\b" if "_" in name else "(?==)"  # a name without an underscore may be a word like any other
        text = re.sub(rf"(?<![\w./-]){name}{ending}", flag, text)
    return text


@contextlib.contextmanager
def can_skip_damaged() -> Iterator[None]:
    """For a command with `--skip-damaged`, which the error for a file that cannot be read then names."""
    try:
        yield
    except DamagedFileError as error:
        raise DamagedFileError(f"{error}. Use --skip-damaged to leave such files out") from error


def _is_ours(error: BaseException) -> bool:
    """Whether ncsam itself raised it, so that its message is for the user; one from deeper down is a failure."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and str(frame.tb_frame.f_globals.get("__name__", "")).startswith("ncsam.")
