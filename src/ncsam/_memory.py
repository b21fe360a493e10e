"""How much memory arrays in a file would take, known before they are read."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ncsam.errors import DamagedFileError, UsageError

#: Arrays of a file may take this share of the machine's memory: reading and preparing them takes about three times
#: their size.
SHARE = 0.25
_CGROUP = Path("/sys/fs/cgroup/memory.max")


class _HeaderError(Exception):
    pass


def memory() -> int | None:
    """Bytes of memory of this machine or container; `None` where it cannot be known."""
    try:
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on every system
        return None
    try:
        limit = _CGROUP.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        limit = ""
    return min(found, int(limit)) if limit.isdecimal() else found


def check_promise(path: str | os.PathLike[str], archive: zipfile.ZipFile, names: Iterable[str]) -> None:
    """Refuse arrays of an `.npz` file whose headers promise more than the file holds, or more than memory allows.

    Args:
        path: The file, for messages.
        archive: The open file.
        names: Of the arrays that are to be read.

    Raises:
        DamagedFileError: A header promises more than its member holds.
        UsageError: Together they would take more than `SHARE` of the memory.
    """
    total = 0
    for name in names:
        damaged = DamagedFileError(f"{path} is damaged: the array {name!r} is not what its header says")
        try:
            size, stored = _promised(archive, name)
        except _HeaderError as error:
            raise damaged from error
        if size > stored:
            raise damaged
        total += size
    available = memory()
    if available is not None and total > SHARE * available:
        raise UsageError(
            f"invalid path={str(path)!r}: expected arrays of at most {SHARE * available / 2**30:.1f} GiB, a quarter of "
            f"this machine's memory; these take {total / 2**30:.1f} GiB"
        )


def _promised(archive: zipfile.ZipFile, name: str) -> tuple[int, int]:
    """(bytes that the header promises, bytes that follow it), both 0 for a member that is no array."""
    from numpy.lib import format as form

    member = next((each for each in (f"{name}.npy", name) if each in archive.NameToInfo), None)
    if member is None:
        return 0, 0
    readers: dict[tuple[int, int], Any] = {(1, 0): form.read_array_header_1_0, (2, 0): form.read_array_header_2_0}
    with archive.open(member) as file:
        try:
            read = readers.get(form.read_magic(file))
            if read is None:
                return 0, 0
            shape, _, kind = read(file)
        except Exception as error:  # whatever a spoiled header makes numpy raise
            raise _HeaderError from error
        if kind.hasobject or any(side < 0 for side in shape):
            return 0, 0  # refused when it is read
        return math.prod(shape) * kind.itemsize, archive.getinfo(member).file_size - file.tell()
