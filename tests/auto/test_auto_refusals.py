"""Invalid options of `auto` are one sentence, before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from auto_cases import clouds, config

from ncsam.automl import auto
from ncsam.errors import RunError
from ncsam.jobs import ExecutorConfig


def refused(out: Path, changes: dict[str, Any], options: dict[str, Any]) -> None:
    auto(config(**changes), out, dataset=clouds(), say=lambda text: None, **options)


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ({"accelerator": "cuda"}, {}, "accelerator='cuda'"),
        ({"accelerator": "nonsense"}, {}, "unknown accelerator 'nonsense'"),
        ({"precision": "nonsense"}, {}, "unknown precision 'nonsense'"),
        ({}, {"where": ExecutorConfig(mirror="data:,x")}, "mirror='data:,x'"),
        ({}, {"budget": 0}, "budget=0"),
        ({}, {"budget": -1.0}, "budget=-1.0"),
        ({}, {"budget": float("nan")}, "budget=nan"),
        ({}, {"budget": float("inf")}, "budget=inf"),
        ({}, {"budget": "30m"}, "budget='30m'"),
    ],
    ids=str,
)
def test_what_is_wrong_is_said_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=said):
        refused(tmp_path / "out", changes, options)
    assert not (tmp_path / "out").exists()


def test_a_folder_of_another_command_is_left_alone(tmp_path: Path) -> None:
    for mark, held in (("config.yaml", "ncsam train"), ("comparison.json", "ncsam compare")):
        (tmp_path / mark).write_text("{}")
        with pytest.raises(RunError, match=f"holds .*{held}"):
            refused(tmp_path, {}, {})
        (tmp_path / mark).unlink()
    assert list(tmp_path.iterdir()) == []
