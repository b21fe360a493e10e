"""One process at a time in a run folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ncsam.engine.errors import RunError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, or raise `RunError` if another process does.

    The system drops the lock when its holder ends, however it ends: a lock file left behind is no lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ".lock"
    with path.open("a+", encoding="utf-8") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                holder = file.read().strip()
                process = f"process {holder}" if holder else "another process"
                raise RunError(f"{folder} is in use: {process} is training there") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
