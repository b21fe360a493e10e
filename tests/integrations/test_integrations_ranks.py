"""Two processes: every framework trains as the plain two phases over torch's own DDP."""

import json

import pytest

from two_processes import by_two

pytest.importorskip("pytorch_lightning")
pytest.importorskip("transformers")


@pytest.mark.slow
def test_two_processes_train_as_torchs_own_ddp(tmp_path):
    from two_ranks import main

    modules = ("pytorch_lightning", "test_integrations_lightning", "test_integrations_transformers")
    by_two(main, tmp_path / "found.json", modules=modules, ACCELERATE_USE_CPU="true")
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert len(found) == 11
    for name, (steps, apart, difference) in found.items():
        assert steps == (10 if "accumulated" in name else 20), name
        assert apart == 0, name  # the ranks hold the same weights
        if "local" in name:  # each rank perturbs by its own batch: it trains, and not as the others do
            assert difference > 1e-2, name
        else:
            assert difference < 2e-6, name
