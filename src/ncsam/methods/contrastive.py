"""Contrastive losses over two views of each sample."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def nt_xent(first: Tensor, second: Tensor, temperature: float = 0.5) -> Tensor:
    """Cross-entropy of finding a sample's other view among all others.

        L = mean_i -log(exp(s_ii') / sum_{j != i} exp(s_ij)),  s_ij = <z_i, z_j> / T,

    z being the 2B normalized projections and i' the other view of i.

    Args:
        first: Projections of one view, (samples, width).
        second: Projections of the other view.
        temperature: T.

    References:
        Chen et al., 2020, SimCLR, arXiv 2002.05709.
    """
    count = len(first)
    z = F.normalize(torch.cat((first, second)), dim=1)
    similarity = z @ z.T / temperature
    itself = torch.eye(2 * count, dtype=torch.bool, device=z.device)
    other = torch.arange(2 * count, device=z.device).roll(count)
    return F.cross_entropy(similarity.masked_fill(itself, float("-inf")), other)
