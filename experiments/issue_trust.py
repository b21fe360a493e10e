"""Which score finds wrong labels best, and are the stated figures right? On real and made errors, in four regimes.

Scores out of fold: p of the label (self-confidence), normalized margin, confidence-weighted entropy, odds against
the best other class, 1 - p_wrong, label_quality; of the run itself: mean tanh(4 margin), area
under the margin (mean difference of log probabilities), times forgotten. AUROC, and the share of truly wrong labels
among the first 1, 5 and 10 %.

    python experiments/issue_trust.py DATA CACHE [--cases NAME ...] [--regimes NAME ...]

DATA is the folder of `cifar10_subset.npz`, `cifar10_features.npz` and `labelme_features.npz`; CACHE keeps what the
networks said (`issue_runs.py`, .npz) and how that was judged (.json), so that only what is missing there is done.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from issue_runs import CASES, REGIMES, Case, case, regimes_of
from ncsam.issues.find import auroc
from ncsam.issues.scores import SCORES, label_quality

SHARES = (0.01, 0.05, 0.1)
#: `scores`: AUROC and precisions by name; `figures`: stated and real shares of the first 100; `reason`: why not known.
Judged = dict[str, Any]


def scores(found: Case) -> dict[str, np.ndarray]:
    """Label quality: low where the label is likely wrong."""
    oof = found.oof.astype(np.float64)
    own = np.exp(-found.losses.astype(np.float64))
    other = np.maximum(own - found.margins, 1e-12)
    right = found.predicted == found.labels
    return {
        **{f"{name}, out of fold": score(found.labels, oof) for name, score in SCORES.items()},
        "1 - p_wrong, out of fold": 1 - found.posterior.p_wrong,
        "label_quality, out of fold": label_quality(found.labels, oof, found.posterior.p_wrong),
        "mean tanh(4 margin)": (1 + np.tanh(4 * found.margins).mean(axis=0)) / 2,
        "area under the margin": (np.log(np.maximum(own, 1e-12)) - np.log(other)).mean(axis=0),
        "times forgotten": -(right[:-1] & ~right[1:]).sum(axis=0).astype(np.float64),
    }


def precision(score: np.ndarray, wrong: np.ndarray, share: float) -> float:
    """The share of wrong labels among those of the lowest quality."""
    count = max(1, round(share * len(wrong)))
    return float(wrong[np.argsort(score, kind="stable")[:count]].mean())


def judged(found: Case, kept: Path) -> Judged:
    """All figures of a case, from the file that keeps them if there is one."""
    if not kept.is_file():
        wrong, posterior = found.wrong, found.posterior
        quality = label_quality(found.labels, found.oof.astype(np.float64), posterior.p_wrong)
        order = np.argsort(quality, kind="stable")
        first = order[:100]
        figures = [posterior.p_wrong[first].mean(), wrong[first].mean()]
        figures += [posterior.p_suggested[first].mean(), (posterior.suggested == found.clean)[first].mean()]
        table = {
            name: [auroc(-score, wrong), *(precision(score, wrong, share) for share in SHARES)]
            for name, score in scores(found).items()
        }
        reason = posterior.reason or posterior.disagreement(order[: min(100, len(order) // 10)])
        kept.write_text(json.dumps({"scores": table, "figures": [float(f) for f in figures], "reason": reason}))
    return json.loads(kept.read_text())


def compare_scores(found: dict[tuple[str, str], Judged]) -> None:
    """Means over the cases of each regime."""
    regimes = [regime for regime in REGIMES if any(key[1] == regime for key in found)]
    print("| | " + " | ".join(f"{name}: AUROC | 1 % | 5 % | 10 %" for name in regimes) + " |")
    print("|---|" + "---|" * (4 * len(regimes)))
    for name in next(iter(found.values()))["scores"]:
        cells = []
        for regime in regimes:
            area, *shares = np.mean([each["scores"][name] for key, each in found.items() if key[1] == regime], axis=0)
            cells += [f"{area:.3f}", *(f"{100 * share:.0f}" for share in shares)]
        print(f"| {name} | " + " | ".join(cells) + " |")


def compare_figures(found: dict[tuple[str, str], Judged]) -> None:
    """Of the first 100."""
    print("\n| | regime | wrong: stated | real | suggestion right: stated | real | said |")
    print("|---|---|---|---|---|---|---|")
    for (name, regime), each in found.items():
        figures = each["figures"]
        far = max(abs(figures[0] - figures[1]), abs(figures[2] - figures[3])) > 0.1
        said = "cannot be known" if each["reason"] else "off by more than 10" if far else "known"
        print(f"| {name} | {regime} | " + " | ".join(f"{100 * f:.0f}" for f in figures) + f" | {said} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--cases", nargs="+", default=CASES, choices=CASES)
    parser.add_argument("--regimes", nargs="+", default=list(REGIMES), choices=list(REGIMES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for name in options.cases:
        for regime in (each for each in regimes_of(name) if each in options.regimes):
            here = case(name, regime, options.data, options.cache)
            found[name, regime] = judged(here, options.cache / f"{name.replace(' ', '-')}-{regime}.json")
    compare_scores(found)
    compare_figures(found)


if __name__ == "__main__":
    main()
