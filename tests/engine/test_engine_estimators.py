"""Runs pay what their estimator promises, survive a stop within its cycle, and refuse what does not go together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ncsam.engine import RunConfig, train
from ncsam.engine.learner import Learner
from ncsam.engine.trainer import Trainer

from test_engine_run import config, images  # isort: skip

ESTIMATORS = ("exact", "fused", "looksam")


def chosen(estimator: str, **changes: object) -> RunConfig:
    options = {"estimator": estimator, "refresh_every": 4}
    return config(optimizer="ncsam", optimizer_options=options, kappa=0.3, flip_ratio=0.5, warmup=0.25, **changes)


@pytest.mark.parametrize(
    ("estimator", "refresh", "between"),
    [
        ("exact", (2, 3), (2, 3)),
        ("fused", (2, 3), (2, 2)),
        ("looksam", (2, 2), (1, 1)),
    ],
)
def test_a_run_costs_what_its_estimator_promises(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    estimator: str,
    refresh: tuple[int, int],
    between: tuple[int, int],
) -> None:
    """Six batches an epoch, one epoch of warm-up: the steps after it, counted in the network that is really trained."""
    counts = {"forwards": 0, "backwards": 0}
    seen: list[tuple[int, int]] = []
    step = Learner.step

    def watched(module: nn.Module, args: object, output: Tensor) -> None:
        counts["forwards"] += 1
        if output.requires_grad:
            output.register_hook(lambda grad: counts.update(backwards=counts["backwards"] + 1))

    def counting(self: Learner, *args: object) -> Tensor:
        counts.update(forwards=0, backwards=0)
        hook = self.bare.register_forward_hook(watched)
        loss = step(self, *args)  # type: ignore[arg-type]
        hook.remove()
        seen.append((counts["forwards"], counts["backwards"]))
        return loss

    monkeypatch.setattr(Learner, "step", counting)
    train(chosen(estimator, telemetry_every=0), tmp_path / "run", dataset=images(), console=False)
    assert seen[:6] == [(1, 1)] * 6
    after = seen[6:]
    assert len(after) == 18
    assert after[0] == ((2, 3) if estimator == "looksam" else refresh)  # "looksam" knows no norm yet
    assert after[1:] == [refresh if i % 4 == 0 else between for i in range(1, 18)]


@pytest.mark.parametrize("estimator", ["fused", "looksam"])
def test_a_run_stopped_within_a_cycle_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, estimator: str
) -> None:
    configured = chosen(estimator, checkpoint_every=1)
    train(configured, tmp_path / "whole", dataset=images(), console=False)
    step, count = Trainer._step, [0]

    def failing(self: Trainer, *args: object) -> None:
        count[0] += 1
        if count[0] == 9:  # two steps after the first exact one
            raise ZeroDivisionError
        step(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Trainer, "_step", failing)
    with pytest.raises(ZeroDivisionError):
        train(configured, tmp_path / "stopped", dataset=images(), console=False)
    monkeypatch.setattr(Trainer, "_step", step)
    train(configured, tmp_path / "stopped", dataset=images(), console=False)
    one, other = (
        torch.load(tmp_path / name / "checkpoints/last.ckpt", weights_only=True) for name in ("whole", "stopped")
    )
    for here, there in zip(one["learners"], other["learners"], strict=True):
        assert all(torch.equal(value, there["network"][name]) for name, value in here["network"].items())


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_estimators_go_with_methods_that_choose_rows(tmp_path: Path, estimator: str) -> None:
    summary = train(chosen(estimator, method="coteaching"), tmp_path / "run", dataset=images(), console=False)
    assert summary["last"] is not None


def test_unknown_estimators_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="estimator='cheap'"):
        train(chosen("cheap"), tmp_path / "run", dataset=images(), console=False)
