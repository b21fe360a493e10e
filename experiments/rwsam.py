"""RW-SAM: SAM's perturbation along a gradient that weights samples by the norms of their own gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from ncsam.optim.sam import SAM
from ncsam.optim.sharpness_aware import Evaluate, micro_batch
from ncsam.optim.step import MicroBatch, Step
from ncsam.vectors.arithmetic import global_norm

LENGTH = 0.1  # of the probe along z, where float32 still resolves the difference of two losses


class RWSAM(SAM):
    r"""RW-SAM, with one more forward at w + h z, z a Rademacher direction.

    .. math:: \epsilon = \rho\, v / \|v\|, \quad v = \sum_i p_i g_i, \quad p_i \propto e^{\lambda n_i}, \quad
        n_i = |L_i(w + h z) - L_i(w)| / h, \quad E\, n_i^2 \approx \|g_i\|^2

    The direction depends on the number of the step alone, so a resumed run repeats it. Cross-entropy of class labels.

    Args:
        base_optimizer: Any optimizer.
        rho: The radius.
        strength: lambda.
    """

    passes = 2.33

    def __init__(self, base_optimizer: Optimizer, rho: Any = 0.05, *, strength: float = 0.5, **options: Any) -> None:
        super().__init__(base_optimizer, rho, **options)
        self.strength = strength
        self._probed: list[tuple[Tensor, float]] = []

    def run_passes(self, evaluate: Any, **how: Any) -> Tensor:
        parts: list[Evaluate] = [evaluate] if callable(evaluate) else list(evaluate)
        if self.perturbs:
            generator, params = torch.Generator().manual_seed(self._steps), self._params()
            z = [torch.randint(0, 2, p.shape, generator=generator).to(p) * 2 - 1 for p in params]
            h = LENGTH / global_norm(z)
            self._weights.move(params, z, h, self._modules or ())
            with torch.no_grad():
                self._probed = [(sample_losses(micro_batch(part())), h) for part in reversed(parts)]
            self._recover()
        return super().run_passes(parts, **how)

    def collect(self, step: Step, batch: MicroBatch) -> None:
        if not self._probed:
            super().collect(step, batch)
            return
        losses, (there, h) = sample_losses(batch), self._probed.pop()
        weights = torch.softmax(self.strength * (there - losses.detach()).abs() / h, 0)
        step.collect(weights @ losses, batch)


def sample_losses(batch: MicroBatch) -> Tensor:
    assert batch.logits is not None
    assert batch.targets is not None
    return F.cross_entropy(batch.logits, batch.targets, reduction="none")
