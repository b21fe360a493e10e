"""The dataset audit beside cleanlab's Datalab on the same embeddings and out-of-fold predictions.

    python experiments/audit.py --data FOLDER [--samples 1500]

FOLDER holds `cifar10_features.npz` (see docs/experiments/README.md): features of CIFAR-10 images, labels by one person
(CIFAR-10N) and the true ones. Planted among them: exact copies, copies with noise of a twentieth of each feature's
deviation, and samples of three times the usual deviation.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ncsam.auditing.classes import find_overlapping, find_rare
from ncsam.auditing.duplicates import find_duplicates
from ncsam.auditing.neighbors import nearest
from ncsam.auditing.samples import find_label_issues as issue_findings
from ncsam.auditing.samples import find_outliers
from ncsam.classifiers import cross_fit, issue_probabilities
from ncsam.issues.find import find_label_issues

PLANTED = 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=1500)
    options = parser.parse_args()
    torch.set_num_threads(1)
    x, given, clean = read(options.data / "cifar10_features.npz", options.samples)
    x, given, clean, planted = plant(x, given, clean)
    fitted = cross_fit("smooth", torch.from_numpy(x), torch.from_numpy(given), int(given.max()) + 1)
    chances = issue_probabilities(fitted, given, table=False)
    planted["label issues"] = set(np.flatnonzero(given != clean).tolist())
    ours, mine = timed(lambda: audit(x, given, chances))
    theirs, lab = timed(lambda: datalab(x, given, chances))
    print(f"{len(x):,} x {x.shape[1]}; processor seconds: ncsam {mine:.1f}, Datalab {lab:.1f}\n")
    print("| check | planted | ncsam: found | of them planted | Datalab: found | of them planted |")
    print("|---|---|---|---|---|---|")
    for name in planted:
        cells = [f"{len(found[name])} | {len(found[name] & planted[name])}" for found in (ours, theirs)]
        print(f"| {name} | {len(planted[name])} | {cells[0]} | {cells[1]} |")


def read(path: Path, count: int) -> tuple[Any, Any, Any]:
    """Standardized features, given and true labels of the first samples."""
    with np.load(path) as file:
        x, given, clean = (file[name][:count] for name in ("x_train", "y_random1", "y_train"))
    x = x.astype(np.float32)
    x = (x - x.mean(axis=0)) / np.maximum(x.std(axis=0), 1e-6)
    return x, given.astype(np.int64), clean.astype(np.int64)


def plant(x: Any, given: Any, clean: Any) -> tuple[Any, Any, Any, dict[str, set[int]]]:
    """Append copies and outliers; where they are. The copied samples count as found, too."""
    rng = np.random.default_rng(0)
    copied = rng.permutation(len(x))[: 3 * PLANTED]
    exact, near, far = copied[:PLANTED], copied[PLANTED : 2 * PLANTED], copied[2 * PLANTED :]
    noisy = x[near] + 0.05 * rng.normal(size=x[near].shape)
    strange = 3 * rng.normal(size=x[far].shape)
    every = np.concatenate([copied[:PLANTED], near, far])
    start = len(x)
    x = np.concatenate([x, x[exact], noisy, strange]).astype(np.float32)
    planted = {
        "exact duplicates": set(range(start, start + PLANTED)),
        "near duplicates": set(range(start + PLANTED, start + 2 * PLANTED)),
        "outliers": set(range(start + 2 * PLANTED, start + 3 * PLANTED)),
    }
    return x, np.concatenate([given, given[every]]), np.concatenate([clean, clean[every]]), planted


def audit(x: Any, given: Any, chances: Any) -> dict[str, set[int]]:
    classes = [str(c) for c in range(int(given.max()) + 1)]
    near = nearest(x)
    keys = [row.tobytes().hex() for row in x]
    copies = find_duplicates(given, keys, near, classes)
    find_rare(given, classes)
    find_overlapping(given, chances, classes)
    return {
        "exact duplicates": {each.index for each in copies if each.score == 1},
        "near duplicates": {each.index for each in copies if each.score < 1},
        "outliers": {each.index for each in find_outliers(near)},
        "label issues": {each.index for each in issue_findings(find_label_issues(given, chances))},
    }


def datalab(x: Any, given: Any, chances: Any) -> dict[str, set[int]]:
    from cleanlab import Datalab

    lab = Datalab(data={"label": given.tolist()}, label_name="label", verbosity=0)
    wanted: dict[str, Any] = {"label": {}, "near_duplicate": {}, "outlier": {}, "class_imbalance": {}}
    lab.find_issues(pred_probs=chances, features=x, issue_types=wanted)
    table = lab.get_issues()
    copies = table["is_near_duplicate_issue"].to_numpy()
    zero = lab.get_issues("near_duplicate")["distance_to_nearest_neighbor"].to_numpy() < 1e-6
    return {
        "exact duplicates": set(np.flatnonzero(copies & zero).tolist()),
        "near duplicates": set(np.flatnonzero(copies & ~zero).tolist()),
        "outliers": set(np.flatnonzero(table["is_outlier_issue"]).tolist()),
        "label issues": set(np.flatnonzero(table["is_label_issue"]).tolist()),
    }


def timed(work: Callable[[], dict[str, set[int]]]) -> tuple[dict[str, set[int]], float]:
    """What it found, and its processor seconds: the machine may be busy with other things."""
    began = time.process_time()
    found = work()
    return found, time.process_time() - began


if __name__ == "__main__":
    main()
