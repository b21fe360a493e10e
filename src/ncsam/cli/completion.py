"""`ncsam --install-completion`: tab completion in the user's shell."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from ncsam._files import atomic_path

#: Shells, and the file each reads when it starts; fish finds completions by the name of their file.
_STARTUP = {"bash": ".bashrc", "zsh": ".zshrc", "fish": None}
#: What a shell needs before the script: zsh starts without its completion system.
_BEFORE = {"zsh": "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n"}


def install_completion(ctx: click.Context) -> None:
    """Write the completion script of the shell named by `$SHELL`, let the shell read it, and exit.

    Args:
        ctx: The context of the root command.
    """
    shell = Path(os.environ.get("SHELL", "")).name
    complete = get_completion_class(shell)
    if shell not in _STARTUP or complete is None:
        raise click.UsageError(f"SHELL={shell!r}: completion is available for {', '.join(_STARTUP)}.", ctx)
    settings = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    startup = _STARTUP[shell]
    script = settings / ("fish/completions/ncsam.fish" if startup is None else f"ncsam/completion.{shell}")
    script.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(script) as temporary:
        source = complete(ctx.command, {}, "ncsam", "_NCSAM_COMPLETE").source()
        temporary.write_text(_BEFORE.get(shell, "") + source, encoding="utf-8")
    click.echo(f"wrote {script}")
    if startup is not None:
        _add_line(Path.home() / startup, f'source "{script}"  # tab completion of ncsam')
    click.echo(f"Open a new {shell} to use it.")
    ctx.exit()


def _add_line(file: Path, line: str) -> None:
    """Add a line to a text file once."""
    text = file.read_text(encoding="utf-8", errors="surrogateescape") if file.exists() else ""
    if line in text.splitlines():
        return
    with file.open("a", encoding="utf-8") as out:
        out.write(("" if not text or text.endswith("\n") else "\n") + line + "\n")
    click.echo(f"added to {file}: {line}")
