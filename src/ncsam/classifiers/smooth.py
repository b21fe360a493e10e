"""The recommended classifiers: averages of smooth classifiers, fitted with and without label issues.

1. View. Embeddings: standardized columns, rows of length 1. Tables: normal scores of the columns.
2. Out-of-fold probabilities of a few very smooth classifiers are averaged; confident label issues are pruned.
3. The members are fitted to all rows and again without the pruned rows. Each has the temperature that fits the labels
   of held-out rows. The result is the mean of their probabilities.
4. Embeddings of which at least a tenth was pruned: if two much smoother classifiers (shrinkage .95, class means),
   fitted without the pruned rows, predict the labels of held-out rows not clearly worse, the simpler explanation
   is preferred: they replace the members that were fitted to all rows.

How this was chosen, and what it is worth: docs/experiments/recommendations.md.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ncsam.classifiers.fit import Fitted, Member, confident_issues, fit_masked
from ncsam.classifiers.kernel import KernelSystem, landmarks, mean_squared_distance
from ncsam.classifiers.linear import class_means, lda
from ncsam.classifiers.temperature import best_scale
from ncsam.models.closed_form import NormalScores, Smooth
from ncsam.models.fitted import smooth as build

PENALTIES = (0.1, 1.0)
#: Members of "smooth", in the order of `_fit`: discriminant analysis of all and of the kept rows, with more shrinkage
#: and as class means of the kept rows, kernel ridge of all (2) and of the kept rows (2).
USUAL, SMOOTHER, CHOSEN_IF_SMOOTH, PRUNED = [0, 1, 4, 5, 6, 7], [2, 3], [1, 2, 3, 6, 7], [1, 6, 7]
_LINEAR = 4
MOST_KEPT = 0.9  # with fewer label issues there is little to protect from
#: Classifiers whose average decides which rows are pruned, of rows of length 1.
PRUNING: tuple[tuple[str, dict[str, Any]], ...] = (
    ("lda", {"shrinkage": 0.8}),
    ("lda", {"shrinkage": 0.95}),
    ("prototypes", {"unit": True}),
    ("knn", {"k": 30, "unit": True}),
)
_CUTS = 256  # of a column, for normal scores


def fit_smooth(x: Tensor, y: Tensor, num_classes: int, folds: Tensor, trusted: Tensor, **options: Any) -> Fitted:
    """Fit the average for embeddings to all rows, and predict each row without its fold.

    Args:
        x: standardized rows (N, d).
        y: labels (N,).
        num_classes: number of classes K.
        folds: the fold of every row (N,).
        trusted: rows (N,) that are not pruned.
        **options: of the model "smooth".
    """
    rows = build(num_classes, **options).prepare(x)
    kept = trusted | ~_issues(PRUNING, x, y, num_classes, folds)
    scores = _held_out_scores(rows, y, num_classes, folds, kept)
    betas = torch.tensor([best_scale(each, y) for each in scores])
    probabilities = (betas.double().view(-1, 1, 1) * scores.double()).softmax(dim=2)
    smoother, usual, pruned = (probabilities[which].mean(dim=0) for which in (SMOOTHER, USUAL, PRUNED))
    simple = kept.float().mean() <= MOST_KEPT and not _worse(smoother, usual, y)
    members = CHOSEN_IF_SMOOTH if simple else USUAL
    state = _fit(rows, y, num_classes, kept)
    linear, kernel = ([m for m in members if m < _LINEAR], [m - _LINEAR for m in members if m >= _LINEAR])
    state |= {name: state[name][linear] for name in ("weight", "bias")}
    state |= {name: state[name][kernel] for name in ("coefficients", "offset")}
    state |= {"betas": betas[members], "scale": torch.ones(())}
    held_out = probabilities[members].mean(dim=0)
    return Fitted(Member("smooth", dict(options), state), held_out.numpy(), pruned.numpy())


def fit_table(x: Tensor, y: Tensor, num_classes: int, folds: Tensor, trusted: Tensor, *, trees: int = 100) -> Fitted:
    """Fit the average for tables to all rows, and predict each row without its fold.

    Args:
        x: standardized rows (N, d).
        y: labels (N,).
        num_classes: number of classes K.
        folds: the fold of every row (N,).
        trusted: rows (N,) that are never pruned.
        trees: number of trees of each forest.
    """
    view = normal_scores(x.flatten(1))
    rows = view(x.flatten(1))
    members: tuple[tuple[str, dict[str, Any]], ...] = (
        ("forest", {"trees": trees, "leaf": 5, "extra": True}),
        ("lda", {"shrinkage": 0.8, "unit": False}),
        ("kernel", {"penalty": 1.0, "unit": False}),
    )
    everything = torch.ones(len(y), dtype=torch.bool)
    smooth = (members[0], ("forest", {"trees": trees, "leaf": 5}), members[1])
    kept = trusted | ~_issues(smooth, rows, y, num_classes, folds)
    found = [
        fit_masked(model, rows, y, num_classes, folds, mask, **options)
        for mask in (everything, kept)
        for model, options in members
    ]
    state = {f"members.{i}.{name}": value for i, each in enumerate(found) for name, value in each.member.state.items()}
    state |= {f"view.{name}": value for name, value in view.state_dict().items()}
    probabilities = np.mean([each.probabilities for each in found], axis=0)
    forests = (found[0].probabilities + found[len(members)].probabilities) / 2
    return Fitted(Member("smooth_table", {"trees": trees}, {**state, "scale": torch.ones(())}), probabilities, forests)


def normal_scores(x: Tensor) -> NormalScores:
    """The view of tables, with at most 256 cuts of each column.

    Args:
        x: rows (N, d) whose ranks define the scores.
    """
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


def _fit(rows: Tensor, y: Tensor, num_classes: int, kept: Tensor) -> dict[str, Tensor]:
    """All members of "smooth"; kernel expansions are over landmarks of all rows."""
    x, labels = rows[kept], y[kept]
    means = F.normalize(class_means(x, labels, num_classes)[0], dim=1)
    layers = [
        lda(rows, y, num_classes, shrinkage=0.8),
        lda(x, labels, num_classes, shrinkage=0.8),
        lda(x, labels, num_classes, shrinkage=0.95),
        {"weight": means, "bias": means.new_zeros(num_classes)},
    ]
    centers = landmarks(rows)
    width = mean_squared_distance(centers)
    system = KernelSystem(rows, F.one_hot(y, num_classes).to(rows), centers, width, kept)
    solved = [system.solve(penalty) for penalty in PENALTIES]
    return {
        "weight": torch.stack([layer["weight"] for layer in layers]),
        "bias": torch.stack([layer["bias"] for layer in layers]),
        "rows": centers,
        "coefficients": torch.stack([each[mask] for mask in (0, 1) for each in solved]),
        "offset": torch.stack([system.offsets[mask] for mask in (0, 1) for _ in solved]),
        "width": torch.tensor(width),
    }


def _held_out_scores(rows: Tensor, y: Tensor, num_classes: int, folds: Tensor, kept: Tensor) -> Tensor:
    """Scores (members, N, K) of every row by members fitted to the other folds."""
    scores = torch.empty(_LINEAR + 2 * len(PENALTIES), len(y), num_classes)
    for fold in range(int(folds.max()) + 1):
        held = folds == fold
        network: Smooth = build(num_classes)
        state = _fit(rows[~held], y[~held], num_classes, kept[~held])
        network.load_state_dict({**state, "betas": torch.ones(len(scores)), "scale": torch.ones(())})
        scores[:, held] = network.member_scores(rows[held])
    return scores


def _worse(one: Tensor, other: Tensor, y: Tensor) -> bool:
    """Whether the first probabilities (N, K) are right significantly less often than the second (paired z < -3)."""
    difference = (one.argmax(dim=1) == y).double() - (other.argmax(dim=1) == y).double()
    return bool(difference.mean() < -3 * difference.std() / math.sqrt(len(y)))
