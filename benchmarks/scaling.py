"""How time and memory grow with samples, classes and parameters, on one thread, with fitted exponents.

    python benchmarks/scaling.py [--quick] [--only label_issues ...] [--json FILE]

Each point is measured in a fresh process: processor time (median of the repeats, after a warm-up where a repeat is
short), and the peak memory of the process beyond what it held before the work (its inputs). The exponent is the slope
of a log-log regression over all measured points; "last decade" is the slope between the two largest. Once a point takes
longer than the budget, larger ones are extrapolated from the last two points and marked with "~".
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from timing import parser, write_json

BATCH, FEATURES = 256, 64
MOST_REPEATS, ENOUGH = 15, 1.0  # repeats of a point, and the seconds after which no other follows
BUDGET, QUICK_BUDGET = 30.0, 3.0  # a point above it is the last one measured
CHILD = "NCSAM_SCALING_POINT"

Measure = Callable[[], float]  # runs the work once and returns its seconds


def timed(work: Callable[[], object]) -> Measure:
    def measure() -> float:
        began = time.process_time()
        work()
        return time.process_time() - began

    return measure


def label_issues(samples: int, classes: int) -> Measure:
    """`ncsam.find_label_issues` from probabilities, with 20 % wrong labels."""
    from ncsam import find_label_issues

    random = np.random.default_rng(0)
    true = np.arange(samples) % classes
    labels = np.where(random.random(samples) < 0.2, random.integers(classes, size=samples), true)
    logits = random.standard_normal((samples, classes), dtype=np.float32)
    logits[np.arange(samples), true] += 4.0
    np.exp(logits, out=logits)
    logits /= logits.sum(1, keepdims=True)
    return timed(lambda: find_label_issues(labels, logits))


def classifier(samples: int, classes: int) -> Measure:
    """The recommended classifier on features, with its five folds."""
    from ncsam.classifiers import cross_fit

    random = np.random.default_rng(0)
    true = np.arange(samples) % classes
    labels = np.where(random.random(samples) < 0.2, random.integers(classes, size=samples), true)
    centers = 1.5 * random.standard_normal((classes, FEATURES), dtype=np.float32)
    x = torch.from_numpy(random.standard_normal((samples, FEATURES), dtype=np.float32) + centers[true])
    y = torch.from_numpy(labels)
    return timed(lambda: cross_fit("smooth", x, y, classes))


def loader_batch(samples: int, classes: int) -> Measure:
    """A batch of 256 rows from an array in memory, in the order of the epoch, which is drawn beforehand."""
    from ncsam.data import from_arrays
    from ncsam.data.loading.loader import Loader

    dataset = from_arrays(np.zeros((samples, FEATURES), dtype=np.float32), np.arange(samples) % classes)
    loader = Loader(dataset.train, BATCH, seed=0)
    stream = itertools.chain.from_iterable(loader.iterate(epoch) for epoch in itertools.count())
    next(stream)
    return timed(lambda: next(stream))


class FreeBackward:
    """Parameters in ten equal tensors, with ready-made gradients in place of forward and backward."""

    def __init__(self, numbers: int) -> None:
        self.parameters = [nn.Parameter(torch.randn(numbers // 10)) for _ in range(10)]
        self.gradients = [torch.randn_like(p) for p in self.parameters]
        self.noise: list[Tensor] = []
        self.logits = torch.randn(128, 10, requires_grad=True)
        self.targets = torch.randint(0, 10, (128,))

    def leave(self, loss: Tensor | None = None, retain_graph: bool = False) -> None:
        """A backward that costs nothing. The second one of a step of NCSAM, which frees the graph, leaves g*."""
        for p, g in zip(self.parameters, self.gradients if retain_graph or loss is None else self.noise, strict=True):
            p.grad = g

    def beyond_sgd(self, kind: str) -> Measure:
        from ncsam import NCSAM, SAM

        def sgd() -> torch.optim.SGD:
            return torch.optim.SGD(self.parameters, lr=1e-6, momentum=0.9, weight_decay=1e-3)

        base = sgd()

        def plain() -> None:
            self.leave()
            base.step()

        model = nn.Module()
        ours = SAM(base, model=model) if kind == "sam" else NCSAM(base, total_steps=1, ramp="constant", model=model)

        def step() -> None:
            ours.zero_grad()
            loss = torch.nn.functional.cross_entropy(self.logits, self.targets)
            if kind == "sam":
                ours.backward(loss, backward=lambda loss, retain_graph: self.leave())
            else:
                ours.backward(loss, self.logits, self.targets, backward=self.leave)
            for perturbed in ours.perturbations():
                with perturbed:
                    self.leave()
            ours.step()

        plain()  # momentum is SGD's own
        run, bare = timed(step), timed(plain)

        def measure() -> float:
            if kind == "ncsam":  # consumed by the step; a backward would have made it
                self.noise = [g.clone() for g in self.gradients]
            return run() - bare()

        return measure


def sam_overhead(parameters: int, _: int) -> Measure:
    """A step of SAM without its passes, beyond SGD's."""
    return FreeBackward(parameters).beyond_sgd("sam")


def ncsam_overhead(parameters: int, _: int) -> Measure:
    """A step of NCSAM without its passes, beyond SGD's."""
    return FreeBackward(parameters).beyond_sgd("ncsam")


@dataclass(frozen=True)
class Series:
    """One quantity: what makes its work, which of its two sizes varies, and the other one."""

    title: str
    make: Callable[[int, int], Measure]
    varies: str
    sizes: tuple[int, ...]
    fixed: int

    def point(self, size: int) -> tuple[int, int]:
        return (self.fixed, size) if self.varies == "classes" else (size, self.fixed)


_SAMPLES, _CLASSES = (10**3, 10**4, 10**5, 10**6), (2, 10, 100, 1000)
_PARAMETERS = (10**4, 10**5, 10**6, 10**7, 10**8)
SERIES = {
    "label_issues": Series("label issues, 10 classes", label_issues, "samples", _SAMPLES, 10),
    "label_issues_classes": Series("label issues, 10,000 samples", label_issues, "classes", _CLASSES, 10**4),
    "classifier": Series("recommended classifier, 10 classes", classifier, "samples", _SAMPLES, 10),
    "classifier_classes": Series("recommended classifier, 10,000 samples", classifier, "classes", _CLASSES, 10**4),
    "sam": Series("SAM step beyond SGD, passes excluded", sam_overhead, "parameters", _PARAMETERS, 0),
    "ncsam": Series("NCSAM step beyond SGD, passes excluded", ncsam_overhead, "parameters", _PARAMETERS, 0),
    "loader": Series("batch of 256 from the loader", loader_batch, "samples", _SAMPLES, 10),
}


def memory(kind: str) -> float:
    """Megabytes that this process holds (VmRSS), or has held at most (VmHWM)."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return float(status[kind].split()[0]) / 1024


def child(name: str, size: int) -> dict[str, float]:
    """Measure one point in this process."""
    torch.set_num_threads(1)
    series = SERIES[name]
    measure = series.make(*series.point(size))
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts here: making the inputs is not part of it
    before = memory("VmRSS")
    first = measure()
    repeats = []
    while first + sum(repeats) < ENOUGH and len(repeats) < MOST_REPEATS:
        repeats.append(measure())
    return {"seconds": statistics.median(repeats or [first]), "mb": max(0.0, memory("VmHWM") - before)}


def measured(name: str, size: int) -> dict[str, float]:
    environment = os.environ | {CHILD: f"{name} {size}", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, __file__]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    point: dict[str, float] = json.loads(found.stdout.splitlines()[-1])
    return point


def slope(sizes: list[int], values: list[float]) -> float:
    """The exponent of a power law through these points, by log-log regression; not a number with fewer than two."""
    positive = [(math.log(s), math.log(v)) for s, v in zip(sizes, values, strict=True) if v > 0]
    return statistics.linear_regression(*zip(*positive, strict=True)).slope if len(positive) > 1 else math.nan


def run(name: str, budget: float) -> dict[str, Any]:
    series = SERIES[name]
    sizes: list[int] = []
    points: list[dict[str, float]] = []
    guessed: list[dict[str, float]] = []
    for size in series.sizes:
        if points and points[-1]["seconds"] > budget:
            guess = {}
            for of in ("seconds", "mb"):
                values = [p[of] for p in points[-2:]]
                guess[of] = values[-1] * (size / sizes[-1]) ** slope(sizes[-2:], values)
            guessed.append({"size": size, **guess})
            continue
        points.append(measured(name, size))
        sizes.append(size)
    seconds = [p["seconds"] for p in points]
    return {
        "title": series.title,
        "varies": series.varies,
        "measured": [{"size": size, **point} for size, point in zip(sizes, points, strict=True)],
        "extrapolated": guessed,
        "exponent": slope(sizes, seconds),
        "last_decade": slope(sizes[-2:], seconds[-2:]),
        "memory_exponent": slope(sizes[-2:], [p["mb"] for p in points[-2:]]),
    }


def shown(point: dict[str, float], mark: str = "") -> str:
    seconds = point["seconds"]
    span = f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
    return f"{mark}{span}, {point['mb']:,.0f} MB"


def print_row(row: dict[str, Any]) -> None:
    """A row of one Markdown table, with its sizes in ascending order."""
    cells = [(p, "") for p in row["measured"]] + [(p, "~") for p in row["extrapolated"]]
    text = "; ".join(f"{p['size']:,.0f}: {shown(p, mark)}" for p, mark in cells)
    slopes = " | ".join(f"{row[key]:.2f}" for key in ("exponent", "last_decade", "memory_exponent"))
    print(f"| {row['title']} | {row['varies']} | {text} | {slopes} |", flush=True)


def main() -> None:
    if CHILD in os.environ:
        name, size = os.environ[CHILD].split()
        print(json.dumps(child(name, int(size))))
        return
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--only", nargs="+", choices=list(SERIES), default=list(SERIES), help="these rows alone")
    chosen = options.parse_args()
    rows = {}
    print("| | grows with | time and peak memory at each size | exponent | last decade | of memory, last decade |")
    print("|---|---|---|---:|---:|---:|")
    for name in chosen.only:
        rows[name] = run(name, QUICK_BUDGET if chosen.quick else BUDGET)
        print_row(rows[name])
        write_json(chosen.json, rows)  # after each row, so that an interrupted run keeps what it has


if __name__ == "__main__":
    main()
