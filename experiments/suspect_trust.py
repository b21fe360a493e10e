"""Which score finds wrong labels best, and are the stated figures right? On real and made errors, in three regimes.

Scores out of fold: 1 - p of the label (self-confidence), normalised margin, confidence-weighted entropy, the stated
probability of being wrong; of the run itself: mean tanh(4 margin), area under the margin (mean difference of log
probabilities), times forgotten. AUROC, and the share of truly wrong labels among the first 1, 5 and 10 %.

    python experiments/suspect_trust.py DATA CACHE [--cases NAME ...]

DATA is the folder of `cifar10_subset.npz`, `cifar10_features.npz` and `labelme_features.npz`; CACHE keeps what the
networks said (`suspect_runs.py`), so that only what is missing there is trained.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from ncsam.engine.scores import SCORES
from ncsam.engine.suspects import auroc
from suspect_runs import CASES, REGIMES, Case, case, regimes_of

SHARES = (0.01, 0.05, 0.1)


def scores(found: Case) -> dict[str, np.ndarray]:
    """Higher is more suspicious."""
    oof = found.oof.astype(np.float64)
    own = np.exp(-found.losses.astype(np.float64))
    other = np.maximum(own - found.margins, 1e-12)
    right = found.predicted == found.labels
    return {
        **{f"{name}, out of fold": score(found.labels, oof) for name, score in SCORES.items()},
        "probability of being wrong, out of fold": found.trust.wrong,
        "mean tanh(4 margin)": (1 - np.tanh(4 * found.margins).mean(axis=0)) / 2,
        "area under the margin": -(np.log(np.maximum(own, 1e-12)) - np.log(other)).mean(axis=0),
        "times forgotten": (right[:-1] & ~right[1:]).sum(axis=0).astype(np.float64),
    }


def precision(score: np.ndarray, wrong: np.ndarray, share: float) -> float:
    """The share of wrong labels among the most suspicious."""
    count = max(1, round(share * len(wrong)))
    return float(wrong[np.argsort(-score, kind="stable")[:count]].mean())


def compare_scores(cases: list[Case]) -> None:
    regimes = list(REGIMES)
    print("| | " + " | ".join(f"{name}: AUROC | 1 % | 5 % | 10 %" for name in regimes) + " |")
    print("|---|" + "---|" * (4 * len(regimes)))
    tables = {regime: [(c, scores(c)) for c in cases if c.regime == regime] for regime in regimes}
    for name in scores(cases[0]):
        cells = []
        for regime in regimes:
            found = [(table[name], c.wrong) for c, table in tables[regime]]
            cells.append(f"{np.mean([auroc(score, wrong) for score, wrong in found]):.3f}")
            cells += [f"{100 * np.mean([precision(s, w, share) for s, w in found]):.0f}" for share in SHARES]
        print(f"| {name} | " + " | ".join(cells) + " |")


def compare_figures(cases: list[Case]) -> None:
    print("\n| | regime | first | wrong: stated | real | suggestion right: stated | real | said |")
    print("|---|---|---|---|---|---|---|---|")
    for found in cases:
        trust = found.trust
        order = np.argsort(-trust.wrong, kind="stable")
        reason = trust.reason or trust.unsettled(order[: min(100, len(order) // 10)])
        for count in (100, len(order) // 10):
            first = order[:count]
            figures = (
                trust.wrong[first].mean(),
                found.wrong[first].mean(),
                trust.right[first].mean(),
                (trust.suggested == found.clean)[first].mean(),
            )
            far = max(abs(figures[0] - figures[1]), abs(figures[2] - figures[3])) > 0.1
            said = "cannot be known" if reason else "off by more than 10" if far else "known"
            print(
                f"| {found.name} | {found.regime} | {count} | " + " | ".join(f"{100 * f:.0f}" for f in figures), end=""
            )
            print(f" | {said} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--cases", nargs="+", default=CASES, choices=CASES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases = [case(name, regime, options.data, options.cache) for name in options.cases for regime in regimes_of(name)]
    compare_scores(cases)
    compare_figures(cases)


if __name__ == "__main__":
    main()
