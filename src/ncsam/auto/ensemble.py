"""Which candidates become the result: the best, or the mean of those that noisy labels cannot tell from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam import models
from ncsam.auto.outcome import Correct, Outcome, correct, held_out_labels, paired_gap
from ncsam.auto.problem import Problem
from ncsam.models.mean import Mean

_LOG_RANGE = (-3.0, 4.0)  # of temperatures
_NEAR = 3.0  # standard errors, those by which a candidate is stopped
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Chosen:
    """Candidates with a weight and a temperature each; `probabilities` are the mean's on the folds' samples."""

    outcomes: list[Outcome]
    temperatures: list[float]
    weights: list[float]
    probabilities: npt.NDArray[np.float64]

    @property
    def names(self) -> list[str]:
        return [outcome.name for outcome in self.outcomes]

    def model_options(self) -> dict[str, Any]:
        """Options of the model `mean`: every model of every candidate, whose weight they share."""
        members, weights, temperatures = [], [], []
        for outcome, weight, temperature in zip(self.outcomes, self.weights, self.temperatures, strict=True):
            networks = outcome.members
            members += [{"model": member.model, "options": member.options} for member in networks]
            weights += [weight / len(networks)] * len(networks)
            temperatures += [temperature] * len(networks)
        return {"members": members, "weights": weights, "temperatures": temperatures}

    def network(self, problem: Problem) -> Mean:
        """The mean as a torch module, with its state."""
        network = models.create("mean", problem.classes, problem.channels, **self.model_options())
        assert isinstance(network, Mean)
        states = [member.state for outcome in self.outcomes for member in outcome.members]
        for member, state in zip(network.members, states, strict=True):
            member.load_state_dict(state)
        return network.eval()


def temperature_of(outcome: Outcome, labels: npt.NDArray[np.int64]) -> float:
    """The temperature under which the given labels of held-out samples are the most likely (Guo et al. 2017).

    It makes the probabilities of candidates comparable, so that none dominates a mean by being overconfident.
    """

    def loss(log_temperature: float) -> float:
        p = outcome.probabilities(math.exp(log_temperature))
        return float(-np.log(np.maximum(p[np.arange(len(labels)), labels], 1e-12)).mean())

    low, high = _LOG_RANGE
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = loss(left), loss(right)
    while high - low > 0.02:
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = loss(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = loss(right)
    return math.exp((low + high) / 2)


def choose(problem: Problem, outcomes: Sequence[Outcome], most: int) -> Chosen:
    """The best finished candidate, or the mean of it and those within three standard errors of it, `most` at the most.

    Candidates that the noisy labels cannot tell apart differ in their errors, and the mean of them is the safer choice.
    It is taken unless it is itself more than that behind the best on the samples held out.
    """
    labels = held_out_labels(problem)
    finished = [outcome for outcome in outcomes if outcome.status == "finished"]
    right = {outcome.name: correct(problem, outcome) for outcome in finished}
    ranked = sorted(finished, key=lambda outcome: -right[outcome.name].mean())
    best = right[ranked[0].name]
    near = [outcome for outcome in ranked if within_error(right[outcome.name], best)][:most]
    together = _mean_of(near, labels)
    if len(near) > 1 and not within_error(together.probabilities.argmax(axis=1) == labels, best):
        return _mean_of(ranked[:1], labels)
    return together


def within_error(own: Correct, best: Correct) -> bool:
    """Whether `own` is at most three standard errors behind `best`."""
    difference, error = paired_gap(own, best)
    return difference <= _NEAR * error


def _mean_of(outcomes: list[Outcome], labels: npt.NDArray[np.int64]) -> Chosen:
    temperatures = [temperature_of(outcome, labels) for outcome in outcomes]
    rows = [outcome.probabilities(t) for outcome, t in zip(outcomes, temperatures, strict=True)]
    return Chosen(outcomes, temperatures, [1 / len(outcomes)] * len(outcomes), np.mean(rows, axis=0))
