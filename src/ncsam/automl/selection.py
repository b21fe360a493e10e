"""Which candidates become the result.

Accuracy on noisy labels rewards candidates that learn the errors, and no rule that sees noisy labels only was better
than always taking the recommended classifier (docs/experiments/recommendations.md). So that is the choice for
features. With verified labels the recommended, a more regularized and a more flexible group of candidates are combined
by a conditional logit fitted to them; for balanced accuracy its probabilities are divided by their means. Networks on
images have no recommended candidate: there the best on noisy labels is taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from ncsam import models
from ncsam.automl.outcome import Outcome, correct, held_out_labels
from ncsam.automl.problem import Problem
from ncsam.automl.verified import Verified, stack, stacked_probabilities
from ncsam.classifiers import Member
from ncsam.issues.find import has_rare_class
from ncsam.models.stacked import Stacked

Floats = npt.NDArray[np.float64]
Metric = Literal["auto", "accuracy", "balanced_accuracy"]
METRICS: tuple[Metric, ...] = ("auto", "accuracy", "balanced_accuracy")

#: Recommended classifiers, the first that is there.
RECOMMENDED = ("smooth_table", "smooth")
#: Candidates of the more regularized and of the more flexible group; those that are there are averaged.
_REGULARIZED = ("lda-0.95-pruned", "prototypes-pruned")
_FLEXIBLE = ("knn-30", "kernel-0.1")
_TABLE_REGULARIZED, _TABLE_FLEXIBLE = ("lda-0.95", "prototypes"), ("forest-5",)
#: All candidates that are in a group.
GROUPED = frozenset((*RECOMMENDED, *_REGULARIZED, *_FLEXIBLE, *_TABLE_REGULARIZED, *_TABLE_FLEXIBLE))
_LOG_RANGE = (-3.0, 4.0)  # of temperatures
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Chosen:
    """The result.

    Attributes:
        outcomes: the candidates it is made of.
        member: the model.
        probabilities: its out-of-fold probabilities, fold after fold.
        for_issues: those by which label issues are ranked; `None`: the same.
        balanced: whether it was made for balanced accuracy.
    """

    outcomes: list[Outcome]
    member: Member
    probabilities: Floats
    for_issues: Floats | None = None
    balanced: bool = False

    @property
    def names(self) -> list[str]:
        return [outcome.name for outcome in self.outcomes]


def choose(
    problem: Problem, outcomes: Sequence[Outcome], verified: Verified | None = None, metric: Metric = "auto"
) -> Chosen:
    """The result for a problem.

    Args:
        problem: data and folds.
        outcomes: all candidates.
        verified: verified labels; `rows` count in the order of the folds (`Outcome.probabilities`).
        metric: what the predictions are to maximize on true labels. "auto": balanced accuracy for tables with a rare
            class where there are verified labels, accuracy otherwise.
    """
    groups = groups_of(problem, outcomes)
    first = groups[0][0]
    if first.name not in RECOMMENDED:
        return _averaged(problem, first)
    if verified is not None:
        balanced = is_imbalanced_table(problem) if metric == "auto" else metric == "balanced_accuracy"
        return _stacked(problem, groups, *stack(group_probabilities(groups), verified), balanced)
    if metric == "balanced_accuracy":
        return _stacked(problem, groups[:1], np.ones(1), np.zeros(problem.classes), balanced=True)
    return Chosen([first], first.members[0], first.probabilities(), first.for_issues())


def is_imbalanced_table(problem: Problem) -> bool:
    """Whether the data is a table in which some class is given to less than .6 / K of the samples."""
    return problem.is_table and has_rare_class(problem.labels[problem.positions], problem.classes)


def groups_of(problem: Problem, outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """The recommended candidate, more regularized ones and more flexible ones; groups without a candidate are left
    out. Networks on images, which have no recommended one: the best on noisy labels alone.
    """
    finished = {outcome.name: outcome for outcome in outcomes if outcome.status == "finished"}
    first = next((name for name in RECOMMENDED if name in finished), None)
    if first is None:
        return [[max(finished.values(), key=lambda outcome: correct(problem, outcome).mean())]]
    others = (_TABLE_REGULARIZED, _TABLE_FLEXIBLE) if first == "smooth_table" else (_REGULARIZED, _FLEXIBLE)
    groups = [[finished[name] for name in names if name in finished] for names in ((first,), *others)]
    return [group for group in groups if group]


def group_probabilities(groups: Sequence[Sequence[Outcome]]) -> list[Floats]:
    """Mean out-of-fold probabilities of each group, fold after fold."""
    return [np.mean([outcome.probabilities() for outcome in group], axis=0) for group in groups]


def temperature_of(outcome: Outcome, labels: npt.NDArray[np.int64]) -> float:
    """The temperature under which the given labels of held-out samples are the most likely (Guo et al. 2017)."""

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


def _averaged(problem: Problem, outcome: Outcome) -> Chosen:
    """The mean of all models of a candidate, at the temperature that fits held-out labels."""
    temperature = temperature_of(outcome, held_out_labels(problem))
    members = outcome.members
    options: dict[str, Any] = {
        "members": [{"model": member.model, "options": member.options} for member in members],
        "weights": [1 / len(members)] * len(members),
        "temperatures": [temperature] * len(members),
    }
    network = models.create("mean", problem.classes, problem.channels, **options)
    for module, member in zip(network.members, members, strict=True):  # type: ignore[arg-type]
        module.load_state_dict(member.state)
    return Chosen([outcome], Member("mean", options, network.state_dict()), outcome.probabilities(temperature))


def _stacked(problem: Problem, groups: list[list[Outcome]], theta: Floats, bias: Floats, balanced: bool) -> Chosen:
    """The groups combined by a conditional logit; if `balanced`, its probabilities are divided by their means."""
    held_out = group_probabilities(groups)
    natural = stacked_probabilities(held_out, theta, bias)
    if balanced:
        bias = bias - np.log(natural.mean(axis=0))
    members = [[member for outcome in group for member in outcome.members] for group in groups]
    listed = [[{"model": member.model, "options": member.options} for member in group] for group in members]
    network = models.create("stacked", problem.classes, problem.channels, groups=listed)
    assert isinstance(network, Stacked)
    for modules, group in zip(network.groups, members, strict=True):
        for module, member in zip(modules, group, strict=True):  # type: ignore[call-overload]
            module.load_state_dict(member.state)
    network.theta, network.bias = torch.from_numpy(theta).float(), torch.from_numpy(bias).float()
    outcomes = [outcome for group in groups for outcome in group]
    member = Member("stacked", {"groups": listed}, network.state_dict())
    return Chosen(outcomes, member, stacked_probabilities(held_out, theta, bias), natural, balanced)
