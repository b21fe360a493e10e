"""What all losses share: which class counts, how samples are joined, and a loss as a module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args

from torch import Tensor, nn

from ncsam._errors import bad_value

Reduction: TypeAlias = Literal["mean", "sum", "none"]


def reduced(values: Tensor, reduction: Reduction) -> Tensor:
    """Losses of samples joined: their mean, their sum, or as they are."""
    if reduction not in get_args(Reduction):
        raise bad_value("reduction", reduction, f"one of {', '.join(map(repr, get_args(Reduction)))}")
    if reduction == "none":
        return values
    return values.mean() if reduction == "mean" else values.sum()


def of_target(losses: Tensor, targets: Tensor) -> Tensor:
    r"""The loss of each sample, from the losses (samples, classes) it would have under each label.

    Targets are class numbers (samples,), or weights t (samples, classes) such as probabilities, for which a loss is
    the sum over classes of t_c times its value under label c.
    """
    if losses.ndim != 2:
        raise bad_value("logits.shape", tuple(losses.shape), "(samples, classes)")
    if targets.is_floating_point():
        if targets.shape != losses.shape:
            raise bad_value("targets.shape", tuple(targets.shape), f"probabilities need {tuple(losses.shape)}")
        return (losses * targets).sum(dim=1)
    if targets.shape != losses.shape[:1]:
        raise bad_value("targets.shape", tuple(targets.shape), f"class numbers need {tuple(losses.shape[:1])}")
    return losses.gather(1, targets.unsqueeze(1)).squeeze(1)


def non_negative(**numbers: float) -> None:
    """Refuse negative weights."""
    for name, value in numbers.items():
        if not value >= 0:
            raise bad_value(name, value, "a number from 0")


class Loss(nn.Module):
    """A loss function with its options, as a module."""

    def __init__(self, function: Callable[..., Tensor], **options: Any) -> None:
        super().__init__()
        self.function = function
        self.options = options

    def forward(self, *inputs: Any) -> Tensor:
        return self.function(*inputs, **self.options)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())
