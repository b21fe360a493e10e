"""Several models combined by a conditional logit, whose weights a few verified labels decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ncsam._errors import bad_value

SMALLEST = 1e-4  # added to probabilities before their logarithm


class Stacked(nn.Module):
    r"""Logits :math:`\sum_g \theta_g \log(p_g(x) + 10^{-4}) + b`, where p_g is the mean of the models of a group.

    Args:
        groups: the models of each group.
        num_classes: number of classes, the length of b.
    """

    theta: Tensor
    bias: Tensor

    def __init__(self, groups: Sequence[Sequence[nn.Module]], num_classes: int) -> None:
        super().__init__()
        self.groups = nn.ModuleList(nn.ModuleList(group) for group in groups)
        self.register_buffer("theta", torch.ones(len(groups)) / len(groups))
        self.register_buffer("bias", torch.zeros(num_classes))

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (N, classes).

        Args:
            inputs: A batch, which each model is given.
        """
        logits: Any = self.bias
        for number, group in enumerate(self.groups):
            assert isinstance(group, nn.ModuleList)
            mean = torch.stack([model(inputs).softmax(dim=1) for model in group]).mean(dim=0)
            logits = logits + self.theta[number] * (mean + SMALLEST).log()
        found: Tensor = logits
        return found


def stacked(
    create: Callable[..., nn.Module],
    num_classes: int,
    in_channels: int,
    *,
    groups: Sequence[Sequence[Mapping[str, Any]]] = (),
) -> Stacked:
    """Groups of models, each given as {"model": its name, "options": its options}.

    The names are those of `ncsam.models` only: they may be read from a file, and a file must not decide what code runs.

    Args:
        create: Builds a model by name.
        num_classes: Number of classes.
        in_channels: Channels of the images.
        groups: The models of each group; one or more of both.

    Raises:
        UsageError: A group is missing or empty, or a model is not of `ncsam.models`.
    """
    if not groups or not all(groups):
        raise bad_value("groups", len(groups), "one or more groups of one or more models")
    for each in (each for group in groups for each in group):
        if ":" in str(each["model"]):
            raise bad_value("groups", each["model"], "models of ncsam.models, not of another library or module")
    made = [[create(each["model"], num_classes, in_channels, **each["options"]) for each in group] for group in groups]
    return Stacked(made, num_classes)
