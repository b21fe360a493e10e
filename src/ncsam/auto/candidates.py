"""What competes: a linear classifier, or a network under a method and an optimizer."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from ncsam.auto.costs import Costs
from ncsam.auto.linear import INNER_FOLDS, Fit, RandomFeatures, discriminant, logistic, prune_label_issues
from ncsam.auto.problem import Member, Problem
from ncsam.engine.config import RunConfig
from ncsam.engine.task import Task, resolve_auto
from ncsam.engine.trainer import Trainer
from ncsam.runs.predictor import Predictor


class Candidate(Protocol):
    """Something that learns all folds but one, and leaves networks whose probabilities are averaged."""

    @property
    def name(self) -> str: ...

    def fit(self, problem: Problem, fold: int, scratch: Path) -> list[Member]:
        """Train without the fold's samples. `scratch` is a folder to go on from after a kill."""

    def seconds(self, problem: Problem, costs: Costs) -> float:
        """About how long a fold will take."""

    def settings(self) -> dict[str, Any]:
        """What tells it apart from the others, for the leaderboard."""


@dataclass(frozen=True)
class Linear:
    """A linear classifier of the inputs, or of `width` random features of them.

    `kind` is "discriminant", and `strength` its shrinkage; or "logistic", and `strength` its weight decay. `rounds` of
    pruning take out label issues before the last fit.
    """

    name: str
    kind: str
    strength: float
    rounds: int = 0
    width: int = 0

    def fit(self, problem: Problem, fold: int, scratch: Path) -> list[Member]:
        if self.kind == "discriminant":
            fit: Fit = partial(discriminant, shrinkage=self.strength)
        else:
            fit = partial(logistic, strength=self.strength)
        if self.rounds:
            fit = prune_label_issues(fit, self.rounds, problem.config.seed)
        train = problem.fold_task(fold).train
        x, y = problem.vectors[torch.from_numpy(train)], torch.from_numpy(problem.labels[train])
        options: dict[str, Any] = {"hidden": [self.width] if self.width else [], "in_features": x.shape[1]}
        state = {}
        if self.width:
            random = RandomFeatures.draw(x, self.width, problem.config.seed + fold)
            layer = random.raw(fit(random(x), y, problem.classes))
            state = {"body.0.weight": random.weight, "body.0.bias": random.bias}
        else:
            layer = fit(x, y, problem.classes)
        return [Member("mlp", options, {**state, "fc.weight": layer.weight, "fc.bias": layer.bias})]

    def seconds(self, problem: Problem, costs: Costs) -> float:
        return costs.linear(1 + INNER_FOLDS * self.rounds, self.width, iterative=self.kind == "logistic")

    def settings(self) -> dict[str, Any]:
        name = "shrinkage" if self.kind == "discriminant" else "strength"
        settings = {"kind": self.kind, name: self.strength, "rounds_of_pruning": self.rounds}
        return {**settings, **({"random_features": self.width} if self.width else {})}


@dataclass(frozen=True)
class Network:
    """A run of the engine; `changes` are options of the run."""

    name: str
    changes: dict[str, Any] = field(default_factory=dict)

    def config(self, problem: Problem, task: Task) -> RunConfig:
        """The options of one fold, all of them."""
        config = problem.config.replace(evaluate_train_every=10**9, telemetry_every=0, loggers=[])
        batch_size = equal_batches(len(task.train), self.changes.get("batch_size") or config.batch_size or 128)
        return resolve_auto(config.replace(**{**self.changes, "batch_size": batch_size}), task)

    def fit(self, problem: Problem, fold: int, scratch: Path) -> list[Member]:
        task = problem.fold_task(fold)
        config = self.config(problem, task)
        scratch.mkdir(parents=True, exist_ok=True)
        trainer = Trainer(problem.fabric, config, task, scratch, console=False)
        trainer.resume()
        trainer.fit()
        answer = Predictor(trainer.method, [learner.bare for learner in trainer.learners]).eval()
        with torch.no_grad():
            example = next(problem.loader(task.dataset.train, task.train[:1]).iterate(0)).views[0]
            members = [
                Member(
                    config.model,
                    dict(config.model_options),
                    {name: value.detach().cpu().clone() for name, value in network.state_dict().items()},
                )
                for network in answer.predictors(example)
            ]
        shutil.rmtree(scratch, ignore_errors=True)
        return members

    def seconds(self, problem: Problem, costs: Costs) -> float:
        task = problem.fold_task(0)
        return costs.training(self.config(problem, task), len(task.train))

    def settings(self) -> dict[str, Any]:
        return dict(self.changes)


def equal_batches(samples: int, batch_size: int) -> int:
    """The batch size that cuts the samples into as many batches, none of them much shorter than the others."""
    return math.ceil(samples / math.ceil(samples / batch_size))
