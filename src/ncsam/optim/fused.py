"""NCSAM's perturbation from one backward of a sum of losses, at SAM's cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from ncsam.optim.estimators import Compensation, Estimator, Exact, FlippedLoss, Memory
from ncsam.optim.flipping import flip_count
from ncsam.optim.sam import scaled_gradients
from ncsam.optim.step import MicroBatch, Move, Step
from ncsam.vectors.arithmetic import global_norm, multiply_


class Fused(Estimator):
    r"""v = rho g_B/||g_B|| + s g* = (rho / ||g_B||) (g_B + beta g*) with beta = s ||g_B|| / rho.

    The bracket is the gradient of L_B + beta L*, by one backward; only the norm must be known beforehand, and a
    remembered one, N, stands in for it. Every k-th step is exact and measures it. The number of micro-batches, too, is
    known only at the end, and taken to be the last step's.

    Args:
        exact: Runs the steps that measure.
        every: Every so many steps one is exact.
    """

    def __init__(self, exact: Exact, every: int = 20) -> None:
        self.exact = exact
        self.memory = Memory(every)

    def collect(self, step: Step, how: Compensation, batch: MicroBatch, noise: FlippedLoss) -> None:
        if self.memory.due:
            self.exact.collect(step, how, batch, noise)
        else:
            collect_sum(step, how, batch, noise, self.memory)

    def moves(self, step: Step, how: Compensation) -> Iterator[Move]:
        self.memory.micro_batches = max(1, step.micro_batches)
        if self.memory.due or not step.flips.flipped:
            yield from self.exact.moves(step, how, self._note_norms)
            return
        for move in sum_moves(step, how, self.memory):
            if move.params:
                self.memory.age()
            yield move

    def _note_norms(self, norm: float, noise_norm: float, samples: int) -> None:
        self.memory.refresh()
        self.memory.note_norms(norm, noise_norm, samples)

    def state_dict(self) -> dict[str, Any]:
        return self.memory.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.memory.load_state_dict(state)


def collect_sum(step: Step, how: Compensation, batch: MicroBatch, noise: FlippedLoss, memory: Memory) -> None:
    """One backward of L_B + beta L*, with the norm that is remembered.

    Args:
        step: Runs the backward, into `.grad`.
        how: The compensation of this step.
        batch: The micro-batch, with logits.
        noise: Its flipped samples, whose loss must come from the same graph.
        memory: Gives the norms, and the expected number of micro-batches.
    """
    assert batch.logits is not None, "samples were flipped by their logits"
    ranks = 1 if step.synced_group is None else dist.get_world_size(step.synced_group)  # gradients are averaged
    samples = memory.micro_batches * batch.logits.shape[0] * ranks
    number = max(1, samples if how.over_batch else flip_count(how.flip_ratio, samples))
    beta = how.sign * how.strength * memory.norm / (memory.noise_norm if how.relative else step.rho)
    flipped = noise.mean()
    assert flipped is not None, "the same graph"
    step.collect(torch.add(batch.loss, flipped, alpha=beta * ranks * noise.rows / number), batch)


@torch.no_grad()
def sum_moves(step: Step, how: Compensation, memory: Memory) -> Iterator[Move]:
    """eps = Proj(v); `.grad` is g_B + beta g*.

    Args:
        step: The gradients at w, the radius, the parameters.
        how: The compensation of this step.
        memory: Gives the norm of g_B that `collect_sum` used.

    Yields:
        One move; where the norm forbids a perturbation, one that stays at w, or none if a `GradScaler` skips the step.
    """
    params, directions = step.directions()
    scaling = step.magnitudes(params, how.eta)
    if scaling is not None:
        directions = scaled_gradients(directions, scaling)
    norm = global_norm(directions)
    if not step.may_perturb(norm):
        if not step.scaled:
            yield Move.nowhere()  # .grad is not g_B: take that, at w
        return
    outer = step.rho / (memory.norm * step.loss_scale)
    length = outer * norm  # ||v||
    shrink = min(1.0, step.rho / length) if how.projection else 1.0
    if scaling is not None:
        multiply_(directions, scaling)
    step.report.phase = "ncsam"
    if step.measured:
        step.report.perturbation_norm = length * shrink
        step.report.projected = shrink < 1.0
        step.report.note_flips(step.flips)
        step.report.cos_clean = step.cosine_with_clean(params, directions)
    yield Move(params, directions, step.scaled_by_radius(params, outer * shrink))
