"""Linear classifiers: weight (K, d) and bias (K,) of discriminant analysis, ridge and logistic regression."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ncsam._guards import without_guards

_ITERATIONS = 100  # of L-BFGS
State = dict[str, Tensor]


def class_means(x: Tensor, y: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Class means and class counts.

    Args:
        x: rows (N, d).
        y: labels (N,).
        num_classes: number of classes K.

    Returns:
        The means (K, d), with the overall mean for a class without samples, and the counts (K,).
    """
    counts = torch.bincount(y, minlength=num_classes).to(x)
    sums = torch.zeros(num_classes, x.shape[1], dtype=x.dtype).index_add_(0, y, x)
    means = sums / counts.clamp(min=1).unsqueeze(1)
    return torch.where(counts.unsqueeze(1) > 0, means, x.mean(dim=0)), counts


def lda(x: Tensor, y: Tensor, num_classes: int, *, shrinkage: float) -> State:
    r"""Linear discriminant analysis with the covariance shrunk toward a sphere.

    .. math:: \Sigma_s = (1 - s) W + s \frac{\mathrm{tr} W}{d} I, \qquad
              f_k(x) = x^\top \Sigma_s^{-1} \mu_k - \tfrac12 \mu_k^\top \Sigma_s^{-1} \mu_k + \log \pi_k

    with class means mu_k, the pooled within-class covariance W and add-one smoothed class frequencies pi_k.

    Wrong labels move a class mean part of the way to the others, and nothing is fitted to single samples.

    Args:
        x: rows (N, d).
        y: labels (N,).
        num_classes: number of classes K.
        shrinkage: s in [0, 1]; 1 is the nearest class mean.

    References:
        Friedman 1989, Regularized discriminant analysis.
    """
    means, counts = class_means(x, y, num_classes)
    rest = x - means[y]
    samples, features = x.shape
    sphere = max(shrinkage * float(rest.square().sum()) / samples / features, 1e-8)
    scaled = rest * ((1 - shrinkage) / samples) ** 0.5  # Sigma = sphere I + scaled.T @ scaled
    if shrinkage == 1:
        weight = means.double() / sphere
    elif features <= samples:
        gram = (scaled.T @ scaled).double()
        gram.diagonal().add_(sphere)
        weight = torch.cholesky_solve(means.T.double(), torch.linalg.cholesky(gram)).T
    else:  # (s I + A'A)^-1 = (I - A'(s I + AA')^-1 A) / s
        gram = (scaled @ scaled.T).double()
        gram.diagonal().add_(sphere)
        inner = torch.cholesky_solve((scaled @ means.T).double(), torch.linalg.cholesky(gram))
        weight = ((means.T.double() - scaled.T.double() @ inner) / sphere).T
    prior = ((counts + 1) / (samples + num_classes)).log().double()
    bias = prior - 0.5 * (weight * means.double()).sum(dim=1)
    return {"weight": weight.float(), "bias": bias.float()}


def ridge(x: Tensor, y: Tensor, num_classes: int, *, penalty: float) -> State:
    """Least squares on one-hot labels: min of the mean of :math:`|t - W x - b|^2` + penalty v |W|^2.

    v is the mean variance of the columns, which makes `penalty` independent of the scale of x; b is not penalized.

    Args:
        x: rows (N, d).
        y: labels (N,).
        num_classes: number of classes K.
        penalty: strength of the penalty relative to v, positive.
    """
    center = x.mean(dim=0)
    rows, targets = x - center, F.one_hot(y, num_classes).to(x)
    shift = targets.mean(dim=0)
    gram = (rows.T @ rows).double() / len(x)
    gram.diagonal().add_(penalty * float(gram.diagonal().mean()) + 1e-12)
    right = (rows.T @ (targets - shift)).double() / len(x)
    weight = torch.cholesky_solve(right, torch.linalg.cholesky(gram)).T.float()
    return {"weight": weight, "bias": shift - weight @ center}


def logistic(x: Tensor, y: Tensor, num_classes: int, *, penalty: float) -> State:
    """Logistic regression: mean cross-entropy + penalty / 2 |weight|^2, by L-BFGS.

    In scikit-learn's terms penalty = 1 / (C N).

    Args:
        x: rows (N, d).
        y: labels (N,).
        num_classes: number of classes K.
        penalty: strength of the penalty on the weight; the bias is not penalized.
    """
    weight = torch.zeros(num_classes, x.shape[1], dtype=x.dtype, requires_grad=True)
    bias = torch.zeros(num_classes, dtype=x.dtype, requires_grad=True)
    optimizer = without_guards(torch.optim.LBFGS)(
        [weight, bias], max_iter=_ITERATIONS, tolerance_grad=1e-5, tolerance_change=1e-7, line_search_fn="strong_wolfe"
    )

    def objective() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(F.linear(x, weight, bias), y) + penalty / 2 * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        optimizer.step(objective)
    return {"weight": weight.detach(), "bias": bias.detach()}


def prototypes(x: Tensor, y: Tensor, num_classes: int) -> State:
    """Mean direction of each class: means of centered rows of length 1, scaled to length 1 again.

    Args:
        x: rows (N, d).
        y: labels (N,).
        num_classes: number of classes K.
    """
    center = x.mean(dim=0)
    means, _ = class_means(F.normalize(x - center, dim=1), y, num_classes)
    return {"center": center, "prototypes": F.normalize(means, dim=1)}


def knn(x: Tensor, y: Tensor, num_classes: int, *, k: int) -> State:
    """The training rows, centered and scaled to length 1, with their labels.

    Args:
        x: rows (N, d).
        y: labels (N,).
        num_classes: not used.
        k: not used here; the model reads it when it predicts.
    """
    center = x.mean(dim=0)
    return {"center": center, "rows": F.normalize(x - center, dim=1), "labels": y.clone()}
