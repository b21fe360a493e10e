"""Models that are fitted in one go rather than trained by steps: linear, prototypes, kernel, neighbors, forest.

They are ordinary modules whose state is in buffers, so they are saved, loaded and exported like any model.
`ncsam.classifiers` fits them. Buffers take the shape of the state that is loaded: a forest does not know its number of
nodes before it is fitted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _load_resized(self: Any, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Load a state dict into buffers that take the shape of what is loaded."""
    for name in self.state_names:
        found = state_dict.get(prefix + name)
        if isinstance(found, Tensor):
            setattr(self, name, torch.empty(found.shape, dtype=found.dtype, device=getattr(self, name).device))
    nn.Module._load_from_state_dict(self, state_dict, prefix, *rest)


class ClosedForm(nn.Module):
    """Logits `scale * scores(x)` of rows x; `scale` makes the probabilities fit the labels of held-out samples.

    A subclass names its buffers in `state_names` and defines `scores`.

    Args:
        num_classes: number of classes K.
        unit: divide each row by its length first, after the columns have been standardized.
    """

    closed_form: ClassVar[bool] = True
    family: ClassVar[str] = "closed_form"
    state_names: ClassVar[tuple[str, ...]] = ()
    scale: Tensor

    def __init__(self, num_classes: int, unit: bool = False) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.unit = unit
        self.register_buffer("scale", torch.ones(()))
        for name in self.state_names:
            self.register_buffer(name, torch.zeros(0))

    def scores(self, x: Tensor) -> Tensor:
        """Uncalibrated logits (N, K) of prepared rows (N, d).

        Args:
            x: Rows as `prepare` returns them, (N, d).
        """
        raise NotImplementedError  # abstract: each model's own

    def prepare(self, x: Tensor) -> Tensor:
        """Standardized inputs of any shape as rows (N, d); what is more than ten standard deviations out is clipped.

        Args:
            x: Standardized inputs (N, ...).
        """
        rows = x.flatten(1).clamp(-10, 10)
        return F.normalize(rows, dim=1) if self.unit else rows

    def forward(self, x: Tensor) -> Tensor:
        """Calibrated logits (N, K).

        Args:
            x: Standardized inputs (N, ...).
        """
        return self.scale * self.scores(self.prepare(x))

    _load_from_state_dict = _load_resized  # type: ignore[assignment]


class LinearClassifier(ClosedForm):
    """Scores `x @ weight.T + bias`: discriminant analysis, ridge and logistic regression."""

    state_names = ("weight", "bias")
    weight: Tensor
    bias: Tensor

    def scores(self, x: Tensor) -> Tensor:
        """Uncalibrated logits (N, K).

        Args:
            x: Prepared rows (N, d).
        """
        return F.linear(x, self.weight, self.bias)


class Prototypes(ClosedForm):
    """Scores: cosine between `x - center` and the prototype (d,) of each class."""

    state_names = ("center", "prototypes")
    center: Tensor
    prototypes: Tensor

    def scores(self, x: Tensor) -> Tensor:
        """Cosines in [-1, 1], (N, K).

        Args:
            x: Prepared rows (N, d).
        """
        return F.normalize(x - self.center, dim=1) @ self.prototypes.T


class KernelExpansion(ClosedForm):
    """Scores `sum_i exp(-|x - row_i|^2 / width) coefficient_i + bias`."""

    state_names = ("rows", "coefficients", "bias", "width")
    rows: Tensor
    coefficients: Tensor
    bias: Tensor
    width: Tensor

    def scores(self, x: Tensor) -> Tensor:
        """Uncalibrated logits (N, K).

        Args:
            x: Prepared rows (N, d).
        """
        return gaussian_kernel(x, self.rows, self.width) @ self.coefficients + self.bias


def gaussian_kernel(x: Tensor, rows: Tensor, width: Tensor | float) -> Tensor:
    """exp(-|x_i - row_j|^2 / width), shape (len(x), len(rows)).

    Args:
        x: (N, d).
        rows: (n, d).
        width: Positive; a squared distance of this size gives 1/e.
    """
    squared = x.square().sum(1, keepdim=True) + rows.square().sum(1) - 2 * x @ rows.T
    return torch.exp(-squared.clamp(min=0) / width)


class Smooth(ClosedForm):
    r"""The average of linear classifiers and of kernel expansions over the same rows, each at its own temperature.

    .. math:: p(x) = \frac1M \sum_m \mathrm{softmax}(\beta_m f_m(x))

    Buffers: `weight` (L, K, d) and `bias` (L, K) of the linear members, `rows` (n, d), `coefficients` (E, n, K),
    `offset` (E, K) and `width` of the kernel members, `betas` (L + E,).
    """

    state_names = ("weight", "bias", "rows", "coefficients", "offset", "width", "betas")
    weight: Tensor
    bias: Tensor
    rows: Tensor
    coefficients: Tensor
    offset: Tensor
    width: Tensor
    betas: Tensor

    def member_scores(self, x: Tensor) -> Tensor:
        """Uncalibrated scores of every member, (M, N, K).

        Args:
            x: Prepared rows (N, d).

        Returns:
            Linear members first, then kernel members.
        """
        linear = torch.einsum("nd,lkd->lnk", x, self.weight) + self.bias.unsqueeze(1)
        kernel = gaussian_kernel(x, self.rows, self.width)
        return torch.cat([linear, kernel @ self.coefficients + self.offset.unsqueeze(1)])

    def scores(self, x: Tensor) -> Tensor:
        """Log of the members' mean probabilities, (N, K).

        Args:
            x: Prepared rows (N, d).
        """
        logs = (self.betas.view(-1, 1, 1) * self.member_scores(x)).log_softmax(dim=2)
        return torch.logsumexp(logs, dim=0) - math.log(self.betas.shape[0])


class NormalScores(nn.Module):
    """Each column as the normal quantile of its rank among training values: insensitive to skew and outliers.

    A value between the i-th and the next of q sorted `cuts` has level Phi^-1((i + .5) / (q + 1)); ties share ranks.

    Buffers: `cuts` (d, q) and `levels` (2q + 1,), the level of every number of cuts below plus cuts not above.
    """

    cuts: Tensor
    levels: Tensor
    state_names: ClassVar[tuple[str, ...]] = ("cuts", "levels")

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cuts", torch.zeros(0, 0))
        self.register_buffer("levels", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Normal scores of the same shape.

        Args:
            x: (N, d).
        """
        values = x.unsqueeze(2)
        return self.levels[(values > self.cuts).sum(dim=2) + (values >= self.cuts).sum(dim=2)]

    _load_from_state_dict = _load_resized  # type: ignore[assignment]


class Average(ClosedForm):
    """The average of other closed-form models on the normal scores of the columns, each at its own temperature.

    Args:
        num_classes: number of classes K.
        members: fitted to normal scores; each brings its own `scale`.
    """

    def __init__(self, num_classes: int, members: Sequence[ClosedForm]) -> None:
        super().__init__(num_classes)
        self.view = NormalScores()
        self.members = nn.ModuleList(members)

    def prepare(self, x: Tensor) -> Tensor:
        """Normal scores of the columns, (N, d).

        Args:
            x: Inputs (N, ...).
        """
        rows: Tensor = self.view(x.flatten(1))
        return rows

    def scores(self, x: Tensor) -> Tensor:
        """Log of the members' mean probabilities, (N, K).

        Args:
            x: Normal scores (N, d).
        """
        logs = torch.stack([member(x).log_softmax(dim=1) for member in self.members])
        return torch.logsumexp(logs, dim=0) - math.log(len(self.members))
