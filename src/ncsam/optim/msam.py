"""Momentum-SAM: one pass, perturbed along the base optimizer's momentum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import Unpack  # comes with torch

from ncsam._arguments import flag, non_negative
from ncsam._errors import bad_value
from ncsam.optim.radii import BEGIN, LossBudgetRadius, RadiusLike, RisingRadius
from ncsam.optim.radius import AutoRadius
from ncsam.optim.registry import Options, register
from ncsam.optim.sam import ascent_move
from ncsam.optim.sharpness_aware import SharpnessAware
from ncsam.optim.step import Move, Step

RHO_TARGET = 0.5  # the default, with which the shares of the norm were chosen
_MOMENTA = ("momentum_buffer", "exp_avg")  # of torch's SGD, and of the Adam family


@register
class MSAM(SharpnessAware):
    r"""MSAM: the gradient at weights moved against the momentum, where the next step would lead.

    .. math::
        \tilde w = w - \rho\, v / \|v\|; \qquad
        \text{the base optimizer steps at } w \text{ with } \nabla L_B(\tilde w)

    v is the base optimizer's momentum buffer (SGD's, or Adam's `exp_avg`); with `adaptive`,
    :math:`\tilde w = w - \rho\, T^2 v / \|T v\|`, T = |w| + eta. The first step, which has no momentum, is the base
    optimizer's. A useful radius is about ten times SAM's.

    One forward and one backward, as without perturbation, and a copy of the weights; BatchNorm's statistics and the
    returned loss are those of the one pass, at the moved weights. The weights are restored before the step, so
    evaluation and checkpoints see w, and weight decay is that of w. In two phases, put forward and backward into
    `with optimizer.first_pass():`.

    Note:
        Before you evaluate a model with BatchNorm, collect its statistics at w:
        `torch.optim.swa_utils.update_bn(batches, model)`, with a few training batches. The engine does so after every
        epoch. The returned loss is that at the moved weights, slightly lower than that at w. The base optimizer must
        have momentum, and a radius tuned for SAM is far too small.

    Args:
        base_optimizer: An optimizer with momentum; its groups and state are shared.
        rho: Radius of the perturbation. "auto" and "validation" rise from .01 to .1 of the norm of the weights in
            the first .6 of training (`RisingRadius`), times `rho_target` / .5, and need `total_steps`; "validation"
            also follows `report_val_loss(loss)`.
        adaptive: Whether to scale by T.
        eta: The offset of T.

    Examples:
        >>> import torch
        >>> model = torch.nn.Linear(4, 3)
        >>> optimizer = MSAM(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), rho=0.3)
        >>> x, y = torch.ones(2, 4), torch.tensor([0, 2])
        >>> for _ in range(2):  # the first step has no momentum to move along
        ...     loss = optimizer.step(lambda: model(x), y)
        >>> optimizer.last_step.phase
        'msam'

    References:
        Becker, Altrock, Risse: Momentum-SAM: Sharpness Aware Minimization without Computational Overhead. arXiv
        2401.12033.
    """

    passes = 1
    moves_first = True

    def __init__(
        self,
        base_optimizer: Optimizer,
        rho: RadiusLike = 0.3,
        *,
        adaptive: bool = False,
        eta: float = 0.01,
        **options: Unpack[Options],
    ) -> None:
        if isinstance(rho, str) and rho in ("auto", "validation"):
            scale = options.get("rho_target", RHO_TARGET) / RHO_TARGET
            rho = RisingRadius(0.01 * scale, 0.1 * scale, begin=1.0 if rho == "auto" else BEGIN)
        if isinstance(rho, AutoRadius | LossBudgetRadius) or (isinstance(rho, str) and rho == "budget"):
            raise bad_value("rho", rho, "a number, 'auto' or 'validation', because one pass has no gradient at w")
        super().__init__(base_optimizer, rho, **options)
        self._add_group_setting("adaptive", adaptive, flag)
        self.eta = non_negative("eta", eta)
        self._moved = False

    def first_move(self, step: Step) -> Move | None:
        params, momentum = self._momentum(step.perturbed(list(step.params)))
        move = ascent_move(step, params, momentum, self.scaling_offset) if params else None
        self._moved = move is not None
        if move is not None:
            move.scale = [-s for s in move.scale] if isinstance(move.scale, Sequence) else -move.scale
        return move

    def _momentum(self, params: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """The parameters that have momentum by now, and their momentum."""
        every = self.state
        states = [(p, state) for p in params if (state := every.get(p))]
        for name in _MOMENTA:
            found = [(p, state[name]) for p, state in states if state.get(name) is not None]
            if found:
                return [p for p, _ in found], [v for _, v in found]
        return [], []

    def moves(self, step: Step) -> Iterator[Move]:
        step.average_if_local()  # momentum and move are the same on all ranks, and there is no second pass to do it
        if self._moved:
            step.report.phase = "msam"
        yield from ()
