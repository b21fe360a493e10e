"""Select the candidates that become the result.

Accuracy on noisy labels rewards candidates that learn the errors. No rule that uses noisy labels only was better than
always choosing the recommended classifier (docs/experiments/recommendations.md), so that is the choice for features.
With verified labels, the recommended, a more regularized and a more flexible group of candidates are combined by a
conditional logit fitted to them; for balanced accuracy its probabilities are divided by their means. Networks on images
have no recommended candidate: the best on noisy labels is chosen.
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
    """The selected model.

    Attributes:
        outcomes: the candidates it is made of.
        member: the model.
        probabilities: its out-of-fold probabilities (samples, classes), in fold order.
        for_issues: probabilities for ranking label issues. `None`: use `probabilities`.
        balanced: whether it maximizes balanced accuracy.
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
    """Select the model for a problem.

    Args:
        problem: data and folds.
        outcomes: the outcomes of all candidates.
        verified: verified labels, with rows in fold order (`Outcome.probabilities`). `None`: there are none.
        metric: what to maximize on true labels. "auto" is balanced accuracy for tables with a rare class if there are
            verified labels, and accuracy otherwise. Networks on images always maximize accuracy.

    Returns:
        The model, with its out-of-fold probabilities.
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
    """Return whether the data is a table in which some class is given to less than .6 / K of the samples.

    Args:
        problem: data and folds.
    """
    return problem.is_table and has_rare_class(problem.labels[problem.positions], problem.classes)


def groups_of(problem: Problem, outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """Group the finished candidates: the recommended one, more regularized ones, more flexible ones.

    Args:
        problem: data and folds.
        outcomes: the outcomes of all candidates.

    Returns:
        The groups that are not empty. Networks on images have no recommended candidate: a single group with the best on
        noisy labels.
    """
    finished = {outcome.name: outcome for outcome in outcomes if outcome.status == "finished"}
    first = next((name for name in RECOMMENDED if name in finished), None)
    if first is None:
        return [[max(finished.values(), key=lambda outcome: correct(problem, outcome).mean())]]
    others = (_TABLE_REGULARIZED, _TABLE_FLEXIBLE) if first == "smooth_table" else (_REGULARIZED, _FLEXIBLE)
    groups = [[finished[name] for name in names if name in finished] for names in ((first,), *others)]
    return [group for group in groups if group]


def group_probabilities(groups: Sequence[Sequence[Outcome]]) -> list[Floats]:
    """Average the out-of-fold probabilities of each group.

    Args:
        groups: groups of candidates, from `groups_of`.

    Returns:
        An array (samples, classes) per group, in fold order.
    """
    return [np.mean([outcome.probabilities() for outcome in group], axis=0) for group in groups]


def temperature_of(outcome: Outcome, labels: npt.NDArray[np.int64]) -> float:
    """Find the temperature that maximizes the likelihood of held-out given labels (Guo et al. 2017).

    Args:
        outcome: the candidate.
        labels: given labels in fold order, from `held_out_labels`.

    Returns:
        The temperature, between exp(-3) and exp(4).
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


def _averaged(problem: Problem, outcome: Outcome) -> Chosen:
    """Average all models of a candidate, at the temperature that fits held-out labels."""
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
    """Combine the groups by a conditional logit. If `balanced`, its probabilities are divided by their means."""
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
