"""Nearest neighbors by cosine similarity."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ncsam.models.closed_form import ClosedForm

#: Elements of the largest intermediate tensor: all rows at once would need memory quadratic in their number.
_ELEMENTS = 2**24


class Neighbors(ClosedForm):
    r"""Scores: log of the smoothed, similarity-weighted share of each class among the `k` nearest rows.

    .. math:: s_c(x) = \log \frac{\sum_{i \in N_k(x)} w_i 1[y_i = c] / \sum_i w_i + 1/(kK)}{1 + 1/k},
              \qquad w_i = \max(0, \cos(x - m, x_i - m)) + 10^{-3}

    Buffers: `center` m (d,), `rows` (n, d) centered and of length 1, `labels` (n,).

    Args:
        num_classes: number of classes K.
        k: number of neighbors, 1 or larger; all rows where there are fewer.
        unit: divide each row by its length first.
    """

    state_names = ("center", "rows", "labels")
    center: Tensor
    rows: Tensor
    labels: Tensor

    def __init__(self, num_classes: int, k: int, unit: bool = False) -> None:
        super().__init__(num_classes, unit)
        self.k = k

    def scores(self, x: Tensor) -> Tensor:
        """Log of smoothed class shares, (N, K).

        Args:
            x: Prepared rows (N, d).
        """
        count = min(self.k, self.rows.shape[0])
        if torch.compiler.is_compiling():  # an exported graph has one form for all numbers of rows
            return self._scores(x, count)
        at_once = max(1, _ELEMENTS // max(self.rows.shape[0], count * self.num_classes))
        return torch.cat([self._scores(part, count) for part in torch.split(x, at_once)])

    def _scores(self, x: Tensor, count: int) -> Tensor:
        similarity, index = (F.normalize(x - self.center, dim=1) @ self.rows.T).topk(count, dim=1)
        weight = similarity.clamp(min=0) + 1e-3
        one_hot = F.one_hot(self.labels[index], self.num_classes).to(weight)
        votes = (weight.unsqueeze(2) * one_hot).sum(1) / weight.sum(1, keepdim=True)
        return ((votes + 1 / (self.k * self.num_classes)) / (1 + 1 / self.k)).log()
