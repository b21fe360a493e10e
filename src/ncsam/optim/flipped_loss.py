"""The loss of flipped labels."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ncsam.optim import validate
from ncsam.optim.flipping import Flips
from ncsam.optim.sharpness_aware import Criterion


def flip_criterion(choice: str | Criterion | None) -> Criterion | None:
    """A criterion by name, the caller's own, or none."""
    if choice is None or callable(choice):
        return choice
    validate.choice("flip_criterion", choice, ("ce", "smoothed_ce"))
    return F.cross_entropy if choice == "ce" else _smoothed_cross_entropy


def flipped_loss(criterion: Criterion, logits: Tensor, flips: Flips, targets: Tensor) -> Tensor:
    """Mean loss of the flipped labels, given the logits of the flipped samples and the batch's observed targets."""
    if not len(flips.index):  # all flips fell to other ranks; this one still takes part in their backward
        return logits.sum() * 0.0
    logits = logits.float() if logits.dtype.itemsize < 4 else logits
    labels = F.one_hot(flips.labels, logits.shape[1]).to(targets) if targets.is_floating_point() else flips.labels
    return validate.scalar_loss(criterion(logits, labels))


def _smoothed_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets, label_smoothing=0.1)
