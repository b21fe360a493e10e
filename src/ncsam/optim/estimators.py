"""What NCSAM's estimators have in common: what they are told, what they do, what they remember."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor

from ncsam.optim.step import MicroBatch, Move, Step

_EXACT_MEMORY = 0.5  # norms differ from batch to batch by more than they drift between exact steps
_FOLLOWING_MEMORY = 0.8  # the same where every step has one


class Compensation(NamedTuple):
    """The compensation of one step: s(t) and the choices that NCSAM was made with."""

    strength: float
    flip_ratio: float
    sign: int
    relative: bool  # s rho g*/||g*|| in place of s g*
    over_batch: bool  # g* as a mean over the whole batch, not over the flipped samples
    projection: bool
    eta: float | None  # ASAM's, or None


class FlippedLoss(NamedTuple):
    """Summed loss of the flipped samples of a micro-batch on this rank, and their number over all ranks."""

    loss: Tensor
    samples: int


class Estimator:
    """A way to NCSAM's perturbation; `Exact`, `Fused` and `Look` are the ones there are."""

    def flips(self, how: Compensation) -> bool:
        """Whether the coming step needs flipped samples."""
        return True

    def collect(self, step: Step, how: Compensation, batch: MicroBatch, noise: FlippedLoss) -> None:
        """Run the backwards of a micro-batch at w."""
        raise NotImplementedError  # abstract

    def moves(self, step: Step, how: Compensation) -> Iterator[Move]:
        """The perturbation, from what was collected."""
        raise NotImplementedError  # abstract

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave; begin anew with an empty one."""


class Memory:
    """What the steps between two measurements reuse: norms of g_B and g*, and how long ago they were measured."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self._age: int | None = None  # steps since the last measurement, that one counted
        self.norm = self.noise_norm = 0.0  # of g_B and g*, smoothed over the steps that had them
        self._samples = 0  # of the largest batch measured
        self.micro_batches = 1  # of the last step, to know the size of the next before its end

    @property
    def due(self) -> bool:
        """Whether the coming step is to measure."""
        return self._age is None or self._age >= self.every

    def expire(self) -> None:
        """Let the coming step measure."""
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
        largest one are no guess for the next, and are not taken.
        """
        if samples < self._samples:
            return
        keep = 0.0 if self.norm == 0.0 or samples > self._samples else _EXACT_MEMORY
        self._samples = samples
        self.norm = keep * self.norm + (1.0 - keep) * norm
        self.noise_norm = keep * self.noise_norm + (1.0 - keep) * noise_norm

    def follow(self, norm: float) -> None:
        """Take in the norm of g_B that a step had anyway: a geometric mean, on which a short batch tells little."""
        if self.norm == 0.0:
            self.norm = norm
        self.norm *= min(max(norm / self.norm, 0.5), 2.0) ** (1.0 - _FOLLOWING_MEMORY)

    def state_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "every"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.forget()
        for name, value in state.items():
            if value is not None and name in vars(self):
                setattr(self, name, float(value) if name in ("norm", "noise_norm") else int(value))
