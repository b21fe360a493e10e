"""The arms of `outside_estimate.py` with a convolutional network on images.

    PYTHONPATH=experiments python experiments/outside_estimate_images.py OUT.json --images cifar10_subset.npz \\
        --features cifar10_features.npz [--seeds 1]

The first 2,500 images of CIFAR-10 at 16x16 and 2,000 test images; 40 % symmetric or instance-dependent noise, or the
worst labels of CIFAR-10N. resnet9 of width 16, 15 epochs, otherwise as for features. p comes from out-of-fold
classifiers on EfficientNet-Lite0's features of the same images, from ones on the pixels (as the engine does), or from
the network's own out-of-fold predictions, three folds trained with SAM.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from ncsam import models, noise
from ncsam._files import atomic_path
from ncsam.classifiers.fit import cross_fit, issue_probabilities
from ncsam.issues.calibration import stratified_folds
from outside_estimate import Arm, train
from outside_estimate_data import accuracy, estimates, spread
from reduce_cifar import halved

EPOCHS, FOLDS, IMAGES, TEST = 15, 3, 2500, 2000
NOISES = ("human", "symmetric 40", "instance 40")
ARMS = {
    "SAM": Arm(strength=0.0),
    "oracle, s 1": Arm("oracle"),
    "Lite0: posterior above .9, s 1": Arm("Lite0 posterior .9"),
    "Lite0: without smooth above .9, SAM": Arm("Lite0 certain", drop=True),
    "pixels: posterior above .9, s 1": Arm("pixels posterior .9"),
    "own: posterior above .9, s 1": Arm("own posterior .9"),
}


def network() -> nn.Module:
    return models.create("resnet9", 10, 3, width=16).to(memory_format=torch.channels_last)


def problem_of(images: Path, features: Path, kind: str, seed: int) -> Any:
    """What `train` needs, without any p but the oracle's."""
    with np.load(images) as whole, np.load(features) as embedded:
        x, x_test = whole["x_train"][:IMAGES], whole["x_test"][:TEST]
        clean, y_test, human = whole["y_train"][:IMAGES], whole["y_test"][:TEST], whole["y_worst"][:IMAGES]
        rows = embedded["x_train"][:IMAGES].astype(np.float32)
        if not (embedded["y_train"][:IMAGES] == clean).all():
            raise SystemExit(f"{features}: expected features of the images in {images}")
    clean = clean.astype(np.int64)
    if kind == "human":
        noisy = human.astype(np.int64)
    elif kind == "symmetric 40":
        noisy = noise.symmetric(clean, 0.4, seed=seed).noisy
    else:
        noisy = noise.instance(clean, 0.4, inputs=x / np.float32(255), input="unit", seed=seed).noisy
    x, x_test = (
        torch.from_numpy(halved(a)).permute(0, 3, 1, 2).float().div(255).contiguous(memory_format=torch.channels_last)
        for a in (x, x_test)
    )
    mean, std = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True)
    held = np.random.default_rng(seed).permutation(IMAGES) < IMAGES // 10
    found = SimpleNamespace(x=(x - mean) / std, x_test=(x_test - mean) / std, noisy=noisy, clean=clean, held=held)
    found.y, found.y_test = torch.from_numpy(noisy), torch.from_numpy(y_test.astype(np.int64))
    found.wrong, found.classes = clean != noisy, 10
    found.p = {"oracle": spread(found.wrong[~held], held)}
    found.sources = {
        "Lite0": torch.from_numpy((rows - rows.mean(0)) / (rows.std(0) + 1e-6)),
        "pixels": (found.x.flatten(1) - found.x.flatten(1).mean(0)) / found.x.flatten(1).std(0),
    }
    return found


def out_of_fold(problem: Any, seed: int) -> Any:
    """The network's probabilities for each sample trained on, by training with SAM on the other folds."""
    used = np.flatnonzero(~problem.held)
    folds = stratified_folds(problem.noisy[used], FOLDS, seed)
    rows = np.zeros((len(used), problem.classes))
    for fold in range(FOLDS):
        kept: list[nn.Module] = []

        def made(kept: list[nn.Module] = kept) -> nn.Module:
            kept.append(network())
            return kept[0]

        held = problem.held.copy()
        held[used[folds == fold]] = True
        other = SimpleNamespace(**{**vars(problem), "held": held})
        train(other, Arm(strength=0.0), seed, made, EPOCHS)
        with torch.no_grad():
            rows[folds == fold] = kept[0](problem.x[used[folds == fold]]).double().softmax(1).numpy()
    return rows


def add_estimates(problem: Any, source: str, seed: int) -> dict[str, float]:
    """Every p of a source, and its facts."""
    used = np.flatnonzero(~problem.held)
    noisy, facts = problem.noisy[used], {}
    if source == "own":
        rows = out_of_fold(problem, seed)
    else:
        fitted = cross_fit("smooth", problem.sources[source][used], problem.y[used], problem.classes, seed=seed)
        rows = issue_probabilities(fitted, noisy, table=False)
    if source == "Lite0":
        with torch.no_grad():
            held_out = fitted.member.network(problem.classes)(problem.sources[source][problem.held])
        facts["held_out"] = accuracy(held_out, problem.y[problem.held])
    found, more = estimates(rows, noisy, problem.wrong[used])
    problem.p |= {f"{source} {name}": spread(values, problem.held) for name, values in found.items()}
    return {**facts, **more}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--images", type=Path, required=True, help="archive of CIFAR-10 images, with y_worst")
    parser.add_argument("--features", type=Path, required=True, help="archive of Lite0's features of the same images")
    parser.add_argument("--seeds", type=int, default=1)
    asked = parser.parse_args()
    found: dict[str, Any] = json.loads(asked.out.read_text()) if asked.out.is_file() else {}
    torch.set_num_threads(1)
    for seed in range(1, asked.seeds + 1):
        for own in (False, True):  # which costs the most, last
            for kind in NOISES:
                each = found.setdefault(kind, {}).setdefault(str(seed), {"facts": {}, "runs": {}})
                todo = {name: arm for name, arm in ARMS.items() if name.startswith("own") == own}
                if set(todo) <= set(each["runs"]):
                    continue
                problem = problem_of(asked.images, asked.features, kind, seed)
                for name in sorted(set(todo) - set(each["runs"]), key=list(ARMS).index):
                    if todo[name].p not in problem.p:
                        source = todo[name].p.partition(" ")[0]
                        facts = add_estimates(problem, source, seed)
                        each["facts"][source] = {key: round(value, 4) for key, value in facts.items()}
                    run = train(problem, todo[name], seed, network, EPOCHS)
                    each["runs"][name] = {key: round(value, 3) for key, value in run.items()}
                    print(kind, seed, name, round(run["last5"], 1), flush=True)
                    with atomic_path(asked.out) as temporary:
                        temporary.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
