"""`ncsam version`."""

from __future__ import annotations

import platform
from importlib import metadata

import click

from ncsam._version import __version__

_BESIDE = ("torch", "lightning-fabric", "numpy", "scipy", "scikit-learn", "pillow", "matplotlib")


@click.command(epilog="\b\nExample:\n  ncsam version")
def version() -> None:
    """Print the versions of ncsam, of Python and of the packages that results depend on."""
    click.echo(f"ncsam {__version__}")
    click.echo(f"python {platform.python_version()} on {platform.system()} {platform.machine()}")
    for name in _BESIDE:
        try:
            click.echo(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            click.echo(f"{name} not installed")
