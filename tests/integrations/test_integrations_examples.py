"""The examples run, and learn."""

import importlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))


@pytest.mark.parametrize(
    ("name", "share"),
    [("regression", 0.95), ("detection", 0.7), ("language_model", 0.95)],
)
def test_the_error_falls(name, share):
    before, after = importlib.import_module(name).main(epochs=8 if name == "regression" else 1)
    assert after < share * before


def test_segmentation_learns_the_ink():
    before, after = importlib.import_module("segmentation").main(epochs=1)
    assert after > max(before, 0.85)


def test_the_sweep_chooses_by_noisy_labels_and_finds_clean_ones():
    pytest.importorskip("optuna")
    options, on_noisy, on_clean = importlib.import_module("optuna_sweep").main(trials=4, epochs=3)
    assert set(options) == {"method", "lr", "rho"}
    assert on_noisy < 0.75  # four in ten labels are wrong, so no network can do much better than 64 %
    assert on_clean > on_noisy
