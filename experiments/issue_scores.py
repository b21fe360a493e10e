"""Which statistic of training finds wrong labels best? AUROC of several, on digits with 40 % noise.

Each is computed from the same runs: predictions on the un-augmented training split after every epoch. "all" is over all
epochs, "late" over those after the first quarter, "early" over the first quarter. Held-out samples are left out here.

    python experiments/issue_scores.py runs/label issues
"""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path
from unittest.mock import patch

import numpy as np

from common import Table, main
from ncsam.engine import RunConfig, train
from ncsam.engine.evaluate import Predictions
from ncsam.engine.label_issues import Dynamics
from ncsam.engine.task import load_task
from ncsam.issues.find import auroc


def scores(kept: list[Predictions], labels: np.ndarray) -> dict[str, np.ndarray]:
    """Higher is more suspicious."""
    quarter = len(kept) // 4
    margin = np.stack([p.margin for p in kept])
    loss = np.stack([p.loss for p in kept])
    p_observed = np.exp(-loss)
    disagrees = np.stack([p.predicted != labels for p in kept])
    return {
        "margin, all": -margin.mean(0),
        "margin, late": -margin[quarter:].mean(0),
        "margin, early": -margin[:quarter].mean(0),
        "margin, last": -margin[-1],
        "p of label, all": -p_observed.mean(0),
        "loss, all": loss.mean(0),
        "loss, late": loss[quarter:].mean(0),
        "loss, last": loss[-1],
        "disagrees, all": disagrees.mean(0),
        "both, all": disagrees.mean(0) - margin.mean(0) / 2,
        "ties by margin": len(kept) * disagrees.mean(0) - margin.mean(0) / 2,
        "squashed margin": -np.tanh(4 * margin).mean(0),
    }


#: The names of the statistics, as `scores` has them.
NAMES = tuple(scores([Predictions(*np.zeros((4, 1)), None)] * 4, np.zeros(1)))


@lru_cache(maxsize=1)
def measured(noise: str, optimizer: str, rho: float, epochs: int, seed: int) -> dict[str, float]:
    """The AUROC of every statistic of one run."""
    kept: list[Predictions] = []
    update = Dynamics.update

    def keeping(self: Dynamics, predictions: Predictions, labels: np.ndarray, epoch: int) -> None:
        kept.append(predictions)
        update(self, predictions, labels, epoch)

    config = RunConfig(noise=noise, rate=0.4, optimizer=optimizer, rho=rho, epochs=epochs, seed=seed)
    with tempfile.TemporaryDirectory() as folder, patch.object(Dynamics, "update", keeping):
        train(config, Path(folder), console=False)
    task = load_task(config)
    split = task.dataset.train
    wrong = split.labels != split.clean
    return {name: auroc(s[task.train], wrong[task.train]) or 0.0 for name, s in scores(kept, split.labels).items()}


TABLE = Table(
    "issues",
    {
        f"{noise} {optimizer}": {"noise": noise, "optimizer": optimizer, "rho": rho}
        for noise in ("symmetric", "pairflip")
        for optimizer, rho in (("sgd", 0.0), ("sam", 0.5), ("ncsam", 0.5))
    },
    {name: name for name in NAMES},
    shared={"epochs": 60},
    metrics=("AUROC",),
    digits=3,
    measure=lambda problem, name, seed: measured(**problem, seed=seed)[name],
    quick={"epochs": 20},
)

if __name__ == "__main__":
    main(__doc__, lambda _: [TABLE])
