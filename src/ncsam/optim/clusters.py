"""Small k-means for the samples of one batch: a few restarts at once, from draws that the caller makes."""

from __future__ import annotations

import torch
from torch import Tensor

RESTARTS = 10
_ITERATIONS = 100


@torch.no_grad()
def kmeans(x: Tensor, clusters: int, draws: Tensor) -> Tensor:
    """Assign each row to one of a few clusters.

    Lloyd's iterations from k-means++ starts: the next center is row i with probability proportional to its squared
    distance to the nearest center so far. Of all restarts the one with the smallest sum of squares counts, the first
    of several.

    Args:
        x: Rows (samples, dimensions).
        clusters: Their number, at most that of the samples.
        draws: Uniform numbers (restarts, clusters), of which each picks a center.

    Returns:
        The number of each row's cluster. A cluster may be empty.
    """
    x = x.double().cpu()
    starts = torch.stack([_start(x, row) for row in draws[:, :clusters].double().cpu()])
    best, least = torch.zeros(len(x), dtype=torch.long), float("inf")
    for centers in starts:
        labels = torch.full((len(x),), -1)
        for _ in range(_ITERATIONS):
            nearest = _squares(x, centers).argmin(1)
            if torch.equal(nearest, labels):
                break
            labels = nearest
            members = torch.nn.functional.one_hot(labels, clusters).to(x)
            sizes = members.sum(0).unsqueeze(1)
            centers = torch.where(sizes > 0, members.T @ x / sizes.clamp_min(1), centers)
        total = float(_squares(x, centers).gather(1, labels.unsqueeze(1)).sum())
        if total < least - 1e-12 * abs(total):
            best, least = labels, total
    return best


def _start(x: Tensor, draws: Tensor) -> Tensor:
    chosen = [min(int(draws[0] * len(x)), len(x) - 1)]
    for draw in draws[1:]:
        weights = _squares(x, x[chosen]).min(1).values
        total = weights.cumsum(0)
        chosen.append(int(torch.searchsorted(total, draw * total[-1], right=True).clamp_max(len(x) - 1)))
    return x[chosen].clone()


def _squares(x: Tensor, centers: Tensor) -> Tensor:
    return (x.unsqueeze(1) - centers.unsqueeze(0)).square().sum(2)
