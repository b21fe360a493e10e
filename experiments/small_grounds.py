"""Two small problems with noisy labels and a training loop's shell, for experiments on the step itself."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ncsam import models, noise
from ncsam.data import load
from reduce_cifar import halved

BATCH = 128


@dataclass(frozen=True)
class Ground:
    """Tensors to train and test on, the network, and the length of training."""

    name: str
    x: Tensor
    labels: Tensor
    x_test: Tensor
    y_test: Tensor
    network: str
    lr: float
    epochs: int
    warmup: int

    @property
    def batches(self) -> int:
        return len(self.x) // BATCH

    def model(self) -> nn.Module:
        sizes = {"in_features": 64, "hidden": [256, 256]} if self.network == "mlp" else {}
        return models.create(self.network, 10, self.x.shape[1], **sizes)

    def order(self) -> tuple[Tensor, ...]:
        """The samples of an epoch's batches, all of them full."""
        return torch.randperm(len(self.x))[: self.batches * BATCH].split(BATCH)

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        model.eval()
        return 100 * float((model(self.x_test).argmax(1) == self.y_test).float().mean())


def normalised(pictures: np.ndarray, like: np.ndarray) -> Tensor:
    """Pictures (N, H, W, C) as floats (N, C, H, W), by the mean and deviation of `like`."""
    return torch.from_numpy((pictures - like.mean()) / like.std()).float().permute(0, 3, 1, 2).contiguous()


def grounds(cifar: Path | None, seed: int) -> list[Ground]:
    digits = load("digits")
    assert digits.test is not None
    images = [np.asarray(split.inputs).reshape(-1, 8, 8, 1) for split in (digits.train, digits.test)]
    x, x_test = (normalised(part, images[0]) for part in images)
    y_test = torch.from_numpy(digits.test.labels)
    found = []
    for name, corrupt in (("symmetric", noise.symmetric), ("pair flip", noise.pairflip)):
        labels = torch.tensor(corrupt(digits.train.labels, 0.4, num_classes=10, seed=seed).noisy)
        found.append(Ground(f"digits, {name} 40", x, labels, x_test, y_test, "mlp", 0.05, 60, 15))
    if cifar is not None:
        with np.load(cifar) as whole:
            train, test = (halved(whole[name][:2500]) for name in ("x_train", "x_test"))
            human, truth = (torch.from_numpy(whole[name][:2500].astype(np.int64)) for name in ("y_worst", "y_test"))
        x, x_test = (normalised(part, train) for part in (train, test))
        found.append(Ground("CIFAR-10, human", x, human, x_test, truth, "resnet8", 0.1, 30, 4))
    return found


def tabulate(doc: str, forms: Sequence[str], run: Callable[[Ground, str, int], float | None]) -> None:
    """Run the forms that the command line asks for, and print a row for each; `None` leaves a row out.

    The first form is the control of the others.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cifar", type=Path, help="archive of CIFAR-10 pictures with human labels in y_worst")
    parser.add_argument("--only", default="", help="the ground whose name holds this")
    parser.add_argument(
        "--forms", nargs="+", choices=forms, default=forms, help=f"these alone; differences need {forms[0]}"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(1, arguments.seeds + 1)
    grounds_of = {seed: grounds(arguments.cifar, seed) for seed in seeds}
    print(f"| ground | form | accuracy | minus {forms[0]} | by seed |\n|---|---|---:|---:|---|")
    for number, ground in enumerate(grounds_of[1]):
        control: list[float] = []
        for form in arguments.forms if arguments.only in ground.name else ():
            values = [v for seed in seeds if (v := run(grounds_of[seed][number], form, seed)) is not None]
            if not values:
                continue
            if form == forms[0]:
                control = values
            gain = statistics.mean(a - b for a, b in zip(values, control, strict=True)) if control else math.nan
            each = ", ".join(f"{value:.1f}" for value in values)
            print(f"| {ground.name} | {form} | {statistics.mean(values):.1f} | {gain:+.1f} | {each} |", flush=True)
