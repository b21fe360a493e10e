"""Does compensating the descent gradient, instead of the perturbation, beat plain SAM? Five forms, at SAM's own cost.

    python experiments/descent.py --seeds 3                                # digits, 40 % symmetric and pair-flip noise
    python experiments/descent.py --seeds 3 --cifar cifar10_subset.npz     # and CIFAR-10 with human labels

At w the network says how likely each label is to be wrong: with z the logits, y the observed label and r its strongest
rival, pi = sigmoid(z_r - z_y), the share of r among the two. At w + eps the loss of a sample is then

    damp      (1 - s pi) loss(y)
    relabel   (1 - s pi) loss(y) + s pi loss(r)
    soften    (1 - s / 2) loss(y) + (s / 2) loss(p), p the probabilities at w

with s = min(1, 2 (3 - 2t) t^2), the paper's ramp. A network that has memorised a label doubts it no more; what it said
before may. So with q the average of a sample's probabilities at w over the epochs, q <- .7 q + .3 p, and the doubt
d = s (1 - q_y / max q):

    recall-damp      (1 - d) loss(y)
    recall-relabel   (1 - d) loss(y) + d loss(q)

`none` is SAM, the control. All have the automatic radius, which
follows the plain losses, and the same warm-up. Printed: test accuracy over the last five epochs, seed by seed.
"""

from __future__ import annotations

import argparse
import math
import statistics
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ncsam import SAM, models, noise
from ncsam.data import load
from ncsam.optim.schedule import smooth
from reduce_cifar import halved

FORMS = ("none", "damp", "relabel", "soften", "recall-damp", "recall-relabel")


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


def normalised(pictures: np.ndarray, like: np.ndarray) -> Tensor:
    """Pictures (N, H, W, C) as floats (N, C, H, W), by the mean and deviation of `like`."""
    return torch.from_numpy((pictures - like.mean()) / like.std()).float().permute(0, 3, 1, 2).contiguous()


def grounds(cifar: Path | None, seed: int) -> list[Ground]:
    digits = load("digits")
    assert digits.test is not None
    images = [np.asarray(split.images).reshape(-1, 8, 8, 1) for split in (digits.train, digits.test)]
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


def compensated(form: str, logits: Tensor, labels: Tensor, at_w: Tensor, recalled: Tensor, strength: float) -> Tensor:
    """The loss at w + eps, given the logits at w and the average of past probabilities."""
    if form == "none":
        return F.cross_entropy(logits, labels)
    if form.startswith("recall"):
        own = recalled.gather(1, labels[:, None]).squeeze(1)
        wrong = strength * (1 - own / recalled.amax(1))
        other = recalled
    else:
        own = at_w.gather(1, labels[:, None]).squeeze(1)
        others = at_w.scatter(1, labels[:, None], -torch.inf)
        wrong = strength * torch.sigmoid(others.amax(1) - own)
        other = F.one_hot(others.argmax(1), logits.shape[1]).to(logits)
    if form.endswith("damp"):
        return ((1 - wrong) * F.cross_entropy(logits, labels, reduction="none")).mean()
    observed = F.one_hot(labels, logits.shape[1]).to(logits)
    if form.endswith("relabel"):
        return F.cross_entropy(logits, torch.lerp(observed, other, wrong[:, None]))
    return F.cross_entropy(logits, torch.lerp(observed, at_w.softmax(1), strength / 2))


def accuracy(ground: Ground, form: str, seed: int) -> float:
    torch.manual_seed(seed)
    sizes = {"in_features": 64, "hidden": [256, 256]} if ground.network == "mlp" else {}
    model = models.create(ground.network, 10, ground.x.shape[1], **sizes)
    base = torch.optim.SGD(model.parameters(), lr=ground.lr, momentum=0.9, weight_decay=1e-3)
    batches = len(ground.x) // 128
    optimizer = SAM(base, rho="auto", warmup_steps=ground.warmup * batches, model=model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, ground.epochs * batches)
    recalled = torch.full((len(ground.x), 10), 0.1)
    found = []
    for epoch in range(1, ground.epochs + 1):
        model.train()
        for index in torch.randperm(len(ground.x))[: batches * 128].split(128):
            x, y = ground.x[index], ground.labels[index]
            optimizer.zero_grad()
            logits = model(x)
            optimizer.backward(F.cross_entropy(logits, y), logits, y)
            now = logits.detach()
            recalled[index] = torch.lerp(recalled[index], now.softmax(1), 0.3)
            for perturbed in optimizer.perturbations():
                with perturbed:
                    moved = model(x)
                    loss = compensated(form, moved, y, now, recalled[index], smooth(epoch / ground.epochs))
                    # the radius follows the plain loss; the difference of the two has no value, only a gradient
                    optimizer.backward(F.cross_entropy(moved, y).detach() + loss - loss.detach())
            optimizer.step()
            scheduler.step()
        if epoch > ground.epochs - 5:
            model.eval()
            with torch.no_grad():
                found.append(100 * float((model(ground.x_test).argmax(1) == ground.y_test).float().mean()))
    return statistics.mean(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cifar", type=Path, help="archive of CIFAR-10 pictures with human labels in y_worst")
    parser.add_argument("--only", help="the ground whose name holds this")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS, help="these alone; differences need none")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(1, arguments.seeds + 1)
    grounds_of = {seed: grounds(arguments.cifar, seed) for seed in seeds}
    print("| ground | form | accuracy | minus none | by seed |\n|---|---|---:|---:|---|")
    for number, ground in enumerate(grounds_of[1]):
        if arguments.only and arguments.only not in ground.name:
            continue
        control: list[float] = []
        for form in arguments.forms:
            values = [accuracy(grounds_of[seed][number], form, seed) for seed in seeds]
            if form == "none":
                control = values
            gain = statistics.mean(a - b for a, b in zip(values, control, strict=True)) if control else math.nan
            each = ", ".join(f"{value:.1f}" for value in values)
            print(f"| {ground.name} | {form} | {statistics.mean(values):.1f} | {gain:+.1f} | {each} |", flush=True)


if __name__ == "__main__":
    main()
