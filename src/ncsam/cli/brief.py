"""Help on one screen: `--help` shows the usual options of a command, `--help-all` every one."""

from __future__ import annotations

import re
from typing import Any

import click

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
        about = "show every option and exit"
        self.params.append(
            click.Option(
                ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_help_all, help=about
            )
        )

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


def _help_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()
