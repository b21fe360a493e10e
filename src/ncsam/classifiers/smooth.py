"""The recommended classifiers: averages of smooth classifiers, fitted with and without label issues.

1. View. Embeddings: standardized columns, rows of length 1. Tables: normal scores of the columns.
2. Out-of-fold probabilities of a few very smooth classifiers are averaged; confident label issues are pruned.
3. The members are fitted to all rows and again without the pruned rows. Each has the temperature that fits the labels
   of held-out rows. The result is the mean of their probabilities.

How this was chosen, and what it is worth: docs/experiments/recommendations.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ncsam.classifiers.fit import Fitted, Member, confident_issues, fit_masked
from ncsam.classifiers.kernel import KernelSystem, landmarks, mean_squared_distance
from ncsam.classifiers.linear import lda
from ncsam.classifiers.temperature import best_scale
from ncsam.models.closed_form import NormalScores, Smooth
from ncsam.models.fitted import smooth as build

SHRINKAGES = (0.8,)
PENALTIES = (0.1, 1.0)
#: Classifiers whose average decides which rows are pruned, of rows of length 1.
PRUNING: tuple[tuple[str, dict[str, Any]], ...] = (
    ("lda", {"shrinkage": 0.8}),
    ("lda", {"shrinkage": 0.95}),
    ("prototypes", {"unit": True}),
    ("knn", {"k": 30, "unit": True}),
)
_CUTS = 256  # of a column, for normal scores


def fit_smooth(x: Tensor, y: Tensor, num_classes: int, folds: Tensor, **options: Any) -> Fitted:
    """Fit the average for embeddings to all rows, and predict each row without its fold.

    Args:
        x: standardized rows (N, d).
        y: labels (N,).
        num_classes: number of classes K.
        folds: the fold of every row (N,).
        **options: of the model "smooth".
    """
    rows = build(num_classes, **options).prepare(x)
    everything = torch.ones(len(y), dtype=torch.bool)
    kept = everything & ~_issues(PRUNING, x, y, num_classes, folds)
    halves = [_held_out_scores(rows, y, num_classes, folds, mask) for mask in (everything, kept)]
    probabilities, betas = _average(torch.cat(halves), y)
    states = [_fit(rows, y, num_classes, mask) for mask in (everything, kept)]
    joined = {name: torch.cat([s[name] for s in states]) for name in ("weight", "bias", "coefficients", "offset")}
    linear, total = len(SHRINKAGES), len(SHRINKAGES) + len(PENALTIES)  # linear members come first in the state
    order = [*range(linear), *range(total, total + linear), *range(linear, total), *range(total + linear, 2 * total)]
    state = {**joined, "rows": states[0]["rows"], "width": states[0]["width"]}
    state |= {"betas": betas[order], "scale": torch.ones(())}
    pruned, _ = _average(halves[1], y)
    return Fitted(Member("smooth", dict(options), state), probabilities.numpy(), pruned.numpy())


def fit_table(x: Tensor, y: Tensor, num_classes: int, folds: Tensor, *, trees: int = 100) -> Fitted:
    """Fit the average for tables to all rows, and predict each row without its fold; arguments as of `fit_smooth`."""
    view = normal_scores(x.flatten(1))
    rows = view(x.flatten(1))
    members: tuple[tuple[str, dict[str, Any]], ...] = (
        ("forest", {"trees": trees, "leaf": 5, "extra": True}),
        ("lda", {"shrinkage": 0.8, "unit": False}),
        ("kernel", {"penalty": 1.0, "unit": False}),
    )
    everything = torch.ones(len(y), dtype=torch.bool)
    smooth = (members[0], ("forest", {"trees": trees, "leaf": 5}), members[1])
    kept = everything & ~_issues(smooth, rows, y, num_classes, folds)
    found = [
        fit_masked(model, rows, y, num_classes, folds, mask, **options)
        for mask in (everything, kept)
        for model, options in members
    ]
    state = {f"members.{i}.{name}": value for i, each in enumerate(found) for name, value in each.member.state.items()}
    state |= {f"view.{name}": value for name, value in view.state_dict().items()}
    probabilities = np.mean([each.probabilities for each in found], axis=0)
    pruned = np.mean([each.probabilities for each in found[len(members) :]], axis=0)
    return Fitted(Member("smooth_table", {"trees": trees}, {**state, "scale": torch.ones(())}), probabilities, pruned)


def normal_scores(x: Tensor) -> NormalScores:
    """The view of tables, with at most 256 cuts of each column."""
    values = x.sort(dim=0).values
    count = min(len(values), _CUTS)
    chosen = torch.linspace(0, len(values) - 1, count).round().long()
    view = NormalScores()
    view.cuts = values[chosen].T.contiguous()
    view.levels = torch.special.ndtri((torch.arange(2 * count + 1) / 2 + 0.5) / (count + 1)).float()
    return view


def _issues(
    classifiers: tuple[tuple[str, dict[str, Any]], ...], x: Tensor, y: Tensor, num_classes: int, folds: Tensor
) -> Tensor:
    """Confident label issues by the out-of-fold average of some classifiers."""
    everything = torch.ones(len(y), dtype=torch.bool)
    found = [
        fit_masked(model, x, y, num_classes, folds, everything, refit=False, **options).probabilities
        for model, options in classifiers
    ]
    return torch.from_numpy(confident_issues(np.mean(found, axis=0), y.numpy()))


def _fit(rows: Tensor, y: Tensor, num_classes: int, mask: Tensor) -> dict[str, Tensor]:
    """The members of "smooth" fitted to the rows of `mask`; kernel expansions are over landmarks of all rows."""
    x, labels = rows[mask], y[mask]
    layers = [lda(x, labels, num_classes, shrinkage=s) for s in SHRINKAGES]
    centers = landmarks(rows)
    width = mean_squared_distance(centers)
    targets = F.one_hot(labels, num_classes).to(x)
    offset = targets.mean(dim=0)
    if len(centers) == len(rows):  # exact: rows that are left out have coefficient 0
        system = KernelSystem(x, targets - offset, x, width)
        coefficients = torch.zeros(len(PENALTIES), len(rows), num_classes)
        coefficients[:, mask] = torch.stack([system.solve(penalty) for penalty in PENALTIES])
    else:
        system = KernelSystem(x, targets - offset, centers, width)
        coefficients = torch.stack([system.solve(penalty) for penalty in PENALTIES])
    return {
        "weight": torch.stack([layer["weight"] for layer in layers]),
        "bias": torch.stack([layer["bias"] for layer in layers]),
        "rows": centers,
        "coefficients": coefficients,
        "offset": offset.expand(len(PENALTIES), -1).clone(),
        "width": torch.tensor(width),
    }


def _held_out_scores(rows: Tensor, y: Tensor, num_classes: int, folds: Tensor, mask: Tensor) -> Tensor:
    """Scores (members, N, K) of every row by members fitted to the rows of `mask` in the other folds."""
    scores = torch.empty(len(SHRINKAGES) + len(PENALTIES), len(y), num_classes)
    for fold in range(int(folds.max()) + 1):
        held = folds == fold
        network: Smooth = build(num_classes)
        state = _fit(rows[~held], y[~held], num_classes, mask[~held])
        network.load_state_dict({**state, "betas": torch.ones(len(scores)), "scale": torch.ones(())})
        scores[:, held] = network.member_scores(rows[held])
    return scores


def _average(scores: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean calibrated probabilities (N, K) in double precision, and the factor of each member."""
    betas = torch.tensor([best_scale(each, y) for each in scores])
    probabilities = (betas.double().view(-1, 1, 1) * scores.double()).softmax(dim=2).mean(dim=0)
    return probabilities, betas
