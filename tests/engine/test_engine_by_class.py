"""Confusions by hand, metrics that count every class the same, and the one noise rate of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ncsam.engine import RunConfig, train
from ncsam.engine.metrics import confusion
from ncsam.issues.posterior import noise_rate_of, noise_rate_words
from ncsam.runs.reader import read_by_class


def test_confusion_by_hand() -> None:
    found = confusion(np.array([0, 0, 2, 2, -1]), np.array([0, 1, 2, 2, 1]), 3)
    assert found.tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 2]]


def test_one_noise_rate_with_an_interval() -> None:
    random = np.random.default_rng(0)
    for samples, half in ((25, 1.645 * (0.21 / 25) ** 0.5), (3200, 0.15)):
        clean = random.integers(4, size=samples)
        wrong = np.arange(samples) % 10 < 3
        labels = np.where(wrong, (clean + random.integers(1, 4, size=samples)) % 4, clean)
        probabilities = np.full((samples, 4), 0.1 / 3)
        probabilities[np.arange(samples), clean] = 0.9  # a network that is right, and sure
        found = noise_rate_of(labels, probabilities)
        assert found is not None
        assert found["estimate"] == pytest.approx(wrong.mean(), abs=1e-9)
        assert found["high"] - found["estimate"] == pytest.approx(half, rel=0.1)
    assert "about 30 % of the labels are wrong (90 % interval 15 to 45 %" in noise_rate_words(found)
    assert noise_rate_of(labels[:19], probabilities[:19]) is None
    assert noise_rate_of(labels, np.roll(probabilities, 1, axis=1)) is None  # agrees with few labels
    assert "cannot be determined without verified labels" in noise_rate_words(None)


def test_a_run_records_its_classes(tmp_path: Path) -> None:
    summary = train(RunConfig(noise="symmetric", rate=0.4, optimizer="sgd", epochs=5), tmp_path, console=False)
    found = read_by_class(tmp_path)
    assert found["test"].sum() == 359
    assert 100 * found["test"].trace() / 359 == pytest.approx(summary["last"])
    assert found["held_out"].sum() == 144
    p = found["test"].diagonal() / found["test"].sum(axis=1)
    assert summary["test_balanced_accuracy"] == pytest.approx(100 * p.mean())
    both = found["test"].sum(axis=0) + found["test"].sum(axis=1)
    assert summary["test_f1"] == pytest.approx(100 * (2 * found["test"].diagonal() / both).mean())
    assert 50 < summary["test_auc"] <= 100
    estimate = summary["noise_estimate"]
    assert estimate["low"] < summary["noise_rate"] < estimate["high"]
    assert estimate["high"] - estimate["low"] == pytest.approx(0.3, abs=0.05)
