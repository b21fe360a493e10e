"""Peer loss, and its expectation, the confidence regularizer of CORES2."""

from __future__ import annotations

import torch
from torch import Tensor

from ncsam._arguments import non_negative
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
    """-log(p + floor) under each label, (samples, classes): bounded, since it is subtracted as well as added.

    Args:
        logits: (rows, classes).
        floor: Lower bound of probabilities.
    """
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
    """l(f(x_n), y_n) - alpha l(f(x_{n1}), y_{n2}) with l = -log(p + floor), n1 and n2 drawn independently.

    In expectation over the draws this is `confidence_regularized` with the label frequencies of the batch and beta =
    alpha.

    Args:
        logits: Real numbers (samples, classes).
        targets: Class numbers (samples,) or probabilities (samples, classes).
        peers: Positions n1 in the batch, one per sample; drawn from the batch if not given.
        peer_targets: The labels y_{n2}, one per sample; drawn from the batch if not given.
        alpha: Weight of the peer term, 0 or larger.
        floor: Added to probabilities, so that the loss is bounded although it is also subtracted.
        generator: Random numbers for the draws.
        reduction: "mean", "sum" or "none".

    Returns:
        A scalar, or a tensor (samples,) with `reduction="none"`.

    References:
        Liu and Guo, 2020, Peer loss functions, arXiv 1910.03231.
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
    """l(f(x), y) - beta sum_c prior_c l(f(x), c) with l = -log(p + floor), the loss of CORES2.

    Args:
        logits: Real numbers (samples, classes).
        targets: Class numbers (samples,) or probabilities (samples, classes).
        prior: Frequencies of the given labels, (classes,).
        beta: Weight of the regularizer, 0 or larger.
        floor: Added to probabilities, so that the loss is bounded although it is also subtracted.
        reduction: "mean", "sum" or "none".

    Returns:
        A scalar, or a tensor (samples,) with `reduction="none"`.

    References:
        Cheng et al., 2021, Learning with instance-dependent label noise: a sample sieve approach, arXiv 2010.02347.
    """
    check_logits(logits)
    beta, floor = non_negative("beta", beta), non_negative("floor", floor)
    if not isinstance(prior, Tensor) or prior.is_complex():
        raise bad_value("prior", type(prior).__name__, "a tensor with a probability for each class")
    if prior.shape != logits.shape[1:]:
        raise bad_value("prior.shape", tuple(prior.shape), f"({logits.shape[1]},), a probability for each class")
    losses = bounded_ce(logits, floor)
    return reduced(of_target(losses, targets) - beta * losses @ prior.to(losses), reduction)


def _positions(peers: Tensor, samples: int) -> Tensor:
    """Positions in the batch, one per sample."""
    whole = isinstance(peers, Tensor) and not (peers.is_floating_point() or peers.is_complex())
    if not whole or peers.dtype == torch.bool or peers.shape != (samples,):
        raise bad_value("peers", peers, f"a tensor of {samples} positions in the batch")
    return peers.long()


class Peer(Loss):
    """`peer` as a module, called with (logits, targets) and, if wanted, peers and their targets.

    Args:
        alpha: Weight of the peer term, 0 or larger.
        floor: Added to probabilities.
        reduction: "mean", "sum" or "none".
    """

    def __init__(self, alpha: float = 1.0, floor: float = 1e-5, reduction: Reduction = "mean") -> None:
        super().__init__(peer, alpha=alpha, floor=floor, reduction=reduction)
