"""Noise that depends on the sample: random projections of the input, and the Beta model of the NCSAM paper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from ncsam._arguments import above_zero, count, number
from ncsam._errors import bad_value, known_name
from ncsam.noise.class_conditional import other_class
from ncsam.noise.inputs import (
    Floats,
    Labels,
    as_array,
    by_class,
    check_labels,
    check_matrix,
    check_rate,
    draw_by_class,
    draw_rows,
    replaced,
    stream,
)
from ncsam.noise.record import NoisyLabels

#: What the projection sees: pixels 0..255, pixels 0..1, or pixels with each channel's mean 0 and deviation 1.
Scale: TypeAlias = Literal["raw255", "unit", "normalized"]
Rows: TypeAlias = npt.NDArray[np.intp]

_AT_ONCE = 2048  # rows projected together: 50 MB for CIFAR, whatever the number of samples


def instance(
    labels: npt.ArrayLike,
    rate: float,
    *,
    inputs: npt.ArrayLike,
    num_classes: int | None = None,
    seed: int = 0,
    input: Scale = "raw255",
    std: float = 0.1,
) -> NoisyLabels:
    """Instance-dependent noise by random projections, one per true class.

    q_i ~ Normal(rate, std) truncated to [0, 1]; W_c has standard normal entries, one projection per true class c;
    a = x_i W_{y_i}, a[y_i] = -inf; the label stays with probability 1 - q_i and otherwise follows softmax(a).

    Truncation raises low rates: E[q] is 0.2055 for `rate=0.2`. With pixels 0..255 (the authors' own input) the softmax
    is nearly one-hot; "normalized" (Co-learning, DISC) is a milder noise. The two should not be compared.

    Args:
        labels: The clean labels, whole numbers (N,).
        rate: Noise rate in [0, 1] before truncation.
        inputs: (N, ...), one per label. uint8 images are brought to the scale that `input` names; anything else is
            taken to be at that scale already. Images may be channels first or last (at most four channels, and more
            than four rows); the labels are the same.
        num_classes: C; inferred from the labels if they use every class.
        seed: Seed of the random numbers, 0 or larger.
        input: Scale of the projected values: "raw255" (0..255), "unit" (0..1) or "normalized" (each channel with mean 0
            and standard deviation 1).
        std: Standard deviation of q before truncation.

    Returns:
        The labels before and after, with each sample's `flip_probability` q_i.

    References:
        Xia et al., 2020, Part-dependent label noise, arXiv 2006.07836.
    """
    clean, size = check_labels(labels, num_classes)
    rate, std = check_rate(rate), _check_std(std)
    rows, width = scaled_rows(inputs, input, len(clean))
    rng = stream(seed, "instance")
    chance = truncated_normal(lambda: rng.normal(rate, std, 2 * len(clean)), len(clean))
    flipped = np.flatnonzero(rng.random(len(clean)) < chance)
    noisy = project(rows, width, clean, flipped, size, seed)
    recipe = {"name": "instance", "rate": rate, "input": input, "std": std}
    return NoisyLabels(clean, noisy, size, recipe, seed, chance)


def instance_shared(
    labels: npt.ArrayLike,
    rate: float,
    *,
    inputs: npt.ArrayLike,
    num_classes: int | None = None,
    seed: int = 0,
    input: Scale = "raw255",
    std: float = 0.1,
) -> NoisyLabels:
    """Instance-dependent noise with one projection for all classes: the variant of CORES, and of CAL's published files.

    As `instance`, but a = x_i W with a single W. On pixels, which are all positive, most wrong labels are then the
    class with the largest column sum of W: a strongly imbalanced noise. Random numbers are those of
    `numpy.random.RandomState(seed)`, drawn in this order: 10^6 normals for q (the first N inside (0, 1) are used), W,
    one uniform per sample. Images are read channels first, as CIFAR's files hold them. With seed 0 this reproduces
    CAL's `IDN_0.2_C10` and `IDN_0.4_C10` (compared on the first 10,000 labels: all equal), but not `IDN_0.6_C10`.

    Args:
        labels: The clean labels, whole numbers (N,).
        rate: Noise rate in [0, 1] before truncation.
        inputs: (N, ...), one per label, as for `instance`.
        num_classes: C; inferred from the labels if they use every class.
        seed: Seed of the random numbers, from 0 to 2^32 - 1.
        input: As for `instance`.
        std: As for `instance`.

    Returns:
        The labels before and after, with each sample's `flip_probability` q_i.

    References:
        Cheng et al., 2021, arXiv 2010.02347; Zhu et al., 2021, arXiv 2102.05291.
    """
    clean, size = check_labels(labels, num_classes)
    rate, std = check_rate(rate), _check_std(std)
    rows, width = scaled_rows(inputs, input, len(clean))
    legacy = np.random.RandomState(count("seed", seed, most=2**32 - 1))  # it takes no larger ones
    chance = truncated_normal(lambda: legacy.normal(rate, std, 1_000_000), len(clean))
    projection = legacy.normal(0.0, 1.0, (width, size))
    uniforms = legacy.random_sample(len(clean))
    noisy = clean.copy()
    for part in _chunks(np.arange(len(clean))):
        here, q = (np.arange(len(part)), clean[part]), chance[part]
        probabilities = _softmax_without(rows(part) @ projection, clean[part]) * q[:, None]
        probabilities[here] = 1 - q
        noisy[part] = draw_rows(probabilities, uniforms[part])
    recipe = {"name": "instance_shared", "rate": rate, "input": input, "std": std}
    return NoisyLabels(clean, noisy, size, recipe, seed, chance)


def beta_instance(
    labels: npt.ArrayLike,
    rate: float | None = None,
    *,
    theta1: float | None = None,
    theta2: float | None = None,
    concentration: float = 2.0,
    transition: npt.ArrayLike | None = None,
    inputs: npt.ArrayLike | None = None,
    input: Scale = "raw255",
    num_classes: int | None = None,
    seed: int = 0,
) -> NoisyLabels:
    """The noise model of the NCSAM paper: with probability p_i ~ Beta(theta1, theta2) the label is drawn from T.

    The mechanism T(. | x_i, y_i) never returns y_i. It is the projection of `instance` if `inputs` are given, the
    off-diagonal part of the rows of `transition` if that is given, and otherwise uniform over the other classes.

    Args:
        labels: The clean labels, whole numbers (N,).
        rate: E[p] in [0, 1]; means theta = (rate, 1 - rate) times `concentration`.
        theta1: First parameter of the Beta distribution, instead of `rate`.
        theta2: Second parameter; E[p] = theta1 / (theta1 + theta2).
        concentration: theta1 + theta2. A small one makes samples either clean or noisy, a large one gives all the same
            p. The default 2 is the uniform distribution at rate 0.5.
        transition: (C, C), rows of probabilities; not together with `inputs`.
        inputs: (N, ...), one per label, as for `instance`.
        input: As for `instance`.
        num_classes: C; inferred from the labels if they use every class.
        seed: Seed of the random numbers, 0 or larger.

    Returns:
        The labels before and after, with each sample's `flip_probability` p_i.
    """
    clean, size = check_labels(labels, num_classes)
    known_name("input scale", input, get_args(Scale))
    theta1, theta2, rate = _thetas(rate, theta1, theta2, concentration)
    if inputs is not None and transition is not None:
        raise bad_value("transition", "a matrix", "None if inputs are given")
    rng = stream(seed, "beta_instance")
    chance = rng.beta(theta1, theta2, len(clean)) if theta1 and theta2 else np.full(len(clean), rate)
    flipped = np.flatnonzero(rng.random(len(clean)) < chance)
    recipe: dict[str, Any] = {"name": "beta_instance", "rate": rate, "theta1": theta1, "theta2": theta2}
    if inputs is not None:
        rows, width = scaled_rows(inputs, input, len(clean))
        noisy = project(rows, width, clean, flipped, size, seed)
        recipe |= {"mechanism": "projection", "input": input}
    elif transition is not None:
        matrix = check_matrix(transition, "transition", (size, size))
        recipe |= {"mechanism": "transition", "transition": matrix.tolist()}
        np.fill_diagonal(matrix, 0.0)
        stuck = np.flatnonzero((matrix.sum(axis=1) == 0) & (np.bincount(clean, minlength=size) > 0))
        if len(stuck):
            raise bad_value(f"transition[{stuck[0]}]", "no other class", "a probability above 0 for some other class")
        noisy = draw_by_class(matrix, clean, flipped, rng.random(len(clean)))
    else:
        noisy = replaced(clean, flipped, other_class(clean[flipped], size, rng))
        recipe |= {"mechanism": "uniform"}
    return NoisyLabels(clean, noisy, size, recipe, seed, chance)


def _check_std(std: float) -> float:
    """A wider normal is as good as uniform, and hardly any of its draws fall into [0, 1]."""
    return number("std", std, "a number above 0, at most 100", lambda width: 0 < width <= 100)


def truncated_normal(draw: Callable[[], Floats], size: int) -> Floats:
    """The first `size` of the drawn normals that fall into [0, 1].

    Args:
        draw: Returns normals.
        size: How many.
    """
    kept = np.empty(0)
    while len(kept) < size:
        fresh = draw()
        kept = np.concatenate([kept, fresh[(fresh >= 0) & (fresh <= 1)]])
    return kept[:size]


def project(rows: Callable[[Rows], Floats], width: int, clean: Labels, flipped: Rows, size: int, seed: int) -> Labels:
    """Labels in which each flipped sample i has a class drawn from softmax(x_i W_{y_i}) without its own.

    One W exists at a time, and only for classes that occur among the flipped, so memory is S x C, not N x C x S.

    Args:
        rows: From positions to float64 inputs (rows, width).
        width: S, the length of an input.
        clean: Clean labels (N,).
        flipped: Positions of the samples to flip.
        size: C, the number of classes.
        seed: Seed of projections and draws.
    """
    uniforms = stream(seed, "projection/draw").random(len(clean))
    noisy: Labels = clean.copy()
    for label, members in by_class(clean, flipped):
        projection = stream(seed, f"projection/{label}").standard_normal((width, size))
        for part in _chunks(members):
            noisy[part] = draw_rows(_softmax_without(rows(part) @ projection, clean[part]), uniforms[part])
    return noisy


def scaled_rows(inputs: npt.ArrayLike, scale: Scale, count: int) -> tuple[Callable[[Rows], Floats], int]:
    """A function from positions to float64 rows at the scale wanted, channels first and flat; and a row's length.

    Args:
        inputs: (N, ...).
        scale: As `input` of `instance`.
        count: N.
    """
    known_name("input scale", scale, get_args(Scale))
    array = as_array(inputs, "inputs")
    if array.ndim < 2 or len(array) != count or array.dtype.kind not in "iuf":
        found = f"{array.dtype} {array.shape}"
        raise bad_value("inputs", found, f"real numbers of shape ({count}, ...), one input per label")
    channels_last = array.ndim == 4 and array.shape[3] <= 4 < array.shape[1]
    width = int(np.prod(array.shape[1:]))

    def plain(index: Rows) -> Floats:
        taken = array[index]
        if channels_last:
            taken = taken.transpose(0, 3, 1, 2)
        return taken.reshape(len(index), width).astype(np.float64)

    if array.dtype != np.uint8:
        _check_scale(array, scale)
        return plain, width
    if scale == "raw255":
        return plain, width
    if scale == "unit":
        return lambda index: plain(index) / 255.0, width
    channels = array.shape[3 if channels_last else 1] if array.ndim == 4 else 1
    shift, spread = (np.repeat(values, width // channels) for values in _channel_statistics(plain, count, channels))
    return lambda index: (plain(index) - shift) / spread, width


def _channel_statistics(plain: Callable[[Rows], Floats], count: int, channels: int) -> tuple[Floats, Floats]:
    total, squares, seen = np.zeros(channels), np.zeros(channels), 0
    for part in _chunks(np.arange(count)):
        pixels = plain(part).reshape(len(part), channels, -1)
        total += pixels.sum(axis=(0, 2))
        squares += np.einsum("ncs,ncs->c", pixels, pixels)
        seen += pixels.size // channels
    mean = total / seen
    spread = np.sqrt(np.maximum(squares / seen - mean**2, 0.0))
    return mean, np.where(spread > 0, spread, 1.0)


def _check_scale(array: npt.NDArray[Any], scale: Scale) -> None:
    low, high = float(array.min()), float(array.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise bad_value("inputs", "not finite", "finite numbers")
    limits = {"raw255": (0.0, 255.0), "unit": (0.0, 1.0), "normalized": (-np.inf, np.inf)}[scale]
    if low < limits[0] or high > limits[1] or (scale == "raw255" and high <= 1.0):
        allowed = f"the scale of the inputs, which are not uint8 and run from {low:.4g} to {high:.4g}"
        raise bad_value("input", scale, allowed)


def _softmax_without(scores: Floats, labels: Labels) -> Floats:
    """softmax over the classes other than each row's own; works in place."""
    scores[np.arange(len(labels)), labels] = -np.inf
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    return scores


def _chunks(rows: Rows) -> Iterator[Rows]:
    for start in range(0, len(rows), _AT_ONCE):
        yield rows[start : start + _AT_ONCE]


def _thetas(
    rate: float | None, theta1: float | None, theta2: float | None, concentration: float
) -> tuple[float, float, float]:
    if theta1 is not None and theta2 is not None:
        if rate is not None:
            raise bad_value("rate", rate, "None if theta1 and theta2 are given, which imply it")
        theta1, theta2 = above_zero("theta1", theta1), above_zero("theta2", theta2)
        return theta1, theta2, theta1 / (theta1 + theta2)
    if rate is None or theta1 is not None or theta2 is not None:
        raise bad_value("rate", rate, "a rate alone, or both theta1 and theta2")
    rate, concentration = check_rate(rate), above_zero("concentration", concentration)
    return rate * concentration, (1 - rate) * concentration, rate
