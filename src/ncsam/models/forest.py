"""A forest of decision trees as plain tensors: no pickle, evaluated with gathers, exportable.

All trees are padded to the same number of nodes. A leaf is its own child, so `depth` steps of
`node = where(x[feature] <= threshold, left, right)` end in the leaf of every row, without branches or recursion.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ncsam.models.closed_form import ClosedForm


class Forest(ClosedForm):
    """Scores: log of the mean class probabilities over all trees, at least 1e-4 each.

    Buffers (T trees, N nodes per tree, K classes): `feature`, `left`, `right` (T, N) int64; `threshold` (T, N) float32,
    rounded down, which decides as the float64 threshold does for float32 inputs; `value` (T, N, K); `steps` (depth,),
    of which only the length counts: an exporter must know it.
    """

    state_names = ("feature", "threshold", "left", "right", "value", "steps")
    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    value: Tensor
    steps: Tensor

    def probabilities(self, x: Tensor) -> Tensor:
        """Mean class probabilities (N, K) of rows (N, d).

        Args:
            x: Prepared rows, compared with the thresholds in float32.
        """
        columns = x.float().T  # (d, n)
        node = torch.zeros(self.feature.shape[0], x.shape[0], dtype=torch.int64, device=x.device)
        sample = torch.arange(x.shape[0], device=x.device).expand_as(node)
        for _ in range(self.steps.shape[0]):
            goes_left = columns[self.feature.gather(1, node), sample] <= self.threshold.gather(1, node)
            node = torch.where(goes_left, self.left.gather(1, node), self.right.gather(1, node))
        index = node.unsqueeze(2).expand(-1, -1, self.value.shape[2])
        return self.value.gather(1, index).mean(0)

    def scores(self, x: Tensor) -> Tensor:
        """Log of the mean class probabilities, (N, K), at least log 1e-4.

        Args:
            x: Prepared rows (N, d).
        """
        return self.probabilities(x).clamp(min=1e-4).log()
