"""Which way to SAM's gradient works at the price of SGD? Several, on digits, in plain PyTorch.

    python benchmarks/cheap_ascents.py --noise pair --ways look momentum --radius 0.5 [--automatic]

MLP 64-256-256-10, batch 128, 60 epochs, 15 of them SGD; lr .05 with cosine, momentum .9, weight decay 1e-3; 40 % wrong
labels; three seeds; mean test accuracy of the last five epochs. Every `--every`-th step of a cheap way is an exact SAM
step. `part` takes the ascent direction from a share of the batch in every step and needs none.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from timing import parser, table, write_json

EPOCHS, WARMUP, BATCH, TRAIN = 60, 15, 128, 1437
DECAY, ALPHA, TARGET = 0.9, 0.7, 0.5


class Network:
    """An MLP whose weights are one vector."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        parameters = [p for a, b in pairwise((64, 256, 256, 10)) for p in nn.Linear(a, b).parameters()]
        self.weights = torch.cat([p.detach().flatten() for p in parameters])
        cut = self.weights.split([p.numel() for p in parameters])
        self.leaves = [v.view(p.shape).detach().requires_grad_() for v, p in zip(cut, parameters, strict=True)]

    def logits(self, x: Tensor) -> Tensor:
        a, b, c, d, e, f = self.leaves
        return F.linear(F.relu(F.linear(F.relu(F.linear(x, a, b)), c, d)), e, f)

    def gradient(self, x: Tensor, y: Tensor, eps: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Gradient and loss at w, or at w + eps."""
        saved = self.weights.clone()
        if eps is not None:
            self.weights.add_(eps)
        loss = F.cross_entropy(self.logits(x), y)
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, self.leaves)])
        self.weights.copy_(saved)
        return gradient, loss.detach()


class Step:
    """One way to the gradient to step on, with what it remembers."""

    def __init__(
        self, way: str, every: int, rho: float, automatic: bool, guess: float, random: torch.Generator
    ) -> None:
        self.way, self.every, self.rho, self.guess, self.random = way, every, rho, guess, random
        self.rate = (0.1 if way in ("exact", "part") else 0.1 * every) if automatic else 0.0
        self.done = 0
        self.kept = torch.empty(0)

    def __call__(self, network: Network, x: Tensor, y: Tensor, memory: dict[str, Tensor]) -> Tensor:
        refresh = self.done % self.every == 0 or self.way == "exact"
        self.done += 1
        if self.way == "part":
            rows = len(x) // 5
            return self._sam(network, x, y, *network.gradient(x[:rows], y[:rows]))
        if refresh:
            g, loss = network.gradient(x, y)
            descent = self._sam(network, x, y, g, loss)
            self.kept = descent - (descent @ g) / (g @ g) * g
            return descent
        if self.way in ("look", "skip"):
            g, _ = network.gradient(x, y)
            return g if self.way == "skip" else g + ALPHA * g.norm() / self.kept.norm() * self.kept
        ascent = {
            "momentum": lambda: memory["momentum"],
            "against momentum": lambda: -memory["momentum"],
            "average": lambda: memory["average"],
            "last": lambda: memory["last"],
            "random": lambda: torch.randn(len(network.weights), generator=self.random),
        }[self.way]()
        return network.gradient(x, y, self.rho * ascent / ascent.norm())[0]

    def _sam(self, network: Network, x: Tensor, y: Tensor, g: Tensor, loss: Tensor) -> Tensor:
        descent, there = network.gradient(x, y, self.rho * g / g.norm())
        if self.rate:
            share = float(there - loss) / max(0.05, self.guess - float(loss))
            self.rho *= math.exp(self.rate * (TARGET - min(max(share, -2.0), 3.0)))
            self.rho = min(max(self.rho, 0.01), 5.0)
        return descent


WAYS = ("exact", "look", "part", "momentum", "average", "last", "random", "against momentum", "skip")


def run(way: str, noise: str, seed: int, rho: float, every: int, automatic: bool) -> float:
    pictures, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(pictures))
    x = torch.tensor(pictures, dtype=torch.float32) / 16
    x, y = ((x - x.mean()) / x.std())[order], torch.tensor(labels)[order]
    random = np.random.default_rng(1000 + seed)
    wrong = torch.tensor(random.random(TRAIN) < 0.4)
    other = torch.tensor(random.integers(1, 10, TRAIN)) if noise == "symmetric" else 1
    observed = torch.where(wrong, (y[:TRAIN] + other) % 10, y[:TRAIN])
    network, generator = Network(seed), torch.Generator().manual_seed(seed)
    shares = torch.bincount(observed) / TRAIN
    step = Step(way, every, rho, automatic, -float((shares * shares.log()).sum()), generator)
    sgd: Callable[..., Tensor] = lambda n, x, y, memory: n.gradient(x, y)[0]  # noqa: E731
    memory: dict[str, Tensor] = {}
    last5, done, total = [], 0, EPOCHS * math.ceil(TRAIN / BATCH)
    for epoch in range(EPOCHS):
        for rows in torch.randperm(TRAIN, generator=generator).split(BATCH):
            descent = (sgd if epoch < WARMUP else step)(network, x[rows], observed[rows], memory)
            decayed = descent + 1e-3 * network.weights
            memory = {
                "last": descent,
                "average": descent if not memory else DECAY * memory["average"] + (1 - DECAY) * descent,
                "momentum": decayed if not memory else 0.9 * memory["momentum"] + decayed,
            }
            network.weights.sub_(0.025 * (1 + math.cos(math.pi * done / total)) * memory["momentum"])
            done += 1
        if epoch >= EPOCHS - 5:
            with torch.no_grad():
                last5.append(float((network.logits(x[TRAIN:]).argmax(1) == y[TRAIN:]).float().mean()))
    return 100 * statistics.mean(last5)


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--noise", choices=["symmetric", "pair"], default="symmetric")
    options.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    options.add_argument("--radius", type=float, nargs="+", default=[0.3, 0.5, 1.0])
    options.add_argument("--every", type=int, default=10)
    options.add_argument("--automatic", action="store_true", help="let the radius follow its own effect")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    radii, seeds = (chosen.radius[:1], (0,)) if chosen.quick else (chosen.radius, (0, 1, 2))
    rows = {}
    for way in chosen.ways[:3] if chosen.quick else chosen.ways:
        rows[way] = {
            f"rho {rho}": statistics.mean(
                run(way, chosen.noise, seed, rho, chosen.every, chosen.automatic) for seed in seeds
            )
            for rho in radii
        }
    table(f"Test accuracy, {chosen.noise} 40 %, {len(seeds)} seeds", rows)
    write_json(chosen.json, rows)


if __name__ == "__main__":
    main()
