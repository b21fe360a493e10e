"""Jensen-Shannon losses, of one view and of several."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ncsam._arguments import number
from ncsam._errors import bad_value
from ncsam.losses.reduction import Loss, Reduction, as_weights, check_logits, reduced


def gjs(views: Sequence[Tensor], targets: Tensor, *, pi: float = 0.3, reduction: Reduction = "mean") -> Tensor:
    """Weighted Jensen-Shannon divergence between the label and the predictions on several views, times a constant Z.

    L = Z (pi KL(y || m) + (1 - pi) / M sum_k KL(p_k || m)), where m = pi y + (1 - pi) / M sum_k p_k, p_k is the
    prediction on view k, and Z = -1 / ((1 - pi) log(1 - pi)).

    With one view it is `js`: cross-entropy as pi goes to 0, the mean absolute error as it goes to 1. With several views
    it also asks the predictions to agree.

    Args:
        views: The logits of each view, M tensors (samples, classes).
        targets: Class numbers (samples,) or probabilities (samples, classes).
        pi: Weight of the label, in (0, 1).
        reduction: "mean", "sum" or "none".

    Returns:
        A scalar, or a tensor (samples,) with `reduction="none"`.

    References:
        Englesson and Azizpour, 2021, Generalized Jensen-Shannon divergence loss, arXiv 2105.04522.
    """
    number("pi", pi, "a number in (0, 1), the weight of the label", lambda v: 0 < v < 1)
    if not (isinstance(views, (list, tuple)) or (isinstance(views, Tensor) and views.ndim)):
        raise bad_value("views", views, "a list of the logits of each view")
    if not len(views):
        raise bad_value("views", "0 tensors", "the logits of at least one view")
    shapes = {tuple(check_logits(view, "views").shape) for view in views}
    if len(shapes) > 1:
        raise bad_value("views", sorted(shapes), "logits of one shape")
    log_p = F.log_softmax(torch.stack(tuple(views)), dim=2)
    label = as_weights(targets, views[0]).to(log_p.dtype)
    share = (1 - pi) / len(views)
    # in logarithms: a probability that underflows must not become log 0
    log_m = torch.logsumexp(torch.cat(((math.log(pi) + label.log()).unsqueeze(0), math.log(share) + log_p)), dim=0)
    of_label = (torch.special.xlogy(label, label) - label * log_m).sum(dim=1)
    of_views = (log_p.exp() * (log_p - log_m)).sum(dim=2).sum(dim=0)
    scale = -1 / ((1 - pi) * math.log1p(-pi))
    return reduced(scale * (pi * of_label + share * of_views), reduction)


def js(logits: Tensor, targets: Tensor, *, pi: float = 0.3, reduction: Reduction = "mean") -> Tensor:
    """`gjs` of one view.

    Args:
        logits: Real numbers (samples, classes).
        targets: Class numbers (samples,) or probabilities (samples, classes).
        pi: Weight of the label, in (0, 1).
        reduction: "mean", "sum" or "none".

    Returns:
        A scalar, or a tensor (samples,) with `reduction="none"`.

    References:
        Englesson and Azizpour, 2021, arXiv 2105.04522.
    """
    return gjs((check_logits(logits),), targets, pi=pi, reduction=reduction)


class GJS(Loss):
    """`gjs` as a module, called with a list of logits and the targets.

    Args:
        pi: Weight of the label, in (0, 1).
        reduction: "mean", "sum" or "none".
    """

    def __init__(self, pi: float = 0.3, reduction: Reduction = "mean") -> None:
        super().__init__(gjs, pi=pi, reduction=reduction)


class JS(Loss):
    """`js` as a module.

    Args:
        pi: Weight of the label, in (0, 1).
        reduction: "mean", "sum" or "none".
    """

    def __init__(self, pi: float = 0.3, reduction: Reduction = "mean") -> None:
        super().__init__(js, pi=pi, reduction=reduction)
