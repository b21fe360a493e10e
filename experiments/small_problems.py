"""Small problems with noisy labels, for experiments on the step itself that bring their own training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from common import Table
from ncsam import models, noise
from ncsam.data import load
from reduce_cifar import halved

BATCH = 128
DIGITS = {"digits, symmetric 40": noise.symmetric, "digits, pair flip 40": noise.pairflip}
HUMAN = "CIFAR-10, human"


@dataclass(frozen=True)
class Problem:
    """Tensors to train and test on, the network, and the length of training."""

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


def normalized(images: np.ndarray, like: np.ndarray) -> Tensor:
    """Images (N, H, W, C) as floats (N, C, H, W), by the mean and deviation of `like`."""
    return torch.from_numpy((images - like.mean()) / like.std()).float().permute(0, 3, 1, 2).contiguous()


@lru_cache(maxsize=1)
def problem(name: str, cifar: Path | None, seed: int) -> Problem:
    """One of `NAMES`; the labels of digits differ from seed to seed."""
    if name == HUMAN:
        assert cifar is not None
        with np.load(cifar) as whole:
            train, test = (halved(whole[name][:2500]) for name in ("x_train", "x_test"))
            human, truth = (torch.from_numpy(whole[name][:2500].astype(np.int64)) for name in ("y_worst", "y_test"))
        x, x_test = (normalized(part, train) for part in (train, test))
        return Problem(x, human, x_test, truth, "resnet8", 0.1, 30, 4)
    digits = load("digits")
    assert digits.test is not None
    images = [np.asarray(split.inputs).reshape(-1, 8, 8, 1) for split in (digits.train, digits.test)]
    x, x_test = (normalized(part, images[0]) for part in images)
    labels = torch.tensor(DIGITS[name](digits.train.labels, 0.4, num_classes=10, seed=seed).noisy)
    return Problem(x, labels, x_test, torch.from_numpy(digits.test.labels), "mlp", 0.05, 60, 15)


def table(
    name: str, forms: Sequence[str], accuracy: Callable[[Problem, str, int], float | None], cifar: Path | None
) -> Table:
    """Forms of the step on the small problems; the first form is the control of the others."""

    def measure(options: Mapping[str, Any], form: str, seed: int) -> float | None:
        found = problem(options["problem"], options["cifar"], seed)
        return accuracy(replace(found, epochs=options.get("epochs", found.epochs)), form, seed)

    names = [*DIGITS, *([HUMAN] if cifar is not None else [])]
    return Table(
        name,
        {each: {"problem": each, "cifar": cifar} for each in names},
        {form: form for form in forms},
        controls=dict.fromkeys(forms[1:], forms[0]),
        metrics=("test accuracy over the last five epochs",),
        measure=measure,
        quick={"epochs": 20},
    )
