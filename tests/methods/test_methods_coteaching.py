"""Co-teaching with identical networks that forget nothing is plain cross-entropy, bit for bit."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from test_methods_runs import config, run

from ncsam.methods.coteaching import Coteaching


@pytest.mark.parametrize("optimizer", ["sgd", "sam"])
def test_coteaching_without_forgetting_is_cross_entropy(
    optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twins(self, create):
        first = create()
        return [first, copy.deepcopy(first)]

    monkeypatch.setattr(Coteaching, "build", twins)
    options = {"optimizer": optimizer, "model": "mlp", "model_options": {"hidden": [8]}}
    alone = run(config("ce", **options), tmp_path / "ce")
    both = run(config("coteaching", **options, method_options={"forget_rate": 0.0}), tmp_path / "coteaching")
    for learner in both["learners"]:
        for name, value in alone["learners"][0]["network"].items():
            assert torch.equal(learner["network"][name], value), name
    assert both["history"][-1]["test_accuracy"] == alone["history"][-1]["test_accuracy"]
