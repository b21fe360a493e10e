"""A mean over random draws, with its standard error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from ncsam._arguments import count, positive
from ncsam._errors import bad_value
from ncsam._statistics import Spread

_MOST_DRAWS = 1_000_000


def check_draws(draws: int) -> int:
    """How many draws to take the mean of, if there are any and not too many to wait for.

    Args:
        draws: Number of draws.
    """
    return positive("draws", draws, _MOST_DRAWS)


def seeded(seed: int) -> torch.Generator:
    """Random numbers on the CPU, from a seed.

    Args:
        seed: A whole number, 0 or larger.
    """
    return torch.Generator().manual_seed(count("seed", seed))


class Estimate(NamedTuple):
    """A mean over random draws.

    Attributes:
        mean: The mean.
        error: Its standard error; nan for a single draw.
    """

    mean: float
    error: float

    @classmethod
    def of(cls, draws: Sequence[float]) -> Estimate:
        """Mean and standard error of some draws.

        Args:
            draws: One value per draw; with one that is not finite the error is nan.

        Raises:
            UsageError: There are none.
        """
        if not draws:
            raise bad_value("draws", 0, "a whole number from 1")
        spread = Spread.of(draws)
        if spread is None or spread.count < len(draws):  # a loss that is not finite is no finite mean
            return cls(math.fsum(draws) / len(draws), math.nan)
        return cls(spread.mean, math.nan if spread.error is None else spread.error)
