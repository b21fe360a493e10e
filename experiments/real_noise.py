"""Labels that people got wrong: what to expect of `recommended`, beside SGD and beside what people use today.

    python experiments/real_noise.py runs/real --labelme labelme.npz --features cifar10_features.npz --fashion FOLDER \\
        --cifar cifar10.npz

The archives hold features (`x_train`, `x_test`), clean labels (`y_train`, `y_test`) and those that people gave: `y_one`
and `y_majority` of LabelMe; `y_worst`, `y_random1` and `y_aggregate` of CIFAR-10N. Digits need no file. All runs have
the options of the preset `recommended`, but for the optimizer; a tenth is held out with its noisy labels. Tables:

- trial: optimizers on every problem; `val_chosen` is the epoch with the best noisy validation.
- auto: `ncsam auto`, and how well it finds the wrong labels: the area under the ROC curve of its label issues and of
  cleanlab's self-confidence, both from its out-of-fold predictions. A single run has `label_issues_auroc`.
- pixels: CIFAR-10 images at 16 pixels, `y_worst`, crops and mirroring, a ResNet-8.
- classic: logistic regression, C chosen on the same tenth; cleanlab's `CleanLearning` around it and around our network.
- steps: SGD and SAM at other learning rates, weight decays and lengths than the preset's.
- bound: the automatic radius with and without a bound, on LabelMe in 1,000 steps at a weight decay of .001.

For every method under SGD and under the recommended radius see `experiments/methods.py`.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common import Chosen, Table, main
from ncsam import SAM, models
from ncsam.automl import auto
from ncsam.data.types import stratified
from ncsam.engine import RunConfig
from ncsam.engine.config_options import read_preset
from ncsam.engine.task import load_task
from ncsam.issues.find import auroc
from ncsam.optim import AutoRadius
from ncsam.runs.reader import load_oof
from problems import CIFAR, FASHION, NOISES, first, small_cifar, small_fashion

RECOMMENDED = {**read_preset("recommended"), "evaluate_train_every": 1000}
RELATIVE = "ncsam:rho=validation:warmup=0.0:compensation=relative:sign=1"
OPTIMIZERS: dict[str, Any] = {
    "SGD": "sgd",
    "recommended": "sam:rho=validation",
    "SAM 0.05": "sam:rho=0.05",
    "SAM 0.2": "sam:rho=0.2",
    "SAM 0.5": "sam:rho=0.5",
    "SAM 1.0": "sam:rho=1.0",
    "SAM, rho chosen on noisy validation": Chosen("sam:rho={}", "sam:rho={}", (0.05, 0.2, 0.5, 1.0)),
    "SANER": "saner",
    "FriendlySAM": "friendlysam",
    "NCSAM, the paper's": "ncsam:rho=0.05:kappa=0.1:warmup=0.25",
    "NCSAM, kappa 0": "ncsam:rho=0.05:kappa=0.0:warmup=0.25",
    "NCSAM relative, kappa .5": f"{RELATIVE}:kappa=0.5",
    "NCSAM relative, kappa 0": f"{RELATIVE}:kappa=0.0",
}
MLP = {"model": "mlp", "model_options": {"hidden": [256, 256]}}
RESNET = {"model": "resnet8", "augment": "standard"}
STRENGTHS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 1.0, 10.0)  # C of the logistic regression


def problems(files: argparse.Namespace) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    if files.labelme is not None:
        for name in ("one", "majority"):
            found[f"LabelMe {name}"] = {"data": str(files.labelme), "label_column": f"y_{name}"}
    if files.features is not None:
        data = first(files.features, 5000, files.out)
        for name in ("worst", "random1", "aggregate"):
            found[f"CIFAR-10 {name}"] = {"data": data, "label_column": f"y_{name}"}
    for name in ("symmetric 40", "pair flip 40", "instance 40"):
        found[f"digits {name}"] = {"data": "digits", "noise_seed": None, **NOISES[name]}
    if files.fashion is not None:
        data = small_fashion(files.fashion, files.out)
        for name in ("symmetric 20", "instance 40"):
            found[f"Fashion {name}"] = {"data": data, "noise_seed": None, **MLP, **NOISES[name]}
    return found


def tables(files: argparse.Namespace) -> Sequence[Table]:
    every = problems(files)
    trial = Table(
        "trial",
        every,
        OPTIMIZERS,
        seeds=5,
        shared=RECOMMENDED,
        controls={
            "recommended": "SGD",
            "NCSAM, the paper's": "NCSAM, kappa 0",
            "NCSAM relative, kappa .5": "NCSAM relative, kappa 0",
        },
        metrics=("last5", "val_chosen", "val_accuracy", "label_issues_auroc"),
        quick={"epochs": 5},
    )
    rows = {row: row for row in ("logistic regression", "CleanLearning around it", "CleanLearning around our network")}
    classic = Table("classic", every, rows, shared=RECOMMENDED, metrics=("accuracy",), measure=classical)
    found = {row: row for row in ("auto", "label issues of auto", "label issues by cleanlab, same predictions")}
    measure = partial(automatic, files.out / "auto")
    by_itself = Table("auto", every, found, seeds=1, shared={"val_share": 0.0}, metrics=("accuracy",), measure=measure)
    declared = [trial, classic, by_itself]
    if files.cifar is not None:
        pixels = {
            "CIFAR-10 pixels, augmented": {
                "data": small_cifar(files.cifar, files.out),
                "label_column": "y_worst",
                **RESNET,
            }
        }
        pair = {name: OPTIMIZERS[name] for name in ("SGD", "recommended")}
        declared.append(Table("pixels", pixels, pair, shared=RECOMMENDED, controls={"recommended": "SGD"}))
    if files.labelme is not None:
        labelme = every["LabelMe one"]
        changed = {
            "as recommended": {},
            "lr .05": {"lr": 0.05},
            "weight decay .001": {"weight_decay": 0.001},
            "weight decay .01": {"weight_decay": 0.01},
            "batch 32": {"batch_size": 32},
            "batch 512": {"batch_size": 512},
            "half the epochs": {"epochs": 50},
            "twice the epochs": {"epochs": 200},
            "batch 32, lr .05, 60 epochs": {"batch_size": 32, "lr": 0.05, "weight_decay": 0.001, "epochs": 60},
        }
        pair = {name: OPTIMIZERS[name] for name in ("SGD", "recommended")}
        against = {"recommended": "SGD"}
        columns = {name: {**labelme, **change} for name, change in changed.items()}
        declared.append(Table("steps", columns, pair, shared=RECOMMENDED, controls=against))
        bounds = {"none": None, "0.2": 0.2, "0.1": 0.1, "0.05": 0.05}
        declared.append(
            Table("bound", {"LabelMe one": labelme}, bounds, shared=RECOMMENDED, metrics=("accuracy",), measure=bounded)
        )
    return declared


# --- cells that are no runs of the engine


def classical(options: Mapping[str, Any], row: str, seed: int) -> float:
    """Test accuracy of what people use today, on the samples that a run of the engine trains on."""
    from cleanlab.classification import CleanLearning
    from sklearn.linear_model import LogisticRegression

    from ncsam.integrations.sklearn import NoisyLabelClassifier

    x, y, held_x, held_y, x_test, y_test = arrays(options, seed)
    models_ = [LogisticRegression(C=c, max_iter=300) for c in STRENGTHS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of regressions that have not converged
        best = max(models_, key=lambda model: float(model.fit(x, y).score(held_x, held_y)))
        if row == "CleanLearning around it":
            best = CleanLearning(LogisticRegression(C=best.C, max_iter=300), seed=seed).fit(x, y)
        elif row == "CleanLearning around our network":
            network = NoisyLabelClassifier(hidden=(256, 256), random_state=seed, standardize=False)
            best = CleanLearning(network, seed=seed).fit(x, y)
    return 100.0 * float(np.mean(best.predict(x_test) == y_test))


def automatic(folder: Path, options: Mapping[str, Any], row: str, seed: int) -> float:
    """Test accuracy of `ncsam auto`, or how well it finds wrong labels; the race is run once for all rows."""
    from cleanlab.rank import get_label_quality_scores

    config = RunConfig.from_dict({**options, "seed": seed})
    about = "-".join(str(options.get(name, "")) for name in ("label_column", "noise"))
    here = folder / f"{Path(config.data).stem}-{about}-s{seed}"
    auto(config, here, say=lambda text: print(f"#   {text}", flush=True))
    if row == "label issues by cleanlab, same predictions":
        split = load_task(config).dataset.train
        oof = load_oof(here)
        assert oof is not None
        assert split.clean is not None
        quality = get_label_quality_scores(split.labels, oof.probabilities, method="self_confidence")
        return 100.0 * (auroc(-quality, split.labels != split.clean) or 0.0)
    summary = json.loads((here / "summary.json").read_text(encoding="utf-8"))
    return float(summary["last"]) if row == "auto" else 100.0 * float(summary["label_issues_auroc"])


def arrays(options: Mapping[str, Any], seed: int) -> tuple[np.ndarray, ...]:
    """Samples standardized by column, observed labels, those held out, and the test samples with their true labels."""
    config = RunConfig.from_dict({**options, "seed": seed})
    task = load_task(config)
    assert task.dataset.test is not None
    flat = [
        np.asarray(s.inputs).reshape(len(s), -1).astype(np.float64) for s in (task.dataset.train, task.dataset.test)
    ]
    labels = task.dataset.train.labels
    kept, held = stratified(labels, config.val_share, seed=0)
    mean, deviation = flat[0][kept].mean(axis=0), flat[0][kept].std(axis=0)
    x, x_test = ((part - mean) / np.where(deviation > 0, deviation, 1.0) for part in flat)
    return x[kept], labels[kept], x[held], labels[held], x_test, task.dataset.test.labels


def bounded(options: Mapping[str, Any], bound: float | None, seed: int) -> float:
    """Test accuracy after 1,000 steps of SAM with the automatic radius, in a plain loop."""
    x, y, _, _, x_test, y_test = (torch.from_numpy(np.ascontiguousarray(a)) for a in arrays(options, seed))
    torch.manual_seed(seed)
    model = models.create("mlp", int(y.max()) + 1, in_features=x.shape[1], hidden=[256, 256])
    base = torch.optim.SGD(model.parameters(), lr=0.0125, momentum=0.9, weight_decay=1e-3)
    optimizer = SAM(base, rho=AutoRadius(bound=bound))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(base, 1000)
    parts = -(-len(x) // 128)
    for step in range(1000):
        if step % parts == 0:
            order = torch.randperm(len(x)).tensor_split(parts)
        rows = order[step % parts]
        optimizer.step(lambda rows=rows: model(x[rows].float()), y[rows])
        schedule.step()
    with torch.no_grad():
        return 100.0 * float((model(x_test.float()).argmax(1) == y_test).float().mean())


if __name__ == "__main__":
    main(
        __doc__,
        tables,
        labelme="archive of LabelMe's features with y_one and y_majority",
        features="archive of CIFAR-10's features with y_worst, y_random1 and y_aggregate",
        **FASHION,
        **CIFAR,
    )
