"""A running average of a model's weights, to predict with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam._trees import Tree
from ncsam.methods.base import Method, State


class AveragingMethod(Method):
    """A method of one model that predicts with a running average of its weights.

    After each step w_avg <- d w_avg + (1 - d) w with d = min(decay, (1 + t) / (10 + t)), t the steps so far: an early
    average forgets the initialization. Buffers such as BatchNorm's statistics are copied.

    Args:
        decay: In [0, 1); 0 predicts with the weights themselves.
    """

    average: nn.Module | None = None
    steps = 0

    def __init__(self, decay: float) -> None:
        if not 0 <= decay < 1:
            raise bad_value("decay", decay, "a number in [0, 1), 0 for no average")
        self.decay = decay

    def build(self, create: Callable[[], nn.Module]) -> list[nn.Module]:
        """Build the model, and next to it the average unless `decay` is 0.

        Args:
            create: Builds a model of the run; called once.
        """
        networks = super().build(create)
        if self.decay:
            self.average = copy.deepcopy(networks[0]).eval().requires_grad_(False)
        return networks

    def on_train_start(self, state: State) -> None:
        """Move the average to the device that training runs on.

        Args:
            state: The state of training, whose labels are on that device.
        """
        if self.average is not None:
            self.average.to(state.labels.device)

    @torch.no_grad()
    def on_step_end(self, networks: Sequence[nn.Module], state: State) -> None:
        """Move the average towards the present weights, and copy the buffers.

        Args:
            networks: The model, as a sequence of one.
            state: Not used.
        """
        if self.average is None:
            return
        self.steps += 1
        share = 1 - min(self.decay, (1 + self.steps) / (10 + self.steps))
        for mean, now in zip(self.average.parameters(), networks[0].parameters(), strict=True):
            mean.data = mean.to(now).lerp(now, share)
        for kept, buffer in zip(self.average.buffers(), networks[0].buffers(), strict=True):
            kept.data = buffer.clone()

    def predict(self, networks: Sequence[nn.Module], inputs: Tree) -> Tensor:
        """Logits by the averaged weights, or by the model itself where `decay` is 0.

        Args:
            networks: The model, as a sequence of one.
            inputs: A batch of inputs.
        """
        return super().predict(networks if self.average is None else [self.average], inputs)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.average is None else {"steps": self.steps, "average": self.average.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the average and its count of steps; nothing where `decay` is 0.

        Args:
            state: What `state_dict` returned.
        """
        if self.average is not None:
            self.steps = state["steps"]
            load_as_saved(self.average, state["average"])


def load_as_saved(module: nn.Module, state: dict[str, Any]) -> None:
    """Load weights in the precision that they were saved in, whatever the module was made in.

    Args:
        module: The module.
        state: Its state dict.
    """
    module.to(next((value.dtype for value in state.values() if value.is_floating_point()), torch.float32))
    module.load_state_dict(state)
