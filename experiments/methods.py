"""All methods under SGD and under the recommended radius: digits, and features of pictures with human labels.

    python experiments/methods.py runs/methods --labelme labelme_features.npz --features cifar10_features.npz

Digits have 40 % symmetric or pair-flip noise; the two archives of features hold labels that people gave (one annotator
each of LabelMe, `y_worst` of the first 2,500 samples of CIFAR-10N). All runs have the options of the preset
`recommended`, but for the method, SGD beside its optimizer, and a length of about 400 steps; methods have their
defaults, and are told the noise rate. A method that needs pictures is refused on features: a dash. A table for each
dataset, then one of what an epoch costs (`--cost FILE`, from `benchmarks/method_cost.py --json FILE`) and what the
methods' own papers have (`experiments/published.py`). `--seeds 1`, then 2, then 3 makes whole tables soonest.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any

from cells import Results
from common import Setting, Table, main, markdown_table
from ncsam._statistics import Spread, difference
from ncsam.engine.config import read_preset
from problems import NOISES, first
from published import PUBLISHED

METHODS = (
    *("ce", "gce", "gce_truncated", "sl", "apl", "js", "gjs", "peer", "dmi", "forward", "backward", "sln", "elr"),
    *("mixup", "regce", "decoupling", "mentornet", "coteaching", "coteaching_plus", "jocor", "cores2", "selfie"),
    *("plc", "mcorrection", "trevision", "dividemix", "disc", "ctrr", "colearning", "unicon", "limit", "nct"),
    *("nested_coteaching", "cal", "cleannet", "cc"),
)
SGD, RECOMMENDED = "sgd", "sam:rho=heldout"
FILES = {
    "labelme": "archive of LabelMe's features with one annotator's labels in y_one",
    "features": "archive of CIFAR-10's features with human labels in y_worst",
    "cost": "what an epoch costs, by benchmarks/method_cost.py --json",
}


def declare(files: argparse.Namespace) -> Sequence[Table]:
    """One table whose columns are the datasets."""
    settings = {f"{m}, {o}": Setting(o, m) for m in METHODS for o in (SGD, RECOMMENDED)}
    shared = {**read_preset("recommended"), "evaluate_train_every": 1000}
    costs = json.loads(files.cost.read_text(encoding="utf-8")) if files.cost else {}
    return [
        Table(
            "methods",
            problems(files),
            settings,
            shared=shared,
            metrics=("last5",),
            show=lambda table, found: shown(table, found, costs),
        )
    ]


def problems(files: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """About 400 steps each; the rates of human labels to two digits, for methods that want one."""
    found: dict[str, dict[str, Any]] = {}
    if files.labelme is not None:
        found["LabelMe"] = {"data": str(files.labelme), "label_column": "y_one", "rate": 0.26, "epochs": 50}
    for name in ("symmetric 40", "pair flip 40"):
        found[f"digits {name}"] = {"data": "digits", "noise_seed": None, "epochs": 36, **NOISES[name]}
    if files.features is not None:
        data = first(files.features, 2500, files.out)
        found["CIFAR-10"] = {"data": data, "label_column": "y_worst", "rate": 0.4, "epochs": 22}
    return found


def shown(table: Table, found: Results, costs: dict[str, float]) -> Iterator[str]:
    """A table for each dataset, and one of costs and published figures."""
    for problem in table.problems:
        rows = [row for method in METHODS if (row := _row(found, problem, method)) is not None]
        if rows:
            yield f"## {problem}, {table.seeds} seed{'s' if table.seeds > 1 else ''}"
            yield markdown_table(["method", "sgd", "recommended", "recommended less sgd", "sgd less `ce`"], rows)
    yield "## Cost and published figures"
    heads = ["method", "epoch, sgd", "epoch, recommended", "published for", "accuracy", "to be compared with it"]
    yield markdown_table(heads, [_sources(method, costs) for method in METHODS])


def _row(found: Results, problem: str, method: str) -> list[str] | None:
    plain, ours, usual = (
        found.values(problem, setting, "last5")
        for setting in (f"{method}, {SGD}", f"{method}, {RECOMMENDED}", f"ce, {SGD}")
    )
    cells = [Spread.of(values.values()) for values in (plain, ours)]
    if not any(cells):
        return None
    pairs = [difference(ours, plain), difference(plain, usual)]
    return [
        f"`{method}`",
        *("-" if cell is None else cell.text(1, error=True) for cell in cells),
        *("-" if pair is None else pair.spread.text(1, error=True, sign=True) for pair in pairs),
    ]


def _sources(method: str, costs: dict[str, float]) -> list[str]:
    setting, accuracy, needed = PUBLISHED[method]
    ratios = (costs.get(f"{method}.{optimizer}") for optimizer in (SGD, RECOMMENDED))
    times = ["-" if ratio is None else f"{ratio:.1f}" for ratio in ratios]
    return [f"`{method}`", *times, setting, "-" if accuracy is None else f"{accuracy:.2f}", needed]


if __name__ == "__main__":
    main(__doc__, declare, **FILES)
