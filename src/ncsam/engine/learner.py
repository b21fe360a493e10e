"""A model with its optimizer, and one step of the two on a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam.engine.config import ResolvedConfig
from ncsam.engine.optimizers import build_optimizer
from ncsam.engine.states import full_state, is_sharded, load_network, load_optimizer, share_buffers
from ncsam.methods import Method, Plan
from ncsam.models.channels_last import to_channels_last
from ncsam.optim.sharpness_aware import SharpnessAware
from ncsam.vectors.arithmetic import is_dtensor

if TYPE_CHECKING:
    from ncsam.engine.device import Device


class Learner:
    """One of a method's models, set up for its device, ranks and precision."""

    def __init__(
        self,
        fabric: Device,
        network: nn.Module,
        method: Method,
        config: ResolvedConfig,
        steps_per_epoch: int,
        number: int = 0,
    ) -> None:
        self.fabric = fabric
        self.method = method
        self.bare = network
        if config.strategy != "fsdp":  # which shards contiguous weights alone; inputs are channels last all the same
            to_channels_last(network)
        compiled: Any = torch.compile(network) if config.compile else network
        self.network: nn.Module = fabric.setup_module(compiled)
        # Fabric's wrapper copies the optimizer's class but has its own attributes: phases and settings go to the
        # optimizer itself, and only the final step through the wrapper, which handles loss scaling
        self.optimizer = build_optimizer(config, self.network, method, steps_per_epoch, number)
        self._stepper: Any = fabric.setup_optimizers(self.optimizer)
        self._scaler = getattr(fabric.strategy.precision, "scaler", None)
        self._sharded = is_sharded(network)
        self._clip_norm = config.clip_norm
        if self._sharded and getattr(self.optimizer, "perturbation", "synced") == "local":
            raise bad_value(
                "perturbation", "local", "synced, because the weights are sharded; local needs strategy='ddp'"
            )

    @property
    def sharpness_aware(self) -> SharpnessAware | None:
        return self.optimizer if isinstance(self.optimizer, SharpnessAware) else None

    def step(self, plan: Plan, clean_targets: Tensor | None) -> Tensor:
        """One optimizer step; the loss at the weights before it. `clean_targets` serve telemetry alone."""
        self.share_buffers()
        if (optimizer := self.sharpness_aware) is None:
            self.optimizer.zero_grad()
            loss = self.method.loss(self.network, plan).loss
            self.fabric.backward(loss)
        else:
            loss = optimizer.run_passes(
                lambda: (*self.method.loss(self.network, plan), clean_targets),
                backward=self.fabric.backward,
                scaler=self._scaler,  # for its scale, and to report an overflow; Fabric's backward does the scaling
            )
        if self._clip_norm is not None:
            self.fabric.clip_gradients(self.network, self._stepper, max_norm=self._clip_norm, error_if_nonfinite=False)
        self._stepper.step()
        return loss.detach()

    def set_lr(self, factor: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor

    def restart(self, fresh: nn.Module | None) -> None:
        """Begin a stage: the base optimizer loses its momentum, and the model takes the weights of a fresh one."""
        self.optimizer.state.clear()
        if fresh is not None:
            fresh.to(self.fabric.device)
            load_network(self.bare, dict(fresh.state_dict()))

    @property
    def lr(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def share_buffers(self) -> None:
        """Synchronize the ranks' statistics where the strategy does not."""
        if self._sharded:
            share_buffers(self.bare)

    def is_finite(self) -> bool:
        """Whether all weights and statistics (of this rank) are finite."""
        tensors = [t.detach() for t in (*self.bare.parameters(), *self.bare.buffers())]
        here = [t.to_local() if is_dtensor(t) else t for t in tensors]
        norms = torch._foreach_norm([t for t in here if t.is_floating_point() and t.numel()])
        return bool(torch.stack(norms).isfinite().all()) if norms else True

    def state_dict(self) -> dict[str, Any]:
        """Full tensors, whatever the strategy. Every rank must call it."""
        return {
            "network": full_state(dict(self.bare.state_dict())),
            "optimizer": full_state(self.optimizer.state_dict()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_network(self.bare, state["network"])
        load_optimizer(self.optimizer, state["optimizer"])
