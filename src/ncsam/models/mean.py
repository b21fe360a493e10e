"""Several models as one: the mean of their probabilities."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ncsam._errors import bad_value


class Mean(nn.Module):
    """log of sum_i weight_i softmax(z_i / temperature_i), where z_i are the logits of member i; weights sum to 1.

    Args:
        members: Models of the same classes.
        weights: Positive weight of each member; they are divided by their sum.
        temperatures: Positive temperature of each member; above 1 softens it.
    """

    weights: Tensor
    temperatures: Tensor

    def __init__(self, members: Sequence[nn.Module], weights: Sequence[float], temperatures: Sequence[float]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        total = sum(weights)
        self.register_buffer("weights", torch.tensor([weight / total for weight in weights]))
        self.register_buffer("temperatures", torch.tensor([float(value) for value in temperatures]))

    def forward(self, inputs: Tensor) -> Tensor:
        """Log of the weighted mean of the members' probabilities, (N, classes).

        Args:
            inputs: A batch, which each member is given.
        """
        rows = [
            (member(inputs) / self.temperatures[number]).log_softmax(dim=1) + self.weights[number].log()
            for number, member in enumerate(self.members)
        ]
        return torch.stack(rows).logsumexp(dim=0)


def mean(
    create: Callable[..., nn.Module],
    num_classes: int,
    in_channels: int,
    *,
    members: Sequence[Mapping[str, Any]] = (),
    weights: Sequence[float] = (),
    temperatures: Sequence[float] = (),
) -> Mean:
    """The mean of models, each given as {"model": its name, "options": its options}, with a weight and a temperature.

    The names are those of `ncsam.models.names()` alone: what a mean is made of may be read from a file, and a file must
    not decide what code runs.

    Args:
        create: Builds a model by name.
        num_classes: Number of classes.
        in_channels: Channels of the images.
        members: {"model": name, "options": its options} of each, one or more.
        weights: Weight of each member.
        temperatures: Temperature of each member.
    """
    if not len(members) == len(weights) == len(temperatures) > 0:
        raise bad_value("members", len(members), "at least 1, and a weight and a temperature for each")
    for each in members:
        if ":" in str(each["model"]):
            raise bad_value("members", each["model"], "models of ncsam.models, not of another library or module")
    return Mean(
        [create(each["model"], num_classes, in_channels, **each["options"]) for each in members], weights, temperatures
    )
