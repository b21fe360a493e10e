"""Checks of what users give to the optimizers: parameters, gradients, logits, targets, losses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ncsam._errors import bad_value


def full_precision(params: Iterable[Tensor]) -> None:
    """Raise for 16-bit weights: eps would be rounded away (at rho 0.05, in nine of ten bfloat16 weights).

    Args:
        params: The parameters that the optimizer trains.

    Raises:
        ValueError: For the first one of dtype float16 or bfloat16.
    """
    for p in params:
        if p.dtype in (torch.float16, torch.bfloat16):
            raise ValueError(
                f"a parameter of shape {tuple(p.shape)} has dtype {p.dtype}: a perturbation is rounded away in 16-bit "
                "weights. Keep the weights in float32 and run the passes under torch.autocast"
            )


def gradients(params: Iterable[Tensor]) -> None:
    """Raise for sparse gradients, as torch's own Adam does.

    Args:
        params: Parameters after a backward; those without a gradient are skipped.

    Raises:
        ValueError: For the first one with a sparse gradient.
    """
    for p in params:
        if p.grad is not None and p.grad.layout != torch.strided:
            raise ValueError(
                f"a parameter of shape {tuple(p.shape)} has a sparse gradient, which is not supported; "
                "use dense gradients (nn.Embedding(sparse=False))"
            )


def class_logits(logits: object) -> Tensor:
    """Logits of shape (batch, classes) with two classes or more.

    Args:
        logits: What `forward` returned.

    Returns:
        The same logits.

    Raises:
        TypeError: If they are not a tensor of real numbers.
        ValueError: If they have another shape.
    """
    logits = dense_logits(logits)
    if logits.ndim != 2:
        raise ValueError(f"forward() returned logits of shape {tuple(logits.shape)}: expected (batch, classes)")
    return logits


def dense_logits(logits: object) -> Tensor:
    """Logits of shape (batch, classes, ...) with two classes or more, as cross-entropy takes them.

    Args:
        logits: What `forward` returned.

    Returns:
        The same logits.

    Raises:
        TypeError: If they are not a tensor of real numbers.
        ValueError: If they have another shape.
    """
    if not isinstance(logits, Tensor):
        raise TypeError(f"forward() returned {type(logits).__name__}: expected logits, a tensor (batch, classes)")
    if not logits.is_floating_point():
        raise TypeError(f"forward() returned logits of dtype {logits.dtype}: expected real numbers")
    if logits.ndim < 2:
        raise ValueError(f"forward() returned logits of shape {tuple(logits.shape)}: expected (batch, classes)")
    if logits.shape[1] < 2:
        raise ValueError(
            f"forward() returned logits of {logits.shape[1]} class: cross-entropy needs two or more; for other targets "
            "give criterion="
        )
    return logits


def class_targets(targets: object, logits: Tensor, *, first: bool) -> Tensor:
    """Class indices (batch,) within range, or probabilities (batch, classes).

    Reading an accelerator's targets would wait for it: there, only the values of the first batch are read.

    Args:
        targets: What the user gave.
        logits: Logits of the batch, checked already.
        first: Whether this is the first step, in which values are read on every device.

    Returns:
        The same targets.

    Raises:
        TypeError: If they are no tensor, or of a dtype that is neither whole numbers nor real ones.
        ValueError: If shape, device or range do not fit the logits.
    """
    values = first or (isinstance(targets, Tensor) and targets.device.type == "cpu")
    return dense_targets(targets, logits, values=values, ignored=False)


_IGNORED = -100  # the ignore_index of torch's cross-entropy


def dense_targets(targets: object, logits: Tensor, *, values: bool = True, ignored: bool = True) -> Tensor:
    """Class indices (batch, ...) within range, or torch's ignore_index where it may occur; or probabilities.

    Args:
        targets: What the user gave.
        logits: Logits of the batch, checked already.
        values: Whether the range is checked, for which the values are read.
        ignored: Whether -100 may occur.

    Returns:
        The same targets.

    Raises:
        TypeError: If they are no tensor, or of a dtype that is neither whole numbers nor real ones.
        ValueError: If shape, device or range do not fit the logits.
    """
    classes = logits.shape[1]
    if not isinstance(targets, Tensor):
        raise TypeError(f"targets is {type(targets).__name__}: expected a tensor of class indices or probabilities")
    if targets.device != logits.device:
        raise ValueError(f"targets are on {targets.device}: the logits are on {logits.device}, and both must be on one")
    if targets.is_floating_point():
        if targets.shape != logits.shape:
            raise ValueError(
                f"targets of shape {tuple(targets.shape)}: probabilities must have the logits' {tuple(logits.shape)}"
            )
        return targets
    if targets.is_complex() or targets.dtype == torch.bool:
        raise TypeError(f"targets of dtype {targets.dtype}: expected whole numbers or probabilities")
    shape = logits.shape[:1] + logits.shape[2:]
    if targets.shape != shape:
        raise ValueError(
            f"targets of shape {tuple(targets.shape)}: class indices must have the batch's shape {tuple(shape)}"
        )
    if targets.numel() > 0 and values:
        least, most = (int(end) for end in torch.aminmax(targets))
        if ignored and least == _IGNORED:
            least = int(torch.where(targets == _IGNORED, 0, targets).min())
        if least < 0 or most >= classes:
            raise ValueError(f"targets hold {least} to {most}: expected 0 to {classes - 1}")
    return targets


def clean_targets(known: object, observed: Tensor) -> Tensor:
    """True class indices beside the observed ones. No value is read.

    Args:
        known: The true labels that the user gave.
        observed: Observed class indices of the batch.

    Returns:
        The true labels, unchanged.

    Raises:
        TypeError: If they are not a tensor of whole numbers.
        ValueError: If shape or device differ from the observed ones.
    """
    if not isinstance(known, Tensor) or known.is_floating_point() or known.is_complex() or known.dtype == torch.bool:
        found = known.dtype if isinstance(known, Tensor) else type(known).__name__
        raise TypeError(f"clean_targets is {found}: expected a tensor of class indices")
    if known.shape != observed.shape or known.device != observed.device:
        raise ValueError(
            f"clean_targets of shape {tuple(known.shape)} on {known.device}: the observed ones have the shape "
            f"{tuple(observed.shape)} and are on {observed.device}"
        )
    return known


def scalar_loss(loss: object) -> Tensor:
    """A loss of one number.

    Args:
        loss: What the criterion or the user returned.

    Returns:
        The loss as a tensor without dimensions, still part of its graph.

    Raises:
        TypeError: If it is no tensor.
        ValueError: If it has more than one element.
    """
    if not isinstance(loss, Tensor):
        raise TypeError(f"criterion returned {type(loss).__name__}: expected a tensor, the mean loss of the batch")
    if loss.numel() != 1:
        raise ValueError(f"criterion returned shape {tuple(loss.shape)}: expected one number (reduction='mean')")
    return loss if loss.ndim == 0 else loss.reshape(())  # which would add a node to the graph


def val_loss(loss: Any) -> float:
    """A number, or a tensor of one; it need not be finite.

    Args:
        loss: What the user reported.

    Raises:
        UsageError: If it cannot be read as one number.
    """
    try:
        if not isinstance(loss, (str, bytes, bool)):
            return float(loss.detach() if isinstance(loss, Tensor) else loss)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # which of them depends on whose object it is
        pass
    raise bad_value("loss", loss, "a number, the mean loss of the validation samples")


def no_outer_autocast(params: Iterable[Tensor], where: str) -> None:
    """Raise for an autocast block that spans the passes.

    Autocast caches its 16-bit copies of the weights until the outermost block ends, so the second pass would not see
    the perturbation, and the step would silently be the base optimizer's.

    Args:
        params: Their devices are those for which autocast is checked.
        where: The call that is refused, for the message.

    Raises:
        RuntimeError: If autocast is on for one of these devices and caches weights.
    """
    if not torch._C._is_any_autocast_enabled():  # the usual case, without a look at every parameter
        return
    for kind in {p.device.type for p in params}:
        if torch.is_autocast_enabled(kind) and torch.is_autocast_cache_enabled():
            raise RuntimeError(
                f"{where} was called inside torch.autocast({kind!r}), whose cached weights would hide the "
                "perturbation. Open autocast inside forward(), once per pass, or the outer one with cache_enabled=False"
            )
