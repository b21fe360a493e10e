"""Steps of a method's own, next to the run's optimizer: another loss, another learning rate, some parameters only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ncsam.methods.base import State
from ncsam.vectors.arithmetic import average_over_ranks, is_dtensor


class SideOptimizer:
    """A torch optimizer over some parameters, for losses that step separately from the run's own.

    It belongs in `on_epoch_start` (an inner loop) or `on_step_end` (a further step on the batch), never in `loss`. The
    ranks' gradients are averaged. Keep it in the `state_dict` of the method. Such a step is not perturbed: the run's
    perturbation belongs to the main loss.

    Args:
        optimizer: The torch optimizer.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.parameters: list[Tensor] = [p for group in optimizer.param_groups for p in group["params"]]

    def step(self, loss: Tensor, state: State, *, lr: float | None = None) -> None:
        """One step down a loss; gradients that it leaves elsewhere are cleared.

        Args:
            loss: A scalar.
            state: The state of training.
            lr: Learning rate of this step; by default the optimizer's.
        """
        with torch.enable_grad():
            self.optimizer.zero_grad()
            state.backward(loss)
        average_gradients(self.parameters)
        if lr is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the optimizer's state.

        Args:
            state: What `state_dict` returned.
        """
        self.optimizer.load_state_dict(state)


def sgd(parameters: Iterable[nn.Parameter], lr: float, *, momentum: float = 0.9, decay: float = 5e-4) -> SideOptimizer:
    """SGD over some parameters.

    Args:
        parameters: The parameters.
        lr: Learning rate.
        momentum: Momentum.
        decay: Weight decay.
    """
    return SideOptimizer(torch.optim.SGD(list(parameters), lr=lr, momentum=momentum, weight_decay=decay))


def adam(parameters: Iterable[nn.Parameter], lr: float) -> SideOptimizer:
    """Adam over some parameters.

    Args:
        parameters: The parameters.
        lr: Learning rate.
    """
    return SideOptimizer(torch.optim.Adam(list(parameters), lr=lr))


def average_gradients(parameters: Iterable[Tensor]) -> None:
    """Average gradients over ranks, in place; DDP's are equal already, and shards of FSDP are left alone.

    Args:
        parameters: The parameters.
    """
    group = dist.group.WORLD if dist.is_available() and dist.is_initialized() else None
    if group is not None:
        gradients = [p.grad for p in parameters if p.grad is not None and not is_dtensor(p.grad)]
        average_over_ranks(gradients, group)


def part(networks: Sequence[nn.Module], name: str) -> list[nn.Parameter]:
    """The parameters of the models whose dotted name has `name` as one of its parts ("heads", "fc", ...).

    Args:
        networks: The models.
        name: A part of a dotted name.
    """
    return [p for network in networks for key, p in network.named_parameters() if name in key.split(".")]
