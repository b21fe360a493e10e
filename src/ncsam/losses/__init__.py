"""Losses for noisy labels, usable in any training loop: functions of (logits, targets), and the same as modules.

`logits` are real numbers of shape (samples, classes). `targets` are class numbers (samples,), or probabilities
(samples, classes), for which a loss is the mean of its values under the labels, weighted by these probabilities.
`reduction` is "mean", "sum" or "none" (one value per sample). In formulas p = softmax(logits), y is the given label and
C the number of classes.

Several classes share their name with a class in `ncsam.methods`: `losses.GCE` is the loss as a `torch.nn.Module`,
`methods.GCE` the learning method that trains with it.

Examples:
    >>> import torch
    >>> logits, targets = torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0])
    >>> cross_entropy(logits, targets, reduction="none").tolist()  # unbounded, however wrong the second label is
    [0.126..., 2.126...]
    >>> gce(logits, targets, q=0.7, reduction="none").tolist()  # at most 1 / q
    [0.121..., 1.10...]
"""

from ncsam.losses.classic import CE, MAE, LabelSmoothing, cross_entropy, mae
from ncsam.losses.correction import Backward, Forward, backward_corrected, estimate_transition, forward_corrected
from ncsam.losses.dmi import DMI, dmi
from ncsam.losses.early_learning import ELR, elr, elr_regularizer
from ncsam.losses.generalized import GCE, TruncatedGCE, gce, truncated_gce
from ncsam.losses.jensen_shannon import GJS, JS, gjs, js
from ncsam.losses.peer import Peer, confidence_regularized, peer
from ncsam.losses.stochastic import SLN, noisy_targets, sln
from ncsam.losses.symmetric import APL, NCE, RCE, Symmetric, apl, nce, rce, symmetric

__all__ = [
    "APL",
    "CE",
    "DMI",
    "ELR",
    "GCE",
    "GJS",
    "JS",
    "MAE",
    "NCE",
    "RCE",
    "SLN",
    "Backward",
    "Forward",
    "LabelSmoothing",
    "Peer",
    "Symmetric",
    "TruncatedGCE",
    "apl",
    "backward_corrected",
    "confidence_regularized",
    "cross_entropy",
    "dmi",
    "elr",
    "elr_regularizer",
    "estimate_transition",
    "forward_corrected",
    "gce",
    "gjs",
    "js",
    "mae",
    "nce",
    "noisy_targets",
    "peer",
    "rce",
    "sln",
    "symmetric",
    "truncated_gce",
]
