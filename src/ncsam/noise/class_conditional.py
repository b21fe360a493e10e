"""Noise that depends only on the class: symmetric, uniform, pair flip, asymmetric, any transition matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value, known_name
from ncsam.noise.class_maps import ClassMap, map_size, resolve_map
from ncsam.noise.inputs import (
    Floats,
    Labels,
    as_array,
    as_labels,
    by_class,
    check_labels,
    check_matrix,
    check_rate,
    draw_by_class,
    replaced,
    resolve_num_classes,
    stream,
)
from ncsam.noise.record import NoisyLabels

#: How many samples are touched: each by its own coin, exactly floor(rate N), or exactly floor(rate N_c) of each class.
Count: TypeAlias = Literal["bernoulli", "exact", "exact_per_class"]


def symmetric(
    labels: npt.ArrayLike,
    rate: float,
    *,
    num_classes: int | None = None,
    seed: int = 0,
    count: Count = "bernoulli",
) -> NoisyLabels:
    """Symmetric noise without the true class: a touched label becomes one of the other classes, all equally likely.

    T = (1 - rate) I + rate / (C - 1) (1 - I), so the realized rate is `rate`.

    Args:
        labels: The clean labels, whole numbers (N,).
        rate: Noise rate in [0, 1].
        num_classes: C; inferred from the labels if they use every class.
        seed: Seed of the random numbers, 0 or larger.
        count: "bernoulli" touches each sample with probability `rate` (Patrini et al., Co-teaching, JoCoR, CORES,
            CIFAR-N's utilities), "exact" touches floor(rate N) samples, "exact_per_class" floor(rate N_c) of each class
            (APL, GJS).

    Returns:
        The labels before and after.

    Raises:
        UsageError: An argument is invalid.

    Examples:
        >>> import numpy as np
        >>> record = symmetric(np.arange(1000) % 10, 0.4, seed=1, count="exact")
        >>> int((record.noisy != record.clean).sum())
        400

    References:
        Patrini et al., 2017, arXiv 1609.03683.
    """
    clean, size = check_labels(labels, num_classes)
    rate, rng = check_rate(rate), stream(seed, "symmetric")
    touched = choose(clean, rate, count, rng)
    noisy = replaced(clean, touched, other_class(clean[touched], size, rng))
    return NoisyLabels(clean, noisy, size, {"name": "symmetric", "rate": rate, "count": count}, seed)


def uniform(
    labels: npt.ArrayLike,
    rate: float,
    *,
    num_classes: int | None = None,
    seed: int = 0,
    count: Count = "exact",
) -> NoisyLabels:
    """Symmetric noise with the true class: a touched label becomes any of the C classes, so 1 in C stays right.

    The realized rate is rate (1 - 1/C): "20 %" of CIFAR-10 is 18 %. Used by DivideMix, ELR, UNICON, CTRR, Co-learning,
    DISC.

    Args:
        labels: The clean labels, whole numbers (N,).
        rate: Share of touched samples, in [0, 1].
        num_classes: C; inferred from the labels if they use every class.
        seed: Seed of the random numbers, 0 or larger.
        count: As for `symmetric`.

    Returns:
        The labels before and after.
    """
    clean, size = check_labels(labels, num_classes)
    rate, rng = check_rate(rate), stream(seed, "uniform")
    touched = choose(clean, rate, count, rng)
    noisy = replaced(clean, touched, rng.integers(size, size=len(touched)))
    recipe = {"name": "uniform", "rate": rate, "count": count, "touched": len(touched)}
    return NoisyLabels(clean, noisy, size, recipe, seed)


def asymmetric(
    labels: npt.ArrayLike,
    rate: float,
    *,
    class_map: ClassMap,
    num_classes: int | None = None,
    seed: int = 0,
    count: Count = "bernoulli",
) -> NoisyLabels:
    """Asymmetric noise: a touched label c becomes `class_map[c]`.

    Labels are mapped from a frozen copy, so a cat turned dog is never turned back. Code that maps in place (APL, ELR)
    realizes 18.4 % on CIFAR-10 where this realizes 20 %.

    Args:
        labels: The clean labels, whole numbers (N,).
        rate: Rate in [0, 1] among the classes that change. On CIFAR-10 five of ten do, so "40 %" realizes 20 %.
        class_map: A name of `noise.MAPS` ("cifar10", "cifar100_blocks", "cifar100_superclass", "cifar100_block_pairs",
            "next_class"), the targets of all classes in order, or a dict of those that change.
        num_classes: C; by default that of the map, or inferred from the labels.
        seed: Seed of the random numbers, 0 or larger.
        count: As for `symmetric`.

    Returns:
        The labels before and after.

    References:
        Patrini et al., 2017, arXiv 1609.03683 (the map of CIFAR-10).
    """
    clean = as_labels(labels)
    size = resolve_num_classes(clean, map_size(class_map) if num_classes is None else num_classes)
    targets = resolve_map(class_map, size, seed)
    name = class_map if isinstance(class_map, str) else list(targets)
    return _mapped("asymmetric", clean, rate, targets, seed, count, class_map=name)


def pairflip(
    labels: npt.ArrayLike,
    rate: float,
    *,
    num_classes: int | None = None,
    seed: int = 0,
    count: Count = "bernoulli",
) -> NoisyLabels:
    """Pair flip: a touched label c becomes (c + 1) mod C. Used by Co-teaching, Co-teaching+, UNICON, DISC.

    From 50 % on, the wrong class is the more frequent one and the truth cannot be identified; 45 % is the usual
    extreme.

    Args:
        labels: The clean labels, whole numbers (N,).
        rate: Noise rate in [0, 1].
        num_classes: C; inferred from the labels if they use every class.
        seed: Seed of the random numbers, 0 or larger.
        count: As for `symmetric`.

    Returns:
        The labels before and after.

    References:
        Han et al., 2018, Co-teaching, arXiv 1804.06872.
    """
    clean, size = check_labels(labels, num_classes)
    return _mapped("pairflip", clean, rate, resolve_map("next_class", size, seed), seed, count)


def from_transition(
    labels: npt.ArrayLike,
    rate: float | None = None,
    *,
    transition: npt.ArrayLike,
    num_classes: int | None = None,
    seed: int = 0,
) -> NoisyLabels:
    """Noise of any transition matrix: label i becomes j with probability `transition[i, j]`.

    Args:
        labels: The clean labels, whole numbers (N,).
        rate: If given, the off-diagonal entries are first multiplied by the factor for which the expected rate on these
            labels is `rate`: the same confusions at another strength.
        transition: (C, C), rows of probabilities.
        num_classes: C; by default that of the matrix.
        seed: Seed of the random numbers, 0 or larger.

    Returns:
        The labels before and after.
    """
    clean = as_labels(labels)
    given = as_array(transition, "transition")
    rows = len(given) if given.ndim else 0
    size = resolve_num_classes(clean, rows if num_classes is None else num_classes)
    matrix = check_matrix(transition, "transition", (size, size))
    recipe = {"name": "from_transition", "rate": None, "transition": matrix.tolist()}
    if rate is not None:
        recipe["rate"] = check_rate(rate)
        matrix = _at_rate(matrix, np.bincount(clean, minlength=size) / len(clean), recipe["rate"])
    noisy = draw_by_class(matrix, clean, None, stream(seed, "from_transition").random(len(clean)))
    return NoisyLabels(clean, noisy, size, recipe, seed)


def choose(labels: Labels, rate: float, count: Count, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    """The positions to touch.

    Args:
        labels: The clean labels.
        rate: Share of samples to touch.
        count: As for `symmetric`.
        rng: Random numbers.
    """
    known_name("count", count, get_args(Count))
    if count == "bernoulli":
        # In pieces that stay in the cache: at ten million labels, fresh memory costs more than the arithmetic.
        pieces = range(0, len(labels), 1 << 16)
        coins = (rng.random(min(1 << 16, len(labels) - start)) < rate for start in pieces)
        return np.concatenate([start + np.flatnonzero(coin) for start, coin in zip(pieces, coins, strict=True)])
    if count == "exact":
        return rng.choice(len(labels), size=share(rate, len(labels)), replace=False, shuffle=False)
    parts = [rng.choice(rows, size=share(rate, len(rows)), replace=False) for _, rows in by_class(labels)]
    return np.concatenate(parts)


def share(rate: float, total: int) -> int:
    """floor(rate total) of the decimal number meant: 0.29 of 100 is 29, though 0.29 * 100 is 28.999999999999996.

    Args:
        rate: The share.
        total: The number of samples.
    """
    return min(total, math.floor(rate * total * (1 + 1e-12)))


def other_class(labels: Labels, num_classes: int, rng: np.random.Generator) -> Labels:
    """For each label one of the other classes, with equal chances.

    Args:
        labels: Class numbers (rows,).
        num_classes: Number of classes.
        rng: Random numbers.
    """
    moved = rng.integers(1, num_classes, size=len(labels))
    moved += labels
    return np.subtract(moved, num_classes, out=moved, where=moved >= num_classes)


def _mapped(
    name: str, clean: Labels, rate: float, targets: Sequence[int], seed: int, count: Count, **more: object
) -> NoisyLabels:
    rate = check_rate(rate)
    touched = choose(clean, rate, count, stream(seed, name))
    noisy = replaced(clean, touched, np.array(targets)[clean[touched]])
    return NoisyLabels(clean, noisy, len(targets), {"name": name, "rate": rate, "count": count, **more}, seed)


def _at_rate(matrix: Floats, balance: Floats, rate: float) -> Floats:
    """`matrix` with its off-diagonal entries times the factor that makes balance . (1 - diagonal) equal `rate`."""
    wrong = 1 - matrix.diagonal()
    expected = float(balance @ wrong)
    largest = expected / wrong.max() if wrong.max() > 0 else 0.0
    if rate > largest * (1 + 1e-12):
        raise bad_value("rate", rate, f"at most {largest:.4g}, to which the confusions of this matrix can be scaled")
    factor = rate / expected if rate else 0.0
    scaled = matrix * factor
    np.fill_diagonal(scaled, np.maximum(1 - factor * wrong, 0.0))
    return scaled
