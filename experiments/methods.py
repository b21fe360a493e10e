"""All methods under SGD and under the recommended radius: digits, and features of images with human labels.

    python experiments/methods.py runs/methods --labelme labelme_features.npz --features cifar10_features.npz

Digits have 40 % symmetric or pair-flip noise; the two archives of features hold labels that people gave (one annotator
each of LabelMe, `y_worst` of the first 1,500 samples of CIFAR-10N). Runs have the options of the preset `recommended`,
but for method, optimizer and length: about 315 steps of 64 samples at the usual learning rate, since in so few steps
the preset's gentle one leaves half of the methods untrained. Methods have their defaults, and are told the noise rate.
One that needs images is refused on features. A table for each dataset with the methods that lose to SGD there
(`train` warns of them: `ncsam.engine.defaults.HARMED`), then what an epoch costs (`--cost FILE`, which
`benchmarks/method_cost.py --json FILE` makes) and what the methods' own papers have (`experiments/published.py`).
`--seeds 1`, then 2, then 3 makes whole tables soonest.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from cells import Results, Runs
from common import Setting, Table, main, markdown_table
from ncsam._statistics import Spread
from ncsam.engine.config_options import read_preset
from problems import NOISES, first
from published import PUBLISHED

#: APL with its authors' learning rate; SLN's .001 is meant for 300 epochs, and at .05 it learns nothing.
METHODS = (
    *("ce", "gce", "gce_truncated", "sl", "apl:lr=0.01", "js", "gjs", "peer", "dmi", "forward", "backward"),
    *("sln:lr=0.005", "elr", "mixup", "regce", "decoupling", "mentornet", "coteaching", "coteaching_plus", "jocor"),
    *("cores2", "selfie", "plc", "mcorrection", "trevision", "dividemix", "disc", "ctrr", "colearning", "unicon"),
    *("limit", "nct", "nested_coteaching", "cal", "cleannet", "cc"),
)
SGD, RECOMMENDED = "sgd", "sam:rho=validation"
FILES = {
    "labelme": "archive of LabelMe's features with one annotator's labels in y_one",
    "features": "archive of CIFAR-10's features with human labels in y_worst",
    "cost": "what an epoch costs, by benchmarks/method_cost.py --json",
}


def declare(files: argparse.Namespace) -> Sequence[Table]:
    """One table whose columns are the datasets."""
    settings = {f"{m}, {o}": Setting(o, m) for m in METHODS for o in (SGD, RECOMMENDED)}
    length = {"lr": 0.05, "batch_size": 64}
    shared = {**read_preset("recommended"), **length, "evaluate_train_every": 1000, "telemetry_every": 0}
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
    """About 315 steps each; the rates of human labels to two digits, for methods that want one."""
    found: dict[str, dict[str, Any]] = {}
    if files.labelme is not None:
        found["LabelMe"] = {"data": str(files.labelme), "label_column": "y_one", "rate": 0.26, "epochs": 21}
    for name in ("symmetric 40", "pair flip 40"):
        found[f"digits {name}"] = {"data": "digits", "noise_seed": None, "epochs": 15, **NOISES[name]}
    if files.features is not None:
        data = first(files.features, 1500, files.out)
        found["CIFAR-10"] = {"data": data, "label_column": "y_worst", "rate": 0.4, "epochs": 14}
    return found


def shown(table: Table, found: Results, costs: dict[str, float]) -> Iterator[str]:
    """A table for each dataset, one over all, and one of costs and published figures."""
    most = f"up to {table.seeds} seeds"
    begun = [p for p in table.problems if _values(found, p, f"ce, {SGD}")]
    for problem in begun:
        rows = []
        for method in METHODS:
            sgd, ours = (_values(found, problem, f"{method}, {o}") for o in (SGD, RECOMMENDED))
            both = sgd.keys() & ours.keys()
            if both:
                means = [_mean({seed: values[seed] for seed in both}) for values in (sgd, ours)]
                rows.append([f"`{method}`", *means, *_against(found, [problem], method), str(len(both))])
        yield f"## {problem}, {most}"
        yield markdown_table(["method", "sgd", "recommended", *_AGAINST, "seeds"], rows)
        if table.seeds > 1:
            yield _named(found, [problem])
    yield f"## All sets together, {most}"
    heads = ["epoch, sgd", "epoch, recommended", "published for", "accuracy", "to be compared with it"]
    rows = [[f"`{m}`", *_against(found, begun, m), *_sources(m, costs)] for m in METHODS]
    yield markdown_table(["method", *_AGAINST, *heads], rows)
    yield _named(found, begun)


_AGAINST = ("recommended less sgd", "sgd less `ce`")


@cache
def _values(found: Results, problem: str, setting: str) -> dict[int, float]:
    """Of the first seeds, as many as are finished."""
    assert isinstance(found, Runs)
    fewer = (Runs(replace(found.table, seeds=seeds), found.out) for seeds in range(found.table.seeds, 0, -1))
    return next((values for runs in fewer if (values := runs.values(problem, setting, "last5"))), {})


def _mean(values: dict[int, float]) -> str:
    spread = Spread.of(values.values())
    return "-" if spread is None else spread.text(1, error=True)


def _differences(found: Results, problems: Sequence[str], ours: str, theirs: str) -> Spread | None:
    """Of two settings, over the seeds of all these datasets."""
    pairs = [[_values(found, problem, name) for name in (ours, theirs)] for problem in problems]
    return Spread.of(a[seed] - b[seed] for a, b in pairs for seed in a if seed in b)


def _against(found: Results, problems: Sequence[str], method: str) -> list[str]:
    sgd = f"{method}, {SGD}"
    spreads = (
        _differences(found, problems, f"{method}, {RECOMMENDED}", sgd),
        _differences(found, problems, sgd, f"ce, {SGD}"),
    )
    return ["-" if spread is None else spread.text(1, error=True, sign=True) for spread in spreads]


def _named(found: Results, problems: Sequence[str]) -> str:
    """The methods that `train` warns of, by these datasets."""
    names = [f"`{m.partition(':')[0]}`" for m in METHODS if harmed(found, problems, m)]
    return f"Below SGD by more than a point and a standard error: {', '.join(names) or 'none'}."


def harmed(found: Results, problems: Sequence[str], method: str) -> bool:
    """Whether the recommended radius is below SGD by more than a point and more than a standard error."""
    spread = _differences(found, problems, f"{method}, {RECOMMENDED}", f"{method}, {SGD}")
    return spread is not None and spread.error is not None and spread.mean < -max(1.0, spread.error)


def _sources(method: str, costs: dict[str, float]) -> list[str]:
    name = method.partition(":")[0]
    setting, accuracy, needed = PUBLISHED[name]
    ratios = (costs.get(f"{name}.{optimizer}") for optimizer in (SGD, RECOMMENDED))
    times = ["-" if ratio is None else f"{ratio:.1f}" for ratio in ratios]
    return [*times, setting, "-" if accuracy is None else f"{accuracy:.2f}", needed]


if __name__ == "__main__":
    main(__doc__, declare, **FILES)
