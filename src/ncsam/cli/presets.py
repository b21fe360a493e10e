"""`ncsam presets`."""

from __future__ import annotations

import click

from ncsam.cli.main import WholeGroup, known
from ncsam.engine import preset_names, preset_text


@click.group(
    cls=WholeGroup,
    invoke_without_command=True,
    epilog="\b\nExamples:\n  ncsam presets\n  ncsam presets show recommended",
)
@click.pass_context
def presets(ctx: click.Context) -> None:
    """List the presets; `ncsam presets show NAME` prints one.

    `ncsam train --preset NAME` starts from one; any option overrides its value.
    """
    if ctx.invoked_subcommand is None:
        names = preset_names()
        width = max(map(len, names), default=0)
        for each in names:
            first = next((line for line in preset_text(each).splitlines() if line.startswith("#")), "")
            click.echo(f"{each:<{width}}  {first.removeprefix('#').strip()}".rstrip())


@presets.command(epilog="\b\nExample:\n  ncsam presets show recommended")
@click.argument("name", shell_complete=known("preset"))
def show(name: str) -> None:
    """Print the values of a preset, where they come from, and what is unknown."""
    click.echo(preset_text(name), nl=False)
