"""Paths on the command line: what a command reads, and where it writes, looked at before any work is done."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from ncsam.runs import layout


class Readable(click.Path):
    """An ordinary file, or a folder. Anything else would be waited for, as a pipe is."""

    def __init__(self, *, folders: bool = False, exists: bool = True) -> None:
        super().__init__(exists=exists, dir_okay=folders, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if path.exists() and not path.is_file() and not path.is_dir():
            self.fail(f"{str(path)!r} is no ordinary file.", param, ctx)
        return path


class Written(click.Path):
    """A file or folder to write: one that is not there, or an ordinary one. A device or a pipe would be replaced."""

    def __init__(self, *, folder: bool = False) -> None:
        super().__init__(file_okay=not folder, dir_okay=folder, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if not str(value).strip():
            self.fail(f"{value!r} names no {self.name}.", param, ctx)
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        try:
            kind = stat.S_IFMT(os.stat(path).st_mode)
            if kind != (stat.S_IFDIR if self.dir_okay else stat.S_IFREG):
                self.fail(f"{str(path)!r} is no ordinary {self.name}.", param, ctx)
        except FileNotFoundError:
            self._check_parent(path, param, ctx)
        except OSError as error:  # a name too long, a folder on the way that is a file, links in a circle
            self.fail(f"{str(path)!r} cannot be written: {error.strerror}.", param, ctx)
        return path

    def _check_parent(self, path: Path, param: click.Parameter | None, ctx: click.Context | None) -> None:
        parent = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            self.fail(
                f"{str(path)!r} cannot be written: {str(parent)!r} is no folder that one may write to.", param, ctx
            )


def files_of(run: Path) -> list[str | Path]:
    """What a run is made of: its data, and what training and reviewing wrote."""
    from ncsam.runs.reader import RunFolder

    data = []
    with contextlib.suppress(ValueError, OSError):  # what is wrong with it is said by what needs it
        data = [str(RunFolder.read(run).config.get("data"))]
    return [*data, *(run / name for name in layout.FILES)]


def keep(read: Iterable[str | os.PathLike[str]], *written: Path | None) -> None:
    """Refuse to write over what the command reads."""
    there = [path for path in read if os.path.exists(path)]
    for out in written:
        if out is not None and out.exists() and any(os.path.samefile(out, path) for path in there):
            raise click.UsageError(f"{str(out)!r} is what is read, and would be lost: choose another file to write.")
