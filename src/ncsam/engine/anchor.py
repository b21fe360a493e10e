r"""Fine-tuning that stays close to the pretrained model.

Two measures that are known to keep what a pretrained model knows, and that leave less room for wrong labels:

1. The head starts as a linear classifier of the pretrained features rather than at random, so that its first gradients
   do not distort them: discriminant analysis (shrinkage .8), fitted without confident label issues.
2. The model that is evaluated and kept is :math:`(1 - a) \theta_0 + a \theta` with the weights :math:`\theta_0` before
   and :math:`\theta` after fine-tuning.

What they are worth under label noise: docs/experiments/fine_tuning.md.

References:
    A. Kumar et al., Fine-tuning can distort pretrained features and underperform out-of-distribution, ICLR 2022,
    arXiv:2202.10054.
    M. Wortsman et al., Robust fine-tuning of zero-shot models, CVPR 2022, arXiv:2109.01903.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ncsam import classifiers
from ncsam._errors import bad_value
from ncsam.data.loading.loader import Loader
from ncsam.models.backbone import Backbone
from ncsam.vectors.arithmetic import is_dtensor

_SHRINKAGE = 0.8


@torch.no_grad()
def fit_head(network: nn.Module, loader: Loader, labels: Tensor, device: torch.device) -> nn.Module:
    """Replace the weights of the head by those of discriminant analysis on the features of the training samples.

    Args:
        network: A model with a linear head; it is moved to the device and left in training mode.
        loader: The training samples, un-augmented and in order.
        labels: The given labels of the samples of the loader.
        device: Where features are computed.

    Returns:
        The model.

    Raises:
        UsageError: The model has no linear head on features.
    """
    if not isinstance(network, Backbone):
        raise bad_value("head_init", "lda", "random, because the model is no Backbone as those of ncsam.models")
    network.to(device).eval()
    x = torch.cat([network.features(batch.views[0]).float().cpu() for batch in loader.iterate(0)])
    network.train()
    fit_linear(network.head, x, labels.cpu())
    return network


@torch.no_grad()
def fit_linear(head: nn.Linear, x: Tensor, labels: Tensor) -> None:
    """Set a linear layer to discriminant analysis of its inputs, fitted without confident label issues.

    Args:
        head: The layer.
        x: Its inputs (N, features).
        labels: The given labels (N,).
    """
    mean, std = x.mean(dim=0), x.std(dim=0).clamp(min=1e-6)
    options: dict[str, Any] = {"shrinkage": _SHRINKAGE, "unit": False, "prune": 1}
    state = classifiers.cross_fit("lda", (x - mean) / std, labels, head.out_features, **options).member.state
    weight = state["scale"] * state["weight"] / std
    head.weight.copy_(weight)
    head.bias.copy_(state["scale"] * state["bias"] - weight @ mean)


class Interpolation:
    r"""The model :math:`(1 - a) \theta_0 + a \theta` next to the weights :math:`\theta` that are trained.

    Args:
        networks: The models, with the weights :math:`\theta_0`.
        share: a, above 0 and at most 1; with 1 nothing is kept and nothing changes.
    """

    def __init__(self, networks: Sequence[nn.Module], share: float) -> None:
        self.networks = networks
        self.share = share
        self._start = [tensor.clone() for tensor in self._tensors()] if share < 1 else []

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The interpolated weights within the block, the trained ones after it."""
        if self.share == 1:
            yield
            return
        trained = [tensor.clone() for tensor in self._tensors()]
        self.apply()
        try:
            yield
        finally:
            for tensor, value in zip(self._tensors(), trained, strict=True):
                tensor.copy_(value)

    def apply(self) -> None:
        """Replace the trained weights by the interpolated ones."""
        if self.share < 1:
            for tensor, start in zip(self._tensors(), self._start, strict=True):
                tensor.copy_(torch.lerp(start, tensor, self.share))

    def _tensors(self) -> list[Tensor]:
        """Weights and statistics, of sharded ones the part of this rank."""
        every = [t.detach() for network in self.networks for t in (*network.parameters(), *network.buffers())]
        here = [t.to_local() if is_dtensor(t) else t for t in every]
        return [t for t in here if t.is_floating_point()]
