"""Files written whole or not at all, checksums, and pickles read without running anything."""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` if the block succeeds, remove it if not."""
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{final.name}.", suffix=final.suffix, dir=final.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp is private; the final file is an ordinary one
        temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)


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
        raise ValueError(f"{name} is not a readable pickle of arrays: {error}") from error
