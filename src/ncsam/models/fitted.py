"""The closed-form models by name, with their options."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ncsam._arguments import count, non_negative, positive, ratio
from ncsam._errors import bad_value
from ncsam.models.closed_form import Average, ClosedForm, KernelExpansion, LinearClassifier, Prototypes, Smooth
from ncsam.models.forest import Forest
from ncsam.models.knn import Neighbors

_Builder = TypeVar("_Builder", bound=Callable[..., ClosedForm])
#: Builders `(num_classes, in_channels, *, options...) -> ClosedForm` by name.
CLOSED_FORM: dict[str, Callable[..., ClosedForm]] = {}
_MOST_ROUNDS = 5


def _register(builder: _Builder) -> _Builder:
    CLOSED_FORM[builder.__name__] = builder
    return builder


def _penalty(value: float) -> None:
    if non_negative("penalty", value) == 0:
        raise bad_value("penalty", value, "a number above 0")


@_register
def lda(
    num_classes: int, in_channels: int = 1, *, shrinkage: float = 0.8, unit: bool = True, prune: int = 0
) -> LinearClassifier:
    """Linear discriminant analysis with a shrunk covariance.

    Args:
        num_classes: number of classes.
        in_channels: not used.
        shrinkage: 0 is the sample covariance, 1 a sphere (nearest class mean).
        unit: divide each standardized row by its length.
        prune: rounds in which confident label issues are left out of the fit.
    """
    ratio("shrinkage", shrinkage)
    count("prune", prune, most=_MOST_ROUNDS)
    return LinearClassifier(num_classes, unit)


@_register
def ridge(
    num_classes: int, in_channels: int = 1, *, penalty: float = 1.0, unit: bool = True, prune: int = 0
) -> LinearClassifier:
    """Least squares on one-hot labels with `penalty * |weight|^2`.

    Args:
        num_classes: number of classes.
        in_channels: not used.
        penalty: above 0, relative to the mean variance of the columns.
        unit: divide each standardized row by its length.
        prune: rounds, 0 to 5, in which confident label issues are left out of the fit.
    """
    _penalty(penalty)
    count("prune", prune, most=_MOST_ROUNDS)
    return LinearClassifier(num_classes, unit)


@_register
def logistic(
    num_classes: int, in_channels: int = 1, *, penalty: float = 0.01, unit: bool = False, prune: int = 0
) -> LinearClassifier:
    """Logistic regression: mean cross-entropy + `penalty / 2 * |weight|^2`.

    Args:
        num_classes: number of classes.
        in_channels: not used.
        penalty: above 0; 1 / (C N) in scikit-learn's terms.
        unit: divide each standardized row by its length.
        prune: rounds, 0 to 5, in which confident label issues are left out of the fit.
    """
    _penalty(penalty)
    count("prune", prune, most=_MOST_ROUNDS)
    return LinearClassifier(num_classes, unit)


@_register
def prototypes(num_classes: int, in_channels: int = 1, *, unit: bool = False, prune: int = 0) -> Prototypes:
    """Cosine to the mean direction of each class, after centering.

    Args:
        num_classes: number of classes.
        in_channels: not used.
        unit: divide each standardized row by its length.
        prune: rounds, 0 to 5, in which confident label issues are left out of the fit.
    """
    count("prune", prune, most=_MOST_ROUNDS)
    return Prototypes(num_classes, unit)


@_register
def knn(num_classes: int, in_channels: int = 1, *, k: int = 30, unit: bool = False, prune: int = 0) -> Neighbors:
    """The `k` nearest neighbors by cosine.

    Args:
        num_classes: number of classes.
        in_channels: not used.
        k: number of neighbors, 1 or larger.
        unit: divide each standardized row by its length.
        prune: rounds, 0 to 5, in which confident label issues are left out of the fit.
    """
    positive("k", k)
    count("prune", prune, most=_MOST_ROUNDS)
    return Neighbors(num_classes, k, unit)


@_register
def kernel(
    num_classes: int, in_channels: int = 1, *, penalty: float = 1.0, unit: bool = True, prune: int = 0
) -> KernelExpansion:
    """Kernel ridge regression on one-hot labels with a Gaussian kernel.

    Args:
        num_classes: number of classes.
        in_channels: not used.
        penalty: above 0, the weight lambda of a^T K a in `ncsam.classifiers.kernel.kernel_ridge`.
        unit: divide each standardized row by its length.
        prune: rounds, 0 to 5, in which confident label issues are left out of the fit.
    """
    _penalty(penalty)
    count("prune", prune, most=_MOST_ROUNDS)
    return KernelExpansion(num_classes, unit)


@_register
def forest(
    num_classes: int,
    in_channels: int = 1,
    *,
    trees: int = 200,
    leaf: int = 5,
    extra: bool = False,
    unit: bool = False,
    prune: int = 0,
) -> Forest:
    """A random forest (needs scikit-learn to fit, not to predict).

    Args:
        num_classes: number of classes.
        in_channels: not used.
        trees: number of trees.
        leaf: smallest number of samples in a leaf.
        extra: extremely randomized trees.
        unit: divide each standardized row by its length.
        prune: rounds in which confident label issues are left out of the fit.
    """
    positive("trees", trees, 10_000)
    positive("leaf", leaf)
    count("prune", prune, most=_MOST_ROUNDS)
    return Forest(num_classes, unit)


@_register
def smooth(num_classes: int, in_channels: int = 1, *, unit: bool = True) -> Smooth:
    """The recommended model for embeddings: an average of discriminant analysis and kernel ridge regressions, fitted
    to all rows and again without confident label issues (see `ncsam.classifiers.smooth`).

    Args:
        num_classes: number of classes.
        in_channels: not used.
        unit: divide each standardized row by its length.
    """
    return Smooth(num_classes, unit)


@_register
def smooth_table(num_classes: int, in_channels: int = 1, *, trees: int = 100) -> Average:
    """The recommended model for tables: extremely randomized trees, discriminant analysis and kernel ridge on normal
    scores, fitted to all rows and again without confident label issues (see `ncsam.classifiers.smooth`).

    Args:
        num_classes: number of classes.
        in_channels: not used.
        trees: number of trees of each of the two forests.
    """
    positive("trees", trees, 10_000)
    kinds = (Forest, LinearClassifier, KernelExpansion)
    return Average(num_classes, [kind(num_classes) for kind in (*kinds, *kinds)])
