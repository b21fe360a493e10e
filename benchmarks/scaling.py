"""How time and memory grow with samples, classes and parameters, with exponents fitted in log-log.

    OMP_NUM_THREADS=1 python benchmarks/scaling.py [--quick] [--only label_issues ...] [--json FILE]

Each point is measured in a process of its own: processor time of one thread (median over rounds, without the first
where there are several) and peak memory beyond what the process held before the work. Optimizers take turns on one
model, and their ratio to SGD is the median of ratios within a round. The exponent is the slope of a least-squares line
through all points in log-log; "last decade" is the slope over the largest sizes alone. "~" marks an extrapolation to
10^6 samples by the slope of the last decade.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from timing import parser, ratio, write_json

FEATURES, BATCH = 64, 128
ROUNDS, ENOUGH, QUICK_ENOUGH = 15, 2.0, 0.3  # most rounds, and the seconds after which no other follows
BUDGET, QUICK_BUDGET = 600.0, 3.0  # seconds; a size that would take longer in proportion to the one before is left out
MILLION = 10**6

Works = dict[str, Callable[[], object]]


def noisy_rows(samples: int, classes: int) -> tuple[Tensor, Tensor]:
    """Clusters of 64 features, with 20 % wrong labels."""
    random = torch.Generator().manual_seed(0)
    true = torch.arange(samples) % classes
    wrong = torch.rand(samples, generator=random) < 0.2
    labels = torch.where(wrong, torch.randint(classes, (samples,), generator=random), true)
    centers = 1.5 * torch.randn(classes, FEATURES, generator=random)
    return centers[true] + torch.randn(samples, FEATURES, generator=random), labels


def label_issues(samples: int, classes: int) -> Works:
    """`ncsam.find_label_issues` from given probabilities."""
    from ncsam import find_label_issues

    random = np.random.default_rng(0)
    true = np.arange(samples) % classes
    labels = np.where(random.random(samples) < 0.2, random.integers(classes, size=samples), true)
    probabilities = random.standard_normal((samples, classes), dtype=np.float32)
    probabilities[np.arange(samples), true] += 4.0
    np.exp(probabilities, out=probabilities)
    probabilities /= probabilities.sum(1, keepdims=True)
    return {"label issues from probabilities": lambda: find_label_issues(labels, probabilities)}


def classifier(samples: int, classes: int) -> Works:
    """The recommended classifier on embeddings, with its five folds."""
    from ncsam.classifiers import cross_fit

    x, y = noisy_rows(samples, classes)
    x = (x - x.mean(0)) / x.std(0)
    return {"fit of the recommended classifier": lambda: cross_fit("smooth", x, y, classes)}


def epoch(samples: int, classes: int) -> Works:
    """An epoch of the engine with its evaluations, on an MLP under SGD."""
    from ncsam.data import from_arrays
    from ncsam.engine import RunConfig
    from ncsam.engine.device import choose_device
    from ncsam.engine.resolve import resolve
    from ncsam.engine.task import load_task
    from ncsam.engine.trainer import Trainer

    x, y = (each.numpy() for each in noisy_rows(samples + 1000, classes))
    dataset = from_arrays(x[:samples], y[:samples], x_test=x[samples:], y_test=y[samples:], allow_empty=True)
    config = RunConfig(
        data="rows",
        model="mlp",
        optimizer="sgd",
        epochs=ROUNDS + 1,
        batch_size=BATCH,
        val_share=0.0,
        accelerator="cpu",
        precision="32-true",
    )
    task = load_task(config, dataset)
    return {"epoch of training": Trainer(choose_device(config), resolve(config, task), task).train_epoch}


def batch(samples: int, classes: int) -> Works:
    """A batch from an array in memory, in the order of the epoch, which is drawn beforehand."""
    from ncsam.data import from_arrays
    from ncsam.data.loading.loader import Loader

    dataset = from_arrays(np.zeros((samples, FEATURES), dtype=np.float32), np.arange(samples) % classes)
    loader = Loader(dataset.train, BATCH, seed=0)
    stream = itertools.chain.from_iterable(loader.iterate(epoch) for epoch in itertools.count())
    next(stream)
    return {"batch of the loader": lambda: next(stream)}


def steps(parameters: int, classes: int) -> Works:
    """Whole steps of the optimizers on an MLP with two hidden layers of equal width."""
    from ncsam import NCSAM, SAM
    from ncsam.optim.sharpness_aware import SharpnessAware

    ends = FEATURES + classes + 2
    width = round((math.sqrt(ends**2 + 4 * parameters) - ends) / 2)
    layers = (nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes))
    model = nn.Sequential(*layers)
    x, y = noisy_rows(BATCH, classes)

    def base() -> torch.optim.SGD:
        return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-3)

    def bare() -> None:
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        sgd.step()
        sgd.zero_grad()

    def wrapped(optimizer: SharpnessAware) -> Callable[[], object]:
        def step() -> None:
            optimizer.step(lambda: model(x), y)
            optimizer.zero_grad()

        return step

    sgd = base()
    return {
        "step of SGD": bare,
        "step of SAM": wrapped(SAM(base())),
        "step of NCSAM": wrapped(NCSAM(base(), total_steps=100, ramp="constant")),
    }


@dataclass(frozen=True)
class Series:
    """Some works at several sizes: what makes them, what their size counts, and the number of the other thing."""

    make: Callable[[int, int], Works]
    grows: str
    sizes: tuple[int, ...]
    fixed: int = 10
    least: int = 1  # rounds

    def at(self, size: int, quick: bool) -> Works:
        return self.make(self.fixed // (10 if quick else 1), size) if self.grows == "classes" else self.make(size, 10)


_SAMPLES = (1_000, 3_000, 10_000, 30_000, 100_000)
_CLASSES = (2, 10, 100, 1_000)
SERIES = {
    "classifier": Series(classifier, "samples", _SAMPLES),
    "epoch": Series(epoch, "samples", _SAMPLES),
    "label_issues": Series(label_issues, "samples", (*_SAMPLES, MILLION)),
    "loader": Series(batch, "samples", (*_SAMPLES, MILLION)),
    "classifier_classes": Series(classifier, "classes", _CLASSES, 10_000),
    "epoch_classes": Series(epoch, "classes", _CLASSES, 10_000),
    "label_issues_classes": Series(label_issues, "classes", _CLASSES, 10_000),
    "steps": Series(steps, "parameters", tuple(10**power for power in range(4, 9)), least=4),
}


def memory(kind: str) -> float:
    """Megabytes that this process holds (VmRSS), or has held at most since the last reset (VmHWM)."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return float(status[kind].split()[0]) / 1024


def measure(name: str, size: int, quick: bool) -> dict[str, dict[str, float]]:
    """Seconds, peak memory and ratio to the first work, of each work of a series, in this process."""
    torch.set_num_threads(1)
    works = SERIES[name].at(size, quick)
    seconds: dict[str, list[float]] = {work: [] for work in works}
    peak = dict.fromkeys(works, 0.0)
    for done in range(ROUNDS):
        if done >= SERIES[name].least and sum(map(sum, seconds.values())) > (QUICK_ENOUGH if quick else ENOUGH):
            break
        for work, run in works.items():
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts here
            before = memory("VmRSS")
            began = time.process_time()
            run()
            seconds[work].append(time.process_time() - began)
            peak[work] = max(peak[work], memory("VmHWM") - before)
    counted = {work: times[1:] or times for work, times in seconds.items()}
    first = next(iter(counted.values()))
    return {
        work: {"seconds": statistics.median(times), "mb": peak[work], "ratio": ratio(times, first)}
        for work, times in counted.items()
    }


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Slope of the least-squares line through the points in log-log."""
    x, y = np.log(np.asarray(sizes, dtype=float)), np.log(np.asarray(values, dtype=float))
    x -= x.mean()
    return float(x @ y / (x @ x))


def last_decade(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The exponent over the sizes from a tenth of the largest; over the last two where there is no such pair."""
    start = min(next(i for i, size in enumerate(sizes) if size >= sizes[-1] / 10), max(len(sizes) - 2, 0))
    return exponent(sizes[start:], values[start:])


def extrapolate(sizes: Sequence[float], values: Sequence[float], size: float) -> float:
    """The value at a larger size, by the exponent of the last decade."""
    return values[-1] * math.pow(size / sizes[-1], last_decade(sizes, values))


def rows(name: str, quick: bool) -> list[dict[str, Any]]:
    """Measure a series: one row for each of its works."""
    series = SERIES[name]
    points: dict[int, dict[str, dict[str, float]]] = {}
    for size in series.sizes:
        if points:
            last = max(points)
            taken = sum(point["seconds"] for point in points[last].values())
            if taken * size / last > (QUICK_BUDGET if quick else BUDGET):
                break
        with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
            points[size] = pool.submit(measure, name, size, quick).result()
    sizes = list(points)
    found = []
    for work in points[sizes[0]]:
        row: dict[str, Any] = {"work": work, "grows": series.grows, "sizes": sizes}
        row |= {key: [points[size][work][key] for size in sizes] for key in ("seconds", "mb", "ratio")}
        seconds = row["seconds"]
        if len(sizes) > 1:
            row |= {"exponent": exponent(sizes, seconds), "last_decade": last_decade(sizes, seconds)}
        if series.grows == "samples" and MILLION / 10 <= sizes[-1] < MILLION:
            row["extrapolated_seconds"] = extrapolate(sizes, seconds, MILLION)
        found.append(row)
    return found


def duration(seconds: float) -> str:
    """Two digits, with the unit."""
    return f"{float(f'{seconds:.2g}'):,g} s" if seconds >= 1 else f"{float(f'{1e3 * seconds:.2g}'):g} ms"


def line(row: dict[str, Any]) -> str:
    """A row of the table, in Markdown."""
    sizes = ", ".join(f"{size:,}" if size < 10**5 else f"10^{math.log10(size):g}" for size in row["sizes"])
    times = ", ".join(map(duration, row["seconds"]))
    ratios = ", ".join(f"{each:.2f}" for each in row["ratio"]) if max(row["ratio"]) > 1 else ""
    million = f"~{duration(row['extrapolated_seconds'])}" if "extrapolated_seconds" in row else ""
    slopes = f"{row['exponent']:.2f} | {row['last_decade']:.2f}" if "exponent" in row else " | "
    cells = (row["work"], f"{sizes} {row['grows']}", times, ratios, f"{row['mb'][-1]:,.0f} MB", slopes, million)
    return f"| {' | '.join(cells)} |"


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--only", nargs="+", choices=list(SERIES), default=list(SERIES), help="these series alone")
    chosen = options.parse_args()
    found: dict[str, list[dict[str, Any]]] = {}
    print("| | sizes | time | SGD = 1 | peak memory at the largest | exponent | last decade | 10^6 samples |")
    print("|---|---|---|---|---:|---:|---:|---:|")
    for name in chosen.only:
        found[name] = rows(name, chosen.quick)
        print(*map(line, found[name]), sep="\n", flush=True)
        write_json(chosen.json, found)  # after each series, so that an interrupted run keeps what it has


if __name__ == "__main__":
    main()
