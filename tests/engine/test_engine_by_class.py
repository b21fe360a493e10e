"""Confusions by hand, and the interval of an estimated noise rate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ncsam.engine import RunConfig, train
from ncsam.engine.class_metrics import confusion, noise_rate
from ncsam.runs.reader import read_by_class


def test_confusion_by_hand() -> None:
    found = confusion(np.array([0, 0, 2, 2, -1]), np.array([0, 1, 2, 2, 1]), 3)
    assert found.tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 2]]


def test_the_interval_covers_the_rate_and_narrows_with_samples() -> None:
    random = np.random.default_rng(0)
    widths = []
    for samples in (200, 3200):
        clean = random.integers(4, size=samples)
        wrong = random.random(samples) < 0.3
        labels = np.where(wrong, (clean + random.integers(1, 4, size=samples)) % 4, clean)
        probabilities = np.full((samples, 4), 0.1 / 3)
        probabilities[np.arange(samples), clean] = 0.9  # a network that is right, and sure
        found = noise_rate(labels, probabilities)
        assert found.rate == pytest.approx(wrong.mean(), abs=1e-9)
        assert found.low < found.rate < found.high
        assert found.low < 0.3 < found.high
        widths.append(found.high - found.low)
        # the deviation of a share, sqrt(p (1 - p) / n), times 2 * 1.96
        assert widths[-1] == pytest.approx(3.92 * (0.21 / samples) ** 0.5, rel=0.2)
    assert widths[1] < widths[0] / 3


def test_a_run_records_its_classes(tmp_path: Path) -> None:
    summary = train(RunConfig(noise="symmetric", rate=0.4, optimizer="sgd", epochs=5), tmp_path, console=False)
    found = read_by_class(tmp_path)
    assert found["test"].sum() == 359
    assert 100 * found["test"].trace() / 359 == pytest.approx(summary["last"])
    assert found["held_out"].sum() == summary["noise_at_end"]["samples"] == 144
    assert summary["noise_at_end"]["low"] < summary["noise_rate"] < summary["noise_at_end"]["high"]
