"""kappa and flip ratio of NCSAM as printed and as its authors run it, on digits, with and without BatchNorm.

    python experiments/variant_ablations.py OUT.json [--seeds 3]
    python experiments/variant_ablations.py OUT.json --tables --figure OUT.svg

40 % symmetric noise, a convolutional network (three layers, widths 16-32-64), 24 epochs, a quarter of them warm-up by
SGD (lr .05, momentum .9, weight decay 1e-3, cosine, batch 64). Mean test accuracy of the last five epochs, the share of
wrong labels memorized, and the mean length of the perturbation after warm-up. Interrupted, the same command resumes.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam import data, noise, optim
from ncsam._errors import need
from ncsam._files import atomic_path
from ncsam._statistics import Spread
from ncsam.report.markdown import table as markdown_table

EPOCHS, WARMUP, BATCH = 24, 6, 64
Build = Callable[[torch.optim.Optimizer, dict[str, Any]], torch.optim.Optimizer]


def _printed(**options: Any) -> Build:
    return lambda base, common: optim.NCSAM(base, **{"rho": 0.05, "kappa": 0.1, "flip_ratio": 0.4, **options}, **common)


def _authors(kind: Any = optim.AuthorsNCSAM, **options: Any) -> Build:
    return lambda base, common: kind(base, **{"rho": 0.05, "kappa": 0.25, "flip_ratio": 0.4, **options}, **common)


#: Arms by name; the first of a pair of words is the variant.
ARMS: dict[str, Build | None] = {
    "SGD": None,
    "SAM, rho .05": _printed(kappa=0.0),
    "SAM, rho .2": _printed(kappa=0.0, rho=0.2),
    "SAM, rho .5": _printed(kappa=0.0, rho=0.5),
    "SAM, rho 1": _printed(kappa=0.0, rho=1.0),
    "SAM, rho auto": _printed(kappa=0.0, rho="auto"),
    "printed, kappa .02": _printed(kappa=0.02),
    "printed, kappa .1": _printed(),
    "printed, kappa .5": _printed(kappa=0.5),
    "printed, flip ratio .2": _printed(flip_ratio=0.2),
    "printed, flip ratio .6": _printed(flip_ratio=0.6),
    "authors, kappa .05": _authors(kappa=0.05),
    "authors, kappa .25": _authors(),
    "authors, kappa .75": _authors(kappa=0.75),
    "authors, kappa 1.5": _authors(kappa=1.5),
    "authors, flip ratio .2": _authors(flip_ratio=0.2),
    "authors, flip ratio .6": _authors(flip_ratio=0.6),
    "length-matched, kappa .25": _authors(optim.LengthMatchedSAM),
    "length-matched, kappa .75": _authors(optim.LengthMatchedSAM, kappa=0.75),
}
#: Trained first.
FIRST = (
    *("SGD", "SAM, rho .05", "SAM, rho .5", "printed, kappa .1", "authors, kappa .25", "length-matched, kappa .25"),
    *("authors, kappa .75", "length-matched, kappa .75", "SAM, rho auto", "SAM, rho .2", "SAM, rho 1"),
)


def network(batch_norm: bool) -> nn.Module:
    layers: list[nn.Module] = []
    inside = 1
    for width in (16, 32, 64):
        layers.append(nn.Conv2d(inside, width, 3, padding=1))
        layers += [nn.BatchNorm2d(width)] * batch_norm
        layers += [nn.ReLU(), nn.AdaptiveAvgPool2d(1) if width == 64 else nn.MaxPool2d(2)]
        inside = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 10))


def digits(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Training images, noisy and true labels, test images and labels."""
    found = data.load("digits")
    assert found.test is not None
    noisy = noise.symmetric(found.train.labels, 0.4, num_classes=10, seed=seed).noisy.copy()
    images = [torch.from_numpy(s.inputs.copy()).float().permute(0, 3, 1, 2) for s in (found.train, found.test)]
    mean, std = images[0].mean(), images[0].std()
    x, x_test = ((image - mean) / std for image in images)
    labels = [torch.from_numpy(values.copy()) for values in (noisy, found.train.labels, found.test.labels)]
    return x, labels[0], labels[1], x_test, labels[2]


def measure(build: Build | None, batch_norm: bool, seed: int) -> dict[str, float]:
    """Train one run."""
    x, y, clean, x_test, y_test = digits(seed)
    torch.manual_seed(seed)
    model = network(batch_norm)
    base = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    batches = len(x) // BATCH
    steps = EPOCHS * batches
    common = {"total_steps": steps, "warmup_steps": WARMUP * batches, "model": model, "telemetry_every": 10}
    optimizer = base if build is None else build(base, common)
    accuracies, lengths = [], []
    done = 0
    for _ in range(EPOCHS):
        model.train()
        for index in torch.randperm(len(x))[: batches * BATCH].split(BATCH):
            for group in optimizer.param_groups:
                group["lr"] = 0.05 * 0.5 * (1 + math.cos(math.pi * done / steps))
            inputs, targets = x[index], y[index]
            if isinstance(optimizer, optim.SharpnessAware):
                optimizer.step(lambda inputs=inputs: model(inputs), targets)
                last = optimizer.last_step
                if last is not None and last.perturbation_norm is not None and done >= WARMUP * batches:
                    lengths.append(float(last.perturbation_norm))
            else:
                optimizer.zero_grad()
                F.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
            done += 1
        model.eval()
        with torch.no_grad():
            accuracies.append(100 * float((model(x_test).argmax(1) == y_test).float().mean()))
    with torch.no_grad():
        wrong = y != clean
        memorized = 100 * float((model(x).argmax(1)[wrong] == y[wrong]).float().mean())
    known = [length for length in lengths if math.isfinite(length)]
    return {
        "last5": sum(accuracies[-5:]) / 5,
        "memorized": memorized,
        "length": sum(known) / len(known) if known else 0.0,
    }


def tables(found: dict[str, dict[str, float]]) -> str:
    """Mean and standard error of each arm."""
    rows = []
    for arm in ARMS:
        row = [arm]
        for norm in ("BatchNorm", "none"):
            runs = [value for key, value in found.items() if key.startswith(f"{arm}|{norm}|")]
            spreads = {name: Spread.of(run[name] for run in runs) for name in ("last5", "memorized", "length")}
            row += ["-" if s is None else s.text(1, error=True) if n == "last5" else f"{s.mean:.{d}f}"
                    for (n, s), d in zip(spreads.items(), (1, 0, 2), strict=True)]  # fmt: skip
        rows.append(row)
    head = ["", "BatchNorm: last five", "memorized", "length", "none: last five", "memorized", "length"]
    return markdown_table(head, rows)


def draw(found: dict[str, dict[str, float]], path: Path) -> None:
    """Accuracy and memorized share against the length of the perturbation, with BatchNorm."""
    image = need("matplotlib.figure", "plot", "drawing").Figure((9.5, 3.8), layout="constrained")
    kinds = {"SGD": "SGD (at .02)", "SAM": "SAM", "printed": "NCSAM as printed", "authors": "NCSAM, authors"}
    kinds |= {"length-matched": "SAM, length-matched"}
    for ax, name, label in zip(
        image.subplots(1, 2), ("last5", "memorized"), ("test accuracy, last five epochs", "memorized, %"), strict=True
    ):
        for kind, title in kinds.items():
            runs = [v for k, v in found.items() if k.partition(",")[0].partition("|")[0] == kind and "|BatchNorm|" in k]
            ax.scatter([run["length"] or 0.02 for run in runs], [run[name] for run in runs], s=22, label=title)
        ax.set_xscale("log")
        ax.set_xlabel("mean length of the perturbation after warm-up")
        ax.set_ylabel(label)
    image.axes[0].legend(fontsize=8)
    with need("matplotlib", "plot", "drawing").rc_context({"svg.fonttype": "none", "svg.hashsalt": "ablations"}):
        image.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tables", action="store_true", help="print what is finished, and run nothing")
    parser.add_argument("--figure", type=Path, help="draw it there")
    asked = parser.parse_args()
    found: dict[str, dict[str, float]] = json.loads(asked.out.read_text()) if asked.out.is_file() else {}
    if not asked.tables:
        torch.set_num_threads(1)
        for seed in range(1, asked.seeds + 1):
            for norm in ("BatchNorm", "none"):
                for arm in dict.fromkeys((*FIRST, *ARMS)):
                    key = f"{arm}|{norm}|{seed}"
                    if key not in found:
                        found[key] = {n: round(v, 4) for n, v in measure(ARMS[arm], norm == "BatchNorm", seed).items()}
                        with atomic_path(asked.out) as temporary:
                            temporary.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(tables(found))
    if asked.figure is not None:
        draw(found, asked.figure)


if __name__ == "__main__":
    main()
