"""Cheaper ways to NCSAM's perturbation: how often each measures exactly, and what it reuses in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from ncsam.optim.distributed import placed_like

Estimator: TypeAlias = Literal["exact", "fused", "lazy", "subset", "look"]
#: Each estimator's steps from one measurement to the next, unless `refresh_every` says otherwise.
REFRESH_EVERY: dict[str, int] = {"exact": 1, "fused": 20, "lazy": 5, "subset": 1, "look": 5}
LOOK = 0.85  # LookSAM's alpha: how much of ||g|| the kept part is given; .7 there, .5 to 1 tried here
_EXACT_MEMORY = 0.5  # norms differ from batch to batch by more than they drift between exact steps
_FOLLOWING_MEMORY = 0.8  # the same where every step has one


class Memory:
    """What the steps between two measurements reuse: norms of g_B and g*, and g* or look's g_v."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self.expire()
        self.norm = self.noise_norm = 0.0  # of g_B and g*, smoothed over the steps that had them
        self._samples = 0  # of the largest batch measured
        self.micro_batches = 1  # of the last step, to know the size of the next before its end
        self._kept: dict[Tensor, Tensor] = {}
        self._factor = 0.0

    @property
    def due(self) -> bool:
        """Whether the coming step is to measure."""
        return self._age is None or self._age >= self.every

    def expire(self) -> None:
        """Let the next step measure."""
        self._age: int | None = None  # steps since the last measurement, that one counted

    def refresh(self) -> None:
        """A step has measured what the next ones reuse."""
        self._age = 1

    def note_norms(self, norm: float, noise_norm: float, samples: int) -> None:
        """Take in the norms of g_B and g* that an exact step measured on so many samples.

        The gradient of a few samples, as in the last batch of an epoch, is much longer than that of a whole batch: the
        norms of a batch smaller than the largest one are no guess for the next, and are not taken.
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

    def age(self) -> None:
        """A step has reused what was measured."""
        assert self._age is not None, "nothing was measured yet"
        self._age += 1

    def keep(self, params: Sequence[Tensor], tensors: Sequence[Tensor], factor: float) -> None:
        """Keep a vector, g* = factor * tensors. They are kept as they are, and must not be written to."""
        self._kept = dict(zip(params, tensors, strict=True))
        self._factor = factor

    def kept(self, params: Sequence[Tensor]) -> tuple[list[Tensor], float]:
        """The kept vector as (tensors, factor), zero where a parameter had none."""
        return [self._kept[p] if p in self._kept else torch.zeros_like(p) for p in params], self._factor

    def state_dict(self, params: Sequence[Tensor]) -> dict[str, Any]:
        """Numbers, and the kept g* by the parameters' positions."""
        return {
            "age": self._age,
            "norm": self.norm,
            "noise_norm": self.noise_norm,
            "samples": self._samples,
            "micro_batches": self.micro_batches,
            "factor": self._factor,
            "kept": {i: self._kept[p] for i, p in enumerate(params) if p in self._kept},
        }

    def load_state_dict(self, state: dict[str, Any], params: Sequence[Tensor]) -> None:
        self._age = state["age"]
        self.norm, self.noise_norm = state["norm"], state["noise_norm"]
        self._samples, self.micro_batches = state["samples"], state["micro_batches"]
        self._factor = state["factor"]
        self._kept = {params[i]: placed_like(params[i], value) for i, value in state["kept"].items()}
