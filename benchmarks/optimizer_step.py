"""What SAM, NCSAM and BSAM cost: the optimizer's own overhead, and a whole step, as ratios measured in one run.

Overhead: forward and backward are replaced by a function that leaves ready gradients on ResNet-18's parameters, and
the base optimizer's own step is subtracted. The copy moves as many bytes as the algorithm must read and write, per
weight: SAM reads g (norm), saves w, adds eps, restores w: 8 numbers; NCSAM also adds g_B to g* and takes the norm of
that: 12. A plain copy moves two numbers per weight. The peer is `pytorch_optimizer.SAM`.
"""

from __future__ import annotations

import functools
import statistics
from typing import Any

import pytorch_optimizer
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam import BSAM, NCSAM, SAM
from ncsam.models import create
from timing import Candidate, arguments, ratio, table, take_turns, write_json

SAM_NUMBERS, NCSAM_NUMBERS = 8, 12


def momentum_sgd(parameters: Any) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=1e-4, momentum=0.9, weight_decay=1e-3)


class Replaced:
    """ResNet-18's parameters with ready-made gradients in place of forward and backward."""

    def __init__(self) -> None:
        self.parameters = [nn.Parameter(p.detach().clone()) for p in create("resnet18", num_classes=10).parameters()]
        self.gradients = [torch.randn_like(p) for p in self.parameters]
        self.noise = [torch.randn_like(p) for p in self.parameters]
        self.fresh_noise = [g.clone() for g in self.noise]
        self.logits = torch.randn(128, 10, requires_grad=True)
        self.targets = torch.randint(0, 10, (128,))

    def leave(self, loss: Tensor | None = None, retain_graph: bool = False) -> None:
        """A backward that costs nothing. The second of a pass, which frees the graph, leaves g*."""
        source = self.gradients if retain_graph or loss is None else self.noise
        for p, g in zip(self.parameters, source, strict=True):
            p.grad = g

    def refresh(self) -> None:
        """g* is consumed by the step: put it back before the next one, untimed."""
        torch._foreach_copy_(self.noise, self.fresh_noise)

    def base(self) -> Candidate:
        optimizer = momentum_sgd(self.parameters)

        def run() -> None:
            self.leave()
            optimizer.step()

        return Candidate(run, self.refresh)

    def ours(self, optimizer: SAM | NCSAM) -> Candidate:
        def run() -> None:
            optimizer.zero_grad()
            loss = F.cross_entropy(self.logits, self.targets)
            if isinstance(optimizer, NCSAM):
                optimizer.backward(loss, self.logits, self.targets, backward=self.leave)
            else:
                optimizer.backward(loss, backward=lambda loss, retain_graph: self.leave())
            for perturbed in optimizer.perturbations():
                with perturbed:
                    self.leave()
            optimizer.step()

        return Candidate(run, self.refresh)

    def peer(self) -> Candidate:
        optimizer = pytorch_optimizer.SAM(
            self.parameters, torch.optim.SGD, rho=0.05, lr=1e-4, momentum=0.9, weight_decay=1e-3
        )

        def run() -> None:
            self.leave()
            optimizer.first_step(zero_grad=True)
            self.leave()
            optimizer.second_step(zero_grad=True)

        return Candidate(run, self.refresh)

    def copies(self, count: int) -> Candidate:
        targets = [torch.empty_like(p) for p in self.parameters]
        sources = [p.detach() for p in self.parameters]

        def run() -> None:
            for _ in range(count):
                torch._foreach_copy_(targets, sources)

        return Candidate(run, self.refresh)


def overhead(rounds: int) -> dict[str, dict[str, float]]:
    """Time beyond the base optimizer's step, against the peer's and against plain copies."""
    sets = [Replaced() for _ in range(4)]
    plain = sets[0]
    seconds = take_turns(
        {
            "base": plain.base(),
            "sam": sets[1].ours(SAM(momentum_sgd(sets[1].parameters), model=nn.Module())),
            "ncsam": sets[2].ours(NCSAM(momentum_sgd(sets[2].parameters), total_steps=1, model=nn.Module())),
            "peer": sets[3].peer(),
            "copy for sam": plain.copies(SAM_NUMBERS // 2),
            "copy for ncsam": plain.copies(NCSAM_NUMBERS // 2),
        },
        rounds,
    )
    beyond = {
        name: [own - base for own, base in zip(seconds[name], seconds["base"], strict=True)]
        for name in ("sam", "ncsam", "peer")
    }
    copies = {"sam": "copy for sam", "ncsam": "copy for ncsam", "peer": "copy for sam"}
    rows = {
        name: {
            "milliseconds": 1e3 * statistics.median(beyond[name]),
            "vs peer": ratio(beyond[name], beyond["peer"]),
            "vs copy": ratio(beyond[name], seconds[copies[name]]),
        }
        for name in beyond
    }
    table("Overhead beyond the base optimizer, ResNet-18's 11.2 M parameters", rows)
    return {
        "overhead_vs_peer": {name: rows[name]["vs peer"] for name in ("sam", "ncsam")},
        "overhead_vs_copy": {name: rows[name]["vs copy"] for name in ("sam", "ncsam")},
    }


def whole_steps(model: nn.Module, x: Tensor, y: Tensor, rounds: int) -> dict[str, float]:
    """A training step of each optimizer as a ratio to SGD's, all on the same network in turn."""
    base = momentum_sgd(model.parameters())

    def sgd() -> None:
        base.zero_grad()
        F.cross_entropy(model(x), y).backward()
        base.step()

    wrappers = {
        "sam": SAM(base),
        "ncsam": NCSAM(base, ramp="constant", total_steps=1),
        "bsam": BSAM(base),
    }
    steps = {name: Candidate(functools.partial(w.step, lambda: model(x), y)) for name, w in wrappers.items()}
    sgd()
    steps["ncsam"].run()  # kernels are chosen and buffers made; one network serves all, so no other needs a warm-up
    seconds = take_turns({"sgd": Candidate(sgd), **steps}, rounds, warmup=0)
    return {name: ratio(seconds[name], seconds["sgd"]) for name in seconds}


def main() -> None:
    options = arguments("Cost of the sharpness-aware steps, as ratios.")
    torch.manual_seed(0)
    torch.set_num_threads(2)
    figures: dict[str, object] = dict(overhead(6 if options.quick else 40))
    resnet = create("resnet18", num_classes=10)
    images, labels = torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
    mlp = nn.Sequential(
        nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )
    small, digits = torch.randn(128, 1, 28, 28), torch.randint(0, 10, (128,))
    rows = {
        "resnet18": whole_steps(resnet, images, labels, 2 if options.quick else 12),
        "mlp": whole_steps(mlp, small, digits, 60 if options.quick else 300),
    }
    table("A whole step, SGD = 1 (ResNet-18 for CIFAR at batch 32; MLP 784-256-256-10 at batch 128)", rows)
    figures["step_vs_sgd"] = {m: {k: v for k, v in r.items() if k != "sgd"} for m, r in rows.items()}
    write_json(options.json, figures)


if __name__ == "__main__":
    main()
