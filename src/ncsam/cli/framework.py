"""What all commands share: groups that import a command when it is called, brief help, completion, errors.

Errors are shown as a sentence and an exit code. 1: the run failed; 2: a mistake; 130: interrupted.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib
import os
import re
import traceback
from collections.abc import Callable, Collection, Iterator
from typing import IO, Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from ncsam._errors import unexpected
from ncsam._text import printable_lines
from ncsam.errors import DamagedFileError, RunError, UsageError


class Entry(NamedTuple):
    """Where a command lives (`module:attribute`) and the line that help shows for it."""

    target: str
    about: str


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports only the one that is used. All accept `--help-all`."""

    def __init__(self, *args: Any, entries: dict[str, Entry], **options: Any) -> None:
        super().__init__(*args, **options)
        self.entries = entries
        accept_help_all(self)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.entries:
            return None
        module, _, attribute = self.entries[cmd_name].target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        accept_help_all(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.about) for name, entry in self.entries.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(n, help=e.about) for n, e in self.entries.items() if n.startswith(incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in self.entries or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        close = difflib.get_close_matches(name, self.entries, n=2)
        hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise click.UsageError(f"No such command {name!r}.{hint}", ctx)


_ALL = "ncsam.help_all"
_LONG = 52  # what fits beside an option's name on 80 columns


def shows_all(ctx: click.Context) -> bool:
    """Whether `--help-all` was given."""
    return bool(ctx.meta.get(_ALL))


class BriefCommand(click.Command):
    """A command with rarely used options, which only `--help-all` shows; all of them work and complete as ever.

    Args:
        *args: As for `click.Command`.
        rare: Names of these options.
        **settings: As for `click.Command`.
    """

    def __init__(self, *args: Any, rare: frozenset[str] = frozenset(), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.rare = rare
        self.params.append(_help_all_option(help="show every option and exit"))

    def is_shown(self, ctx: click.Context, param: click.Parameter) -> bool:
        """Whether the help that is asked for has this option."""
        return isinstance(param, click.Option) and (shows_all(ctx) or param.name not in self.rare)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = [param.get_help_record(ctx) for param in self.get_params(ctx) if self.is_shown(ctx, param)]
        shorten = str if shows_all(ctx) else brief
        with formatter.section("Options"):
            formatter.write_dl([(names, shorten(about)) for names, about in filter(None, records)])
        self.format_hint(ctx, formatter)

    def format_hint(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """How many options are left out."""
        left_out = sum(not self.is_shown(ctx, param) for param in self.params if isinstance(param, click.Option))
        if left_out:
            formatter.write_paragraph()
            formatter.write_text(f"{left_out} more options: {ctx.command_path} --help-all")


def brief(about: str) -> str:
    """The first part of a help text and its default: up to a semicolon, and of a long text up to a colon or comma.

    Args:
        about: The whole text.

    Examples:
        >>> brief("seed of the corruption; null: that of the run [0]")
        'seed of the corruption [0]'
    """
    text, default = re.fullmatch(r"(.*?)( +\[[^\]]*\])?", about, flags=re.S).groups("")  # type: ignore[union-attr]
    first = text.partition("; ")[0]
    return (first if len(first) <= _LONG else re.split(r": |, ", first)[0]) + default


def accept_help_all(command: click.Command) -> None:
    """Let a command, and those of a group, accept `--help-all`. One that hides nothing shows its usual help.

    Args:
        command: The command, which is changed.
    """
    if not any("--help-all" in param.opts for param in command.params):
        command.params.append(_help_all_option(hidden=True))
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        accept_help_all(each)


def _help_all_option(**settings: Any) -> click.Option:
    return click.Option(["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_help_all, **settings)


def _help_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def names_of(kind: str) -> list[str]:
    """The known names of a kind; empty where names are not counted or their package cannot be imported."""
    try:
        if kind == "preset":
            from ncsam.engine import preset_names

            return preset_names()
        if kind == "data":
            from ncsam.data import names

            return names()
        if kind == "model":
            from ncsam import models

            return models.names()
        if kind == "noise":
            from ncsam.noise import GENERATORS

            return sorted(GENERATORS)
        if kind in ("method", "methods"):
            from ncsam import methods

            return list(methods.names())
        from ncsam.engine import config

        listed = {
            "optimizer": config.optimizer_names(),
            "optimizers": config.optimizer_names(),
            "base": config.BASES,
            "augment": config.AUGMENTATIONS,
            "schedule": config.SCHEDULES,
            "loggers": config.LOGGERS,
        }
        return list(listed.get(kind, ()))
    except ImportError:
        return []


def known(kind: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """A completion for click: the names of `kind`, after the last comma of a list."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [before + comma + name for name in names_of(kind) if name.startswith(last)]

    return complete


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
    """A message about Python arguments as one about options: `label_column='x'` becomes `--label-column='x'`.

    A flag has no value: `download=True` becomes `--download`.
    """
    for name in options:
        flag = "--" + name.replace("_", "-")
        ending = r"\b" if "_" in name else "(?==)"  # a name without an underscore may be a word like any other
        text = re.sub(rf"(?<![\w./-]){name}(=True\b|{ending})", flag, text)
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
