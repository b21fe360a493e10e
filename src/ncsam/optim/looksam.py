"""NCSAM's perturbation measured every few steps, near the base optimizer's cost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ncsam.optim.estimators import Compensation, Estimator, Exact, FlippedLoss, Memory
from ncsam.optim.fused import collect_sum, sum_moves
from ncsam.optim.step import MicroBatch, Move, Step
from ncsam.vectors.arithmetic import add_scaled_, global_dot, global_norm, scale_

ALPHA = 0.85  # how much of ||g|| the kept part is given; .7 in the paper, .5 to 1 tried here


class LookSAM(Estimator):
    r"""LookSAM (Liu et al., 2022, arXiv 2203.02714): what a perturbation adds to the gradient changes slowly.

    Every k-th step measures g_v, the part of its final gradient orthogonal to the one at w:
    :math:`g_v = g' - (g'\cdot g / \|g\|^2)\, g`. Other steps are the base optimizer's, on
    :math:`g_B + .85\, (\|g_B\| / \|g_v\|)\, g_v`. Most steps have g_B alone, and with it the norm that a fused
    measurement must know beforehand; where that is not enough (relative, adaptive, the first one) it is exact.

    Args:
        exact: Runs the measurements that cannot be fused.
        vectors: The optimizer's own, saved with its state; g_v is kept there as "orthogonal".
        every: Every so many steps one measures g_v.
    """

    def __init__(self, exact: Exact, vectors: dict[str, dict[Tensor, Tensor]], every: int = 5) -> None:
        self.exact = exact
        self.memory = Memory(every)
        self._vectors = vectors  # the optimizer's, which it saves
        self._factor = 0.0

    def flips(self, how: Compensation) -> bool:
        return self.memory.due

    def _sums(self, how: Compensation) -> bool:
        """Whether a measurement may be fused: ||g_B|| is known, but neither ||g*|| nor ||T g_B||."""
        return self.memory.due and self.memory.norm > 0 and not how.relative and how.eta is None

    def collect(self, step: Step, how: Compensation, batch: MicroBatch, noise: FlippedLoss) -> None:
        if self._sums(how):
            collect_sum(step, how, batch, noise, self.memory)
        else:
            self.exact.collect(step, how, batch, noise)

    @torch.no_grad()
    def moves(self, step: Step, how: Compensation) -> Iterator[Move]:
        self.memory.micro_batches = max(1, step.micro_batches)
        params, gradients = step.directions()
        norm = global_norm(gradients)
        summed = self._sums(how) and step.flips.flipped > 0
        if math.isfinite(norm) and norm > 0 and not summed:
            self.memory.follow(norm / step.loss_scale)
        if not self.memory.due:
            if step.may_perturb(norm):
                kept = self._vectors["orthogonal"]
                kept_parts = [kept[p] if p in kept else torch.zeros_like(p) for p in params]
                add_scaled_(gradients, kept_parts, self._factor * norm)
                self.memory.age()
                step.report.phase = "looksam"
            return
        for move in sum_moves(step, how, self.memory) if summed else self.exact.moves(step, how):
            yield move
            if move.params:
                self._keep(params, gradients, norm)

    def _keep(self, params: list[Tensor], gradients: list[Tensor], norm: float) -> None:
        """Keep g_v, with g' now in `.grad` and g that of w; it is written over g."""
        perturbed = {p: p.grad for p in params if p.grad is not None}
        kept = [g for p, g in zip(params, gradients, strict=True) if p in perturbed]
        descent = list(perturbed.values())
        along = global_dot(descent, kept) / norm**2
        scale_(kept, -along)
        add_scaled_(kept, descent, 1.0)
        length = global_norm(kept)
        if math.isfinite(length) and length > 0:
            self._vectors["orthogonal"] = dict(zip(perturbed, kept, strict=True))
            self._factor = ALPHA / length
            self.memory.refresh()

    def state_dict(self) -> dict[str, Any]:
        return {**self.memory.state_dict(), "factor": self._factor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.memory.load_state_dict(state)
        self._factor = state.get("factor", 0.0)
