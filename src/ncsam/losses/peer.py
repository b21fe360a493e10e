"""Peer loss, and its expectation, the confidence regulariser of CORES2."""

from __future__ import annotations

import torch
from torch import Tensor

from ncsam._errors import bad_value
from ncsam.losses.reduction import Loss, Reduction, of_target, reduced


def bounded_ce(logits: Tensor, floor: float) -> Tensor:
    """-log(p + floor) under each label, (samples, classes): bounded, since it is subtracted as well as added."""
    return -(logits.softmax(dim=1) + floor).log()


def peer(
    logits: Tensor,
    targets: Tensor,
    peers: Tensor | None = None,
    peer_targets: Tensor | None = None,
    *,
    alpha: float = 1.0,
    floor: float = 1e-5,
    generator: torch.Generator | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""l(f(x_n), y_n) - alpha l(f(x_{n1}), y_{n2}), l = -log(p + floor) (Liu and Guo, 2020, arXiv 1910.03231).

    n1 and n2 are independent uniform draws: `peers` are positions n1 in the batch, one per sample, and `peer_targets`
    the labels y_{n2}. What is not given is drawn from the batch, by `generator`. In expectation over the draws this is
    `confidence_regularised` with the batch's own label frequencies and beta = alpha.
    """

    def draw() -> Tensor:
        return torch.randint(len(targets), (len(targets),), generator=generator).to(targets.device)

    peers = draw() if peers is None else peers
    peer_targets = targets[draw()] if peer_targets is None else peer_targets
    losses = bounded_ce(logits, floor)
    return reduced(of_target(losses, targets) - alpha * of_target(losses[peers], peer_targets), reduction)


def confidence_regularised(
    logits: Tensor,
    targets: Tensor,
    prior: Tensor,
    *,
    beta: float = 2.0,
    floor: float = 1e-8,
    reduction: Reduction = "mean",
) -> Tensor:
    """l(f(x), y) - beta sum_c prior_c l(f(x), c), l = -log(p + floor) (Cheng et al., 2021, arXiv 2010.02347)."""
    if prior.shape != logits.shape[1:]:
        raise bad_value("prior.shape", tuple(prior.shape), f"a probability for each of {logits.shape[1]} classes")
    losses = bounded_ce(logits, floor)
    return reduced(of_target(losses, targets) - beta * losses @ prior.to(losses), reduction)


class Peer(Loss):
    """`peer`; without given peers they are drawn from the batch."""

    def __init__(self, alpha: float = 1.0, floor: float = 1e-5, reduction: Reduction = "mean") -> None:
        super().__init__(peer, alpha=alpha, floor=floor, reduction=reduction)
