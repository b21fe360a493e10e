"""Classifiers in seconds: shrunken discriminant analysis, logistic regression, and either without label issues.

Each gives the weight (C, F) and bias (C,) of a linear layer, for inputs (N, F) that are normalized already. The inputs
may be random features of others, which makes the classifier a network with one hidden layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ncsam._guards import without_guards
from ncsam.issues.folds import stratified_folds
from ncsam.noise import estimate_noise

INNER_FOLDS = 5
_ITERATIONS = 100  # of L-BFGS


class Layer(NamedTuple):
    """A linear layer: logits = x @ weight.T + bias."""

    weight: Tensor
    bias: Tensor

    def log_probabilities(self, x: Tensor) -> Tensor:
        return F.log_softmax(F.linear(x, self.weight, self.bias), dim=1)


Fit = Callable[[Tensor, Tensor, int], Layer]


def discriminant(x: Tensor, y: Tensor, classes: int, *, shrinkage: float) -> Layer:
    """Linear discriminant analysis with a covariance shrunk towards a sphere.

    With class means m_c, pooled within-class covariance S and v = trace(S) / F:
    S' = (1 - shrinkage) S + shrinkage v I, w_c = S'^-1 m_c, b_c = -m_c . w_c / 2 + log prior_c.

    Wrong labels move a class mean by a share of the way to the others, and nothing is fitted to single samples.
    """
    counts = torch.bincount(y, minlength=classes).to(x)
    onehot = F.one_hot(y, classes).to(x)
    means = onehot.T @ x / counts.clamp(min=1).unsqueeze(1)
    rest = x - means[y]
    samples, features = x.shape
    spread = float(rest.square().sum()) / samples / features
    sphere = max(shrinkage * spread, 1e-12)
    scaled = rest * ((1 - shrinkage) / samples) ** 0.5  # S' = sphere I + scaled.T @ scaled
    if features <= samples:
        gram = (scaled.T @ scaled).double()
        gram.diagonal().add_(sphere)
        weight = torch.linalg.solve(gram, means.T.double()).T
    else:  # (s I + A'A)^-1 = (I - A'(s I + AA')^-1 A) / s
        gram = (scaled @ scaled.T).double()
        gram.diagonal().add_(sphere)
        inner = torch.linalg.solve(gram, (scaled @ means.T).double())
        weight = ((means.T.double() - scaled.T.double() @ inner) / sphere).T
    prior = ((counts + 0.5) / (samples + 0.5 * classes)).log().double()
    bias = prior - 0.5 * (weight * means.double()).sum(dim=1)
    return Layer(weight.float(), bias.float())


def logistic(x: Tensor, y: Tensor, classes: int, *, strength: float) -> Layer:
    """Logistic regression: mean cross-entropy + strength / 2 ||weight||^2, by L-BFGS. strength = 1 / (C N)."""
    features = x.shape[1]
    weight = torch.zeros(classes, features, dtype=x.dtype, requires_grad=True)
    bias = torch.zeros(classes, dtype=x.dtype, requires_grad=True)
    optimizer = without_guards(torch.optim.LBFGS)(
        [weight, bias], max_iter=_ITERATIONS, tolerance_grad=1e-5, tolerance_change=1e-7, line_search_fn="strong_wolfe"
    )

    def objective() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(F.linear(x, weight, bias), y) + strength / 2 * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        optimizer.step(objective)
    return Layer(weight.detach(), bias.detach())


class RandomFeatures(NamedTuple):
    """h = relu(weight x + bias), drawn and never trained; standardized by `mean` and `std` over the samples fitted.

    weight ~ N(0, 2 / F), bias ~ N(0, 1 / 4). Fits to them are fits with the kernel E[h(x) h(x')], smooth and not linear
    (Rahimi and Recht 2008; Cho and Saul 2009 for ReLU).
    """

    weight: Tensor
    bias: Tensor
    mean: Tensor
    std: Tensor

    @classmethod
    def draw(cls, x: Tensor, width: int, seed: int) -> RandomFeatures:
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(width, x.shape[1], generator=generator) * (2 / x.shape[1]) ** 0.5
        bias = torch.randn(width, generator=generator) / 2
        hidden = F.linear(x, weight, bias).relu()
        std = hidden.std(dim=0)
        return cls(weight, bias, hidden.mean(dim=0), torch.where(std > 0, std, 1.0))

    def __call__(self, x: Tensor) -> Tensor:
        return (F.linear(x, self.weight, self.bias).relu() - self.mean) / self.std

    def raw(self, layer: Layer) -> Layer:
        """The layer for h before it is standardized: the same logits."""
        weight = layer.weight / self.std
        return Layer(weight, layer.bias - weight @ self.mean)


def prune_label_issues(fit: Fit, rounds: int, seed: int) -> Fit:
    """`fit` on the samples whose labels are not in doubt, `rounds` times over.

    A round predicts every sample by a fit to four fifths of the others, takes out those that are confidently of
    another class than their label (Northcutt et al. 2021, Confident learning), and goes on with the rest. A class
    that would be left with no sample keeps all of its own. Of fewer than five samples each is held out by itself.
    """

    def pruned(x: Tensor, y: Tensor, classes: int) -> Layer:
        for number in range(rounds):
            count = min(INNER_FOLDS, len(y))
            if count < 2:
                break
            folds = torch.from_numpy(stratified_folds(y.numpy(), count, seed + number))
            predicted = torch.empty(len(y), classes, dtype=torch.float64)
            for fold in range(count):
                held = folds == fold
                layer = fit(x[~held], y[~held], classes)
                predicted[held] = layer.log_probabilities(x[held]).double().exp()
            predicted /= predicted.sum(dim=1, keepdim=True)
            keep = ~estimate_noise(y.numpy(), predicted.numpy()).label_issues
            emptied = np.setdiff1d(y.numpy(), y.numpy()[keep])
            kept = torch.from_numpy(keep | np.isin(y.numpy(), emptied))
            x, y = x[kept], y[kept]
        return fit(x, y, classes)

    return pruned
