"""How far to trust a suspicion: the probability that a label is wrong, and that the suggested one is right.

No clean labels are needed. Let z be what a network that never saw a sample predicts for it, y its true class and s its
observed label. Three steps:

1. Calibration. p(s | z) is the prediction mapped so that it fits the observed labels of other samples
   (`ncsam.issues.calibration`); how free the map is, they decide as well.
2. Transition matrix T[k, j] = P(s = j | y = k), taken to be the same for all samples of a class, twice. The one that
   counts: its diagonal is how often the label agrees with the tenth of each class that is predicted the most surely,
   which takes labels of hard samples to be as good as those of easy ones. The other, by confident-learning counts
   (`ncsam.noise.estimate_noise`), takes errors of the network for errors of the labels, and so mostly overstates.
3. Posterior. P(y | z) = q is fitted as in step 1 but to the labels as T makes them of y: max of the mean log (q T)[s].
   By Bayes P(y = k | z, s) = q[k] T[k, s] / sum over i of q[i] T[i, s].

What is stated is the posterior of the first; where the second is far from it, nothing is. A network that has learned
little makes right labels look wrong, and no statistic of noisy labels tells the one from the other for certain; `known`
is false where there are signs of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value
from ncsam.issues.calibration import best_stiffness, calibrated
from ncsam.noise import estimate_noise

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

_SURE = 0.1  # share of each predicted class whose predictions are taken to be right
_PSEUDO = 10  # samples by which a class leans on the mean of all classes
_LEAST_NOISE = 1e-4  # of any entry of T: no label is impossible
#: Networks that agree with fewer labels have learned too little to judge them; or the labels are too bad to learn from.
LEAST_AGREEMENT = 0.45
#: Below this scale predictions were so overconfident that calibration cannot mend them.
LEAST_SCALE = 0.4
#: Networks that fit the labels they were trained on better by more than this have memorized: what they learned from
#: wrong labels makes right ones look wrong.
MOST_MEMORIZED = 0.2
#: Largest distance between the two estimates, for the label issues that are spoken of.
WIDEST = 0.2


@dataclass(frozen=True)
class LabelPosterior:
    """What is believed of every label.

    Attributes:
        wrong: (N,) probability that the observed label is wrong.
        suggested: (N,) the most probable other class.
        right: (N,) probability that it is the right one.
        other: (2, N) the same two by confident-learning counts.
        reason: why the figures cannot be known, in a sentence; empty where they can.
        agreement, scale: the share of labels that the networks predict; and a of step 1.
    """

    wrong: Floats
    suggested: Labels
    right: Floats
    other: Floats
    reason: str
    agreement: float
    scale: float

    @property
    def known(self) -> bool:
        return not self.reason

    def unsettled(self, first: Labels) -> str:
        """Why nothing can be said of the samples `first`, where the two estimates for them differ too much."""
        wrong, other = self.wrong[first].mean(), self.other[:, first].mean(axis=1)
        if max(abs(other[0] - wrong), abs(other[1] - self.right[first].mean())) <= WIDEST:
            return ""
        return (
            f"the two ways of estimating it are far apart (of the first {len(first)}, {len(first) * wrong:.0f} or "
            f"{len(first) * other[0]:.0f} wrong). Hard samples may look like wrong labels; review some to learn more"
        )


def assess(labels: npt.ArrayLike, probabilities: npt.ArrayLike, fit: float | None = None) -> LabelPosterior:
    """Judge labels by out-of-sample predictions (samples, classes).

    `fit` is the share of the labels which the networks were trained on that they predict, where that is known.
    """
    given = np.asarray(labels, dtype=np.int64)
    rows = np.asarray(probabilities, dtype=np.float64)
    if rows.ndim != 2 or len(rows) != len(given) or rows.shape[1] < 2:
        raise bad_value("probabilities.shape", rows.shape, f"({len(given)}, number of classes)")
    stiffness, fitted, scale = best_stiffness(rows, given)
    high = np.nan_to_num(estimate_noise(given, fitted).transition)
    high[high.sum(axis=1) == 0] = np.eye(rows.shape[1])[high.sum(axis=1) == 0]
    low = _lowered(high, fitted, given)
    stated, other = (_posterior(rows, transition, given, stiffness) for transition in (low, high))
    every = np.arange(len(given))
    others = stated.copy()
    others[every, given] = -1.0
    suggested = others.argmax(axis=1).astype(np.int64)
    agreement = float((rows.argmax(axis=1) == given).mean())
    return LabelPosterior(
        wrong=1 - stated[every, given],
        suggested=suggested,
        right=stated[every, suggested],
        other=np.stack([1 - other[every, given], other[every, suggested]]),
        reason=_doubt(agreement, scale, fit),
        agreement=agreement,
        scale=scale,
    )


def _doubt(agreement: float, scale: float, fit: float | None) -> str:
    if agreement < LEAST_AGREEMENT:
        return (
            f"the networks agree with {100 * agreement:.0f} % of the labels, which is too little to tell wrong labels "
            "from hard samples: train longer, or with a better network"
        )
    mend = "train for fewer epochs, or with a method or an optimizer that keeps from memorizing"
    if fit is not None and fit - agreement > MOST_MEMORIZED:
        return (
            f"the networks have memorized ({100 * fit:.0f} % of the labels that they were trained on are fitted, "
            f"{100 * agreement:.0f} % of those held out): {mend}"
        )
    if scale < LEAST_SCALE:
        return f"the networks are much surer of themselves than the labels bear out: {mend}"
    return ""


def _lowered(high: Floats, fitted: Floats, labels: Labels) -> Floats:
    """The `low` transition matrix: the diagonal of sure predictions, the rest of each row shared out as in `high`."""
    predicted, surety = fitted.argmax(axis=1), fitted.max(axis=1)
    size = fitted.shape[1]
    agreed, counted = np.zeros(size), np.zeros(size)
    for c in range(size):
        members = np.flatnonzero(predicted == c)
        sure = members[np.argsort(-surety[members], kind="stable")[: int(np.ceil(_SURE * len(members)))]]
        agreed[c], counted[c] = (labels[sure] == c).sum(), len(sure)
    overall = agreed.sum() / counted.sum()
    kept = (agreed + _PSEUDO * overall) / (counted + _PSEUDO)
    rest = high * (1 - np.eye(size))
    rest[rest.sum(axis=1) == 0] = 1 - np.eye(size)[rest.sum(axis=1) == 0]
    low: Floats = rest / rest.sum(axis=1, keepdims=True) * (1 - kept)[:, None] + np.diag(kept)
    return low


def _posterior(probabilities: Floats, transition: Floats, labels: Labels, stiffness: float) -> Floats:
    """Step 3: P(y | z, s)."""
    transition = np.maximum(transition, _LEAST_NOISE)
    transition = transition / transition.sum(axis=1, keepdims=True)
    truth, _ = calibrated(probabilities, labels, transition, stiffness)
    joint = truth * transition[:, labels].T
    posterior: Floats = joint / joint.sum(axis=1, keepdims=True)
    return posterior
