"""`ncsam`: the commands by name, each imported when it is used; brief help, completion, and errors as one sentence.

Exit codes are 1 where a run failed, 2 for a mistake in the call and 130 after an interrupt.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib
import io
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator
from typing import IO, Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from ncsam._errors import unexpected
from ncsam._text import printable_lines
from ncsam._version import __version__
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


class WholeGroup(click.Group):
    """A group whose help shows the whole summary of each command, where click cuts it off."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, each.get_short_help_str(limit=formatter.width * 2)) for name, each in self.commands.items()]
            )


_ALL = "ncsam.help_all"
_NAMES = 22  # columns for the options' names in brief help; a longer name has a line of its own
_LONG = 50  # what fits beside them on 80 columns


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
        """Whether brief help has this option. The hint below it names `--help-all`."""
        return isinstance(param, click.Option) and param.name not in self.rare | {"help_all"}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if shows_all(ctx):
            super().format_options(ctx, formatter)
            return
        records = [param.get_help_record(ctx) for param in self.get_params(ctx) if self.is_shown(ctx, param)]
        with formatter.section("Options"):
            formatter.write_dl([(names, brief(about)) for names, about in filter(None, records)], col_max=_NAMES)
        self.format_hint(ctx, formatter)

    def format_hint(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """How many options are left out."""
        options = [param for param in self.params if isinstance(param, click.Option) and param.name != "help_all"]
        left_out = sum(not self.is_shown(ctx, param) for param in options)
        formatter.write_paragraph()
        formatter.write_text(f"{left_out} more option{'s' * (left_out > 1)}: {ctx.command_path} --help-all")


def brief(about: str) -> str:
    """The first part of a help text and its default: up to a semicolon, and of a long text up to a colon.

    Punctuation in parentheses ends nothing.

    Args:
        about: The whole text.

    Examples:
        >>> brief("seed of the corruption; null: that of the run [0]")
        'seed of the corruption [0]'
    """
    text, default = re.fullmatch(r"(.*?)( +\[[^\]]*\])?", about, flags=re.S).groups("")  # type: ignore[union-attr]
    first = _first(text, "; ")
    return (first if len(first) <= _LONG else _first(first, ": ")) + default


def _first(text: str, separator: str) -> str:
    """The text up to the first separator outside of parentheses."""
    parts = text.split(separator)
    upto = (separator.join(parts[:end]) for end in range(1, len(parts) + 1))
    return next((each for each in upto if each.count("(") == each.count(")")), text)


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


COMMANDS = {
    "train": Entry("ncsam.cli.train:train", "Train a model on data whose labels may be wrong."),
    "auto": Entry("ncsam.cli.auto:auto", "Find a classifier without tuning anything (AutoML)."),
    "audit": Entry("ncsam.cli.audit:audit", "Find problems in a dataset: labels, duplicates, outliers."),
    "embed": Entry("ncsam.cli.embed:embed", "Embed images or texts with a pretrained model."),
    "compare": Entry("ncsam.cli.compare:compare", "Train all combinations of methods, optimizers and seeds."),
    "reproduce": Entry("ncsam.cli.reproduce:reproduce", "Run a table of the paper next to the published numbers."),
    "report": Entry("ncsam.cli.report:report", "Write report.html: curves, label issues, noise, options."),
    "issues": Entry("ncsam.cli.issues:issues", "List the training labels that are most likely wrong."),
    "review": Entry("ncsam.cli.review:review", "Review label issues on a local page."),
    "clean": Entry("ncsam.cli.clean:clean", "Write the data with corrected labels."),
    "export-predictions": Entry(
        "ncsam.cli.export_predictions:export_predictions", "Exchange class probabilities with other tools."
    ),
    "annotators": Entry("ncsam.cli.annotators:annotators", "Aggregate the labels of several annotators."),
    "predict": Entry("ncsam.cli.predict:predict", "Classify new samples with a trained run."),
    "export": Entry("ncsam.cli.export:export", "Write a model as TorchScript, ONNX or safetensors."),
    "bound": Entry("ncsam.cli.bound:bound", "Evaluate the paper's generalization bound for a run."),
    "align": Entry("ncsam.cli.align:align", "Measure a run's perturbation against the clean gradient."),
    "noise": Entry("ncsam.cli.noise:noise", "Make, inspect and plot files of noisy labels."),
    "data": Entry("ncsam.cli.data:data", "List, check and describe datasets."),
    "methods": Entry("ncsam.cli.methods:methods", "List the methods, or show one."),
    "presets": Entry("ncsam.cli.presets:presets", "List the presets, or show one."),
    "doctor": Entry("ncsam.cli.doctor:doctor", "Check what is installed, and how to install the rest."),
    "version": Entry("ncsam.cli.version:version", "Print the versions of ncsam and its dependencies."),
}

EPILOG = """\b
Examples:
  ncsam train digits --noise symmetric --rate 0.4 --out runs/first
  ncsam issues runs/first --top 20
  ncsam compare digits --optimizers sgd,sam,ncsam --seeds 3 --out runs/digits
  ncsam report runs/digits
"""


class Ncsam(LazyGroup):
    """The root: remembers the command line, and turns exceptions into a sentence and an exit code."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["ncsam.command"] = ["ncsam", *args]
        if os.environ.get("NO_COLOR"):
            ctx.color = False
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # a file name may hold what the terminal's encoding lacks
                stream.reconfigure(errors="backslashreplace")
        # Pillow's warning about a large photograph, which is read all the same; one of twice that size is refused
        warnings.filterwarnings("ignore", message=r"Image size \(\d+ pixels\) exceeds limit")
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except OSError as error:
            if error.errno == errno.EPIPE:  # `| head` has seen enough; click ends quietly
                raise
            raise as_failure(error, self._options_of(ctx)) from error
        except (Exception, KeyboardInterrupt) as error:
            raise as_failure(error, self._options_of(ctx)) from error

    def _options_of(self, ctx: click.Context) -> list[str]:
        """The Python names of the options of the command that was called, or of those of its group."""
        command = self.get_command(ctx, ctx.invoked_subcommand or "")
        commands = command.commands.values() if isinstance(command, click.Group) else [command]
        params = [param for each in commands if each is not None for param in each.params]
        return [str(param.name) for param in params if isinstance(param, click.Option)]


def _install_completion(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from ncsam.cli.completion import install_completion

        install_completion(ctx)


@click.group(
    cls=Ncsam,
    entries=COMMANDS,
    epilog=EPILOG,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 110,
    },
)
@click.version_option(__version__, prog_name="ncsam")
@click.option(
    "--install-completion",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_install_completion,
    help="Install tab completion for your shell and exit.",
)
def main() -> None:
    """Learn with noisy labels: train robust models, find and fix label issues, compare methods."""
