"""Files written whole or not at all, checksums, and pickles read without running anything."""

from __future__ import annotations

import codecs
import errno
import hashlib
import json
import math
import os
import pickle
import re
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ncsam._errors import need
from ncsam.errors import DamagedFileError, UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

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


try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_RANDOM = re.compile(r"[a-z0-9_]{8}")  # what `tempfile` puts into a name
_MANY = (list, tuple, set)
_MOST_VALUES = 4_000_000  # of a configuration: a transition matrix of 2,000 classes
_SHORT = re.compile(r"\d+ requested and \d+ written")  # all that numpy says of a disk that is full


def json_lines(path: Path) -> Iterator[tuple[int, bytes, Any]]:
    """Number, bytes and value of every line of a file that is appended to; nothing if there is no such file.

    A line that is not JSON was cut off by a kill, and is left out: the next start completes it as a line of its own.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                value = json.loads(raw)
            except (ValueError, RecursionError):
                continue
            yield number, raw, value


@contextmanager
def atomic_path(path: str | os.PathLike[str], *, make_folder: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` if the block succeeds, remove it if not.

    The temporary file is locked while it is written, so one without a lock was left behind by a process that was
    killed: those of `path` are removed. Without `make_folder` a folder that is not there is an error.
    """
    final = Path(path)
    if make_folder:
        final.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(final.parent, final.name)
    handle, temporary = _locked_temporary(final)
    try:
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp is private; the final file is an ordinary one
        temporary.replace(final)
    except OSError as error:
        if not _SHORT.search(str(error)):
            raise
        raise OSError(errno.ENOSPC, f"it could not be written whole ({error})", str(final)) from error
    finally:
        if handle is not None:
            os.close(handle)
        temporary.unlink(missing_ok=True)


def is_open_file(file: IO[Any], path: str | os.PathLike[str]) -> bool:
    """Whether what was opened is still what has that name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except OSError:
        return False


def remove_leftovers(folder: Path, *names: str) -> None:
    """Remove the temporary files of these names in `folder` that no living process holds."""
    patterns = [_temporary_names(name) for name in names]
    hidden: list[str] = []
    with suppress(OSError), os.scandir(folder) as entries:
        hidden = [entry.name for entry in entries if entry.name.startswith(".")]
    for each in hidden:
        for before, after in patterns:
            middle = each.removeprefix(before).removesuffix(after)
            if _RANDOM.fullmatch(middle) and each == before + middle + after:
                _remove_unless_locked(folder / each)


def _temporary_names(name: str) -> tuple[str, str]:
    """What stands before and after the random part of a temporary name; short enough for any file system."""
    suffix = Path(name).suffix  # kept, since some writers go by it
    return f".{name[:40]}.", suffix if len(suffix) <= 16 else ""


def _locked_temporary(final: Path) -> tuple[int | None, Path]:
    """A new file and the handle that locks it, which the system closes with its process, however that ends."""
    before, after = _temporary_names(final.name)
    while True:
        handle, name = tempfile.mkstemp(prefix=before, suffix=after, dir=final.parent)
        if fcntl is None:  # Windows renames no file that is open
            os.close(handle)
            return None, Path(name)
        with suppress(OSError):  # a file system without locks, where nothing is taken for a leftover either
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.path.exists(name):  # else another process took it for a leftover before it was locked
            return handle, Path(name)
        os.close(handle)


def _remove_unless_locked(path: Path) -> None:
    with suppress(OSError):  # gone already, not ours, or locked
        if fcntl is None:
            path.unlink()  # Windows refuses that for a file that is open
            return
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(handle)


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a file in UTF-8 or, where it begins with a byte order mark, UTF-16; anything else is refused."""
    content = Path(path).read_bytes()
    encoding = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        wanted = "UTF-16" if encoding == "utf-16" else "UTF-8"
        raise UsageError(
            f"{path}, line {line}, is not {wanted}: save the file as UTF-8 (from Latin-1: iconv -f LATIN1 -t UTF-8)"
        ) from error
    if "\0" in text:
        raise UsageError(f"{path} is not text: it holds zero bytes. Save it as UTF-8, or as UTF-16 with its mark")
    return text


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The values by name of a JSON file; one sentence for whatever is wrong."""
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not readable JSON: it is cut off, damaged or of another kind") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds a {type(content).__name__}, not values by name")
    return content


def parse_yaml(text: str, where: str) -> Any:
    """What plain YAML says; one sentence for whatever is wrong, also for aliases that multiply or form a loop."""
    yaml = need("yaml", "train", "reading a configuration")
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a date that is none is a ValueError
        raise UsageError(f"{where} is not YAML: {' '.join(str(error).split())}") from error
    count, waiting = 0, [content]
    while waiting:
        each = waiting.pop()
        inside = [*each, *each.values()] if isinstance(each, dict) else each if isinstance(each, _MANY) else ()
        count += len(inside)
        if count > _MOST_VALUES:
            raise UsageError(f"{where} holds itself, or more than {_MOST_VALUES:,} values")
        waiting += inside
    return content


def read_array(path: str | os.PathLike[str]) -> npt.NDArray[np.generic]:
    """The array of an `.npy` file; one sentence for whatever is wrong."""
    import numpy as np

    refuse_special(path)
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # whatever a spoiled header makes numpy raise; its advice is not for a foreign file
        raise UsageError(f"{path} is truncated or damaged, holds Python objects, or is no .npy file") from error
    if not isinstance(array, np.ndarray):
        raise UsageError(f"{path} holds several arrays; an .npy file of one is expected")
    return array


def refuse_special(path: str | os.PathLike[str]) -> None:
    """Refuse pipes, which would be waited for, and devices, which have no end."""
    place = Path(path)
    if place.exists() and not place.is_file() and not place.is_dir():
        raise UsageError(f"{path} is not a regular file")


class Arrays(Mapping[str, Any]):
    """The arrays of an open `.npz` file, read as they are asked for."""

    def __init__(self, path: str | os.PathLike[str], file: Any) -> None:
        self.path, self._file, self.files = path, file, list(file.files)

    def __getitem__(self, name: str) -> Any:
        try:
            self.check([name])
            return self._file[name]
        except (KeyError, OSError, MemoryError, UsageError):
            raise
        except Exception as error:  # whatever a spoiled header makes numpy raise; one that never closes, a TokenError
            if "allow_pickle" in str(error):  # numpy's advice is not for a file from elsewhere
                raise UsageError(
                    f"{self.path} holds arrays of Python objects, which are not read; save plain ones"
                ) from error
            raise UsageError(f"{self.path} is damaged: the array {name!r} is not what its header says") from error

    def check(self, names: Iterable[str]) -> None:
        """Refuse arrays that together would take too much memory, before any of them is read."""
        check_promise(self.path, self._file.zip, names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


@contextmanager
def open_arrays(path: str | os.PathLike[str]) -> Iterator[Arrays]:
    """The arrays of an `.npz` file by their names; one sentence for whatever is wrong."""
    import numpy as np

    damaged = ValueError(f"{path} is truncated or damaged, or no .npz file")
    refuse_special(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            if not hasattr(file, "files"):
                raise UsageError(f"{path} holds a single array; an .npz file of named ones is expected")
            yield Arrays(path, file)
    # zipfile raises NotImplementedError for a compression it does not know, RuntimeError for an encrypted member.
    except (zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError, RuntimeError, UnicodeError) as error:
        raise damaged from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # a seek to before the beginning, where a damaged archive leads
            raise
        raise damaged from error
    except ValueError as error:
        if "allow_pickle" in str(error) or not zipfile.is_zipfile(
            path
        ):  # the first where only its beginning is spoiled
            raise damaged from error
        raise


def sha256_of(path: str | os.PathLike[str]) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with Path(path).open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


# What a pickled numpy array is made of, under the module names of numpy 1 and 2; nothing here runs foreign code.
_ARRAY_PARTS = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
    ("_codecs", "encode"),
    ("collections", "OrderedDict"),
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ARRAY_PARTS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}; only arrays, numbers and text are read")
        return super().find_class(module, name)


def load_pickled_arrays(file: IO[bytes], *, encoding: str = "latin1") -> Any:
    """Read a pickle of plain containers, text, numbers and numpy arrays; refuse anything else.

    The CIFAR batches and some published label files are pickles. Python 2 wrote some of them, hence `encoding`.
    """
    try:
        return _ArraysOnly(file, encoding=encoding).load()
    except (
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        KeyError,
        IndexError,
        AttributeError,
        ImportError,
    ) as error:
        name = getattr(file, "name", "the file")
        raise UsageError(f"{name} is not a readable pickle of arrays: {error}") from error
