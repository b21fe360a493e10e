"""Wrong labels: made by the recipes of the literature, read from published files, or estimated in your own data.

Every generator is called as `noise.NAME(labels, rate, num_classes=..., seed=...)` and returns `NoisyLabels`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from ncsam._errors import known_name
from ncsam.noise.class_conditional import asymmetric, from_transition, pairflip, symmetric, uniform
from ncsam.noise.class_maps import MAPS
from ncsam.noise.estimate import NoiseEstimate, estimate_noise
from ncsam.noise.from_model import from_model
from ncsam.noise.instance import beta_instance, instance, instance_shared
from ncsam.noise.published import KNOWN_FILES, from_file
from ncsam.noise.record import NoisyLabels

GENERATORS: dict[str, Callable[..., NoisyLabels]] = {
    generator.__name__: generator
    for generator in (
        symmetric,
        uniform,
        pairflip,
        asymmetric,
        from_transition,
        instance,
        instance_shared,
        beta_instance,
        from_model,
    )
}


def make(name: str, labels: npt.ArrayLike, rate: float | None = None, **options: Any) -> NoisyLabels:
    """The generator `name`, called with the rest: `make("symmetric", labels, 0.4, seed=1)`."""
    return GENERATORS[known_name("noise", name, GENERATORS)](labels, rate, **options)


__all__ = [
    "GENERATORS",
    "KNOWN_FILES",
    "MAPS",
    "NoiseEstimate",
    "NoisyLabels",
    "asymmetric",
    "beta_instance",
    "estimate_noise",
    "from_file",
    "from_model",
    "from_transition",
    "instance",
    "instance_shared",
    "make",
    "pairflip",
    "symmetric",
    "uniform",
]
