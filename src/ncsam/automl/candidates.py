"""The candidates of `auto`: closed-form classifiers, and networks trained with a method and an optimizer."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch

from ncsam import classifiers
from ncsam.automl.problem import Problem
from ncsam.classifiers import Fitted, Member
from ncsam.engine.config import ResolvedConfig
from ncsam.engine.forecast import step_seconds, training_seconds
from ncsam.engine.predictor import Predictor
from ncsam.engine.resolve import resolve
from ncsam.engine.sinks import CheckpointSink
from ncsam.engine.task import Task
from ncsam.engine.trainer import Trainer
from ncsam.runs import layout


class Candidate(Protocol):
    """A model that learns from all folds but one and predicts the remaining one."""

    @property
    def name(self) -> str: ...

    def seconds(self, problem: Problem) -> float:
        """Estimate how long all folds take.

        Args:
            problem: data and folds.

        Returns:
            Seconds; 0 for candidates that take only seconds.
        """

    def settings(self) -> dict[str, Any]:
        """Return the options that distinguish it from other candidates, for the leaderboard."""


@dataclass(frozen=True)
class ClosedForm:
    """A closed-form classifier of the features (see `ncsam.classifiers`). All folds are fitted at once.

    Args:
        name: name of the candidate, unique in the portfolio.
        model: name of the classifier.
        options: options of the classifier.
    """

    name: str
    model: str
    options: dict[str, Any] = field(default_factory=dict)

    def cross_fit(self, problem: Problem) -> Fitted:
        """Fit the classifier to all samples of the folds and predict each fold without its own samples.

        Args:
            problem: data and folds.

        Returns:
            The classifier and its out-of-fold predictions, in fold order.
        """
        order = np.concatenate(problem.held_out)
        folds = np.repeat(np.arange(problem.num_folds), [len(held) for held in problem.held_out])
        x, y = problem.vectors[torch.from_numpy(order)], torch.from_numpy(problem.training_labels[order])
        trusted = problem.trusted[order]
        return classifiers.cross_fit(self.model, x, y, problem.classes, folds=folds, trusted=trusted, **self.options)

    def seconds(self, problem: Problem) -> float:
        """Return 0: closed-form classifiers take only seconds.

        Args:
            problem: not used.
        """
        return 0.0

    def settings(self) -> dict[str, Any]:
        return {"model": self.model, **self.options}


@dataclass(frozen=True)
class Network:
    """A network trained by the engine, one fold after the other. The networks of all folds are averaged in the end.

    Args:
        name: name of the candidate, unique in the portfolio.
        changes: options of the run that differ from the configuration of the search.
    """

    name: str
    changes: dict[str, Any] = field(default_factory=dict)
    default_batch: ClassVar[int] = 128

    def config(self, problem: Problem, task: Task) -> ResolvedConfig:
        """Resolve the configuration of one fold.

        Args:
            problem: data, folds and the configuration of the search.
            task: the task of the fold, from `Problem.fold_task`.

        Returns:
            The configuration, with a batch size that gives batches of nearly equal length.
        """
        config = problem.config.replace(evaluate_train_every=None, telemetry_every=0, loggers=[])
        given = config.batch_size if isinstance(config.batch_size, int) else None
        wanted = self.changes.get("batch_size") or given or self.default_batch
        changes = {**self.changes, "batch_size": equal_batches(len(task.train), wanted)}
        return resolve(config.replace(**changes), task)

    def fit(self, problem: Problem, fold: int, scratch: Path) -> list[Member]:
        """Train without the samples of one fold.

        Args:
            problem: data and folds.
            fold: number of the fold to leave out.
            scratch: folder for checkpoints. An interrupted training resumes from it; it is deleted at the end.

        Returns:
            The trained networks, on the CPU: one, or several for methods that train more than one.
        """
        task = problem.fold_task(fold)
        config = self.config(problem, task)
        scratch.mkdir(parents=True, exist_ok=True)
        trainer = Trainer(problem.fabric, config, task)
        checkpoints = CheckpointSink(layout.checkpoints(scratch))
        checkpoints.resume(trainer)
        trainer.fit(checkpoints)
        answer = Predictor(*trainer.result).eval()
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

    def seconds(self, problem: Problem) -> float:
        """Estimate the training time of all folds by timing a few steps.

        Args:
            problem: data and folds.

        Returns:
            Seconds.
        """
        task = problem.fold_task(0)
        config = self.config(problem, task)
        rows = task.train[: config.batch_size]
        batch = next(problem.loader(problem.dataset.train, rows).with_options(batch_size=len(rows)).iterate(0))
        step = step_seconds(config, batch.views[0], batch.labels, problem.classes, problem.channels)
        held = len(problem.held_out[0])
        return problem.num_folds * training_seconds(config, step, len(task.train), held)

    def settings(self) -> dict[str, Any]:
        return dict(self.changes)


def equal_batches(samples: int, batch_size: int) -> int:
    """Return the batch size that splits the samples into batches of nearly equal length.

    Args:
        samples: number of samples.
        batch_size: the desired batch size, which is also the maximum.

    Returns:
        A size that gives as many batches as `batch_size`.

    Examples:
        >>> equal_batches(130, 128)
        65
    """
    return math.ceil(samples / math.ceil(samples / batch_size))
