"""What a candidate will cost, from the time of a few steps of its network."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.nn.functional as F

from ncsam import models
from ncsam.auto.linear import discriminant
from ncsam.auto.problem import Problem
from ncsam.engine.config import RunConfig
from ncsam.methods import create as create_method

_STEPS = 3  # the first is slower and does not count
_LBFGS = 8.0  # a logistic regression costs about as many discriminant fits
_PASSES = {"sgd": 1.0, "adamw": 1.0, "ncsam": 3.0}  # gradients per step; 2 for the other sharpness-aware optimizers


class Costs:
    """Seconds, measured on this machine with this data; each network is timed once."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._timed: dict[Any, float] = {}

    def linear(self, fits: float, width: int, iterative: bool) -> float:
        """Seconds of so many linear fits to `width` random features, or to the inputs if it is 0."""
        train = self.problem.fold_task(0).train
        key = ("linear", width)
        if key not in self._timed:
            y = torch.from_numpy(self.problem.labels[train])
            x = torch.randn(len(train), width) if width else self.problem.vectors[torch.from_numpy(train)]
            began = time.perf_counter()
            discriminant(x, y, self.problem.classes, shrinkage=0.5)
            self._timed[key] = time.perf_counter() - began
        return fits * self._timed[key] * (_LBFGS if iterative else 1.0)

    def training(self, config: RunConfig, samples: int) -> float:
        """Seconds of training as a settled configuration says: steps x passes x networks, and the evaluations."""
        assert config.batch_size is not None
        step = self._step(config)
        method = create_method(config.method, **config.method_options)
        steps = -(-samples // config.batch_size) * config.epochs
        passes = _PASSES.get(config.optimizer, 2.0) * method.networks * max(1, len(method.views))
        held = 1 / (self.problem.num_folds - 1)  # the fold is evaluated after every epoch: a third of a pass
        return step * steps * (passes + held / 3)

    def _step(self, config: RunConfig) -> float:
        key = (config.model, repr(config.model_options), config.batch_size)
        if key not in self._timed:
            problem = self.problem
            network = models.create(config.model, problem.classes, problem.channels, **config.model_options)
            network.to(problem.fabric.device).train()
            rows = problem.positions[: config.batch_size]
            loader = problem.loader(problem.dataset.train, rows).with_options(batch_size=len(rows))
            batch = next(loader.iterate(0))
            seconds = []
            for _ in range(_STEPS):
                began = time.perf_counter()
                loss = F.cross_entropy(network(batch.views[0]), batch.labels)
                loss.backward()  # type: ignore[no-untyped-call]
                float(loss.detach())  # waits for an accelerator
                seconds.append(time.perf_counter() - began)
            self._timed[key] = min(seconds[1:])
        return self._timed[key]


def format_duration(seconds: float) -> str:
    """A time as people say it: 40 s, 3 min, 2.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
