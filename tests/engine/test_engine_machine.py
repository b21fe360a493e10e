"""The machine that a run asks for: a name that is none, or what is not there, is said before a folder is made."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
from test_engine_resume import small_config, small_data

from ncsam.engine import train
from ncsam.engine.device import build_fabric, check_accelerator
from ncsam.engine.out_of_fold import out_of_fold


@pytest.fixture
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.mark.usefixtures("_no_gpu")
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"accelerator": "cuda"}, "^invalid accelerator='cuda'"),
        ({"accelerator": "gpu"}, "^invalid accelerator='gpu'"),
        ({"accelerator": "cdua"}, "unknown accelerator 'cdua'. Did you mean 'cuda'"),
        ({"precision": "32-ture"}, "unknown precision '32-ture'. Did you mean '32-true'"),
        ({"devices": "0,", "accelerator": "cpu"}, "devices=0,.*"),
    ],
)
def test_what_is_not_there_leaves_no_folder(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        train(small_config(**changes), tmp_path / "run", dataset=small_data(), console=False)
    assert not (tmp_path / "run").exists()


def test_what_is_there_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for name in ("auto", "cpu", "cuda", "gpu"):
        check_accelerator(name)
    with pytest.raises(ValueError, match=r"accelerator='mps'"):
        check_accelerator("mps")


@pytest.mark.usefixtures("_no_gpu")
def test_folds_of_a_run_from_another_machine(tmp_path: Path) -> None:
    small_config(accelerator="cuda").save(tmp_path / "config.yaml")
    with pytest.raises(ValueError, match="accelerator='cuda'"):
        out_of_fold(tmp_path, 2, dataset=small_data(), console=False)
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_a_limit_of_the_system_is_blamed_on_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    import lightning_fabric

    def no_more_files(**_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(lightning_fabric, "Fabric", no_more_files)
    with pytest.raises(OSError, match="Too many open files"):
        build_fabric(small_config())
