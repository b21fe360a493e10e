"""Which settings need no tuning: every optimizer setting on three datasets with seven kinds of noise.

    python experiments/settings.py runs/settings --fashion FOLDER --cifar cifar10_subset.npz --markdown settings.md

Digits come with scikit-learn; of the other two, what is not given is left out. A radius is chosen on the noisy
validation split (a tenth of the training samples), never on test data. Each NCSAM is compared, seed by seed, with SAM
at the same radius and warm-up: its kappa = 0 control.
"""

from __future__ import annotations

import argparse
from typing import Any

from common import Chosen, Table, main
from problems import CIFAR, FASHION, HUMAN, NOISES, small_cifar, small_fashion

WARM = ":warmup=0.25"
RADII = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
RELATIVE = ":compensation=relative:kappa=0.5"
SIGNS = {"+": "", "-": ":sign=-1"}
TRIED = f"sam:rho={{}}{WARM}"

SETTINGS: dict[str, str | Chosen] = {
    "SGD": "sgd",
    "AdamW": "sgd:base=adamw:lr=0.001:weight_decay=0.01",
    **{f"SAM {rho}": f"sam:rho={rho}" for rho in RADII[:4]},
    **{f"warm-up, SAM {rho}": f"sam:rho={rho}{WARM}" for rho in RADII},
    "SAM auto": "sam:rho=auto",
    "SAM auto, target .25": "sam:rho=auto:rho_target=0.25",
    "SAM auto, target .1": "sam:rho=auto:rho_target=0.1",
    "warm-up, SAM auto": f"sam:rho=auto{WARM}",
    "automatic warm-up, SAM auto": "sam:rho=auto:warmup=auto",
    "warm-up, ASAM 1.0": f"sam:rho=1.0:adaptive=true:eta=0.01{WARM}",
    "warm-up, ASAM auto": f"sam:rho=auto{WARM}:adaptive=true:eta=0.01",
    "NCSAM, the paper's": f"ncsam:rho=0.05:kappa=0.1{WARM}",
    "NCSAM, not projected": f"ncsam:rho=0.05:kappa=0.1:projection=false{WARM}",
    **{f"NCSAM relative {s}, auto": f"ncsam:rho=auto{RELATIVE}{o}{WARM}" for s, o in SIGNS.items()},
    "warm-up, SAM, chosen rho": Chosen(TRIED, TRIED, RADII),
    **{
        f"NCSAM relative {s}, chosen rho": Chosen(f"ncsam:rho={{}}{RELATIVE}{o}{WARM}", TRIED, RADII)
        for s, o in SIGNS.items()
    },
}
#: The kappa = 0 control of each NCSAM.
CONTROLS = {
    "NCSAM, the paper's": "warm-up, SAM 0.05",
    "NCSAM, not projected": "warm-up, SAM 0.05",
    **{f"NCSAM relative {s}, auto": "warm-up, SAM auto" for s in SIGNS},
    **{f"NCSAM relative {s}, chosen rho": "warm-up, SAM, chosen rho" for s in SIGNS},
}
#: Not repeated on Fashion-MNIST: what digits had already shown to be too small or too large.
LEFT_OUT = ("SAM 0.05", "SAM 0.1", "SAM auto, target .1", "warm-up, SAM 0.1", "warm-up, SAM 2.0", "warm-up, ASAM 1.0")
#: On CIFAR-10, which is costly: what its question needs, and no more.
CORE = (
    *("SGD", "AdamW", "SAM 0.2", "SAM 0.5", "warm-up, SAM 0.05", "warm-up, SAM 0.5"),
    *("SAM auto", "SAM auto, target .25", "warm-up, SAM auto", "warm-up, ASAM auto", "NCSAM, the paper's"),
    *("NCSAM relative +, auto", "NCSAM relative -, auto", "NCSAM, not projected"),
)
#: ExecutorConfig augmentation leaves little memorized, the question is what a radius costs.
AUGMENTED = ("SGD", "SAM auto", "SAM auto, target .25", "SAM auto, target .1")


def rows(*names: str) -> dict[str, str | Chosen]:
    return {name: SETTINGS[name] for name in names}


def tables(given: argparse.Namespace) -> list[Table]:
    # labels, too, differ from seed to seed; the training split is evaluated once, at the end
    shared = {"batch_size": 128, "noise_seed": None, "telemetry_every": 1000}

    def table(name: str, problems: dict[str, Any], settings: Any, seeds: int, epochs: int, **options: Any) -> Table:
        options = {**shared, "epochs": epochs, "evaluate_train_every": epochs, **options}
        controls = {name: control for name, control in CONTROLS.items() if name in settings and control in settings}
        return Table(name, problems, settings, seeds, options, controls, ("last5", "memorized", "val_accuracy"))

    some = {name: NOISES[name] for name in ("symmetric 40", "instance 40")}
    found = [table("digits", NOISES, SETTINGS, 5, 60)]
    # crops and mirroring, and so many epochs that labels are memorized all the same
    found.append(table("digits-longer", some, rows(*AUGMENTED), 3, 300, augment="standard"))
    if given.fashion is not None:
        mlp = {"data": small_fashion(given.fashion, given.out), "model": "mlp"}
        kept = rows(*(name for name in SETTINGS if name not in LEFT_OUT))
        found.append(table("fashion", NOISES, kept, 3, 60, **mlp, augment="none"))
        found.append(table("fashion-augmented", NOISES, rows(*AUGMENTED), 3, 60, **mlp, augment="standard"))
    if given.cifar is not None:
        resnet = {"data": small_cifar(given.cifar, given.out), "model": "resnet8", "lr": 0.1}
        noises = {**HUMAN, **NOISES}
        found.append(table("cifar-plain", noises, rows(*CORE), 3, 32, **resnet, augment="none"))
        found.append(table("cifar", noises, rows(*AUGMENTED), 3, 32, **resnet, augment="standard"))
        # the same with the length, rate and small batches of the preset `recommended`: seven times the steps
        recommended = {**resnet, "lr": 0.05, "batch_size": 32, "augment": "standard"}
        found.append(table("cifar-longer", HUMAN, rows(*AUGMENTED), 3, 60, **recommended))
    return found


if __name__ == "__main__":
    main(__doc__, tables, **FASHION, **CIFAR)
