"""Sharpness-Aware Minimization, with ASAM's scaling as an option."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.optim import Optimizer

from ncsam._checks import flag, non_negative
from ncsam.optim.options import Options, Unpack
from ncsam.optim.radius import RadiusLike
from ncsam.optim.registry import register
from ncsam.optim.sharpness_aware import SharpnessAware
from ncsam.optim.step import Move, Step
from ncsam.vectors.arithmetic import global_norm, local, multiply_


@register
class SAM(SharpnessAware):
    r"""SAM (Foret et al., 2021, arXiv 2010.01412) around any optimizer, with one global norm.

    .. math::
        \epsilon = \rho\, g / \|g\|, \quad g = \nabla L_B(w) \quad [eq:sam\_perturbation]; \qquad
        \text{the base optimizer steps at } w \text{ with } \nabla L_B(w + \epsilon).

    With `adaptive` (ASAM, Kwon et al., 2021), T = |w| + eta elementwise, for every parameter:
    :math:`\epsilon = \rho\, T^2 g / \|T g\|`. Weight decay is the base optimizer's business and no part of g.

    A step costs two forwards and two backwards, and a copy of the weights (`adaptive`: and one of the gradients).

    Args:
        base_optimizer: an instance of any `torch.optim.Optimizer`; its groups and state are shared.
        rho: radius of the perturbation. 0 gives the base optimizer's own step, bit for bit. "auto" lets it follow its
            own effect, "validation" also uses `report_val_loss(loss)`; `AutoRadius(...)` and `ValidationRadius(...)`
            have settings of their own. In two phases, call `backward(loss)` at the perturbed weights, too.
        adaptive, eta: ASAM's scaling and its offset.
        options: those that all variants share, see `ncsam.optim.Options`.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(4, 3)
        >>> optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.05)
        >>> x, y = torch.ones(2, 4), torch.tensor([0, 2])
        >>> before = [p.detach().clone() for p in model.parameters()]
        >>> loss = optimizer.step(lambda: model(x), y)
        >>> optimizer.steps, any(torch.equal(p, b) for p, b in zip(model.parameters(), before))
        (1, False)
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
        self.adaptive = flag("adaptive", adaptive)
        self.eta = non_negative("eta", eta)
        super().__init__(base_optimizer, rho, **options)

    def moves(self, step: Step) -> Iterator[Move]:
        yield from ascent(step, *step.gradients(), eta=self.eta if self.adaptive else None)


@torch.no_grad()
def ascent(
    step: Step, params: list[Tensor], directions: list[Tensor], eta: float | None = None, phase: str = "sam"
) -> Iterator[Move]:
    """eps = rho d / ||d||, or with T = |w| + eta, rho T^2 d / ||T d||; nothing where the norm forbids it."""
    scaling = None if eta is None else step.magnitudes(params, eta)
    if scaling is not None:
        directions = scaled_gradients(directions, scaling)
    norm = global_norm(directions)
    if not step.may_perturb(norm):
        return
    if scaling is not None:
        multiply_(directions, scaling)
    step.report.phase = phase
    if step.measured:
        step.report.grad_norm = norm / step.loss_scale
        step.report.perturbation_norm = step.rho
        step.report.cos_clean = step.report.cos_clean_sam = step.cosine_with_clean(params, directions)
    yield Move(params, directions, step.rho / norm)


def scaled_gradients(gradients: list[Tensor], scaling: list[Tensor]) -> list[Tensor]:
    """T g in new tensors, so that g is still there if no perturbation comes of it."""
    scaled = [torch.empty_like(g) for g in gradients]
    torch._foreach_copy_(local(scaled), torch._foreach_mul(local(gradients), scaling))
    return scaled
