"""How NCSAM computes its perturbation: the interface, the exact way, and what the cheaper ones remember."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ncsam.optim.sam import ascent, scaled_gradients
from ncsam.optim.step import MicroBatch, Move, Step
from ncsam.vectors.arithmetic import add_scaled_, cosine, global_norm, multiply_

_INVISIBLE = 1e-15  # a compensation this much smaller than rho changes no bit of eps that matters

_EXACT_MEMORY = 0.5  # norms differ from batch to batch by more than they drift between exact steps
_FOLLOWING_MEMORY = 0.8  # the same where every step has one


class Compensation(NamedTuple):
    """The compensation of one step: s(t) and the choices that NCSAM was made with.

    Attributes:
        strength: s(t), with several groups the largest.
        flip_ratio: Share of the batch that is flipped.
        sign: Of the compensation.
        relative: s rho g*/||g*|| in place of s g*.
        over_batch: g* as a mean over the whole batch, not over the flipped samples.
        projection: Whether eps is projected onto the ball.
        eta: ASAM's, or `None`.
        length_only: Perturb along g_B, by the length of what is computed.
        separate: g* has its own forward, after the backward of the batch.
    """

    strength: float
    flip_ratio: float
    sign: int
    relative: bool
    over_batch: bool
    projection: bool
    eta: float | None
    length_only: bool = False
    separate: bool = False


class FlippedLoss(NamedTuple):
    """The flipped samples of a micro-batch.

    Attributes:
        mean: Computes their mean loss on this rank; `None` where it has none.
        rows: Their number on this rank.
        samples: Their number over all ranks.
    """

    mean: Callable[[], Tensor | None]
    rows: int
    samples: int


class Estimator:
    """A way to compute NCSAM's perturbation: `Exact`, `Fused` or `LookSAM`."""

    def flips(self, how: Compensation) -> bool:
        """Whether the coming step needs flipped samples.

        Args:
            how: The compensation of the coming step.
        """
        return True

    def collect(self, step: Step, how: Compensation, batch: MicroBatch, noise: FlippedLoss) -> None:
        """Run the backwards of a micro-batch at w.

        Args:
            step: Runs the backwards and keeps their gradients.
            how: The compensation of this step.
            batch: The micro-batch, with its loss at w.
            noise: The flipped samples of the micro-batch, and how to compute their loss.
        """
        raise NotImplementedError  # abstract

    def moves(self, step: Step, how: Compensation) -> Iterator[Move]:
        """The perturbation, from what was collected.

        Args:
            step: The gradients at w, the radius, the parameters.
            how: The compensation of this step.

        Yields:
            At most one move; none where no further pass is needed.
        """
        raise NotImplementedError  # abstract

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned; start over with an empty one.

        Args:
            state: Its entries by name.
        """


class Exact(Estimator):
    """g_B and g*, each from this batch: two backwards, through one graph unless g* has its own forward."""

    def collect(self, step: Step, how: Compensation, batch: MicroBatch, noise: FlippedLoss) -> None:
        step.collect(batch.loss, batch, keep_graph=not how.separate)
        mean = noise.mean()
        step.add_side_gradient("noise", None if mean is None else mean * noise.rows, noise.samples)

    @torch.no_grad()
    def moves(
        self, step: Step, how: Compensation, note: Callable[[float, float, int], None] | None = None
    ) -> Iterator[Move]:
        """eps = Proj(rho g_B/||g_B|| + s g*), or SAM's if there is no g*; `note` gets both norms.

        With several groups, rho and s are those of each parameter's group, and eps is scaled down until
        sum_k ||eps_k||^2 / rho_k^2 <= 1.

        Args:
            step: The gradients at w, with g* kept aside under "noise".
            how: The compensation of this step.
            note: Called with ||g_B||, ||g*|| and the number of samples before the weights move; `None` for no call.
        """
        params, gradients = step.directions()
        taken = step.side_gradient("noise", params)
        if taken is None:
            del gradients
            yield from ascent(step, *step.directions(), how.eta)
            return
        noise, mean = taken  # g* is mean * noise
        if how.over_batch:
            mean *= step.flips.flipped / step.flips.samples
        scaling = step.magnitudes(params, how.eta)
        if scaling is not None:
            gradients = scaled_gradients(gradients, scaling)
            multiply_(noise, scaling)
        norm = global_norm(gradients)
        step.fit_radius(norm)
        noise_norm = 0.0
        if step.measured or note is not None or how.relative:
            noise_norm = global_norm(noise) * mean
        size = how.strength
        if how.relative:
            size *= math.nan if not math.isfinite(noise_norm) else step.rho / noise_norm if noise_norm else 0.0
        weight = how.sign * size * mean
        clean = None
        if step.measured:
            step.report.note_flips(step.flips)
            step.report.grad_norm, step.report.noise_grad_norm = norm / step.loss_scale, noise_norm
            step.report.cos_grad_noise = cosine(gradients, noise)
            step.report.compensation_ratio = how.strength * (1.0 if how.relative else noise_norm / step.rho)
            if (clean := step.side_gradient("clean", params)) is not None:
                sam = gradients if scaling is None else scaled_gradients(gradients, scaling)
                step.report.cos_clean_sam = cosine(sam, clean[0])
                del sam
        if abs(weight) < _INVISIBLE * step.rho or norm == 0.0:
            del taken, gradients, noise
            yield from ascent(step, *step.directions(), how.eta)
            return
        # v = a g_B + weight noise = weight (noise + a / weight g_B), in one pass over memory: the bracket is written
        # over the noise, which is not needed any more, and its factor is left to the move
        length = math.nan  # ||v||
        radii, strengths = step.relative("rho", params), step.relative("kappa", params)
        if math.isfinite(noise_norm) and (radii or strengths):
            length = _add_by_group(noise, gradients, weight, step.rho / norm, radii, strengths)
            weight = 1.0
        elif math.isfinite(noise_norm):
            add_scaled_(noise, gradients, step.rho / norm / weight)
            length = abs(weight) * global_norm(noise)
        if not step.may_perturb(norm, length):
            return
        if note is not None:
            note(norm / step.loss_scale, noise_norm, step.flips.samples)
        shrink = min(1.0, step.rho / length) if how.projection else 1.0
        step.report.phase = "ncsam"
        if step.measured:
            step.report.perturbation_norm = length * shrink
            step.report.projected = shrink < 1.0
            along = how.sign * size * noise_norm * (step.report.cos_grad_noise or 0.0)
            step.report.cos_sam = (step.rho + along) / length
        if how.length_only:
            noise, weight = gradients, step.rho / norm
            shrink *= length / step.rho
        if scaling is not None:
            multiply_(noise, scaling)
        if clean is not None:
            step.report.cos_clean = math.copysign(1.0, weight) * cosine(noise, clean[0])
        scale = weight * shrink
        move = Move(params, noise, step.scaled_by_radius(params, scale) if how.length_only else scale)
        del taken, gradients, noise  # nothing but w need live through the second pass
        yield move


def _add_by_group(
    noise: list[Tensor],
    gradients: list[Tensor],
    weight: float,
    scale: float,
    radii: list[float] | None,
    strengths: list[float] | None,
) -> float:
    """v = rho_k / ||g_B|| g_B + s_k g* in each group, written over the noise; its length in the norm of the radii."""
    radii = radii or [1.0] * len(noise)
    torch._foreach_mul_(noise, [weight * s for s in strengths or [1.0] * len(noise)])
    add_scaled_(noise, gradients, [scale * r for r in radii])
    return global_norm([v / r for v, r in zip(noise, radii, strict=True)])


class Memory:
    """What the steps between two measurements reuse: norms of g_B and g*, and how long ago they were measured.

    Args:
        every: Every so many steps one measures; the others reuse.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.forget()

    def forget(self) -> None:
        """Start over."""
        self._age: int | None = None  # steps since the last measurement, that one counted
        self.norm = self.noise_norm = 0.0  # of g_B and g*, smoothed over the steps that had them
        self._samples = 0  # of the largest batch measured
        self.micro_batches = 1  # of the last step, to know the size of the next before its end

    @property
    def due(self) -> bool:
        """Whether the coming step is to measure."""
        return self._age is None or self._age >= self.every

    def expire(self) -> None:
        """Make the coming step measure."""
        self._age = None

    def refresh(self) -> None:
        """A step has measured what the next ones reuse."""
        self._age = 1

    def age(self) -> None:
        """A step has reused what was measured."""
        assert self._age is not None, "nothing was measured yet"
        self._age += 1

    def note_norms(self, norm: float, noise_norm: float, samples: int) -> None:
        """Take in the norms of g_B and g* that an exact step measured on so many samples.

        The gradient of a few samples is much longer than that of a whole batch: the norms of a batch smaller than the
        largest one do not predict the next ones, and are ignored.

        Args:
            norm: ||g_B||, of the unscaled loss.
            noise_norm: ||g*||, of the unscaled loss.
            samples: Size of the batch over all micro-batches and ranks.
        """
        if samples < self._samples:
            return
        keep = 0.0 if self.norm == 0.0 or samples > self._samples else _EXACT_MEMORY
        self._samples = samples
        self.norm = keep * self.norm + (1.0 - keep) * norm
        self.noise_norm = keep * self.noise_norm + (1.0 - keep) * noise_norm

    def follow(self, norm: float) -> None:
        """Take in the norm of g_B that a step had anyway: a geometric mean, which a short batch moves little.

        Args:
            norm: ||g_B|| of the unscaled loss; counted as at least half and at most twice the remembered one.
        """
        if self.norm == 0.0:
            self.norm = norm
        self.norm *= min(max(norm / self.norm, 0.5), 2.0) ** (1.0 - _FOLLOWING_MEMORY)

    def state_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "every"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned, after forgetting everything; unknown entries are ignored.

        Args:
            state: Its entries by name.
        """
        self.forget()
        for name, value in state.items():
            if value is not None and name in vars(self):
                setattr(self, name, float(value) if name in ("norm", "noise_norm") else int(value))
