"""What all losses share: checks of logits and targets, reductions, and a loss as a module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam import _arguments
from ncsam._arguments import choice
from ncsam._errors import bad_value

Reduction: TypeAlias = Literal["mean", "sum", "none"]


def reduced(values: Tensor, reduction: Reduction) -> Tensor:
    """The losses of samples as their mean, their sum, or unchanged.

    Args:
        values: One value per sample.
        reduction: "mean", "sum" or "none".
    """
    choice("reduction", reduction, get_args(Reduction))
    if reduction == "none":
        return values
    return values.mean() if reduction == "mean" else values.sum()


def check_logits(logits: Tensor, name: str = "logits") -> Tensor:
    """Real numbers (samples, classes).

    Args:
        logits: (samples, classes).
        name: Name of the argument, for the error message.
    """
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        raise bad_value(name, _kind(logits), "a tensor of real numbers, (samples, classes)")
    if logits.ndim != 2 or logits.shape[1] < 1:
        raise bad_value(f"{name}.shape", tuple(logits.shape), "(samples, classes)")
    return logits


def check_targets(targets: Tensor, logits: Tensor) -> Tensor:
    """Class numbers (samples,), as 64-bit numbers, or weights (samples, classes). No value is read.

    Args:
        targets: Class numbers (samples,), or weights (samples, classes).
        logits: (samples, classes).
    """
    if not isinstance(targets, Tensor) or targets.is_complex() or targets.dtype == torch.bool:
        raise bad_value("targets", _kind(targets), "a tensor of class numbers or of probabilities")
    weights = targets.is_floating_point()
    needed = logits.shape if weights else logits.shape[:1]
    if targets.shape != needed:
        allowed = f"{tuple(needed)} of {'probabilities' if weights else 'class numbers'}"
        raise bad_value("targets.shape", tuple(targets.shape), f"{allowed} for logits of shape {tuple(logits.shape)}")
    if targets.device != logits.device:
        raise bad_value("targets.device", str(targets.device), f"{logits.device}, the device of the logits")
    return targets if weights else targets.long()


def of_target(losses: Tensor, targets: Tensor) -> Tensor:
    """The loss of each sample, from the losses (samples, classes) it would have under each label.

    Targets are class numbers (samples,), or weights t (samples, classes) such as probabilities, for which a loss is
    the sum over classes of t_c times its value under label c.

    Args:
        losses: (samples, classes), the loss under each label.
        targets: Class numbers (samples,), or weights (samples, classes).
    """
    targets = check_targets(targets, check_logits(losses))
    if targets.is_floating_point():
        return (losses * targets).sum(dim=1)
    try:
        return losses.gather(1, targets.unsqueeze(1)).squeeze(1)
    except RuntimeError:
        refuse_out_of_range(targets, losses.shape[1])
        raise


def as_weights(targets: Tensor, logits: Tensor) -> Tensor:
    """Targets as weights (samples, classes): class numbers one-hot, weights as they are.

    Args:
        targets: Class numbers (samples,), or weights (samples, classes).
        logits: (samples, classes).
    """
    targets = check_targets(targets, logits)
    if targets.is_floating_point():
        return targets
    try:
        return F.one_hot(targets, logits.shape[1])
    except RuntimeError:
        refuse_out_of_range(targets, logits.shape[1])
        raise


def refuse_out_of_range(targets: Tensor, classes: int) -> None:
    """Say which class numbers are wrong. It reads them, so most losses ask once torch has stumbled over some.

    Args:
        targets: Class numbers (samples,), or weights (samples, classes).
        classes: Number of classes.
    """
    least, most = int(targets.min()), int(targets.max())
    if least < 0 or most >= classes:
        raise bad_value("targets", f"{least} to {most}", f"class numbers from 0 to {classes - 1}") from None


def _kind(value: object) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__


def non_negative(**numbers: float) -> None:
    """Refuse negative weights.

    Args:
        **numbers: Weights by the name of their argument.

    Raises:
        UsageError: One of them is negative or not finite.
    """
    for name, value in numbers.items():
        _arguments.non_negative(name, value)


def check_generator(generator: torch.Generator | None) -> None:
    """Refuse what draws no random numbers.

    Args:
        generator: Random numbers.
    """
    if generator is not None:
        _arguments.instance("generator", generator, torch.Generator, "a torch.Generator, or None")


class Loss(nn.Module):
    """A loss function with its options, as a module.

    Args:
        function: The loss.
        **options: Its keyword arguments.
    """

    def __init__(self, function: Callable[..., Tensor], **options: Any) -> None:
        super().__init__()
        self.function = function
        self.options = options

    def forward(self, *inputs: Any) -> Tensor:
        """The function of these inputs, with the module's options.

        Args:
            *inputs: What the function takes, such as logits and targets.
        """
        return self.function(*inputs, **self.options)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())
