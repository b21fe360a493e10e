"""One process at a time in a run folder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from ncsam._files import is_open_file
from ncsam.errors import RunError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_NAME = ".lock"
#: Seconds that the children of a killed process (those that decode images) get to notice and let go of its lock.
_PATIENCE = 10.0


class FolderLock:
    """A folder whose lock this process holds."""

    def __init__(self, folder: Path, file: IO[str]) -> None:
        self.folder = folder
        self._file = file

    def is_there(self) -> bool:
        """Whether the folder is still the one that was locked."""
        return is_open_file(self._file, self.folder / _NAME)

    def check(self) -> None:
        """Raise `RunError` if the folder was removed or replaced: what is written there now would not be this run."""
        if not self.is_there():
            raise RunError(
                f"{self.folder} was removed, moved or replaced during the run. The run stops here; nothing more is "
                "written"
            )


@contextmanager
def locked(folder: Path) -> Iterator[FolderLock]:
    """Hold the folder's lock, or raise `RunError` if another process does.

    The system drops the lock when its holder ends, however it ends: a lock file left behind is no lock. A folder that
    was made for the run is removed again, with those above it, if the run ends in an error before it wrote anything
    else there.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / _NAME, "r+", encoding="utf-8", opener=_open)  # noqa: SIM115 - closed below
    except FileExistsError:
        raise RunError(f"{folder} is a file, and a run needs a folder") from None
    except OSError as error:
        raise RunError(f"{folder} cannot be used as a run folder: {error.strerror or error}") from error
    with file:
        _lock(file, folder)
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        held = FolderLock(folder, file)
        try:
            yield held
        except BaseException:
            if made and held.is_there():
                _remove_if_empty(made)
            raise


def _open(path: str, _: int) -> int:
    """Never through a link, which would have its target emptied."""
    return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)


def _lock(file: IO[str], folder: Path) -> None:
    if fcntl is None:
        return
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            if _is_alive(holder) or time.monotonic() > until:
                process = f"process {holder}" if holder else "another process"
                raise RunError(f"{folder} is in use: {process} is training there") from None
            time.sleep(0.1)


def _is_alive(holder: str) -> bool:
    """Whether the process of this number may be alive; one on another machine cannot be seen from here."""
    try:
        os.kill(int(holder), 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError, OverflowError):
        return True
    return True


def _remove_if_empty(folders: list[Path]) -> None:
    """Remove a folder that holds its lock alone, and those above it that were made for it."""
    with suppress(OSError):
        if os.listdir(folders[0]) == [_NAME]:
            (folders[0] / _NAME).unlink()
            for folder in folders:
                folder.rmdir()
