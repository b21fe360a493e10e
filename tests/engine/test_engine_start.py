"""Training starts without what it does not need, and the base optimizer is torch's to the bit all the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from resolved import resolved

from ncsam import methods, models
from ncsam.engine.optimizers import build_optimizer

SLOW = ("torch._dynamo", "lightning_fabric", "sklearn", "scipy", "matplotlib", "PIL", "rich", "pandas", "sympy")


def test_the_first_steps_wait_for_nothing_they_do_not_need(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "rows.npz", x=rng.normal(size=(64, 4)).astype("f4"), y=np.arange(64) % 2)
    code = """
import sys
from ncsam.engine import sinks
def stop(*_):
    print(*sys.modules)
    raise SystemExit(0)
sinks.ConsoleSink.step = stop
from ncsam.cli.main import main
main(["train", "rows.npz", "--model", "network", "--out", "run"])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "torch" in loaded
    assert loaded & set(SLOW) == set()


@pytest.mark.parametrize(("base", "kind"), [("sgd", torch.optim.SGD), ("adamw", torch.optim.AdamW)])
def test_the_base_optimizer_is_torchs_to_the_bit(base: str, kind: Any) -> None:
    config = resolved(optimizer=base, lr=0.01, epochs=2)
    torch.manual_seed(0)
    one = models.create("mlp", num_classes=3, in_features=4, hidden=(8,))
    two = models.create("mlp", num_classes=3, in_features=4, hidden=(8,))
    two.load_state_dict(one.state_dict())
    ours = build_optimizer(config, one, methods.create("ce"), 10)
    options = {"momentum": 0.9} if base == "sgd" else {}
    theirs = kind(two.parameters(), lr=0.01, weight_decay=1e-3, **options)
    assert isinstance(ours, kind)
    for _ in range(5):
        x, y = torch.randn(16, 4), torch.randint(3, (16,))
        for network, optimizer in ((one, ours), (two, theirs)):
            optimizer.zero_grad()
            assert all(p.grad is None for p in network.parameters())
            F.cross_entropy(network(x), y).backward()
            optimizer.step()
    assert all(torch.equal(*pair) for pair in zip(one.parameters(), two.parameters(), strict=True))
    theirs.load_state_dict(ours.state_dict())
    ours.load_state_dict(theirs.state_dict())
    seen = []
    ours.register_step_post_hook(lambda *_: seen.append(1))
    ours.step()
    assert seen == [1]


def test_a_run_that_compiles_has_torchs_own() -> None:
    network = models.create("mlp", num_classes=3, in_features=4)
    config = resolved(optimizer="sgd", lr=0.01, compile=True)
    assert type(build_optimizer(config, network, methods.create("ce"), 1)) is torch.optim.SGD
    assert type(build_optimizer(config.replace(compile=False), network, methods.create("ce"), 1)) is not torch.optim.SGD
