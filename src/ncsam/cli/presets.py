"""`ncsam presets`."""

from __future__ import annotations

import click

from ncsam.cli.complete import known
from ncsam.engine import preset_names, preset_text


@click.command(epilog="\b\nExamples:\n  ncsam presets\n  ncsam presets recommended\n  ncsam presets cifar10-symmetric")
@click.argument("name", required=False, shell_complete=known("preset"))
def presets(name: str | None) -> None:
    """List the presets, or show the one called NAME: its values, where they come from, and what is unknown.

    `ncsam train --preset NAME` starts from one; any option overrides its value.
    """
    if name is not None:
        click.echo(preset_text(name), nl=False)
        return
    names = preset_names()
    width = max(map(len, names), default=0)
    for each in names:
        first = next((line for line in preset_text(each).splitlines() if line.startswith("#")), "")
        click.echo(f"{each:<{width}}  {first.removeprefix('#').strip()}".rstrip())
