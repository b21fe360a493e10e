"""The layout of run folders: a finished run has the files that it lists, and no other module names them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import ncsam
from ncsam.data import from_arrays
from ncsam.engine import RunConfig, RunError, train
from ncsam.engine.out_of_fold import find_label_issues_cv
from ncsam.runs import layout

SOURCES = Path(ncsam.__file__).parent


def two_clouds(clean: bool = True):
    generator = np.random.default_rng(0)
    truth = np.arange(60) % 2
    x = (generator.normal(size=(60, 4)) + 4 * truth[:, None]).astype(np.float32)
    return from_arrays(x, truth, x_test=x, y_test=truth) if clean else from_arrays(x, truth)


def files_of(folder: Path) -> set[str]:
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    inner = (f"{layout.FOLDS}/", f"{layout.CANDIDATES}/")
    return {name for name in found if not name.startswith(inner)} - {layout.LOCK}


def listed(*conditions: str) -> set[str]:
    """The files of a finished run under these conditions."""
    return {name for name, file in layout.FILES.items() if {"always", *conditions} & set(file.when.split(", "))}


def test_a_finished_run_has_the_files_of_the_layout(tmp_path: Path) -> None:
    config = RunConfig(noise="symmetric", rate=0.2, optimizer="sgd", epochs=2, accelerator="cpu")
    train(config, tmp_path, dataset=two_clouds(), console=False)
    expected = listed("train", "noise", "more than one checkpoint", "features", "data in memory")
    assert files_of(tmp_path) == expected
    find_label_issues_cv(tmp_path, 2, dataset=two_clouds(), console=False)
    assert files_of(tmp_path) == expected


def test_a_run_resumes_from_files_of_the_layout_with_the_checkpoint_last() -> None:
    assert set(layout.RESUME) <= layout.FILES.keys()
    assert layout.RESUME[-1] == f"{layout.CHECKPOINTS}/{layout.LAST}"
    assert list(layout.FILES)[-1] == layout.SUMMARY  # which marks a run as finished


@pytest.mark.parametrize("name", sorted(n.rpartition("/")[2] for n in layout.FILES))
def test_no_other_module_spells_a_file_name(name: str) -> None:
    """In code, that is; docstrings and messages may."""
    for path in SOURCES.rglob("*.py"):
        if path.name != "layout.py":
            assert not re.search(rf'[/(=\[,] ?"([\w/]*/)?{re.escape(name)}"', path.read_text(encoding="utf-8")), path


def test_a_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / layout.COMPARISON).write_text("[]")
    with pytest.raises(RunError, match="ncsam compare"):
        layout.refuse_other_work(tmp_path, layout.CONFIG)
    layout.refuse_other_work(tmp_path, layout.COMPARISON)


def test_leftovers_of_any_file_are_removed(tmp_path: Path) -> None:
    (tmp_path / layout.CHECKPOINTS).mkdir()
    for name in layout.FILES:
        path = tmp_path / name
        (path.parent / f".{path.name}.abcd1234{path.suffix}").write_text("half")
    layout.clear_leftovers(tmp_path)
    assert files_of(tmp_path) == set()
