"""All methods under SGD and under the recommended optimizer: digits, and features of pictures with human labels.

    python experiments/methods.py runs/methods --cifar cifar10_features.npz --labelme labelme_features.npz

Digits have 40 % symmetric or pair-flip noise; the two archives of features hold labels that people gave (`y_worst` of
CIFAR-10N, one annotator each of LabelMe), and a method that needs pictures is left out there. The recommended optimizer
is SAM with a radius that sets itself; the difference from SGD is taken seed by seed. For the cost of an epoch of each
see `benchmarks/method_cost.py`, for the figures of their own papers `experiments/published.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from common import Setting, Table, main
from ncsam import methods

#: APL and SLN with their authors' learning rates; SLN's is meant for 300 epochs, so a larger one stands beside it.
METHODS = (
    *("ce", "gce", "gce_truncated", "sl", "apl:lr=0.01", "js", "gjs", "peer", "dmi", "forward", "backward"),
    *("sln:lr=0.001", "sln:lr=0.005", "elr", "mixup", "regce", "decoupling", "mentornet", "coteaching"),
    *("coteaching_plus", "jocor", "cores2", "selfie", "plc", "mcorrection", "trevision", "dividemix"),
    *("disc", "ctrr", "colearning", "unicon", "cc", "limit", "nct", "nested_coteaching", "cal", "cleannet"),
)
OPTIMIZERS = {"sgd": "sgd", "recommended": "sam:rho=heldout:rho_target=auto"}
FILES = {
    "cifar": "archive of CIFAR-10 features with human labels in y_worst",
    "labelme": "archive of LabelMe features with one annotator's labels in y_one",
}
#: Noise rates of the human labels, to two digits, for the methods that want one.
HUMAN: dict[str, dict[str, Any]] = {
    "cifar": {"label_column": "y_worst", "rate": 0.4},
    "labelme": {"label_column": "y_one", "rate": 0.26},
}


def table(name: str, problems: dict[str, dict[str, Any]], specs: Sequence[str]) -> Table:
    """Every method under both optimizers."""
    return Table(
        name,
        problems,
        {f"{spec}, {label}": Setting(optimizer, spec) for spec in specs for label, optimizer in OPTIMIZERS.items()},
        shared={"epochs": 20},
        controls={f"{spec}, recommended": f"{spec}, sgd" for spec in specs},
        metrics=("last5",),
        digits=2,
    )


def declare(files: argparse.Namespace) -> list[Table]:
    """The table of digits, and that of features if an archive is given."""
    digits = {noise: {"noise": noise, "rate": 0.4} for noise in ("symmetric", "pairflip")}
    given = {name: getattr(files, name) for name in FILES if getattr(files, name) is not None}
    features = {name: {"data": str(file), **HUMAN[name]} for name, file in given.items()}
    vectors = [spec for spec in METHODS if not methods.create(spec.partition(":")[0]).pictures_only]
    found = [table("methods", digits, METHODS)]
    return [*found, table("features", features, vectors)] if features else found


if __name__ == "__main__":
    main(__doc__, declare, **FILES)
