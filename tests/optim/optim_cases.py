"""Networks and batches that the optimizers' tests share: each has one thing that breaks naive code."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 4


class Mlp(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Linear(6, width)
        self.last = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x.flatten(1)[:, :6])))


class Convolutional(nn.Module):
    """Convolutions and BatchNorm, in channels-last."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 4, 2), nn.BatchNorm2d(4)
        )
        self.last = nn.Linear(4, CLASSES)
        self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(x.to(memory_format=torch.channels_last)).mean((2, 3)))


class Awkward(nn.Module):
    """Frozen, unused and tied parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.again = nn.Linear(6, 6)
        self.again.weight = self.first.weight  # tied
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.last = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.again(torch.tanh(self.first(x.flatten(1)[:, :6]))))
        return self.last(x + self.frozen(x))


NETWORKS = {"mlp": Mlp, "convolutional": Convolutional, "awkward": Awkward}


def network(name: str = "mlp", dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return NETWORKS[name]().to(dtype)


def batch(seed: int = 0, size: int = 16, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 + seed)
    x = torch.randn(size, 2, 6, 6, generator=generator, dtype=dtype)
    return x, torch.randint(0, CLASSES, (size,), generator=generator)


def sgd(model: nn.Module, lr: float = 0.1, **options: float) -> torch.optim.SGD:
    """SGD with momentum and decay, in two groups of different settings."""
    parameters = list(model.parameters())
    half = len(parameters) // 2
    groups = [{"params": parameters[:half]}, {"params": parameters[half:], "lr": lr / 2, "weight_decay": 0.0}]
    return torch.optim.SGD(groups, lr=lr, momentum=0.9, weight_decay=1e-2, **options)


def parameters(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def same_bits(left: list[Tensor], right: list[Tensor]) -> bool:
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def largest_difference(left: nn.Module, right: nn.Module) -> float:
    pairs = zip([*left.parameters(), *left.buffers()], [*right.parameters(), *right.buffers()], strict=True)
    return max(float((a.double() - b.double()).detach().abs().max()) for a, b in pairs)


def twin(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model)


class Counter:
    """A network that counts its forwards, and the backwards that reach its last layer."""

    def __init__(self, model: nn.Module) -> None:
        self.forwards = self.backwards = 0
        self.model = model
        model.register_forward_hook(self._forward)

    def _forward(self, module: nn.Module, args: object, output: Tensor) -> None:
        self.forwards += 1
        output.register_hook(self._backward)

    def _backward(self, grad: Tensor) -> None:
        self.backwards += 1


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets)
