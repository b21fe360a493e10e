"""Sharpness-Aware Minimization, with ASAM's scaling as an option."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import Unpack  # comes with torch

from ncsam._arguments import flag, non_negative
from ncsam.optim.radii import RadiusLike
from ncsam.optim.registry import Options, register
from ncsam.optim.sharpness_aware import SharpnessAware
from ncsam.optim.step import Move, Step
from ncsam.vectors.arithmetic import global_norm, local, multiply_


@register
class SAM(SharpnessAware):
    r"""SAM around any optimizer, with one global norm.

    .. math::
        \epsilon = \rho\, g / \|g\|, \quad g = \nabla L_B(w); \qquad
        \text{the base optimizer steps at } w \text{ with } \nabla L_B(w + \epsilon).

    With `adaptive` (ASAM), T = |w| + eta elementwise: :math:`\epsilon = \rho\, T^2 g / \|T g\|`. Weight decay belongs
    to the base optimizer and is no part of g.

    `rho` and `adaptive` live in `param_groups`: a group may have its own, and a scheduler may change them. Then
    :math:`\epsilon_k = \rho_k\, g_k / \|g\|` in group k, with the norm over all groups whose radius is above 0.

    A step costs two forwards and two backwards, and a copy of the weights (`adaptive`: and one of the gradients).

    Note:
        The usual rho=0.05 was found on clean labels; with noisy labels larger radii or rho="validation" were better in
        our experiments, and too large a radius stops learning (docs/experiments/real_noise.md). Where labels are clean
        and nothing is memorized, any radius can cost accuracy. A step takes about twice as long as the base
        optimizer's.

    Args:
        base_optimizer: An instance of any `torch.optim.Optimizer`; its groups and state are shared.
        rho: Radius of the perturbation. 0 gives the base optimizer's own step, bit for bit. "auto" follows the effect
            of the perturbation (`AutoRadius`), "validation" also uses `report_val_loss(loss)` (`ValidationRadius`),
            "budget" raises the loss by the same amount in every step (`LossBudgetRadius`).
        adaptive: Whether to scale by T.
        eta: The offset of T.

    Examples:
        >>> import torch
        >>> model = torch.nn.Linear(4, 3)
        >>> optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.05)
        >>> x, y = torch.ones(2, 4), torch.tensor([0, 2])
        >>> before = [p.detach().clone() for p in model.parameters()]
        >>> loss = optimizer.step(lambda: model(x), y)
        >>> optimizer.steps, any(torch.equal(p, b) for p, b in zip(model.parameters(), before))
        (1, False)

        As with other implementations, `step(closure)` works too; the closure is evaluated once per pass:

        >>> loss = optimizer.step(lambda: torch.nn.functional.cross_entropy(model(x), y))

        Radii per group:

        >>> groups = [{"params": [model.weight]}, {"params": [model.bias], "rho": 0.0}]
        >>> optimizer = SAM(torch.optim.SGD(groups, lr=0.1), rho=0.05)
        >>> [group["rho"] for group in optimizer.param_groups]
        [0.05, 0.0]

    References:
        Foret, Kleiner, Mobahi, Neyshabur: Sharpness-Aware Minimization for Efficiently Improving Generalization. ICLR
        2021, arXiv 2010.01412. Kwon, Kim, Park, Choi: ASAM. ICML 2021, arXiv 2102.11600.
    """

    def __init__(
        self,
        base_optimizer: Optimizer,
        rho: RadiusLike = 0.05,
        *,
        adaptive: bool = False,
        eta: float = 0.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(base_optimizer, rho, **options)
        self.eta = non_negative("eta", eta)
        self._add_group_setting("adaptive", adaptive, flag)

    def moves(self, step: Step) -> Iterator[Move]:
        yield from ascent(step, *step.directions(), eta=self.scaling_offset)


def ascent(
    step: Step, params: list[Tensor], directions: list[Tensor], eta: float | None = None, phase: str = "sam"
) -> Iterator[Move]:
    """The one move of `ascent_move`, or none, for `moves` to yield.

    Args:
        step: As for `ascent_move`.
        params: As for `ascent_move`.
        directions: As for `ascent_move`.
        eta: As for `ascent_move`.
        phase: As for `ascent_move`.

    Yields:
        The move.
    """
    move = ascent_move(step, params, directions, eta, phase)
    if move is not None:
        yield move


@torch.no_grad()
def ascent_move(
    step: Step, params: list[Tensor], directions: list[Tensor], eta: float | None = None, phase: str = "sam"
) -> Move | None:
    """eps = rho d / ||d||, or with T = |w| + eta, rho T^2 d / ||T d||; nothing where the norm forbids it.

    Args:
        step: The step, whose radius is used.
        params: The parameters to move.
        directions: d; the list is emptied when the weights have moved.
        eta: The offset of T; `None` for no scaling.
        phase: The name of what was done, for the report.

    Returns:
        The one move, or `None`.
    """
    scaling = step.magnitudes(params, eta)
    if scaling is not None:
        directions = scaled_gradients(directions, scaling)
    norm = global_norm(directions)
    step.fit_radius(norm)
    if not step.may_perturb(norm):
        return None
    if scaling is not None:
        multiply_(directions, scaling)
    step.report.phase = phase
    if step.measured:
        step.report.grad_norm = norm / step.loss_scale
        step.report.perturbation_norm = step.rho
        step.report.cos_clean = step.report.cos_clean_sam = step.cosine_with_clean(params, directions)
    return Move(params, directions, step.scaled_by_radius(params, step.rho / norm))


def scaled_gradients(gradients: list[Tensor], scaling: list[Tensor]) -> list[Tensor]:
    """T g in new tensors, so that g is still there if no perturbation comes of it.

    Args:
        gradients: g, whole or sharded; not changed.
        scaling: T, of each gradient's local shard.
    """
    scaled = [torch.empty_like(g) for g in gradients]
    torch._foreach_copy_(local(scaled), torch._foreach_mul(local(gradients), scaling))
    return scaled
