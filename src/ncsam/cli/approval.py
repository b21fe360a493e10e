"""Long work starts only if somebody wants it: a question on a terminal, and `--yes` elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ncsam._text import format_duration
from ncsam.cli.output import say
from ncsam.engine.forecast import Approve

#: Expected seconds above which a command asks before it starts.
LONG = 1800.0
_Command = TypeVar("_Command", bound=Callable[..., Any])


def yes_option(command: _Command) -> _Command:
    """`--yes`: start without a question, however long it takes."""
    return click.option("--yes", is_flag=True, help="start even if it is expected to take more than 30 minutes")(
        command
    )


def approval(yes: bool, *, quiet: bool = False, runs: int = 1, shorter: str) -> Approve:
    """What asks before long work starts.

    Args:
        yes: Whether `--yes` was given.
        quiet: Whether the expected time of short work is not printed.
        runs: How many times training is repeated.
        shorter: What would take less time.
    """

    def approve(seconds: float, what: str) -> None:
        total = seconds * runs if what == "training" else seconds
        if not quiet:
            say(f"{what}: about {format_duration(total)}")
        if total <= LONG or yes:
            return
        if _on_terminal():
            click.confirm(f"{what} takes about {format_duration(total)}. Start?", abort=True)
            return
        raise click.UsageError(f"{what} takes about {format_duration(total)}: add --yes to start it, or {shorter}.")

    return approve


def _on_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()
