"""The kept list of a large folder: the same split from it, and never a stale one."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ncsam import data
from ncsam._files import read_array
from ncsam.data.readers import folder as folder_module
from ncsam.data.readers import folder_index
from ncsam.errors import UsageError


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(folder_module, "LARGE", 3)
    for name in ("cat/a.png", "cat/deep/b.png", "dog/c é.png", "dog/empty/.keep"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("png"):
            Image.fromarray(np.zeros((4, 4, 3), dtype=np.uint8)).save(path)
        else:
            path.touch()
    settle(tmp_path / "photos")
    return tmp_path / "photos"


def settle(folder: Path) -> None:
    """Let all folders have changed an hour ago."""
    for where, _, _ in os.walk(folder, topdown=False):
        os.utime(where, (time.time() - 3600,) * 2)


def names(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in data.load(folder).train.inputs]


def test_the_list_is_read_from_the_index(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ["cat/a.png", "cat/deep/b.png", "dog/c é.png"]
    assert names(photos) == expected
    assert (photos / folder_index.INDEX).is_file()
    monkeypatch.setattr(folder_module, "image_files", lambda folder: pytest.fail("the folder was listed again"))
    assert names(photos) == expected
    assert data.load(photos).train.labels.tolist() == [0, 0, 1]


@pytest.mark.parametrize("change", ["add", "remove", "rename", "fill", "class", "break"])
def test_a_changed_folder_is_listed_again(photos: Path, change: str) -> None:
    names(photos)
    image = (photos / "cat/a.png").read_bytes()
    expected = {"cat/a.png", "cat/deep/b.png", "dog/c é.png"}
    if change == "add":
        (photos / "cat/deep/new.png").write_bytes(image)
        expected.add("cat/deep/new.png")
    elif change == "remove":
        (photos / "cat/a.png").unlink()
        expected.remove("cat/a.png")
    elif change == "rename":
        (photos / "cat/a.png").rename(photos / "cat/z.png")
        expected = expected - {"cat/a.png"} | {"cat/z.png"}
    elif change == "fill":
        (photos / "dog/empty/d.png").write_bytes(image)
        expected.add("dog/empty/d.png")
    elif change == "class":
        (photos / "ant").mkdir()
        (photos / "ant/e.png").write_bytes(image)
        expected.add("ant/e.png")
    else:
        (photos / folder_index.INDEX).write_bytes(b"no index")
    assert set(names(photos)) == expected


def test_small_fresh_and_linked_folders_have_no_index(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (photos / "cat/new.png").write_bytes((photos / "cat/a.png").read_bytes())
    names(photos)  # changed just now
    assert not (photos / folder_index.INDEX).exists()
    settle(photos)
    (photos / "dog/link").symlink_to(photos / "cat/deep", target_is_directory=True)
    settle(photos)
    names(photos)
    assert not (photos / folder_index.INDEX).exists()
    (photos / "dog/link").unlink()
    settle(photos)
    monkeypatch.setattr(folder_module, "LARGE", 5)
    names(photos)
    assert not (photos / folder_index.INDEX).exists()


def test_a_pipe_in_the_place_of_the_index_is_not_waited_for(photos: Path) -> None:
    os.mkfifo(photos / folder_index.INDEX)
    assert folder_index.read_index(photos, ("cat", "dog")) is None
    with pytest.raises(UsageError, match="not a regular file"):
        read_array(photos / folder_index.INDEX)
    assert len(data.from_folder(photos).train) == 3
