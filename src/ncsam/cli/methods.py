"""`ncsam methods`."""

from __future__ import annotations

import click

from ncsam import methods as library
from ncsam.cli.main import WholeGroup, known
from ncsam.methods.describe import about, described


@click.group(
    cls=WholeGroup,
    invoke_without_command=True,
    epilog="\b\nExample:\n  ncsam methods show dividemix",
)
@click.pass_context
def methods(ctx: click.Context) -> None:
    """List the methods; `ncsam methods show NAME` prints one.

    `ncsam train --method NAME --method-options OPTION=VALUE` trains with one.
    """
    if ctx.invoked_subcommand is None:
        names = library.names()
        width = max(map(len, names))
        for name in names:
            click.echo(f"{name:<{width}}  {about(name)}")


@methods.command(epilog="\b\nExample:\n  ncsam methods show dividemix")
@click.argument("name", shell_complete=known("method"))
def show(name: str) -> None:
    """Print a method's formula, options, presets, needs, cost and source."""
    click.echo(described(name))
