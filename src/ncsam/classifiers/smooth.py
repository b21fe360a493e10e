"""The recommended classifier for embeddings: an average of smooth classifiers, with and without label issues.

Six members: discriminant analysis with shrinkage .8 and kernel ridge regressions with penalties .1 and 1, each fitted
to all rows and again to the rows whose labels are not confidently wrong by the out-of-fold average of the first three.
Each member has the temperature that fits the labels of held-out rows. Chosen by `experiments/recommendations.py`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ncsam.classifiers.fit import Fitted, Member, confident_issues
from ncsam.classifiers.kernel import KernelSystem, landmarks, mean_squared_distance
from ncsam.classifiers.linear import lda
from ncsam.classifiers.temperature import best_scale
from ncsam.models.closed_form import ClosedForm, Smooth
from ncsam.models.fitted import smooth as build

SHRINKAGES = (0.8,)
PENALTIES = (0.1, 1.0)


def fit_smooth(x: Tensor, y: Tensor, num_classes: int, folds: Tensor, **options: Any) -> Fitted:
    """Fit the average to all rows and predict each row without its fold.

    Args:
        x: standardized rows (N, d).
        y: labels (N,).
        num_classes: number of classes K.
        folds: the fold of every row (N,).
        **options: of the model "smooth".
    """
    module = build(num_classes, **options)
    rows = module.prepare(x)
    everything = torch.ones(len(y), dtype=torch.bool)
    first = _held_out_scores(module, rows, y, num_classes, folds, everything)
    probabilities, _ = _average(first, y)
    kept = ~torch.from_numpy(confident_issues(probabilities.numpy(), y.numpy()))
    scores = torch.cat([first, _held_out_scores(module, rows, y, num_classes, folds, kept)])
    probabilities, betas = _average(scores, y)
    states = [_fit(rows, y, num_classes, mask) for mask in (everything, kept)]
    state = _joined(states)
    linear, total = len(SHRINKAGES), len(betas) // 2  # members of one fit: linear ones, then kernels
    order = [*range(linear), *range(total, total + linear), *range(linear, total), *range(total + linear, 2 * total)]
    state |= {"betas": betas[order], "scale": torch.ones(())}
    return Fitted(Member("smooth", dict(options), state), probabilities.numpy())


def _fit(rows: Tensor, y: Tensor, num_classes: int, mask: Tensor) -> dict[str, Tensor]:
    """The members fitted to the rows of `mask`; kernel expansions are over landmarks of all rows."""
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


def _joined(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Members of several fits over the same rows as one state."""
    joined = {name: torch.cat([s[name] for s in states]) for name in ("weight", "bias", "coefficients", "offset")}
    return {**joined, "rows": states[0]["rows"], "width": states[0]["width"]}


def _held_out_scores(
    module: ClosedForm, rows: Tensor, y: Tensor, num_classes: int, folds: Tensor, mask: Tensor
) -> Tensor:
    """Scores (members, N, K) of every row by members fitted to the rows of `mask` in the other folds."""
    assert isinstance(module, Smooth)
    scores = torch.empty(len(SHRINKAGES) + len(PENALTIES), len(y), num_classes)
    for fold in range(int(folds.max()) + 1):
        held = folds == fold
        other = rows[~held]
        state = _fit(other, y[~held], num_classes, mask[~held])
        network = build(num_classes)
        network.load_state_dict({**state, "betas": torch.ones(len(scores)), "scale": torch.ones(())})
        scores[:, held] = network.member_scores(rows[held])
    return scores


def _average(scores: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean calibrated probabilities (N, K) in double precision, and the factor of each member."""
    betas = torch.tensor([best_scale(each, y) for each in scores])
    probabilities = (betas.double().view(-1, 1, 1) * scores.double()).softmax(dim=2).mean(dim=0)
    return probabilities, betas
