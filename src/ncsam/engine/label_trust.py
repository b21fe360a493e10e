"""How far to trust a suspicion: the probability that a label is wrong, and that the suggested one is right.

No clean labels are needed. Let z be what a network that never saw a sample predicts for it, y its true class and s its
observed label. Three steps:

1. Calibration. p(s | z) is the prediction with its logarithm scaled by a and shifted per class, so that it fits the
   observed labels: max over (a, b) of the mean log softmax(a log p + b)[s] - |b|^2 / 1000.
2. Transition matrix T[k, j] = P(s = j | y = k), taken to be the same for all samples of a class, twice. `high` by
   confident-learning counts (`ncsam.noise.estimate_noise`), which take errors of the network for errors of the labels.
   `low`: its diagonal is how often the label agrees with the quarter of each class that is predicted the most surely,
   which takes labels of hard samples to be as good as those of easy ones. The truth is mostly between the two.
3. Posterior. P(y | z) = q = softmax(a' log p + b'), fitted as in step 1 but to the labels as T makes them of y:
   max of the mean log (q T)[s]. By Bayes P(y = k | z, s) = q[k] T[k, s] / sum over i of q[i] T[i, s].

What is stated is the mean of the two posteriors. A network that has learned little makes right labels look wrong, and
no statistic of noisy labels tells the one from the other for certain; `known` is false where there are signs of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ncsam._errors import bad_value
from ncsam.noise import estimate_noise

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

_SURE = 0.25  # share of each predicted class whose predictions are taken to be right
_PSEUDO = 10  # samples by which a class leans on the mean of all classes
_SMALLEST = 1e-6
_LEAST_NOISE = 1e-4  # of any entry of T: no label is impossible
#: Networks that agree with fewer labels have learned too little to judge them; or the labels are too bad to learn from.
LEAST_AGREEMENT = 0.45
#: Below this scale predictions were so overconfident that calibration cannot mend them.
LEAST_SCALE = 0.4
#: Largest distance between the two estimates, for the suspects that are spoken of.
WIDEST = 0.2


@dataclass(frozen=True)
class Trust:
    """What is believed of every label.

    Attributes:
        wrong: (N,) probability that the observed label is wrong.
        suggested: (N,) the most probable other class.
        right: (N,) probability that it is the right one.
        low, high: (2, N) the two estimates of which `wrong` and `right` are the mean.
        reason: why the figures cannot be known, in a sentence; empty where they can.
        agreement, scale: the share of labels that the networks predict; and a of step 1.
    """

    wrong: Floats
    suggested: Labels
    right: Floats
    low: Floats
    high: Floats
    reason: str
    agreement: float
    scale: float

    @property
    def known(self) -> bool:
        return not self.reason

    def unsettled(self, first: Labels) -> str:
        """Why nothing can be said of the samples `first`, where the two estimates for them differ too much."""
        low, high = self.low[:, first].mean(axis=1), self.high[:, first].mean(axis=1)
        if (high - low).max() <= WIDEST:
            return ""
        return (
            f"the two ways of estimating it are far apart (of the first {len(first)}, {len(first) * low[0]:.0f} or "
            f"{len(first) * high[0]:.0f} wrong). Hard samples may look like wrong labels; review some to learn more"
        )


def assess(labels: npt.ArrayLike, probabilities: npt.ArrayLike) -> Trust:
    """Judge labels by out-of-sample predictions (samples, classes)."""
    given = np.asarray(labels, dtype=np.int64)
    rows = np.asarray(probabilities, dtype=np.float64)
    if rows.ndim != 2 or len(rows) != len(given) or rows.shape[1] < 2:
        raise bad_value("probabilities.shape", rows.shape, f"({len(given)}, number of classes)")
    fitted, scale = calibrated(rows, given)
    high = np.nan_to_num(estimate_noise(given, fitted).transition)
    high[high.sum(axis=1) == 0] = np.eye(rows.shape[1])[high.sum(axis=1) == 0]
    low = _lowered(high, fitted, given)
    posteriors = [_posterior(rows, transition, given) for transition in (low, high)]
    mean = (posteriors[0] + posteriors[1]) / 2
    every = np.arange(len(given))
    others = mean.copy()
    others[every, given] = -1.0
    suggested = others.argmax(axis=1).astype(np.int64)
    bounds = [np.stack([1 - posterior[every, given], posterior[every, suggested]]) for posterior in posteriors]
    agreement = float((rows.argmax(axis=1) == given).mean())
    return Trust(
        wrong=1 - mean[every, given],
        suggested=suggested,
        right=mean[every, suggested],
        low=np.minimum(*bounds),
        high=np.maximum(*bounds),
        reason=_doubt(agreement, scale),
        agreement=agreement,
        scale=scale,
    )


def _doubt(agreement: float, scale: float) -> str:
    if agreement < LEAST_AGREEMENT:
        return (
            f"the networks agree with {100 * agreement:.0f} % of the labels, which is too little to tell wrong labels "
            "from hard samples: train longer, or with a better network"
        )
    if scale < LEAST_SCALE:
        return (
            "the networks are much surer of themselves than the labels bear out: train for fewer epochs, or with a "
            "method or an optimizer that keeps from memorising"
        )
    return ""


def calibrated(probabilities: Floats, labels: Labels, transition: Floats | None = None) -> tuple[Floats, float]:
    """Step 1, or step 3 where there is a transition matrix: softmax(a log p + b), and the scale a."""
    logs = torch.from_numpy(np.log(np.clip(probabilities, _SMALLEST, 1.0)))
    given = torch.from_numpy(labels.copy())  # theirs may be read-only
    noise = None if transition is None else torch.from_numpy(transition)
    log_scale = torch.zeros((), dtype=torch.float64, requires_grad=True)
    shift = torch.zeros(logs.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([log_scale, shift], max_iter=100, line_search_fn="strong_wolfe")

    def objective() -> torch.Tensor:
        optimizer.zero_grad()
        scores = log_scale.exp() * logs + shift
        log_p = scores.log_softmax(dim=1) if noise is None else (scores.softmax(dim=1) @ noise).log()
        loss = torch.nn.functional.nll_loss(log_p, given) + (shift**2).sum() / 1000
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        optimizer.step(objective)  # type: ignore[no-untyped-call]
    scale = log_scale.detach().exp()
    fitted: Floats = (scale * logs + shift.detach()).softmax(dim=1).numpy()
    return fitted, float(scale)


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


def _posterior(probabilities: Floats, transition: Floats, labels: Labels) -> Floats:
    """Step 3: P(y | z, s)."""
    transition = np.maximum(transition, _LEAST_NOISE)
    transition = transition / transition.sum(axis=1, keepdims=True)
    truth, _ = calibrated(probabilities, labels, transition)
    joint = truth * transition[:, labels].T
    posterior: Floats = joint / joint.sum(axis=1, keepdims=True)
    return posterior
