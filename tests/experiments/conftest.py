"""The experiments are scripts beside each other: their folder is importable for these tests."""

import sys
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "experiments"), *sys.path])
