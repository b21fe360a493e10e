"""Peer loss, and its expectation, the confidence regularizer of CORES2."""

from __future__ import annotations

import torch
from torch import Tensor

from ncsam._checks import non_negative
from ncsam._errors import bad_value
from ncsam.losses.reduction import (
    Loss,
    Reduction,
    check_generator,
    check_logits,
    check_targets,
    of_target,
    reduced,
)


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
    `confidence_regularized` with the batch's own label frequencies and beta = alpha.
    """

    targets = check_targets(targets, check_logits(logits))
    alpha, floor = non_negative("alpha", alpha), non_negative("floor", floor)
    check_generator(generator)

    def draw() -> Tensor:
        return torch.randint(len(targets), (len(targets),), generator=generator).to(targets.device)

    peers = draw() if peers is None else _positions(peers, len(targets))
    peer_targets = targets[draw()] if peer_targets is None else peer_targets
    losses = bounded_ce(logits, floor)
    return reduced(of_target(losses, targets) - alpha * of_target(losses[peers], peer_targets), reduction)


def confidence_regularized(
    logits: Tensor,
    targets: Tensor,
    prior: Tensor,
    *,
    beta: float = 2.0,
    floor: float = 1e-8,
    reduction: Reduction = "mean",
) -> Tensor:
    """l(f(x), y) - beta sum_c prior_c l(f(x), c), l = -log(p + floor) (Cheng et al., 2021, arXiv 2010.02347)."""
    check_logits(logits)
    beta, floor = non_negative("beta", beta), non_negative("floor", floor)
    if not isinstance(prior, Tensor) or prior.is_complex():
        raise bad_value("prior", type(prior).__name__, "a tensor with a probability for each class")
    if prior.shape != logits.shape[1:]:
        raise bad_value("prior.shape", tuple(prior.shape), f"a probability for each of {logits.shape[1]} classes")
    losses = bounded_ce(logits, floor)
    return reduced(of_target(losses, targets) - beta * losses @ prior.to(losses), reduction)


def _positions(peers: Tensor, samples: int) -> Tensor:
    """Positions in the batch, one per sample."""
    whole = isinstance(peers, Tensor) and not (peers.is_floating_point() or peers.is_complex())
    if not whole or peers.dtype == torch.bool or peers.shape != (samples,):
        raise bad_value("peers", peers, f"a tensor of {samples} positions in the batch")
    return peers.long()


class Peer(Loss):
    """`peer`; without given peers they are drawn from the batch."""

    def __init__(self, alpha: float = 1.0, floor: float = 1e-5, reduction: Reduction = "mean") -> None:
        super().__init__(peer, alpha=alpha, floor=floor, reduction=reduction)
