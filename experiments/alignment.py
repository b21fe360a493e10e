"""Does NCSAM's perturbation point more along the clean gradient than SAM's, and when?

Networks are trained with the paper's literal settings (and by SGD alone, for comparison). After every epoch the
gradients of some training batches are measured: of the whole batch, of its rightly and wrongly labeled samples, and
NCSAM's estimate g* of the latter. All strengths and radii follow from these in closed form.

    python experiments/alignment.py runs/alignment.json --cifar FILE.npz --figure docs/experiments/alignment.png

The `.npz` file holds CIFAR-10 images (`x_train`, `y_train`) and further label arrays named by `--labels`.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common import markdown_table, parser, write
from ncsam import data, models, noise
from ncsam._errors import need
from ncsam._files import atomic_path
from ncsam.data.loading.loader import Loader
from ncsam.data.types import DataSet
from ncsam.optim import NCSAM
from ncsam.optim.ramps import smooth
from ncsam.report.figures import COLORS
from ncsam.theory import WithClean, alignments, mean_alignment

RHO, KAPPA, WARMUP, LARGEST_FLIP = 0.05, 0.1, 0.25, 0.4  # the paper's, with the rho of its first author's code
RATIOS = np.logspace(-2, 2, 41)


def noisy(dataset: DataSet, recipe: str, rate: float | None, arrays: dict[str, Any]) -> DataSet:
    """The dataset under wrong labels: by one of our recipes, or as an array has them."""
    train = dataset.train
    if rate is None:
        observed = arrays[recipe][: len(train)]
    else:
        options = {"inputs": train.inputs} if recipe == "instance" else {}
        observed = noise.make(recipe, train.labels, rate, num_classes=dataset.num_classes, seed=0, **options).noisy
    return replace(dataset, train=train.with_labels(observed, train.labels))


def trained(
    dataset: DataSet,
    model: str,
    options: dict[str, Any],
    optimizer: str,
    epochs: int,
    seed: int,
    batches: int,
    every: int,
) -> list[dict[str, Any]]:
    """Train, and after every few epochs measure `batches` of the next one."""
    train = dataset.train
    image = dataset.size is not None and max(dataset.size) > 16
    torch.manual_seed(seed)
    network = models.create(model, dataset.num_classes, len(dataset.mean), **options)
    loader = Loader(
        train,
        128 if image else 32,
        views="weak" if image else "plain",
        mean=dataset.mean,
        std=dataset.std,
        seed=seed,
        batches="full",
        drop_last=True,
    )
    base = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    steps = epochs * len(loader)
    schedule = torch.optim.lr_scheduler.LambdaLR(base, lambda i: 0.5 * (1 + math.cos(math.pi * i / steps)))
    wrong = train.labels != train.clean
    flip_ratio = min(float(wrong.mean()), LARGEST_FLIP)
    warmup = round(WARMUP * epochs) * len(loader) if optimizer == "ncsam" else steps  # SGD is warm-up without end
    step = NCSAM(base, RHO, KAPPA, flip_ratio, warmup_steps=warmup, generator=torch.Generator().manual_seed(seed))
    evaluation = loader.evaluation()
    history = []
    for epoch in range(1, epochs + 1):
        step.progress = epoch / epochs
        network.train()
        for batch in loader.iterate(epoch):
            step.step(lambda: network(batch.views[0]), batch.labels)  # noqa: B023 - called at once
            schedule.step()
        if epoch > 1 and epoch % every and epoch < epochs:
            continue
        found = alignments(
            network,
            WithClean(list(islice(loader.iterate(epoch + 1), batches)), train.clean),
            rho=RHO,
            strength=KAPPA * smooth(epoch / epochs),
            flip_ratio=flip_ratio,
            generator=torch.Generator().manual_seed(epoch),
        )
        network.eval()
        with torch.no_grad():
            right = torch.cat([network(b.views[0]).argmax(1) == b.labels for b in evaluation.iterate(0)]).numpy()
        turned = np.array(
            [[[each.at(q, sign)[0] - each.cos_clean_sam for q in RATIOS] for sign in (1, -1)] for each in found]
        )
        mean = mean_alignment(found)
        history.append(
            {
                "epoch": epoch,
                "memorized": 100 * float(right[wrong].mean()),
                **asdict(mean),
                "slope": float(np.mean([each.slope for each in found])),
                "against_sam": 100 * float(np.mean([each.cos_sam < 0 for each in found])),
                "gain_rho_0.5": float(
                    np.mean([each.at(each.compensation_ratio / 10)[0] - each.cos_clean_sam for each in found])
                ),
                "gain_plus": np.nanmean(turned[:, 0], axis=0).tolist(),
                "gain_minus": np.nanmean(turned[:, 1], axis=0).tolist(),
            }
        )
    return history


def mean(runs: list[dict[str, Any]], name: str, place: int) -> float:
    """A quantity over the runs (which differ in their seed), at one place of their histories."""
    return float(np.mean([run["history"][place][name] for run in runs]))


def report(runs: list[dict[str, Any]], figure: Path | None) -> None:
    """A table in Markdown: at the end of warm-up, in the middle and at the end of training; and the figure."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault((run["data"], run["noise"], run["optimizer"]), []).append(run)
    literal = {key: group for key, group in groups.items() if key[2] == "ncsam"}
    names = {"memorized": "memorized, %", "compensation_ratio": "q", "cos_grad_estimate": "cos(g_B, g*)"}
    names |= {"cos_clean_noise": "cos(g_clean, g_noise)", "cos_estimate_noise": "cos(g*, g_noise)"}
    names |= {"cos_sam": "cos(eps, eps_SAM)", "against_sam": "against SAM, %"}
    names |= {
        "cos_clean_sam": "cos(eps_SAM, g_clean)",
        "cos_clean": "cos(eps, g_clean)",
        "gain_rho_0.5": "gain, rho .5",
    }
    head = ["data", "noise", "epoch", *names.values(), "best gain of + s g*, at q", "best gain of - s g*, at q"]
    rows = []
    for (name, label, _), group in literal.items():
        epochs = [row["epoch"] for row in group[0]["history"]]
        for place in (int(np.searchsorted(epochs, WARMUP * epochs[-1])), len(epochs) // 2, len(epochs) - 1):
            cells = [f"{mean(group, c, place):.{0 if names[c].endswith('%') else 2}f}" for c in names]
            for sign in ("gain_plus", "gain_minus"):
                curve = np.mean([run["history"][place][sign] for run in group], axis=0)
                cells.append(f"{curve.max():+.2f}, {RATIOS[curve.argmax()]:.2f}" if curve.max() >= 0.005 else "none")
            rows.append([name, label, str(epochs[place]), *cells])
    print(markdown_table(head, rows))
    for name, label, optimizer in groups:
        if optimizer == "sgd":
            ours, plain = groups[name, label, "ncsam"], groups[name, label, "sgd"]
            apart = [
                abs(mean(ours, "cos_clean", i) - mean(plain, "cos_clean", i)) for i in range(len(plain[0]["history"]))
            ]
            print(f"{name}, {label}: trained by SGD alone, cos(eps, g_clean) differs by {max(apart):.2f} at most")
    if figure:
        draw(literal, figure)


def draw(groups: dict[tuple[str, str, str], list[dict[str, Any]]], path: Path) -> None:
    """A row per dataset: cosines along training, and the gain over SAM at every ratio q, late in training."""
    names = list(dict.fromkeys(key[0] for key in groups))
    image = need("matplotlib.figure", "plot", "drawing").Figure((13, 3.5 * len(names)), layout="constrained")
    rows = image.subplots(len(names), 3, squeeze=False)
    for name, (clean, sam, ratio) in zip(names, rows, strict=True):
        for number, (key, group) in enumerate(item for item in groups.items() if item[0][0] == name):
            color = COLORS[number]
            epochs = [row["epoch"] for row in group[0]["history"]]
            places = range(len(epochs))
            clean.plot(epochs, [mean(group, "cos_clean", i) for i in places], color=color)
            clean.plot(epochs, [mean(group, "cos_clean_sam", i) for i in places], "--", color=color)
            sam.plot(epochs, [mean(group, "cos_sam", i) for i in places], color=color, label=key[1])
            for style, sign in (("-", "gain_plus"), (":", "gain_minus")):
                curve = np.mean([run["history"][-1][sign] for run in group], axis=0)
                ratio.plot(RATIOS, curve, style, color=color)
            ratio.plot(
                mean(group, "compensation_ratio", -1),
                mean(group, "cos_clean", -1) - mean(group, "cos_clean_sam", -1),
                "o",
                color=color,
            )
        clean.set(title=f"{name}: cos with the clean gradient\n(solid eps_NCSAM, dashed eps_SAM)", xlabel="epoch")
        sam.set(title="cos(eps_NCSAM, eps_SAM)", xlabel="epoch")
        ratio.set(title="gain in cos over SAM at the end\n(solid + s g*, dotted - s g*, dots: as trained)")
        ratio.set(xlabel="q = s ||g*|| / rho", xscale="log")
        sam.legend(frameon=False, fontsize=8, loc="upper right")
        for axis in (clean, sam):
            axis.axvline(round(WARMUP * epochs[-1]), color="#7f7f7f", linestyle=(0, (2, 2)), linewidth=0.8)
        for axis in (clean, sam, ratio):
            axis.axhline(0, color="#c0c4cc", zorder=0, linewidth=0.8)
    with atomic_path(path) as temporary:
        image.savefig(temporary, format="png", dpi=72)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("json", type=Path, help="file of the numbers; what it holds already is not trained again")
    options.add_argument("--cifar", type=Path, help=".npz of CIFAR-10 images and labels")
    options.add_argument("--labels", default="y_idn40,y_worst", help="label arrays of the file, beside our own recipes")
    options.add_argument("--images", type=int, default=2000, help="images of the file to use")
    options.add_argument("--figure", type=Path, help="write the figure")
    options.add_argument("--tables", action="store_true", help="train nothing: report on what is there")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    file = chosen.json.with_suffix(".quick.json") if chosen.quick else chosen.json
    runs = json.loads(file.read_text())["runs"] if file.is_file() else []
    if not chosen.tables:
        train_all(runs, file, chosen)
    report(runs, chosen.figure)


def train_all(runs: list[dict[str, Any]], file: Path, chosen: argparse.Namespace) -> None:
    """Add the histories that are not there yet, and keep each as it comes."""

    def add(name: str, dataset: DataSet, label: str, optimizer: str, seed: int, **how: Any) -> None:
        identity = {"data": name, "noise": label, "optimizer": optimizer, "seed": seed}
        if any(identity.items() <= run.items() for run in runs):
            return
        history = trained(dataset, optimizer=optimizer, seed=seed, **how)
        runs.append({**identity, "history": history})
        write(file, json.dumps({"runs": runs}))
        print(f"# {name}, {label}, {optimizer}, seed {seed}: memorized {history[-1]['memorized']:.0f} %", flush=True)

    digits = data.load("digits")
    small = {"model": "mlp", "options": {"in_features": 64, "hidden": [256, 256]}, "batches": 20, "every": 2}
    mixes = [("symmetric", 0.2), ("symmetric", 0.4), ("symmetric", 0.6), ("pairflip", 0.4), ("instance", 0.4)]
    for recipe, rate in mixes[1:2] if chosen.quick else mixes:
        for optimizer in ("ncsam", "sgd"):
            twice = (recipe, rate, optimizer) == ("symmetric", 0.4, "ncsam") and not chosen.quick
            for seed in (1, 2) if twice else (1,):
                part = noisy(digits, recipe, rate, {})
                label = f"{recipe} {100 * rate:.0f} %"
                add("digits", part, label, optimizer, seed, epochs=8 if chosen.quick else 40, **small)
    if chosen.cifar and not chosen.quick:
        with np.load(chosen.cifar, allow_pickle=False) as archive:
            arrays = {name: archive[name].astype(np.int64) for name in chosen.labels.split(",")}
        whole = data.load(str(chosen.cifar))
        cifar = replace(whole, train=whole.train.take(np.arange(chosen.images)))
        photo = {"model": "cnn_small", "options": {"width": 16}}
        for recipe, rate in [("symmetric", 0.4), ("pairflip", 0.4), *((name, None) for name in arrays)]:
            part = noisy(cifar, recipe, rate, arrays)
            label = recipe if rate is None else f"{recipe} {100 * rate:.0f} %"
            add("cifar10", part, label, "ncsam", 1, epochs=10, batches=5, every=1, **photo)


if __name__ == "__main__":
    main()
