"""Estimate the noise rate and the transition matrix of your labels from out-of-sample predictions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value
from ncsam.noise.inputs import Floats, Mask, as_array, as_labels, check_matrix, resolve_num_classes


@dataclass(frozen=True, eq=False, repr=False)
class NoiseEstimate:
    """The result of `estimate_noise`.

    Attributes:
        rate: Estimated share of wrong labels.
        transition: (C, C); `transition[i, j]` estimates P(label j | true class i). NaN for a class without samples.
        joint: (C, C); `joint[i, j]` estimates P(label i, true class j); sums to 1.
        thresholds: (C,); the mean predicted probability of class c among the samples labeled c.
        label_issues: (N,); True for the samples counted as confidently of another class than their label.
    """

    rate: float
    transition: Floats
    joint: Floats
    thresholds: Floats
    label_issues: Mask

    def __str__(self) -> str:
        diagonal = self.transition.diagonal()
        return "\n".join(
            [
                f"{'samples':<12}{len(self.label_issues):,} in {len(self.thresholds):,} classes",
                f"{'wrong':<12}about {100 * self.rate:.1f} %",
                f"{'kept':<12}{np.nanmin(diagonal):.3f} to {np.nanmax(diagonal):.3f} of a class",
                f"{'issues':<12}{int(self.label_issues.sum()):,} samples",
            ]
        )

    def __repr__(self) -> str:
        return f"<NoiseEstimate: {len(self.label_issues):,} samples, about {100 * self.rate:.1f} % wrong>"


def estimate_noise(labels: npt.ArrayLike, probabilities: npt.ArrayLike) -> NoiseEstimate:
    """Noise rate and transition matrix by confident-learning counts.

    t_j = mean of p(j | x) over the samples labeled j. A sample counts towards (label i, true class j) if j has the
    largest probability among the classes with p(j | x) >= t_j; samples below every threshold do not count. Each row i
    of counts is then scaled to the number of samples labeled i, and all to sum 1.

    Args:
        labels: The given labels, whole numbers (N,).
        probabilities: Predictions (N, C), out of sample, for instance from cross-validation: a model that was trained
            on a wrong label believes it, and the estimate comes out too low.

    Returns:
        The estimate.

    Raises:
        UsageError: Shapes do not fit, or rows are not probabilities.

    Examples:
        >>> labels = [0, 0, 0, 0, 1, 1, 1, 1]
        >>> sure_of_0, sure_of_1 = [0.9, 0.1], [0.1, 0.9]
        >>> found = estimate_noise(labels, [sure_of_0] * 3 + [sure_of_1] * 5)  # the fourth label looks wrong
        >>> found.rate, found.label_issues.nonzero()[0].tolist()
        (0.125, [3])

    References:
        Northcutt et al., 2021, Confident learning: estimating uncertainty in dataset labels, arXiv 1911.00068.
    """
    given = as_labels(labels)
    shape = as_array(probabilities, "probabilities").shape
    size = shape[1] if len(shape) == 2 else 0
    if size < 2:
        raise bad_value("probabilities.shape", shape, f"({len(given)}, number of classes)")
    resolve_num_classes(given, size)
    predicted = check_matrix(probabilities, "probabilities", (len(given), size))

    sizes = np.bincount(given, minlength=size)
    self_confidence = predicted[np.arange(len(given)), given]
    with np.errstate(invalid="ignore"):
        thresholds = np.bincount(given, weights=self_confidence, minlength=size) / sizes
    # A class without samples has no threshold (NaN); no comparison with it is true, so nothing is counted for it.
    above = np.where(predicted >= thresholds * (1 - 1e-12), predicted, -1.0)
    counted = above.max(axis=1) >= 0
    confident = above.argmax(axis=1)

    counts = np.bincount(given[counted] * size + confident[counted], minlength=size * size).reshape(size, size)
    unseen = counts.sum(axis=1) == 0
    counts[unseen, unseen] = 1  # nothing speaks against these labels
    joint = counts / counts.sum(axis=1, keepdims=True) * (sizes / len(given))[:, None]
    with np.errstate(invalid="ignore"):
        transition = (joint / joint.sum(axis=0)).T
    return NoiseEstimate(
        rate=max(0.0, float(1 - joint.trace())),
        transition=transition,
        joint=joint,
        thresholds=thresholds,
        label_issues=counted & (confident != given),
    )
