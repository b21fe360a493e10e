"""How good NCSAM's estimators are: their perturbation beside the exact one, and the accuracy they end with.

    python experiments/estimator_quality.py FOLDER --cifar cifar10_subset.npz --json FILE

Directions: one exact run on digits; at each of its steps every estimator answers for the same weights, batch and draw.
Accuracy: whole runs of the engine, three seeds, mean of the last five epochs. Digits come with scikit-learn; `--cifar`
names an archive with `x_train`, `y_train`, `x_test`, `y_test` and human labels `y_worst`, of which the first 3,000
pictures are averaged to 16 x 16. Finished runs in FOLDER are not repeated, and an interrupted one goes on.
`--settings cifar_worst_resnet8` is a network with BatchNorm, for 20 epochs.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common import parser, table, write_json
from ncsam import NCSAM
from ncsam._files import atomic_path
from ncsam.engine import RunConfig, train
from ncsam.engine.task import load_task
from ncsam.models import create
from ncsam.optim.estimators import REFRESH_EVERY
from ncsam.optim.tensors import cosine

RHO, KAPPA, WARMUP = 0.5, 0.1, 0.25
COMMON = {"rho": RHO, "kappa": KAPPA, "warmup": WARMUP, "batch_size": 128, "augment": "none", "telemetry_every": 0}
NCSAMS = {f"ncsam_{name}": {"optimizer_options": {"estimator": name}} for name in REFRESH_EVERY}
FEWER = 0.62  # of the epochs, for which fused NCSAM costs little more than SGD does for all of them
CANDIDATES: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": "sgd"},
    "sam": {"kappa": 0.0},
    "sam_look": {"kappa": 0.0, "optimizer_options": {"estimator": "look"}},
    **NCSAMS,
    "ncsam_fewer_epochs": NCSAMS["ncsam_fused"],
}
MAIN = ("digits_symmetric", "digits_pairflip", "cifar_symmetric", "cifar_worst")


def settings(folder: Path, cifar: str | None) -> dict[str, dict[str, Any]]:
    """What to train on; the reduced archive is made once."""
    mlp = {"model": "mlp", "model_options": {"hidden": [256, 256]}}
    found = {"digits_symmetric": {**mlp, "noise": "symmetric", "rate": 0.4}}
    found["digits_pairflip"] = {**mlp, "noise": "pairflip", "rate": 0.4}
    if cifar is not None:
        small = folder / "cifar16.npz"
        if not small.exists():
            reduce(cifar, small)
        there = {**mlp, "data": str(small)}
        found["cifar_symmetric"] = {**there, "noise": "symmetric", "rate": 0.4}
        found["cifar_worst"] = {**there, "label_file": str(small), "label_column": "y_worst", "rate": 0.4}
        found["cifar_worst_resnet8"] = {**found["cifar_worst"], "model": "resnet8", "model_options": {}, "epochs": 20}
    return found


def reduce(source: str, target: Path) -> None:
    with np.load(source) as whole:
        arrays = {name: whole[name][:3000] for name in ("x_train", "y_train", "x_test", "y_test", "y_worst")}
    for name in ("x_train", "x_test"):
        halved = F.avg_pool2d(torch.from_numpy(arrays[name]).permute(0, 3, 1, 2).float(), 2)
        arrays[name] = halved.round().byte().permute(0, 2, 3, 1).numpy()
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(target) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)


def accuracies(
    trials: dict[str, dict[str, Any]], names: list[str], folder: Path, most_epochs: int, seeds: list[int]
) -> dict[str, dict[str, float]]:
    rows: dict[str, dict[str, float]] = {name: {} for name in names}
    for setting, options in trials.items():
        for name in names:
            last5 = []
            epochs = min(most_epochs, options.get("epochs", most_epochs))
            if name == "ncsam_fewer_epochs":
                epochs = round(FEWER * epochs)
            for seed in seeds:
                changes = {"optimizer": "ncsam", **options, **CANDIDATES[name], "epochs": epochs, "seed": seed}
                config = RunConfig.from_dict({**COMMON, "evaluate_train_every": epochs, **changes})
                summary = train(config, folder / f"{setting}-{name}-{epochs}-{seed}", console=False)
                last5.append(summary["last5"])
            rows[name][setting] = statistics.mean(last5)
            rows[name][f"{setting}_error"] = statistics.stdev(last5) / len(last5) ** 0.5 if len(last5) > 1 else 0.0
            print(f"{setting} {name}: {rows[name][setting]:.2f} {[round(a, 1) for a in last5]}", flush=True)
    return rows


# --- directions


def batches(epochs: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Digits with 40 % symmetric noise, in shuffled batches of 128."""
    split = load_task(RunConfig(noise="symmetric", rate=0.4)).dataset.train
    x = torch.from_numpy(np.array(split.inputs)).float().flatten(1)
    x = (x - x.mean()) / x.std()
    y = torch.from_numpy(np.array(split.labels)).long()
    for _ in range(epochs):
        yield from ((x[rows], y[rows]) for rows in torch.randperm(len(x)).split(128)[:-1])


def answers(optimizer: NCSAM, model: nn.Module, x: Tensor, y: Tensor, draw: int) -> tuple[list[Tensor] | None, Any]:
    """The perturbation, if there is one, and the gradient to step on; the base optimizer is not asked to step."""
    optimizer.generator.manual_seed(draw)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.zero_grad()
    logits = model(x)
    optimizer.backward(F.cross_entropy(logits, y), logits, y, forward=lambda rows: model(x[rows]))
    moved = None
    for perturbed in optimizer.perturbations():
        with perturbed:
            moved = [p.detach() - w for p, w in zip(model.parameters(), before, strict=True)]
            optimizer.backward(F.cross_entropy(model(x), y))
    return moved, [p.grad for p in model.parameters()]


def directions(epochs: int) -> dict[str, dict[str, float]]:
    """Mean cosine with the exact step's perturbation, and with its final gradient, after warm-up."""
    torch.manual_seed(1)
    data = list(batches(epochs))
    model = create("mlp", num_classes=10, hidden=[256, 256], in_features=data[0][0].shape[1])
    base = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(base, len(data))
    others = {name: name for name in REFRESH_EVERY if name != "exact"} | {"exact, another draw": "exact"}
    exact, *rest = (NCSAM(base, RHO, KAPPA, 0.4, estimator=name, model=model) for name in ("exact", *others.values()))
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in (*others, "g_B")}
    for number, (x, y) in enumerate(data):
        warm = number < WARMUP * len(data)
        for optimizer in (exact, *rest):
            optimizer.rho = 0.0 if warm else RHO
            optimizer.progress = (number + 1) / len(data)
        if not warm:
            plain = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
            eps, gradient = answers(exact, model, x, y, number)
            for name, optimizer in zip(others, rest, strict=True):
                draw = number + len(data) if name.startswith("exact") else number
                moved, final = answers(optimizer, model, x, y, draw)
                if eps is not None and moved is not None:
                    found[name][0].append(cosine(moved, eps))
                found[name][1].append(cosine(final, gradient))
            if eps is not None:
                found["g_B"][0].append(cosine(plain, eps))
            found["g_B"][1].append(cosine(plain, gradient))
        answers(exact, model, x, y, number)
        base.step()
        schedule.step()
    return {
        name: {
            "perturbation": statistics.mean(eps) if len(eps) == len(final) else float("nan"),  # "look" has few
            "final gradient": statistics.mean(final),
        }
        for name, (eps, final) in found.items()
    }


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("folder", nargs="?", type=Path, help="where runs are kept; a temporary one if not given")
    options.add_argument("--cifar", metavar="FILE", help="archive of CIFAR-10 pictures with human labels")
    options.add_argument("--settings", nargs="+", help="these alone, and no directions")
    options.add_argument("--candidates", nargs="+", choices=list(CANDIDATES), default=list(CANDIDATES))
    options.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    chosen = options.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, object] = {}
    if chosen.settings is None:
        rows = directions(6 if chosen.quick else 40)
        table("Cosine with the exact step's (digits, 40 % symmetric, after warm-up)", rows)
        figures |= {f"cosine.{name}.{what}": v for name, row in rows.items() for what, v in row.items()}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if chosen.folder is None else chosen.folder
        epochs, seeds = (4, chosen.seeds[:1]) if chosen.quick else (60, chosen.seeds)
        known = settings(folder, chosen.cifar)
        trials = {name: known[name] for name in chosen.settings or MAIN if name in known}
        ends = accuracies(trials, chosen.candidates, folder, epochs, seeds)
    table(f"Test accuracy, mean of the last 5 of {epochs} epochs over {len(seeds)} seeds, with its error", ends)
    figures |= {f"{setting}.{name}": value for name, row in ends.items() for setting, value in row.items()}
    write_json(chosen.json, figures)


if __name__ == "__main__":
    main()
