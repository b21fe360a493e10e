"""Noise that follows the confusions of a trained model."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value, known_name
from ncsam.noise.class_conditional import share
from ncsam.noise.inputs import (
    Floats,
    as_array,
    as_labels,
    check_matrix,
    check_rate,
    check_seed,
    draw_rows,
    replaced,
    resolve_num_classes,
    stream,
)
from ncsam.noise.record import NoisyLabels

Pick: TypeAlias = Literal["hardest", "sampled"]


def from_model(
    labels: npt.ArrayLike,
    rate: float,
    *,
    probabilities: npt.ArrayLike,
    num_classes: int | None = None,
    seed: int = 0,
    pick: Pick = "hardest",
) -> NoisyLabels:
    """Instance-dependent noise from a model's predicted probabilities for the same samples.

    Args:
        labels: The clean labels, whole numbers (N,).
        rate: Noise rate in [0, 1].
        probabilities: Predictions (N, C) for these samples.
        num_classes: C; by default the number of columns.
        seed: Seed of the random numbers, 0 or larger.
        pick: "hardest" gives the floor(rate N) samples with the largest probability of some other class that class,
            without any randomness; with probabilities averaged over the epochs of a training run this is the noise of
            Chen et al. "sampled" corrupts sample i with probability min(1, s m_i), where m_i = 1 - p_i[y_i] is the
            probability outside the label and s makes the mean `rate`; the new label is drawn from these probabilities.

    Returns:
        The labels before and after.

    References:
        Chen et al., 2021, Beyond class-conditional assumption, arXiv 2012.05458.
    """
    clean = as_labels(labels)
    known_name("pick", pick, get_args(Pick))
    check_seed(seed)
    shape = as_array(probabilities, "probabilities").shape
    columns = shape[1] if len(shape) == 2 else 2
    size = resolve_num_classes(clean, columns if num_classes is None else num_classes)
    outside = check_matrix(probabilities, "probabilities", (len(clean), size))
    outside[np.arange(len(clean)), clean] = -1.0 if pick == "hardest" else 0.0
    rate = check_rate(rate)
    chance: Floats | None = None
    if pick == "hardest":
        order = np.argsort(-outside.max(axis=1), kind="stable")
        chosen = order[: share(rate, len(clean))]
        noisy = replaced(clean, chosen, outside[chosen].argmax(axis=1))
    else:
        chance = _scaled_to_mean(outside.sum(axis=1), rate)
        rng = stream(seed, "from_model")
        chosen = np.flatnonzero(rng.random(len(clean)) < chance)
        noisy = replaced(clean, chosen, draw_rows(outside[chosen], rng.random(len(chosen))))
    return NoisyLabels(clean, noisy, size, {"name": "from_model", "rate": rate, "pick": pick}, seed, chance)


def _scaled_to_mean(mass: Floats, rate: float) -> Floats:
    """min(1, s mass) with the s that gives the mean `rate`."""
    possible = float((mass > 0).mean())
    if rate > possible:
        raise bad_value("rate", rate, f"at most {possible:.4g}, the share of labels that the model is not certain of")
    full = np.zeros(len(mass), dtype=bool)
    while True:
        rest = mass[~full].sum()
        factor = (rate * len(mass) - full.sum()) / rest if rest > 0 else 0.0
        more = ~full & (factor * mass > 1)
        if not more.any():
            return np.where(full, 1.0, np.minimum(factor * mass, 1.0))
        full |= more
