"""L_DMI, by the determinant of the joint distribution of labels and predictions."""

from __future__ import annotations

import torch
from torch import Tensor

from ncsam._arguments import non_negative
from ncsam.losses.reduction import Loss, as_weights, check_logits


def dmi(logits: Tensor, targets: Tensor, *, eps: float = 0.0) -> Tensor:
    """-log |det U|, U = Y^T P / |B|: labels Y (one-hot or probabilities) against predictions P over the batch.

    Label noise that depends only on the class multiplies U by the transition matrix T: it changes the loss by the
    constant -log |det T| and leaves its minimizer where it is. It is one number for a batch, and the batch must be much
    larger than the number of classes.

    A class that no label of the batch names makes U singular. Its row is left out, and |det U| becomes the volume
    sqrt(det U U^T) spanned by the other rows, which for a square U is the same number. Computed in double precision.

    Args:
        logits: Real numbers (samples, classes).
        targets: Class numbers (samples,) or probabilities (samples, classes).
        eps: eps^2 is added to the diagonal of U U^T, which bounds the gradient where predictions hardly differ.

    Returns:
        A scalar.

    References:
        Xu et al., 2019, L_DMI: A novel information-theoretic loss function, arXiv 1909.03388.
    """
    eps = non_negative("eps", eps)
    label = as_weights(targets, check_logits(logits))
    # where double precision is missing (MPS) single must do
    kind = torch.float32 if logits.device.type == "mps" else torch.float64
    joint = label.to(kind).T @ logits.to(kind).softmax(dim=1) / len(logits)
    joint = joint[label.sum(dim=0) > 0]
    if eps == 0 and len(joint) == logits.shape[1]:
        log_volume: Tensor = torch.linalg.slogdet(joint).logabsdet
    else:
        gram = joint @ joint.T + eps**2 * torch.eye(len(joint), dtype=kind, device=joint.device)
        log_volume = 0.5 * torch.linalg.slogdet(gram).logabsdet
    return -log_volume.to(logits.dtype)


class DMI(Loss):
    """`dmi` as a module.

    Args:
        eps: eps^2 is added to the diagonal of U U^T.
    """

    def __init__(self, eps: float = 0.0) -> None:
        super().__init__(dmi, eps=eps)
