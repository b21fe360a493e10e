"""Adaptive Sharpness-Aware Minimization, by name."""

from __future__ import annotations

from collections.abc import Iterator

from torch.optim import Optimizer

from ncsam._checks import non_negative
from ncsam.optim.options import Options, Unpack
from ncsam.optim.radius import RadiusLike
from ncsam.optim.registry import register
from ncsam.optim.sam import ascent
from ncsam.optim.sharpness_aware import SharpnessAware
from ncsam.optim.step import Move, Step


@register
class ASAM(SharpnessAware):
    r"""ASAM (Kwon et al., 2021, arXiv 2102.11600): a ball that is round in the coordinates T^-1 w, T = |w| + eta.

    .. math:: \epsilon = \rho\, T^2 g / \|T g\|

    The same step as `SAM(adaptive=True)`, with the authors' radius .5 and eta .01. T is |w| + eta for every parameter;
    the authors leave biases and norms unscaled. Costs two forwards, two backwards, a copy of weights and gradients.

    >>> import torch
    >>> model = torch.nn.Linear(4, 3)
    >>> optimizer = ASAM(torch.optim.SGD(model.parameters(), lr=0.1))
    >>> x, y = torch.ones(2, 4), torch.tensor([0, 2])
    >>> loss = optimizer.step(lambda: model(x), y)
    >>> optimizer.rho
    0.5
    """

    def __init__(
        self, base_optimizer: Optimizer, rho: RadiusLike = 0.5, *, eta: float = 0.01, **options: Unpack[Options]
    ) -> None:
        self.eta = non_negative("eta", eta)
        super().__init__(base_optimizer, rho, **options)

    def moves(self, step: Step) -> Iterator[Move]:
        yield from ascent(step, *step.gradients(), eta=self.eta)
