"""MSAM's automatic radius: it rises with training, as a share of the norm of the weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from ncsam._checks import non_negative
from ncsam.optim.radius import LARGEST
from ncsam.optim.validation_radius import BEGIN, NUM_CHECKS, FollowsValidation


class RisingRadius(FollowsValidation):
    r"""A radius that rises linearly, from one share of the norm of the weights to another.

    .. math:: \rho = \min(5,\ c\, (first + (last - first)\, t)\, \|w\|)

    t in [0, 1] is the progress of training. Early on, a long perturbation along the momentum keeps the model from
    learning; late, a short one does not keep it from memorizing. c is 1 and follows the validation loss, as the target
    of `ValidationRadius` does: it falls to .8 of itself where that loss fell since the last check, and doubles, up to
    1, where it did not. If no loss is reported, it stays 1.

    It needs no pass. The norm is measured every 20 steps; before the first one, the radius is 0.

    Args:
        first: The share with which training begins.
        last: The share with which it ends.
        begin: The share of training after which c follows the validation loss; 1 for never.
        num_checks: The number of checks from then on, if losses are reported often enough.

    Examples:
        >>> import torch
        >>> from ncsam.optim import MSAM
        >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        >>> base = torch.optim.SGD([w], lr=0.0, momentum=0.9)
        >>> optimizer = MSAM(base, rho=RisingRadius(0.02, 0.1), total_steps=4)
        >>> for _ in range(4):
        ...     loss = optimizer.step(lambda: w.square().sum() / 2)
        >>> round(optimizer.last_step.rho, 9)  # a tenth of ||(3, 4)||
        0.5
    """

    def __init__(
        self, first: float = 0.01, last: float = 0.1, *, begin: float = BEGIN, num_checks: int = NUM_CHECKS
    ) -> None:
        self.first, self.last = non_negative("first", first), non_negative("last", last)
        super().__init__(0.0, bound=max(first, last))
        self.follow_validation(1.0, begin, num_checks)
        self._share = self.first

    @property
    def rho(self) -> float:
        """The radius of the coming step."""
        return min(self.target * self._share * (self._weight_norm or 0.0), LARGEST)

    def at_progress(self, progress: float | None) -> None:
        if progress is None:
            raise RuntimeError(
                "a rising radius must know how far training is: give the optimizer total_steps=, or set its progress"
            )
        self._share = self.first + (self.last - self.first) * progress

    def end(self, perturbed: bool, params: Sequence[Tensor], group: dist.ProcessGroup | None) -> None:
        self._refresh_weight_norm(params)

    def __repr__(self) -> str:
        return f"RisingRadius({self.first}, {self.last}), now {self.rho:.3g}"
