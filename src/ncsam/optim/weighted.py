"""SAM whose perturbation turns away from samples that are almost certainly mislabeled, or leaves them out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import Unpack  # comes with torch

from ncsam._arguments import ratio
from ncsam._errors import bad_value
from ncsam.errors import UsageError
from ncsam.optim.radii import RadiusLike
from ncsam.optim.registry import Options, register
from ncsam.optim.sam import SAM
from ncsam.optim.step import MicroBatch, Move, Step

#: The threshold above which a label counts as wrong (docs/experiments/outside_estimate.md).
CERTAIN = 0.9


@register
class WeightedSAM(SAM):
    r"""SAM that knows from outside the batch which labels are probably wrong.

    .. math::
        \epsilon = \rho\, v / \|v\|, \quad v = \sum_i (1 - 2 s\, [p_i > threshold])\, g_i; \qquad
        \text{the base optimizer steps at } w \text{ with } \nabla L_B(w + \epsilon).

    :math:`p_i` is the probability that label i is wrong, :math:`g_i` the gradient of sample i's cross-entropy. With
    s = 1 labels that are almost certainly wrong count against the direction v, with s = 1/2 they are left out of it.
    The weights enter the first backward, so a step costs what SAM's does. s = 0, or no `p_wrong`, gives SAM bit for
    bit.

    Note:
        p should be calibrated, as the column `p_wrong` of `ncsam.find_label_issues` is: 1 less the predicted
        probability of the given label is not. docs/experiments/outside_estimate.md compares them, and shows that
        leaving the same labels out of training gains as much.

    Args:
        base_optimizer: An instance of any `torch.optim.Optimizer`; its groups and state are shared.
        rho: Radius of the perturbation, as for `SAM`.
        strength: s, in [0, 1].
        threshold: In [0, 1]; `None` weights by 1 - 2 s p_i itself.
        adaptive: Whether to scale by ASAM's T = |w| + eta.
        eta: The offset of T.

    Attributes:
        p_wrong: The probabilities of the coming batch, as `step` takes them; for `run_passes` and the two phases, which
            take no argument for them, set it before each step.

    Examples:
        >>> import torch
        >>> model = torch.nn.Linear(4, 3)
        >>> optimizer = WeightedSAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.05)
        >>> x, y = torch.ones(2, 4), torch.tensor([0, 2])
        >>> loss = optimizer.step(lambda: model(x), y, p_wrong=torch.tensor([0.1, 0.95]))
    """

    name = "sam-weighted"

    def __init__(
        self,
        base_optimizer: Optimizer,
        rho: RadiusLike = 0.05,
        *,
        strength: float = 1.0,
        threshold: float | None = CERTAIN,
        adaptive: bool = False,
        eta: float = 0.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(base_optimizer, rho, adaptive=adaptive, eta=eta, **options)
        self.strength = ratio("strength", strength)
        self.threshold = None if threshold is None else ratio("threshold", threshold)
        self._p_wrong: Tensor | None = None

    @property
    def p_wrong(self) -> Tensor | None:
        """The probabilities of the coming batch, or `None`."""
        return self._p_wrong

    @p_wrong.setter
    def p_wrong(self, value: Any) -> None:
        self._p_wrong = None if value is None else _probabilities(value)

    def step(  # type: ignore[override]
        self, forward: Callable[..., Any] | None = None, targets: Any = None, *, p_wrong: Any = None, **options: Any
    ) -> Any:
        """Do one step, as `SharpnessAware.step`.

        Args:
            forward: The forward pass, or a closure.
            targets: The observed labels, for `forward`.
            p_wrong: For each sample of the batch the probability that its label is wrong; `None` for SAM's step.
            **options: `scaler`, `clean_targets` and `closure`, as for every optimizer here.

        Returns:
            The loss of the first pass, at w.

        Raises:
            UsageError: `p_wrong` is not one number in [0, 1] for each sample.
        """
        try:
            if p_wrong is not None:
                self.p_wrong = p_wrong
                if isinstance(targets, Tensor):
                    self._check_length(len(targets))
            return super().step(forward, targets, **options)
        finally:
            self.p_wrong = None

    @property
    def _weights_samples(self) -> bool:
        return self.p_wrong is not None and self.strength > 0 and self.perturbs

    def collect(self, step: Step, batch: MicroBatch) -> None:
        if self._weights_samples:
            step.collect(self._weighted_loss(batch), batch)
        else:
            super().collect(step, batch)

    def moves(self, step: Step) -> Iterator[Move]:
        moved = False
        for move in super().moves(step):
            moved = True
            yield move
        if moved or not self._weights_samples:
            return
        overflow = step.scaled and not all(bool(g.isfinite().all()) for g in step.gradients()[1])
        if not overflow:  # which the scaler must see
            yield Move.nowhere()  # .grad is not g_B: take that, at w

    def _weighted_loss(self, batch: MicroBatch) -> Tensor:
        """The mean of (1 - 2 s [p_i > threshold]) times the cross-entropy of sample i."""
        if batch.logits is None or batch.targets is None:
            raise TypeError("p_wrong needs the logits and the targets: step(forward, targets, p_wrong=...)")
        p = self._check_length(len(batch.logits)).to(batch.logits.device)
        self._check_batch(batch.logits, batch.targets)
        if self.threshold is not None:
            p = p > self.threshold
        losses = F.cross_entropy(batch.logits, batch.targets, reduction="none")
        return ((1.0 - 2.0 * self.strength * p.to(losses)) * losses).mean()

    def _check_length(self, samples: int) -> Tensor:
        assert self._p_wrong is not None, "samples are weighted only by probabilities that were given"
        if len(self._p_wrong) != samples:
            given = f"{len(self._p_wrong)} probabilities"
            raise UsageError(f"invalid p_wrong of {given}: expected {samples}, one for each sample of the batch")
        return self._p_wrong

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_p_wrong": None}


def _probabilities(value: Any) -> Tensor:
    """One number in [0, 1] for each sample, as a tensor.

    Raises:
        UsageError: It is something else; the message shows the first of the numbers that are not probabilities.
    """
    expected = "one number in [0, 1] for each sample of the batch"
    try:
        p = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise bad_value("p_wrong", value, expected) from None
    if p.ndim != 1 or p.is_complex():
        raise bad_value("p_wrong", value, expected)
    valid = (p >= 0) & (p <= 1)
    if not bool(valid.all()):
        first = int(valid.logical_not().nonzero()[0])
        raise bad_value(f"p_wrong[{first}]", p[first].item(), expected)
    return p
