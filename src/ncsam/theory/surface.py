"""The mean loss over some data as a function of a model's weights: its value, gradient and curvature at w."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._arguments import function, instance
from ncsam._errors import bad_value
from ncsam.optim import validate
from ncsam.theory.batches import Data, batches
from ncsam.vectors.arithmetic import global_norm
from ncsam.vectors.saved import SavedWeights, evaluation_mode

#: Mean loss of a batch from (logits, labels).
Criterion: TypeAlias = Callable[[Tensor, Tensor], Tensor]
#: One tensor per parameter.
Vector: TypeAlias = "list[Tensor]"


class LossSurface:
    """L(w) = mean of a criterion over all samples of some data, w the trainable weights of a model.

    The model is measured in evaluation mode (dropout off, BatchNorm with its running statistics) and left as it was:
    weights, `.grad`, buffers and modes.

    Args:
        model: The model.
        data: A batch, or batches, of (inputs, labels) or (inputs, labels, clean labels).
        criterion: Mean loss of (logits, labels).
    """

    def __init__(self, model: nn.Module, data: Data, criterion: Criterion = F.cross_entropy) -> None:
        self.params = trainable(model)
        self.model = model
        self.data = data
        self.criterion = checked(criterion)
        self._weights = SavedWeights()

    @property
    def num_parameters(self) -> int:
        """Number of trainable weights."""
        return sum(p.numel() for p in self.params)

    @property
    def weight_norm(self) -> float:
        """Their Euclidean norm."""
        return global_norm([p.detach() for p in self.params])

    def value(self, *criteria: Criterion) -> list[float]:
        """The mean of each criterion, from one pass.

        Args:
            *criteria: Functions of (logits, labels); by default the surface's own.
        """
        wanted = criteria or (self.criterion,)
        with torch.no_grad():
            return self._mean(lambda logits, y, *_: [criterion(logits, y) for criterion in wanted])

    def value_by_labels(self) -> dict[str, float]:
        """The mean loss on the observed labels and, if batches have them, on the clean ones, from one pass."""
        with torch.no_grad():
            means = self._mean(lambda logits, *labels: [self.criterion(logits, y) for y in labels])
        return dict(zip(("observed", "clean"), means, strict=False))

    def gradient(self, *watched: Criterion) -> tuple[Vector, list[float]]:
        """The gradient, and the means of the surface's own criterion and of further ones, from one pass.

        Args:
            *watched: Functions of (logits, labels).
        """
        total = self.zeros()

        def add(logits: Tensor, y: Tensor, *_: Tensor) -> list[Tensor]:
            loss = self.criterion(logits, y)
            values = [loss.detach(), *(criterion(logits.detach(), y) for criterion in watched)]
            _add(total, torch.autograd.grad(loss * len(y), self.params, allow_unused=True))
            return values

        with torch.enable_grad():
            means = self._mean(add)
        _scale(total, 1.0 / self.samples)
        return total, means

    def hessian_times(self, vector: Sequence[Tensor]) -> Vector:
        """H v, H the Hessian at w, by differentiating <gradient, v>; twice the cost of a gradient.

        Args:
            vector: v, one tensor for each trainable parameter.
        """
        total = self.zeros()

        def add(logits: Tensor, y: Tensor, *_: Tensor) -> list[Tensor]:
            loss = self.criterion(logits, y) * len(y)
            first = torch.autograd.grad(loss, self.params, create_graph=True, materialize_grads=True)
            product = sum((g * v).sum() for g, v in zip(first, vector, strict=True))
            assert isinstance(product, Tensor)
            if product.requires_grad:  # else the loss is linear in all weights
                _add(total, torch.autograd.grad(product, self.params, allow_unused=True))
            return []

        with torch.enable_grad():
            self._mean(add)
        _scale(total, 1.0 / self.samples)
        return total

    def zeros(self) -> Vector:
        """The zero direction."""
        return [torch.zeros_like(p, requires_grad=False) for p in self.params]

    def random_direction(self, generator: torch.Generator) -> Vector:
        """A direction of length 1, uniform on the sphere.

        Args:
            generator: Source of the draws, on any device.
        """
        return unit([_normal(p, generator) for p in self.params])

    @contextmanager
    def moved(self, direction: Sequence[Tensor], scale: float = 1.0) -> Iterator[None]:
        """Evaluate at w + scale * direction; afterwards the weights are w again, bit for bit.

        Args:
            direction: One tensor for each trainable parameter.
            scale: Its factor.
        """
        try:
            self._weights.move(self.params, direction, scale)
            yield
        finally:
            self._weights.restore()

    def _mean(self, measure: Callable[..., list[Tensor]]) -> list[float]:
        sums: list[float] = []
        self.samples = 0
        with evaluation_mode([self.model]):
            for x, *labels in batches(self.data, self.params[0].device):
                values = [float(v.detach()) * len(x) for v in measure(self.model(x), *labels)]
                sums = [a + b for a, b in zip(sums, values, strict=True)] if self.samples else values
                self.samples += len(x)
        if not self.samples:
            raise bad_value("data", "0 samples", "at least one sample")
        return [s / self.samples for s in sums]


def checked(criterion: Criterion) -> Criterion:
    """The criterion, if it is one; cross-entropy says clearly what it cannot take.

    Args:
        criterion: Mean loss of (logits, labels).
    """
    return class_loss if criterion is F.cross_entropy else function("criterion", criterion)


def class_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of logits and targets that were looked at before.

    Args:
        logits: (rows, classes).
        targets: Class numbers (rows,), or probabilities (rows, classes).
    """
    targets = validate.dense_targets(targets, validate.dense_logits(logits))
    return F.cross_entropy(logits, targets if targets.is_floating_point() else targets.long())


def trainable(model: nn.Module) -> list[Tensor]:
    """The parameters that require a gradient; at least one.

    Args:
        model: The model.
    """
    instance("model", model, nn.Module, "a torch.nn.Module")
    params: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
    if not params:
        raise bad_value("model", type(model).__name__, "a model with parameters that require a gradient")
    return params


def unit(vector: Vector) -> Vector:
    """The vector at length 1.

    Args:
        vector: One tensor per parameter.
    """
    _scale(vector, 1.0 / global_norm(vector))
    return vector


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(like.shape, generator=generator, device=generator.device, dtype=like.dtype)
    return drawn.to(like.device)


def _add(total: Vector, parts: Sequence[Tensor | None]) -> None:
    for sums, part in zip(total, parts, strict=True):
        if part is not None:
            sums += part.detach()


def _scale(vector: Vector, factor: float) -> None:
    torch._foreach_mul_(vector, factor)
