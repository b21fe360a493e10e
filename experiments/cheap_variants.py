"""Which sharpness-aware variants keep SAM's gain under label noise with BatchNorm, and at which cost.

    python experiments/cheap_variants.py cheap_variants.json --cifar cifar10_subset.npz --fashion FOLDER
    python experiments/cheap_variants.py cheap_variants.json --show --markdown tables.md

Each variant is trained at a few radii with one seed; noisy validation (a tenth of the training images, with their
labels as they are) chooses among them, and the main rows then get further seeds. Rows without radii set theirs by
themselves. CIFAR-10 is 2,500 training and 1,500 test images averaged to 16x16, Fashion-MNIST as many averaged to 14x14,
for 20 epochs without augmentation. Settings of automatic radii were chosen on the problems called `trial`, which have
other training images, and are reported on the others. Finished runs are in the file and not repeated.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cells import write
from ncsam.comparison.specs import with_spec
from ncsam.data import from_arrays, load
from ncsam.data.types import DataSet
from ncsam.engine import RunConfig, train
from ncsam.engine.device import choose_device
from ncsam.engine.resolve import resolve
from ncsam.engine.task import load_task
from ncsam.engine.trainer import Trainer
from ncsam.report.markdown import table as markdown_table
from reduce_cifar import halved

TRAIN, TEST, EPOCHS = 2500, 1500, 20
NETWORKS: dict[str, dict[str, Any]] = {
    "resnet9": {"model": "resnet9", "model_options": {"width": 16}, "lr": 0.1},
    "resnet9, augmented": {"model": "resnet9", "model_options": {"width": 16}, "lr": 0.1, "augment": "standard"},
    "resnet8": {"model": "resnet8", "lr": 0.1},
    "no BatchNorm": {"model": "cnn_coteaching_plus", "lr": 0.05},
}


@dataclass(frozen=True)
class Problem:
    """Images with noisy labels; `part` 1 has other training images than 0."""

    data: str
    noise: str
    network: str = "resnet9"
    part: int = 0

    @property
    def name(self) -> str:
        part = "trial, " if self.part else ""
        return f"{part}{self.data}, {self.noise}, {self.network}"


NOISES: dict[str, dict[str, Any]] = {
    "human": {"rate": 0.4},  # CIFAR-10N's worst labels, about 41 % of them wrong
    "symmetric 40": {"noise": "symmetric", "rate": 0.4},
    "instance 40": {"noise": "instance", "rate": 0.4},
    "clean": {},
}
CIFAR, FASHION = "CIFAR-10", "Fashion-MNIST"
TRIALS = [
    Problem(CIFAR, "symmetric 40", part=1),
    Problem(CIFAR, "human", part=1),
    Problem(CIFAR, "human", "resnet9, augmented", part=1),
    Problem(FASHION, "symmetric 40", part=1),
    Problem(CIFAR, "human", "resnet8", part=1),
    Problem(CIFAR, "symmetric 40", "resnet8", part=1),
]
NOISY = [
    *(Problem(CIFAR, noise) for noise in ("human", "symmetric 40", "instance 40")),
    Problem(FASHION, "symmetric 40"),
    Problem(CIFAR, "human", "resnet8"),
    Problem(CIFAR, "symmetric 40", "resnet8"),
]
OTHERS = [
    Problem(CIFAR, "clean"),
    Problem(CIFAR, "human", "resnet9, augmented"),
    Problem(CIFAR, "human", "no BatchNorm"),
    Problem(CIFAR, "symmetric 40", "no BatchNorm"),
]
PROBLEMS = {problem.name: problem for problem in (*TRIALS, *NOISY, *OTHERS)}


@dataclass(frozen=True)
class Row:
    """A variant: specs of optimizer and method with `{}` for the radius, the radii, and gradients of a step."""

    optimizer: str
    radii: tuple[float, ...] = ()
    cost: float = 2
    method: str = "ce"

    def specs(self) -> list[tuple[str, str]]:
        return [(self.method.format(r), self.optimizer.format(r)) for r in self.radii] or [
            (self.method, self.optimizer)
        ]


RADII = (0.05, 0.1, 0.2, 0.5)
LONG = (0.3, 0.5, 0.85, 1.2, 2.0)
ROWS = {
    "SGD": Row("sgd", cost=1),
    "SAM": Row("sam:rho={}", RADII),
    "SAM, auto": Row("sam:rho=auto"),
    "SAM, validation": Row("sam:rho=validation"),
    "MSAM": Row("msam:rho={}", LONG, 1),
    "MSAM, auto": Row("msam:rho=auto", cost=1),
    "MSAM, validation": Row("msam:rho=validation", cost=1),
    "adaptive MSAM": Row("msam:adaptive=true:rho={}", (2.0, 5.0, 10.0), 1),
    "AE-SAM": Row("aesam:AESAM:rho={}", RADII[1:], 1.5),
    "AE-SAM, validation": Row("aesam:AESAM:rho=validation", cost=1.5),
    "look (LookSAM)": Row("ncsam:kappa=0:warmup=0:estimator=looksam:rho={}", RADII[1:], 1.2),
    "ASAM": Row("asam:rho={}", (0.5, 1.0, 2.0, 4.0)),
    "SANER": Row("saner:rho={}", RADII[1:]),
    "SANER, validation": Row("saner:rho=validation"),
    "FriendlySAM": Row("friendlysam:rho={}", RADII[1:]),
    "FriendlySAM, validation": Row("friendlysam:rho=validation"),
    "StableSAM": Row("stablesam:rho={}", RADII[1:]),
    "StableSAM, validation": Row("stablesam:rho=validation"),
    "SAM, loss budget": Row("budget_sam:BudgetSAM:budget={}", (0.1, 0.25, 0.5)),
    "RW-SAM": Row("rwsam:RWSAM:rho={}", RADII[1:], 2.33),
    "per-sample SAM of the head": Row("sgd", (0.03, 0.1, 0.3), 1, "head_losses:PerSampleHead:radius={}"),
    "per-sample SAM": Row("sgd", (0.003, 0.01, 0.03), 2.33, "per_sample:PerSample:radius={}"),
    "Jacobian penalty": Row("sgd", (0.01, 0.1, 1.0), 1, "head_losses:JacobianPenalty:strength={}"),
    "NCSAM": Row("ncsam:rho={}", RADII[1:], 3),
    "NCSAM as its authors run it": Row("ncsam-authors:rho={}", (0.05, 0.2), 3),
}
#: Other shares of the norm for MSAM's radius, and where it follows the validation loss; for the trial problems.
_RISING = "msam_radii:RisingMSAM:rho=0:first={}:last={}:begin={}"
TRIED = {
    f"MSAM, {first} to {last}, begin {begin:.2g}": Row(_RISING.format(first, last, begin), cost=1)
    for first, last, begin in (
        (0.045, 0.045, 0.33),
        (0.025, 0.075, 1),
        (0.02, 0.1, 1),
        (0.015, 0.105, 1),
        (0.004, 0.04, 1),
        (0.01, 0.1, 1),
        (0.01, 0.1, 0.333),
        (0.002, 0.02, 0.333),
        (0.01, 0.1, 0.0),
    )
}
ROWS |= TRIED
Runs = dict[str, dict[str, Any]]


@lru_cache(maxsize=2)
def images(data: str, part: int, cifar: Path, fashion: Path) -> dict[str, np.ndarray]:
    """Averaged images and all their labels."""
    rows = {"train": slice(part * TRAIN, (part + 1) * TRAIN), "test": slice(0, TEST)}
    if data == CIFAR:
        with np.load(cifar) as whole:
            found = {name: whole[name] for name in ("x_train", "y_train", "y_worst", "x_test", "y_test")}
    else:
        read = load("fashion_mnist", root=fashion)
        assert read.test is not None
        found = {"x_train": read.train.inputs, "y_train": read.train.labels}
        found |= {"x_test": read.test.inputs, "y_test": read.test.labels}
    cut = {name: np.asarray(array[rows["test" if name.endswith("test") else "train"]]) for name, array in found.items()}
    return {
        name: halved(array.reshape(*array.shape[:3], -1)) if name[0] == "x" else array for name, array in cut.items()
    }


def dataset(problem: Problem, cifar: Path, fashion: Path) -> DataSet:
    """The problem's images, with human labels as observed ones where it asks for them."""
    of = images(problem.data, problem.part, cifar, fashion)
    test = {"x_test": of["x_test"], "y_test": of["y_test"]}
    if problem.noise == "human":
        return from_arrays(of["x_train"], of["y_worst"], y_clean=of["y_train"], **test)
    return from_arrays(of["x_train"], of["y_train"], **test)


def configured(problem: Problem, method: str, optimizer: str, seed: int) -> RunConfig:
    """The configuration of a run."""
    shared = {"batch_size": 128, "epochs": EPOCHS, "augment": "none", "accelerator": "cpu", "precision": "32-true"}
    quiet = {"evaluate_train_every": EPOCHS, "telemetry_every": 0}
    config = RunConfig.from_dict(
        {**shared, **quiet, **NOISES[problem.noise], **NETWORKS[problem.network], "seed": seed}
    )
    return with_spec(with_spec(config.replace(noise_seed=seed), "method", method), "optimizer", optimizer)


def measure(problem: Problem, method: str, optimizer: str, seed: int, data: DataSet) -> dict[str, Any]:
    """One run, as numbers."""
    config = configured(problem, method, optimizer, seed)
    began = time.process_time()
    trainer = train(config, dataset=data, console=False).trainer
    assert trainer is not None
    history = trainer.history
    best = max(history, key=lambda record: record["val_accuracy"])
    radius = getattr(trainer.learners[0].optimizer, "rho", None)
    found = {
        "last5": statistics.fmean(record["test_accuracy"] for record in history[-5:]),
        "chosen": best["test_accuracy"],
        "val_accuracy": statistics.fmean(record["val_accuracy"] for record in history[-5:]),
        "val_loss": statistics.fmean(record["val_loss"] for record in history[-5:]),
        "memorized": history[-1]["memorized"],
        "rho": radius,
        "seconds": time.process_time() - began,
    }
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in found.items()}


def costs(problem: Problem, rows: list[str], cifar: Path, rounds: int = 10) -> dict[str, float]:
    """Processor time of three steps relative to SGD's: rows take turns, the median of the rounds."""
    of = images(CIFAR, 0, cifar, cifar)
    data = from_arrays(of["x_train"][:427], of["y_train"][:427])
    trainers: dict[str, Trainer] = {}
    for name in dict.fromkeys(["SGD", *rows]):
        config = configured(problem, *ROWS[name].specs()[0], 1).replace(epochs=rounds + 1, evaluate_train_every=None)
        task = load_task(config, data)
        trainers[name] = Trainer(choose_device(config), resolve(config, task), task)
    turns: list[dict[str, float]] = []
    for _ in range(rounds + 1):  # the first one warms up
        turns.append({})
        for name, trainer in trainers.items():
            began = time.process_time()
            trainer.train_epoch()
            turns[-1][name] = time.process_time() - began
    return {name: statistics.median(turn[name] / turn["SGD"] for turn in turns[1:]) for name in trainers}


def key(problem: str, method: str, optimizer: str, seed: int) -> str:
    return f"{problem} | {optimizer if method == 'ce' else f'{method} {optimizer}'} | {seed}"


def chosen(runs: Runs, problem: str, row: Row) -> tuple[str, str] | None:
    """The spec that noisy validation prefers among the finished ones of the first seed."""
    tried = {spec: found for spec in row.specs() if (found := runs.get(key(problem, *spec, 1)))}
    return max(tried, key=lambda spec: tried[spec]["val_accuracy"]) if len(tried) == len(row.specs()) else None


def wanted(runs: Runs, problems: list[str], rows: list[str], seeds: int) -> Iterator[tuple[str, str, str, int]]:
    """What is to be run: every radius with the first seed, the chosen one with all."""
    for name in rows:
        for problem in problems:
            for spec in ROWS[name].specs():
                yield problem, *spec, 1
    for seed in range(2, seeds + 1):
        for problem in problems:
            for name in rows:
                if (spec := chosen(runs, problem, ROWS[name])) is not None:
                    yield problem, *spec, seed


def means(runs: Runs, problem: str, row: Row, number: str) -> tuple[float, int] | None:
    """The mean over the seeds of the chosen spec, and how many there are."""
    spec = chosen(runs, problem, row)
    found = [runs[name][number] for seed in range(1, 10) if spec and (name := key(problem, *spec, seed)) in runs]
    found = [value for value in found if value is not None]
    return (statistics.fmean(found), len(found)) if found else None


def kept(runs: Runs, problem: str, row: Row) -> str:
    """The share of SAM's gain (SAM with its automatic radius) over SGD, over the seeds that all three have."""
    specs = [chosen(runs, problem, each) for each in (ROWS["SGD"], ROWS["SAM, validation"], row)]
    if None in specs:
        return "-"
    names = [[key(problem, *spec, seed) for spec in specs if spec] for seed in range(1, 10)]
    paired = [[runs[name]["last5"] for name in of_seed] for of_seed in names if all(name in runs for name in of_seed)]
    if not paired:
        return "-"
    sgd, sam, ours = (statistics.fmean(column) for column in zip(*paired, strict=True))
    return f"{100 * (ours - sgd) / (sam - sgd):.0f}" if sam - sgd > 1 else f"({ours - sgd:+.1f})"


def tables(runs: Runs, problems: list[str]) -> Iterator[str]:
    """What is finished, as Markdown."""
    problems = [name for name in problems if any(run.startswith(f"{name} |") for run in runs)]
    titles = {"last5": "Test accuracy, mean of the last five epochs", "memorized": "Memorized wrong labels, percent"}
    titles |= {"chosen": "Test accuracy at the epoch chosen on noisy validation", "rho": "Radius at the end"}
    head = ["", "gradients", *(name.removeprefix(f"{CIFAR}, ") for name in problems)]
    for number, title in titles.items():
        yield f"**{title}**"
        cells = {name: [means(runs, p, row, number) for p in problems] for name, row in ROWS.items()}
        digits = 2 if number == "rho" else 1
        cells = {name: row for name, row in cells.items() if any(row) and name not in TRIED}
        shown = {n: ["-" if c is None else f"{c[0]:.{digits}f}" for c in row] for n, row in cells.items()}
        yield markdown_table(head, [[name, f"{ROWS[name].cost:g}", *row] for name, row in shown.items()])
        if number == "last5":
            yield "**Share of the gain of SAM with a validation-guided radius over SGD, percent**"
            shares = {name: [kept(runs, p, ROWS[name]) for p in problems] for name in shown}
            yield markdown_table(head, [[name, f"{ROWS[name].cost:g}", *row] for name, row in shares.items()])
            seeds = {n: ["-" if c is None else str(c[1]) for c in row] for n, row in cells.items()}
            yield "**Seeds**"
            yield markdown_table(head, [[name, f"{ROWS[name].cost:g}", *row] for name, row in seeds.items()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--cifar", type=Path)
    parser.add_argument("--fashion", type=Path)
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), help="those whose name contains one of these")
    parser.add_argument("--reported", action="store_true", help="without the problems on which settings were chosen")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--costs", action="store_true", help="time an epoch of every row instead, in turns")
    parser.add_argument("--show", action="store_true", help="only print what is finished")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables there, print nothing")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    runs: Runs = json.loads(asked.out.read_text()) if asked.out.is_file() else {}
    parts = [part for part in asked.problems if part not in PROBLEMS]
    names = [name for name in PROBLEMS if name in asked.problems or any(part in name for part in parts)]
    names = [name for name in names if not (asked.reported and PROBLEMS[name].part)]
    if asked.costs:
        found = PROBLEMS[names[0]]
        asked.out.write_text(json.dumps(costs(found, asked.rows, asked.cifar), indent=1) + "\n")
        return
    for problem, method, optimizer, seed in () if asked.show else wanted(runs, names, asked.rows, asked.seeds):
        name = key(problem, method, optimizer, seed)
        if name not in runs:
            found = PROBLEMS[problem]
            runs[name] = measure(found, method, optimizer, seed, dataset(found, asked.cifar, asked.fashion))
            write(asked.out, json.dumps(runs, indent=1) + "\n")
            print(f"{name}: {runs[name]}", flush=True)
    text = "\n\n".join(tables(runs, names)) + "\n"
    write(asked.markdown, text) if asked.markdown else print(text, end="")


if __name__ == "__main__":
    main()
