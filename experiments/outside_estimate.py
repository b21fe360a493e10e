"""Perturbing along sum (1 - 2 s p_i) g_i: does p from outside the batch recover what an oracle gains over SAM?

    PYTHONPATH=experiments python experiments/outside_estimate.py OUT.json --data FOLDER [--seeds 3]
    PYTHONPATH=experiments python experiments/outside_estimate_tables.py OUT.json

FOLDER is that of `recommendations.py`. At most 1,000 training samples, standardized; a tenth is held out with its noisy
labels. MLP 256-256, SGD (lr .05, momentum .9, weight decay 1e-3, cosine), 30 epochs, batch 64, rho="auto". p_i is the
probability that label i is wrong, from the out-of-fold predictions of the recommended classifier (`smooth`: 1 less the
probability of the given label; `posterior`: by Bayes with an estimated transition matrix, as label issues state it), or
1 for a set of suspicious labels and 0 for the others; `oracle` knows. Interrupted, the same command resumes.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ncsam import optim
from ncsam._files import atomic_path
from outside_estimate_data import Problem, accuracy, all_cases

EPOCHS, BATCH, VERIFIED = 30, 64, 50
#: Families on which nothing was chosen.
UNSEEN = ("fashion", "defects")


@dataclass(frozen=True)
class Arm:
    """One way to train.

    Attributes:
        p: Which probabilities; see `Problem.p`.
        strength: s; 0 for SAM.
        drop: Train without the samples with p = 1, with SAM.
        follows: Whether s follows the validation loss.
        screened: Run for the first seed, on all but the families `UNSEEN`; what was chosen there runs on all.
    """

    p: str = "oracle"
    strength: float = 1.0
    drop: bool = False
    follows: bool = False
    screened: bool = False


ARMS = {
    "SAM": Arm(strength=0.0),
    "oracle, s 1": Arm("oracle"),
    "posterior above .9, s 1": Arm("posterior .9"),
    "without posterior above .9, SAM": Arm("posterior .9", drop=True),
    "without smooth above .9, SAM": Arm("certain", drop=True),
    "oracle, s .5": Arm("oracle", 0.5, screened=True),
    "posterior, s 1": Arm("posterior", screened=True),
    "smooth above .9, s 1": Arm("certain", screened=True),
    "smooth above .9, s follows validation": Arm("certain", follows=True, screened=True),
    "smooth, s .5": Arm("smooth", 0.5, screened=True),
}


def follow(strength: float, losses: list[float]) -> float:
    """The strength after an epoch: .8 of itself where the validation loss rose, else twice itself, up to 1."""
    if len(losses) < 2 or len(losses) < EPOCHS / 3:
        return strength
    return 0.8 * strength if losses[-1] >= losses[-2] else min(1.0, 2.0 * strength)


def mlp(width: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, classes))


def train(
    problem: Any, arm: Arm, seed: int, network: Callable[[], nn.Module] | None = None, epochs: int = EPOCHS
) -> dict[str, float]:
    """Train one run: accuracies on true test labels, noisy held-out labels and verified held-out labels.

    Args:
        problem: The data.
        arm: How to train.
        seed: Of the weights and the order of the samples.
        network: Builds the model; by default an MLP.
        epochs: The number of epochs.
    """
    torch.manual_seed(seed)
    model = network() if network else mlp(problem.x.shape[1], problem.classes)
    base = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    p = problem.p[arm.p]
    used = torch.from_numpy(~problem.held & ~(arm.drop & (p.numpy() == 1))).nonzero().flatten()
    batches = max(1, len(used) // BATCH)
    steps, done = epochs * batches, 0
    strength = 0.0 if arm.drop else arm.strength
    options: dict[str, Any] = {"total_steps": steps, "model": model, "telemetry_every": 0}
    optimizer = optim.WeightedSAM(base, "auto", strength=strength, threshold=None, **options)
    held = torch.from_numpy(problem.held)
    accuracies, losses = [], []
    for epoch in range(epochs):
        model.train()
        for index in used[torch.randperm(len(used))][: batches * BATCH].split(BATCH):
            for group in base.param_groups:
                group["lr"] = 0.05 * 0.5 * (1 + math.cos(math.pi * done / steps))
            x, y = problem.x[index], problem.y[index]
            optimizer.step(lambda x=x: model(x), y, p_wrong=p[index])
            done += 1
        model.eval()
        with torch.no_grad():
            if arm.follows:
                losses.append(float(nn.functional.cross_entropy(model(problem.x[held]), problem.y[held])))
                optimizer.strength = follow(optimizer.strength, losses)
            if epoch >= epochs - 5:
                accuracies.append(accuracy(model(problem.x_test), problem.y_test))
    with torch.no_grad():
        predicted = model(problem.x[held]).argmax(1).numpy()
    return {
        "last5": sum(accuracies) / 5,
        "held_out": 100 * float((predicted == problem.noisy[problem.held]).mean()),
        "verified": 100 * float((predicted == problem.clean[problem.held])[:VERIFIED].mean()),
        "strength": optimizer.strength,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="folder of the datasets")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[""], help="beginnings of names of datasets")
    asked = parser.parse_args()
    found: dict[str, Any] = json.loads(asked.out.read_text()) if asked.out.is_file() else {}
    torch.set_num_threads(1)
    for seed in range(1, 1 + asked.seeds):
        for case in all_cases(asked.data):
            if not case.name.startswith(tuple(asked.only)):
                continue
            each = found.setdefault(case.name, {}).setdefault(str(seed), {})
            screens = seed == 1 and case.family not in UNSEEN
            asked_for = {name: arm for name, arm in ARMS.items() if screens or not arm.screened}
            if set(asked_for) <= set(each.get("runs", {})):
                continue
            problem = Problem(case, seed)
            runs = each.setdefault("runs", {})
            each["facts"] = {name: round(value, 4) for name, value in problem.facts.items()}
            each["classifier"] = round(problem.classifier, 2)
            for name, arm in asked_for.items():
                if name not in runs:
                    follows_nothing = name != "SAM" and not problem.p[arm.p].any()  # which is SAM
                    run = runs["SAM"] if follows_nothing else train(problem, arm, seed)
                    runs[name] = {key: round(value, 3) for key, value in run.items()}
            print(case.name, seed, {name: round(run["last5"], 1) for name, run in runs.items()}, flush=True)
            with atomic_path(asked.out) as temporary:
                temporary.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
