"""Fit a closed-form model, alone or with predictions of every sample by models that never saw it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ncsam import models
from ncsam._errors import known_name
from ncsam.classifiers import kernel, linear, trees
from ncsam.classifiers.temperature import best_scale
from ncsam.issues.calibration import stratified_folds
from ncsam.models.closed_form import ClosedForm
from ncsam.models.fitted import CLOSED_FORM
from ncsam.noise import estimate_noise

FOLDS = 5
_LEAST_KEPT = 10  # samples of a class that pruning must leave, or it keeps all of them
Mask = npt.NDArray[np.bool_]
_FITS: dict[str, Callable[..., dict[str, Tensor]]] = {
    "lda": linear.lda,
    "ridge": linear.ridge,
    "logistic": linear.logistic,
    "prototypes": linear.prototypes,
    "knn": linear.knn,
    "kernel": kernel.kernel_ridge,
    "forest": trees.forest,
}


#: Models that average others, and the function of `ncsam.classifiers.smooth` that fits them.
_AVERAGES = {"smooth": "fit_smooth", "smooth_table": "fit_table"}


@dataclass(frozen=True)
class Member:
    """A fitted or trained model, stored as plain data.

    Attributes:
        model: name of the model, as `ncsam.models.create` knows it.
        options: options of the model.
        state: state dict of the model.
    """

    model: str
    options: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Tensor] = field(default_factory=dict)

    def network(self, num_classes: int, in_channels: int = 1) -> nn.Module:
        """Build the model, load its state and set it to evaluation mode.

        Args:
            num_classes: number of classes K.
            in_channels: channels of the input images; closed-form models ignore it.
        """
        network = models.create(self.model, num_classes, in_channels, **self.options)
        network.load_state_dict(self.state)
        return network.eval()


@dataclass(frozen=True)
class Fitted:
    """A model fitted to all rows, with out-of-fold predictions for the same rows.

    Attributes:
        member: the model, with probabilities calibrated on held-out rows.
        probabilities: out-of-fold class probabilities (N, K).
        for_issues: out-of-fold probabilities of the members that rank label issues: for embeddings the members fitted
            without label issues, for tables the forests; `None` for a model without members.
    """

    member: Member
    probabilities: npt.NDArray[np.float64]
    for_issues: npt.NDArray[np.float64] | None = None


@torch.no_grad()
def fit(model: str, x: Tensor, y: Tensor, num_classes: int, **options: Any) -> Member:
    """Fit a closed-form model to standardized rows.

    Args:
        model: one of `ncsam.models.closed_form_names()`.
        x: rows (N, d), float32, each column standardized.
        y: labels (N,).
        num_classes: number of classes K; some may have no row.
        **options: the options of the model, such as `shrinkage` of "lda". With `prune=R` confident label issues
            (Northcutt et al. 2021) are left out in R rounds, for which every row is predicted without its fold.

    Returns:
        The model; `member.network(num_classes)` is a torch module. Only `cross_fit` calibrates its probabilities.
    """
    known_name("model", model, CLOSED_FORM)
    if model in _AVERAGES or (options.get("prune") and len(y) > FOLDS):
        return cross_fit(model, x, y, num_classes, **options).member
    module = models.create(model, num_classes, 1, **options)
    assert isinstance(module, ClosedForm)
    given = {name: value for name, value in {**_defaults(model), **options}.items() if name not in ("unit", "prune")}
    state = _FITS[model](module.prepare(x), y, num_classes, **given)
    return Member(model, options, {"scale": torch.ones(()), **state})


@torch.no_grad()
def cross_fit(
    model: str,
    x: Tensor,
    y: Tensor,
    num_classes: int,
    *,
    folds: int | npt.NDArray[np.int64] = FOLDS,
    seed: int = 0,
    trusted: npt.NDArray[np.bool_] | None = None,
    **options: Any,
) -> Fitted:
    """Fit a closed-form model to all rows, and predict each row by a fit to the other folds.

    Args:
        model: one of `ncsam.models.closed_form_names()`.
        x: rows (N, d), float32, each column standardized.
        y: labels (N,).
        num_classes: number of classes K.
        folds: number of stratified folds, at most one per row; or the fold of every row (N,), from 0.
        seed: of the split into folds.
        trusted: rows (N,) whose labels were verified, and which pruning keeps.
        **options: as of `fit`. Pruning uses the same folds: a row that is left out is still predicted, but no fit sees
            it.
    """
    if isinstance(folds, int):
        folds = stratified_folds(y.numpy(), min(folds, len(y)), seed)
    assigned = torch.from_numpy(folds)
    always = torch.zeros(len(y), dtype=torch.bool) if trusted is None else torch.from_numpy(trusted)
    if model in _AVERAGES:
        from ncsam.classifiers import smooth

        return getattr(smooth, _AVERAGES[model])(x, y, num_classes, assigned, always, **options)  # type: ignore[no-any-return]
    once = {**options, "prune": 0}
    kept = torch.ones(len(y), dtype=torch.bool)
    for rounds_left in range(int(options.get("prune", 0)), -1, -1):
        found = fit_masked(model, x, y, num_classes, assigned, kept, refit=not rounds_left, **once)
        if rounds_left:
            kept &= always | ~torch.from_numpy(confident_issues(found.probabilities, y.numpy(), kept.numpy()))
    return Fitted(Member(model, options, found.member.state), found.probabilities)


def fit_masked(
    model: str,
    x: Tensor,
    y: Tensor,
    num_classes: int,
    folds: Tensor,
    mask: Tensor,
    *,
    refit: bool = True,
    **options: Any,
) -> Fitted:
    """Run `cross_fit` so that no fit sees the rows outside `mask`.

    Rows outside `mask` are still predicted and still used for calibration.

    Args:
        model: one of `ncsam.models.closed_form_names()`.
        x: rows (N, d), float32, each column standardized.
        y: labels (N,).
        num_classes: number of classes K.
        folds: the fold of every row (N,), from 0.
        mask: rows (N,) that may be fitted, bool.
        refit: whether to fit the returned member to all rows in `mask`; if False, its state holds only the scale.
        **options: options of the model.
    """
    logits = torch.empty(len(y), num_classes)
    for fold in range(int(folds.max()) + 1):
        held = folds == fold
        seen = mask & ~held
        logits[held] = fit(model, x[seen], y[seen], num_classes, **options).network(num_classes)(x[held])
    scale = best_scale(logits, y)
    state = fit(model, x[mask], y[mask], num_classes, **options).state if refit else {}
    probabilities: npt.NDArray[np.float64] = (scale * logits.double()).softmax(dim=1).numpy()
    return Fitted(Member(model, options, {**state, "scale": torch.tensor(scale)}), probabilities)


def confident_issues(
    probabilities: npt.NDArray[np.float64], labels: npt.NDArray[np.int64], among: Mask | None = None
) -> Mask:
    """Find samples that are confidently of another class than their label, by confident-learning counts.

    A class that would be left with fewer than ten of the samples `among` keeps all of these.

    Args:
        probabilities: out-of-fold class probabilities (N, K).
        labels: given labels (N,).
        among: samples (N,) to consider, bool; `None` means all. Other samples are never flagged.

    Returns:
        A bool mask (N,), True for label issues.

    References:
        Northcutt et al. 2021, Confident learning: estimating uncertainty in dataset labels.
    """
    rows = np.ones(len(labels), dtype=bool) if among is None else among
    flagged = np.zeros(len(labels), dtype=bool)
    flagged[rows] = estimate_noise(labels[rows], probabilities[rows]).label_issues
    kept = np.bincount(labels[rows & ~flagged], minlength=probabilities.shape[1])
    return flagged & (kept[labels] >= _LEAST_KEPT)


def _defaults(model: str) -> dict[str, Any]:
    parameters = inspect.signature(CLOSED_FORM[model]).parameters
    return {name: each.default for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY}


def issue_probabilities(fitted: Fitted, labels: npt.NDArray[np.int64], *, table: bool) -> npt.NDArray[np.float64]:
    r"""Out-of-fold probabilities by which label issues are ranked.

    Embeddings: those of the members fitted without label issues, divided by the frequencies f of the given labels,
    :math:`q_k \propto p_k / f_k`, which label errors inflate; but not if some class has less than .3 / K of the
    samples, where that would turn the whole majority class into label issues. Tables: those of the forests, with and
    without label issues: the classes of tables are often imbalanced, and other members overrate the rare ones.

    Args:
        fitted: a cross-fitted model.
        labels: the given labels.
        table: whether the features are columns of a table.
    """
    if fitted.for_issues is None:
        return fitted.probabilities
    classes = fitted.for_issues.shape[1]
    counts = np.bincount(labels, minlength=classes)
    if table or counts.min() < 0.3 / classes * len(labels):
        return fitted.for_issues
    adjusted = fitted.for_issues / ((counts + 1) / (len(labels) + classes))
    return np.asarray(adjusted / adjusted.sum(axis=1, keepdims=True))
