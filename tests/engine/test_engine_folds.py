"""The split into folds, the file of out-of-fold predictions, and the runs that make them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ncsam.data import from_arrays
from ncsam.engine import RunConfig, train
from ncsam.engine.out_of_fold import out_of_fold
from ncsam.engine.task import load_task
from ncsam.issues.calibration import stratified_folds
from ncsam.runs.reader import load_oof
from ncsam.runs.writer import OutOfFold, save_oof


@pytest.mark.parametrize(("counts", "folds"), [((7, 11, 3), 5), ((2, 2, 2, 2), 4), ((1, 1, 1, 50), 3)])
def test_parts_differ_by_at_most_one_in_every_class_and_in_total(counts: tuple[int, ...], folds: int) -> None:
    labels = np.random.default_rng(3).permutation(np.repeat(np.arange(len(counts)), counts))
    parts = stratified_folds(labels, folds)
    assert set(parts.tolist()) <= set(range(folds))
    assert np.ptp(np.bincount(parts, minlength=folds)) <= 1
    for c in range(len(counts)):
        assert np.ptp(np.bincount(parts[labels == c], minlength=folds)) <= 1
    assert np.array_equal(parts, stratified_folds(labels, folds))
    assert not np.array_equal(parts, stratified_folds(labels, folds, seed=1))


@pytest.mark.parametrize("folds", [1, 5, True])
def test_a_number_of_folds_that_cannot_be(folds: int) -> None:
    with pytest.raises(ValueError, match=r"folds=.*"):
        stratified_folds([0, 1, 0, 1], folds)


@pytest.mark.parametrize("text", ["0/5", "6/5", "1/1", "2", "a/b", "-1/5"])
def test_a_fold_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"fold='.*'"):
        RunConfig(fold=text)


def test_the_file_goes_there_and_back_and_knows_its_labels(tmp_path: Path) -> None:
    labels = np.array([0, 1, 1])
    rows = np.array([[0.75, 0.25], [0.5, 0.5], [0.0, 1.0]])
    assert load_oof(tmp_path) is None
    save_oof(tmp_path, OutOfFold.of(rows, labels, {"folds": 3, "seed": 0}))
    found = load_oof(tmp_path)
    assert found is not None
    assert np.array_equal(found.probabilities, rows)
    assert found.about["folds"] == 3
    assert found.belong_to(labels)
    assert not found.belong_to(np.array([0, 1, 0]))
    for forged in (rows[:, :1], rows[:2]):  # a class or a sample short, whatever the note beside them says
        save_oof(tmp_path, OutOfFold(forged.astype(np.float32), found.about))
        short = load_oof(tmp_path)
        assert short is not None
        assert not short.belong_to(labels)
    with pytest.raises(ValueError, match=r"finite numbers \(3, classes\)"):
        OutOfFold.of(rows[:2], labels, {})
    (tmp_path / "oof_probs.npz").write_bytes(b"no array")
    with pytest.raises(ValueError, match=r"oof_probs\.npz"):
        load_oof(tmp_path)


@pytest.fixture
def two_clouds():
    """Sixty points in two clouds that touch nowhere; six labels are wrong."""
    generator = np.random.default_rng(0)
    clean = np.arange(60) % 2
    x = (generator.normal(size=(60, 4)) + 6 * clean[:, None]).astype(np.float32)
    observed = clean.copy()
    observed[[3, 8, 21, 30, 47, 52]] ^= 1
    return from_arrays(x, observed, y_clean=clean)


def test_each_sample_is_predicted_by_a_network_that_never_saw_it(tmp_path: Path, two_clouds) -> None:
    config = RunConfig(optimizer="sgd", epochs=4, model_options={"hidden": [8]}, data="two clouds")
    train(config, tmp_path, dataset=two_clouds, console=False)
    found = out_of_fold(tmp_path, 3, dataset=two_clouds, console=False)
    assert found.probabilities.shape == (60, 2)
    assert found.probabilities.sum(axis=1) == pytest.approx(np.ones(60), abs=1e-6)
    assert np.array_equal(found.probabilities.argmax(axis=1), two_clouds.train.clean)
    held = [load_task(config.replace(fold=f"{part}/3"), two_clouds) for part in (1, 2, 3)]
    assert sorted(np.concatenate([task.val for task in held]).tolist()) == list(range(60))
    assert all(not set(task.train) & set(task.val) and len(task.train) == 40 for task in held)


def test_finished_folds_are_not_trained_again(tmp_path: Path, two_clouds) -> None:
    config = RunConfig(optimizer="sgd", epochs=2, model_options={"hidden": [4]}, data="two clouds")
    train(config, tmp_path, dataset=two_clouds, console=False)
    first = out_of_fold(tmp_path, 2, dataset=two_clouds, console=False)
    (tmp_path / "oof_probs.npz").unlink()
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "folds").rglob("last.ckpt")}
    assert len(stamps) == 2
    assert np.array_equal(
        out_of_fold(tmp_path, 2, dataset=two_clouds, console=False).probabilities, first.probabilities
    )
    assert stamps == {path: path.stat().st_mtime_ns for path in (tmp_path / "folds").rglob("last.ckpt")}
    with pytest.raises(ValueError, match=r"^invalid run=.* fold 1/2"):
        out_of_fold(tmp_path / "folds" / "1-of-2", 2, dataset=two_clouds, console=False)


def test_a_fold_has_no_say_in_a_run_that_listens(two_clouds) -> None:
    plain = load_task(RunConfig(data="two", optimizer="sgd", fold="2/5"), two_clouds)
    listening = load_task(RunConfig(data="two", optimizer="sam", rho="validation", fold="2/5"), two_clouds)
    fold = np.flatnonzero(stratified_folds(two_clouds.train.labels, 5) == 1)
    assert plain.val is not None
    assert listening.val is not None
    assert np.array_equal(plain.val, fold)
    assert len(listening.val) == 4  # a tenth of 24 in each of the two classes
    assert np.array_equal(np.sort(np.concatenate([listening.train, listening.val])), plain.train)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (np.array([{}], dtype=object), "holds arrays of Python objects"),
        (np.full((2, 2), np.nan, dtype=np.float32), "does not hold probabilities"),
        (np.zeros(3, dtype=np.float32), "does not hold probabilities"),
    ],
)
def test_predictions_of_others_are_one_sentence(tmp_path: Path, rows: Any, said: str) -> None:
    with (tmp_path / "oof_probs.npz").open("wb") as file:
        np.savez(file, probabilities=rows, about=np.array("{}"))
    with pytest.raises(ValueError, match=said) as found:
        load_oof(tmp_path)
    assert "pickle" not in str(found.value)
