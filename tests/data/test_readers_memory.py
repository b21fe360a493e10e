"""An `.npz` file that promises too much is refused before its arrays are read."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from ncsam import _files, data
from ncsam.errors import DamagedFileError, UsageError


def forged(path: Path, shape: tuple[int, ...], content: bytes = b"\0" * 64) -> Path:
    """A file whose header promises a float32 array x of that shape."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x.npy", header.getvalue() + content)
        labels = io.BytesIO()
        np.save(labels, np.array([0, 1]))
        file.writestr("y.npy", labels.getvalue())
    return path


def test_a_header_that_promises_more_than_the_file_holds(tmp_path: Path) -> None:
    with pytest.raises(DamagedFileError, match="'x'"):
        data.load(forged(tmp_path / "f.npz", (2, 10**12)))


def test_arrays_beyond_the_share_of_memory_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f.npz"
    np.savez(path, x=np.zeros((2, 100), dtype=np.float32), y=np.array([0, 1]))  # 800 and 16 bytes
    monkeypatch.setattr(_files, "memory", lambda: 4 * 816)
    assert len(data.load(path).train) == 2
    monkeypatch.setattr(_files, "memory", lambda: 4 * 815)
    monkeypatch.setattr(np.lib.npyio.NpzFile, "__getitem__", lambda self, name: pytest.fail("an array was read"))
    with pytest.raises(UsageError, match="path="):
        data.load(path)


def test_compressed_files_count_by_what_they_become(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f.npz"
    np.savez_compressed(path, x=np.zeros((2, 100_000), dtype=np.float32), y=np.array([0, 1]))
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(_files, "memory", lambda: 1_000_000)
    with pytest.raises(UsageError, match="quarter"):
        data.load(path)


def test_the_memory_of_this_machine() -> None:
    found = _files.memory()
    assert found is None or 2**26 < found < 2**50
