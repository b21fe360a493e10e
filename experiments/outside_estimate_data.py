"""The datasets of `outside_estimate.py`, and the probabilities of wrong labels from out-of-fold classifiers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ncsam.classifiers.fit import confident_issues, cross_fit, issue_probabilities
from ncsam.issues.find import auroc
from ncsam.issues.posterior import assess
from recommendations import Case, cases
from recommendations import _digits as digits
from recommendations import _fashion as fashion

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
MOST, MOST_TEST, CERTAIN = 1000, 2500, 0.9
#: Clean labels, where following p can only cost, of these; all noisy ones of `recommendations.cases`.
CLEAN = ("labelme/clean", "dino/clean", "digits/clean")


def all_cases(folder: Path) -> Iterator[Case]:
    """Every dataset with noisy labels, three with clean ones, and generated noise of 20 % and 40 %.

    Args:
        folder: As `recommendations.py` describes it.
    """
    for case in cases(folder):
        kind = case.name.partition("/")[2]
        if kind not in ("clean", "RealBug") or case.name in CLEAN:
            yield case
    for kind in ("symmetric", "pairflip"):
        yield Case("digits", f"digits/{kind} 20", partial(digits, kind, 0.2))
    file = folder / "fashion_mnist.npz"
    if file.is_file():
        yield Case("fashion", "fashion/pairflip", partial(fashion, file, "pairflip", 0.4))
        yield Case("fashion", "fashion/symmetric 20", partial(fashion, file, "symmetric", 0.2))


class Problem:
    """A dataset, its split, and the probabilities of wrong labels from outside.

    Attributes:
        p: By name, for every training sample what `WeightedSAM` is given; 0 for samples held out.
        facts: Numbers by which a rule may decide, and such that need true labels (`true_...`), for the tables.
        classifier: Test accuracy in percent of the smooth classifier that p comes from, fitted to the same samples.
    """

    def __init__(self, case: Case, seed: int) -> None:
        found = case.load(seed)
        order = np.random.default_rng(seed).permutation(len(found["given"]))[:MOST]
        self.clean, self.noisy = (np.asarray(found[k])[order].astype(np.int64) for k in ("true", "given"))
        x, x_test = (np.asarray(a, dtype=np.float32) for a in (found["x"][order], found["x_test"][:MOST_TEST]))
        y_test = np.asarray(found["test"][:MOST_TEST]).astype(np.int64)
        mean, std = x.mean(0), x.std(0) + 1e-6
        self.x, self.x_test = (torch.from_numpy((a - mean) / std) for a in (x, x_test))
        self.y, self.y_test = torch.from_numpy(self.noisy), torch.from_numpy(y_test)
        self.classes = int(max(self.clean.max(), self.noisy.max(), y_test.max())) + 1
        self.held: Mask = np.arange(len(x)) < len(x) // 10
        self.wrong: Mask = self.clean != self.noisy
        self.p: dict[str, Tensor] = {}
        self.facts: dict[str, float] = {}
        self._estimate(seed, is_table="columns" in found)

    def _estimate(self, seed: int, *, is_table: bool) -> None:
        """Out of fold, from the samples trained on: a rule may then use the labels of those held out."""
        used = np.flatnonzero(~self.held)
        x, y, noisy = self.x[used], self.y[used], self.noisy[used]
        fitted = cross_fit("smooth_table" if is_table else "smooth", x, y, self.classes, seed=seed)
        found, self.facts = estimates(issue_probabilities(fitted, noisy, table=is_table), noisy, self.wrong[used])
        self.p = {name: spread(values, self.held) for name, values in found.items()}
        network = fitted.member.network(self.classes)
        with torch.no_grad():
            self.classifier = accuracy(network(self.x_test), self.y_test)
            self.facts["held_out"] = accuracy(network(self.x[self.held]), self.y[self.held])


def spread(values: npt.NDArray[Any], held: Mask) -> Tensor:
    """The values of the samples trained on, in their places among all; 0 for those held out."""
    p = torch.zeros(len(held))
    p[torch.from_numpy(~held)] = torch.from_numpy(values.astype(np.float32)).clamp(0, 1)
    return p


def estimates(
    rows: Floats, noisy: npt.NDArray[np.int64], wrong: Mask
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, float]]:
    """`Problem.p` and `Problem.facts` of the samples trained on.

    Args:
        rows: Their out-of-fold probabilities (N, K).
        noisy: Their given labels (N,).
        wrong: Whether these are wrong (N,), for `oracle` and the facts that begin with "true".
    """
    smooth, posterior = 1 - rows[np.arange(len(noisy)), noisy], assess(noisy, rows)
    sets = {
        "certain": smooth > CERTAIN,
        "posterior .9": posterior.p_wrong > CERTAIN,
        "confident": confident_issues(rows, noisy),
        "pure": largest_pure_set(posterior.p_wrong),
    }
    facts = {
        "true_noise": float(wrong.mean()),
        "true_auroc": auroc(smooth, wrong) or float("nan"),
        "agreement": posterior.agreement,
        "scale": posterior.scale,
        "reliable": float(posterior.reliable),
        "expected": float(posterior.p_wrong.mean()),
        "expected_other": float(posterior.other[0].mean()),
        "smooth_mean": float(smooth.mean()),
        "surety": float(rows.max(axis=1).mean()),
        "share_over_half": float((smooth > 0.5).mean()),
    }
    for name, chosen in sets.items():
        facts[f"{name}_share"] = float(chosen.mean())
        if chosen.any():
            facts[f"{name}_true_precision"] = float(wrong[chosen].mean())
            facts[f"{name}_precision"] = float(posterior.p_wrong[chosen].mean())
            facts[f"{name}_precision_other"] = float(posterior.other[0][chosen].mean())
    return {"smooth": smooth, "posterior": posterior.p_wrong, "oracle": wrong, **sets}, facts


def largest_pure_set(p_wrong: Floats, purity: float = CERTAIN) -> Mask:
    """The largest set of labels, the most suspicious first, whose mean probability of being wrong reaches a purity.

    Args:
        p_wrong: (N,).
        purity: In [0, 1].
    """
    order = np.argsort(-p_wrong, kind="stable")
    means = np.cumsum(p_wrong[order]) / np.arange(1, len(order) + 1)
    chosen = np.zeros(len(order), dtype=bool)
    chosen[order[: int((means >= purity).sum())]] = True
    return chosen


def accuracy(scores: Tensor, labels: Tensor) -> float:
    """In percent."""
    return 100 * float((scores.argmax(1) == labels).float().mean())
