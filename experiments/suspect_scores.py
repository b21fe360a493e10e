"""Which statistic of training finds wrong labels best? AUROC of several, on digits with 40 % noise.

Each is computed from the same runs: predictions on the un-augmented training split after every epoch. "all" is over all
epochs, "late" over those after the first quarter, "early" over the first quarter. Held-out samples are left out here.

    python experiments/suspect_scores.py [--quick] [--json FILE]
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch

from common import parser, table, write_json
from ncsam.engine import RunConfig, train
from ncsam.engine.evaluate import Predictions
from ncsam.engine.suspects import Dynamics, auroc
from ncsam.engine.task import load_task


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


def main() -> None:
    options = parser(__doc__.splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    epochs, seeds = (20, (1,)) if options.quick else (60, (1, 2, 3))
    kept: list[Predictions] = []
    update = Dynamics.update

    def keeping(self: Dynamics, predictions: Predictions, labels: np.ndarray, epoch: int) -> None:
        kept.append(predictions)
        update(self, predictions, labels, epoch)

    Dynamics.update = keeping  # type: ignore[method-assign]
    found: dict[str, dict[str, list[float]]] = {}
    for noise in ("symmetric", "pairflip"):
        for optimizer, rho in (("sgd", 0.0), ("sam", 0.5), ("ncsam", 0.5)):
            for seed in seeds:
                kept.clear()
                config = RunConfig(noise=noise, rate=0.4, optimizer=optimizer, rho=rho, epochs=epochs, seed=seed)
                with tempfile.TemporaryDirectory() as folder:
                    train(config, Path(folder), console=False)
                task = load_task(config)
                split = task.dataset.train
                wrong = split.labels != split.clean
                for name, score in scores(kept, split.labels).items():
                    value = auroc(score[task.train], wrong[task.train])
                    found.setdefault(name, {}).setdefault(f"{noise[:4]} {optimizer}", []).append(value or 0.0)
    rows = {name: {run: float(np.mean(v)) for run, v in columns.items()} for name, columns in found.items()}
    table(f"AUROC against truly wrong labels, digits, 40 %, {epochs} epochs, {len(seeds)} seeds", rows)
    write_json(options.json, rows)


if __name__ == "__main__":
    main()
