"""Perturbing along sum (1 - 2 s p_i) g_i: does p from outside the batch recover what an oracle gains over SAM?

    python experiments/outside_estimate.py OUT.json NAME=FILE:NOISY ... [--seeds 2]
    python experiments/outside_estimate.py OUT.json --tables

FILE is an archive of features: x_train, y_train (true labels), x_test, y_test, and noisy labels in NOISY. At most 1,500
training samples, standardized; a tenth is held out with its noisy labels. MLP 256-256, SGD (lr .05, momentum .9, weight
decay 1e-3, cosine), 30 epochs, batch 64, rho="auto". p_i is the probability that label i is wrong: from out-of-fold LDA
(shrinkage .8), from the recommended average of smooth classifiers, or 1 where the latter is above .9 and otherwise 0;
`oracle` knows. A rule then picks one of SAM and the estimates by their accuracy on noisy held-out labels, or on 50
verified ones among these. Interrupted, the same command resumes.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ncsam import optim
from ncsam._files import atomic_path
from ncsam._statistics import Spread
from ncsam.classifiers.fit import cross_fit, issue_probabilities
from ncsam.report.markdown import table as markdown_table

EPOCHS, BATCH, MOST, VERIFIED = 30, 64, 1500, 50
#: Arms by name: whence p, and the strength s; none for SGD.
ARMS: dict[str, tuple[str, float] | None] = {
    "SGD": None,
    "SAM": ("lda", 0.0),
    "oracle, s .5": ("oracle", 0.5),
    "oracle, s 1": ("oracle", 1.0),
    "LDA, s .5": ("lda", 0.5),
    "LDA, s 1": ("lda", 1.0),
    "smooth, s .5": ("smooth", 0.5),
    "smooth, s 1": ("smooth", 1.0),
    "smooth above .9, s .5": ("certain", 0.5),
    "smooth above .9, s 1": ("certain", 1.0),
}
ESTIMATES = [name for name in ARMS if name.startswith(("LDA", "smooth"))]


class Problem:
    """A dataset, its split, and the probabilities of wrong labels from outside."""

    def __init__(self, file: Path, noisy: str, seed: int) -> None:
        with np.load(file) as arrays:
            order = np.random.default_rng(seed).permutation(len(arrays["y_train"]))[:MOST]
            x, self.clean = arrays["x_train"][order].astype(np.float32), arrays["y_train"][order]
            self.noisy = arrays[noisy][order].astype(np.int64)
            x_test, y_test = arrays["x_test"].astype(np.float32), arrays["y_test"]
        mean, std = x.mean(0), x.std(0) + 1e-6
        self.x, self.x_test = (torch.from_numpy((a - mean) / std) for a in (x, x_test))
        self.y, self.y_test = torch.from_numpy(self.noisy), torch.from_numpy(y_test.astype(np.int64))
        self.classes = int(max(self.clean.max(), self.noisy.max(), y_test.max())) + 1
        self.held = np.arange(len(x)) < len(x) // 10
        self.wrong = self.clean != self.noisy
        self.p = self._estimates(seed)

    def _estimates(self, seed: int) -> dict[str, Tensor]:
        """Out of fold, from the samples trained on: a rule may then use the labels of those held out."""
        used = np.flatnonzero(~self.held)
        x, y, noisy = self.x[used], self.y[used], self.noisy[used]
        own = np.arange(len(used)), noisy
        lda = cross_fit("lda", x, y, self.classes, seed=seed, shrinkage=0.8).probabilities[own]
        fitted = cross_fit("smooth", x, y, self.classes, seed=seed)
        smooth = 1 - issue_probabilities(fitted, noisy, table=False)[own]
        found = {"lda": 1 - lda, "smooth": smooth, "certain": smooth > 0.9, "oracle": self.wrong[used]}
        p = {name: torch.zeros(len(self.noisy)) for name in found}
        for name, values in found.items():
            p[name][used] = torch.from_numpy(np.asarray(values, dtype=np.float32)).clamp(0, 1)
        return p


def train(problem: Problem, arm: tuple[str, float] | None, seed: int) -> dict[str, float]:
    """Train one run: accuracies on true test labels, noisy held-out labels and verified held-out labels."""
    torch.manual_seed(seed)
    width = problem.x.shape[1]
    model = nn.Sequential(
        nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, problem.classes)
    )
    base = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    used = torch.from_numpy(np.flatnonzero(~problem.held))
    batches = len(used) // BATCH
    steps, done = EPOCHS * batches, 0
    optimizer = None
    if arm is not None:
        optimizer = optim.WeightedSAM(base, "auto", strength=arm[1], total_steps=steps, model=model, telemetry_every=0)
    accuracies = []
    for epoch in range(EPOCHS):
        for index in used[torch.randperm(len(used))][: batches * BATCH].split(BATCH):
            for group in base.param_groups:
                group["lr"] = 0.05 * 0.5 * (1 + math.cos(math.pi * done / steps))
            x, y = problem.x[index], problem.y[index]
            if optimizer is None or arm is None:
                base.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                base.step()
            else:
                optimizer.step(lambda x=x: model(x), y, p_wrong=problem.p[arm[0]][index])
            done += 1
        if epoch >= EPOCHS - 5:
            with torch.no_grad():
                accuracies.append(100 * float((model(problem.x_test).argmax(1) == problem.y_test).float().mean()))
    with torch.no_grad():
        predicted = model(problem.x).argmax(1).numpy()
    held = np.flatnonzero(problem.held)
    verified = held[:VERIFIED]
    return {
        "last5": sum(accuracies) / 5,
        "held_out": 100 * float((predicted == problem.noisy)[held].mean()),
        "verified": 100 * float((predicted == problem.clean)[verified].mean()),
    }


def auroc(p: Tensor, wrong: np.ndarray) -> float:
    """Probability that a wrong label has a larger p than a right one."""
    ranks = np.argsort(np.argsort(p.numpy(), kind="stable"), kind="stable") + 1.0
    bad, good = wrong.sum(), (~wrong).sum()
    return float((ranks[wrong].sum() - bad * (bad + 1) / 2) / (bad * good))


def picked(runs: dict[str, dict[str, float]], by: str) -> float:
    """Test accuracy of the arm that is best by a criterion; SAM where nothing is better."""
    best = max(["SAM", *ESTIMATES], key=lambda name: (runs[name][by], name == "SAM"))
    return runs[best]["last5"]


def tables(found: dict[str, Any]) -> str:
    """Every arm and rule in every dataset, and what share of the oracle's gain it recovers."""
    seeds = {name: [runs for runs in each.values() if set(ARMS) <= set(runs)] for name, each in found["runs"].items()}
    names = [name for name, runs in seeds.items() if runs]
    rules = {"rule: best on noisy held-out labels": "held_out", "rule: best on 50 verified labels": "verified"}
    values = {arm: {n: [r[arm]["last5"] for r in seeds[n]] for n in names} for arm in ARMS}
    values |= {text: {n: [picked(r, by) for r in seeds[n]] for n in names} for text, by in rules.items()}
    mean = {arm: {n: float(np.mean(v)) for n, v in each.items()} for arm, each in values.items()}
    best = {n: max(mean["oracle, s .5"][n], mean["oracle, s 1"][n]) - mean["SAM"][n] for n in names}
    rows = []
    for arm, each in values.items():
        cells = [spread.text(1, error=True) if (spread := Spread.of(each[n])) else "-" for n in names]
        gains = {n: mean[arm][n] - mean["SAM"][n] for n in names}
        share = sum(gains.values()) / sum(best.values())
        rows.append(
            [arm, *cells, f"{np.mean(list(gains.values())):+.1f}", f"{min(gains.values()):+.1f}", f"{share:.0%}"]
        )
    facts = [
        [label, *(f"{100 * found['facts'][n][key]:.0f} %" if key == "noise" else f"{found['facts'][n][key]:.3f}"
                  for n in names)]
        for label, key in (("labels wrong", "noise"), ("AUROC of p, LDA", "lda"), ("AUROC of p, smooth", "smooth"))
    ]  # fmt: skip
    head = ["", *names]
    return (
        markdown_table(head, facts)
        + "\n\n"
        + markdown_table([*head, "mean gain over SAM", "worst", "of the better oracle's gain"], rows)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("data", nargs="*", metavar="NAME=FILE:NOISY")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--tables", action="store_true", help="print what is finished, and run nothing")
    asked = parser.parse_args()
    found: dict[str, Any] = json.loads(asked.out.read_text()) if asked.out.is_file() else {"facts": {}, "runs": {}}
    torch.set_num_threads(1)
    for seed in range(1, 1 + (0 if asked.tables else asked.seeds)):
        for each in asked.data:
            name, _, place = each.partition("=")
            file, _, noisy = place.rpartition(":")
            runs = found["runs"].setdefault(name, {}).setdefault(str(seed), {})
            if set(ARMS) <= set(runs):
                continue
            problem = Problem(Path(file), noisy, seed)
            found["facts"].setdefault(
                name,
                {"noise": float(problem.wrong.mean())}
                | {
                    key: auroc(problem.p[key][~problem.held], problem.wrong[~problem.held]) for key in ("lda", "smooth")
                },
            )
            for arm, setting in ARMS.items():
                if arm not in runs:
                    runs[arm] = {key: round(value, 3) for key, value in train(problem, setting, seed).items()}
                    with atomic_path(asked.out) as temporary:
                        temporary.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(tables(found))


if __name__ == "__main__":
    main()
