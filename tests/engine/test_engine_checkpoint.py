"""Checkpoints know themselves: a checksum over all their bytes, the one before as a reserve, and nothing that runs."""

from __future__ import annotations

import io
import os
import pickle
import random
import zipfile
from pathlib import Path

import pytest
import torch

from ncsam.engine import RunError
from ncsam.engine import checkpoint as module
from ncsam.engine.checkpoint import load_checkpoint, save_checkpoint


def a_state(epoch: int = 1, **changes: object) -> dict[str, object]:
    plain = {"labels_sha256": "0" * 64, "data": {}, "config": {}, "method": {}, "samples": {}, "ranks": [{}]}
    weights = {"learners": [{"network": {"w": torch.arange(200.0)}}]}
    return {"epoch": epoch, "batch": 0, **plain, **weights, "history": [{}] * epoch, "seconds": 1.0, **changes}


def saved(folder: Path, *epochs: int) -> Path:
    for epoch in epochs:
        save_checkpoint(folder, a_state(epoch), {"epoch": epoch})
    return folder / "last.ckpt"


def heard(folder: Path) -> tuple[object, list[str]]:
    said: list[str] = []
    state = load_checkpoint(folder, said.append)
    return (None if state is None else state["epoch"]), said


def test_what_is_saved_comes_back_and_torch_itself_can_read_it(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path) is None
    path = saved(tmp_path, 1, 2)
    state = load_checkpoint(tmp_path)
    assert state is not None
    assert torch.equal(state["learners"][0]["network"]["w"], torch.arange(200.0))
    assert torch.load(path, weights_only=True)["epoch"] == 2
    with zipfile.ZipFile(path) as archive:
        assert archive.comment.startswith(b"ncsam checkpoint 2 sha256 ")
    assert torch.load(tmp_path / "previous.ckpt", weights_only=True)["epoch"] == 1


def test_no_flipped_bit_goes_unnoticed_and_the_one_before_takes_its_place(tmp_path: Path) -> None:
    path = saved(tmp_path, 1, 2)
    whole = path.read_bytes()
    chance = random.Random(0)
    places = [0, 1, len(whole) - 1, len(whole) - 70, *(chance.randrange(len(whole)) for _ in range(60))]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        epoch, said = heard(tmp_path)
        assert epoch == 1, place
        assert len(said) == 1
        assert "last.ckpt is " in said[0]
        assert said[0].endswith("; the one before it, of epoch 1, is used instead")


@pytest.mark.parametrize("content", [b"", b"x", b"epoch: 3\n", b"PK\x05\x06" + 18 * b"\0", 4000 * b"\0"])
def test_a_file_that_is_no_checkpoint_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "last.ckpt").write_bytes(content)
    with pytest.raises(RunError, match=r"last.ckpt.*complete"):
        load_checkpoint(tmp_path)


def test_a_checkpoint_cut_at_any_length_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, 1)
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        with pytest.raises(RunError, match="end with its checksum"):
            load_checkpoint(tmp_path)


def test_a_damaged_checkpoint_never_takes_the_place_of_the_good_one_before(tmp_path: Path) -> None:
    path = saved(tmp_path, 1, 2)
    path.write_bytes(path.read_bytes()[:-5])
    assert heard(tmp_path)[0] == 1
    saved(tmp_path, 3)
    assert torch.load(tmp_path / "previous.ckpt", weights_only=True)["epoch"] == 1
    saved(tmp_path, 4)
    assert torch.load(tmp_path / "previous.ckpt", weights_only=True)["epoch"] == 3


def test_there_is_a_last_checkpoint_at_every_moment_of_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, 1)
    link = os.link

    def watched(*names: object) -> None:
        link(*names)
        assert torch.load(path, weights_only=True)["epoch"] == 1
        raise KeyboardInterrupt  # as if it were killed here

    monkeypatch.setattr(module.os, "link", watched)
    with pytest.raises(KeyboardInterrupt):
        saved(tmp_path, 2)
    assert heard(tmp_path) == (1, [])


def test_where_links_are_not_allowed_the_one_before_is_kept_by_renaming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(module.os, "link", refused)
    saved(tmp_path, 1, 2)
    assert heard(tmp_path) == (2, [])
    assert torch.load(tmp_path / "previous.ckpt", weights_only=True)["epoch"] == 1


class Runs:
    """Unpickling it would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def test_a_forged_checkpoint_with_a_right_checksum_runs_nothing_and_no_advice_to_let_it_is_repeated(
    tmp_path: Path,
) -> None:
    trap = tmp_path / "ran"
    buffer = io.BytesIO()
    torch.save({"format": module.FORMAT, **a_state(), "method": Runs(trap)}, buffer, pickle_module=pickle)
    module._seal(buffer)
    (tmp_path / "last.ckpt").write_bytes(buffer.getvalue())
    with pytest.raises(RunError, match="more than tensors") as caught:
        load_checkpoint(tmp_path)
    assert "weights_only" not in str(caught.value)
    assert not trap.exists()


@pytest.mark.parametrize("part", ["epoch", "config", "learners", "history", "data"])
def test_a_checkpoint_without_a_part_is_refused(tmp_path: Path, part: str) -> None:
    save_checkpoint(tmp_path, {**a_state(), part: "nonsense"}, {})
    with pytest.raises(RunError, match=f"its part '{part}' is missing or of a wrong type"):
        load_checkpoint(tmp_path)


def test_a_checkpoint_that_is_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "last.ckpt")
    with pytest.raises(RunError, match="is not a regular file"):
        load_checkpoint(tmp_path)


def test_a_run_folder_that_is_gone_is_not_made_again(tmp_path):
    with pytest.raises(RunError, match="its folder no longer exists"):
        save_checkpoint(tmp_path / "gone" / "checkpoints", {"epoch": 1}, {})
    assert list(tmp_path.iterdir()) == []
