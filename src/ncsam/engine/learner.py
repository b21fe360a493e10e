"""A model with its optimizer, and one step of the two on a plan."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ncsam import models
from ncsam._arguments import LARGEST
from ncsam._errors import bad_value
from ncsam.engine.config import IN_MEMORY, ResolvedConfig, RunConfig
from ncsam.engine.optimizers import build_optimizer
from ncsam.errors import UsageError
from ncsam.methods import Method, Plan
from ncsam.models.backbone import to_channels_last
from ncsam.models.freeze import freeze
from ncsam.models.tapped import as_backbone
from ncsam.optim.sharpness_aware import SharpnessAware
from ncsam.pretrained.hub import PREFIX
from ncsam.vectors.arithmetic import is_dtensor, placed_like

if TYPE_CHECKING:
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
    from torch.distributed.device_mesh import DeviceMesh

    from ncsam.engine.device import Device


def check_network(config: RunConfig, num_classes: int, channels: int) -> None:
    """Raise `UsageError` for a mistake in the model's name or options; a model from elsewhere is not built for that.

    Args:
        config: Names the model and its options.
        num_classes: Number of classes.
        channels: Channels of images.
    """
    if ":" not in config.model and config.model != IN_MEMORY:
        with torch.device("meta"):  # without memory
            create_network(config, num_classes, channels, pretrained=False)


def create_network(config: RunConfig, num_classes: int, channels: int, *, pretrained: bool = False) -> nn.Module:
    """Build a model by name, with its pretrained weights if wanted and its frozen parts frozen.

    Args:
        config: Names the model, its options, its weights and its frozen parts.
        num_classes: Number of classes.
        channels: Channels of images.
        pretrained: Whether weights are loaded, if the configuration names any.

    Raises:
        UsageError: The name or an option is invalid, or the run was given its model as a Python object.
    """
    if config.model == IN_MEMORY:
        expected = "the model itself, which the run was given as a Python object: ncsam.load_run(folder, model=...)"
        raise bad_value("model", config.model, expected)
    weights = (config.pretrained or config.model.startswith(PREFIX)) if pretrained else False
    return prepared(
        config, models.create(config.model, num_classes, channels, pretrained=weights, **config.model_options)
    )


def prepared(config: RunConfig, network: nn.Module) -> nn.Module:
    """The model with a known head where that has its own learning rate, and with its frozen parts frozen.

    Args:
        config: Says what is frozen, and whether the head has its own learning rate.
        network: The model.
    """
    if config.head_lr is not None:
        network = as_backbone(network)
    return freeze(network, config.freeze) if config.freeze else network


def train_mode(networks: Iterable[nn.Module], *, frozen_norms: bool = False) -> None:
    """Models in training mode; with `frozen_norms`, BatchNorm uses and keeps the statistics that it has.

    Args:
        networks: The models.
        frozen_norms: Whether BatchNorm stays in evaluation mode.
    """
    for network in networks:
        network.train()
        if frozen_norms:
            for module in network.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()


def matches_structure(saved: Any, own: Any) -> bool:
    """Whether a saved value may stand in the place of our own: a tensor of that shape and type, a number for a number.

    A mapping may hold more than ours. Where we have nothing, any single value may stand.

    Args:
        saved: A value from a checkpoint.
        own: The value that it would replace.
    """
    if isinstance(own, Tensor):
        return isinstance(saved, Tensor) and saved.shape == own.shape and saved.dtype == own.dtype
    if isinstance(own, Mapping):
        return isinstance(saved, Mapping) and all(
            name in saved and matches_structure(saved[name], own[name]) for name in own
        )
    if isinstance(own, (list, tuple)):
        return isinstance(saved, (list, tuple)) and len(saved) == len(own) and all(map(matches_structure, saved, own))
    if own is None:
        return saved is None or isinstance(saved, (bool, str)) or _is_number(saved)
    if isinstance(own, (int, float)) and not isinstance(own, bool):
        return _is_number(saved)
    return type(saved) is type(own)


def _is_number(value: Any) -> bool:
    """A number that torch can compute with."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < (2**63 if isinstance(value, int) else LARGEST)


def is_plain(value: Any) -> bool:
    """Whether there is no tensor in a value: in options and records there is none.

    Args:
        value: Any nesting of mappings, lists and tuples.
    """
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Tensor):
            return False
        if isinstance(each, Mapping):
            waiting += each.values()
        elif isinstance(each, (list, tuple)):
            waiting += each
    return True


def refuse_other_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Raise `UsageError` for groups of other parameters; with SGD and AdamW also for options and states of other forms.

    The state of your own optimizer is not checked.

    Args:
        optimizer: The optimizer that would load the state.
        state: The state from a checkpoint, of full tensors.

    Raises:
        UsageError: The state is of another optimizer or model.
    """
    groups, own = state["param_groups"], optimizer.state_dict()["param_groups"]
    if any(a["params"] != b["params"] for a, b in zip(groups, own, strict=True)):
        raise UsageError("the groups are of other parameters")
    base = getattr(optimizer, "base_optimizer", optimizer)
    if not isinstance(base, (torch.optim.SGD, torch.optim.AdamW)):
        return
    if not matches_structure(groups, own):
        raise UsageError("the groups have other options")
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for number, entry in state["state"].items():
        if not isinstance(entry, Mapping) or not _is_entry(base, params[number], entry):
            raise UsageError(f"the state of parameter {number} is of another form")


def _is_entry(base: torch.optim.Optimizer, parameter: Tensor, entry: Mapping[str, Any]) -> bool:
    if isinstance(base, torch.optim.SGD):
        return entry.get("momentum_buffer") is None or matches_structure(entry["momentum_buffer"], parameter)
    known = matches_structure(entry, {"exp_avg": parameter, "exp_avg_sq": parameter})
    return known and isinstance(step := entry.get("step"), Tensor) and step.ndim == 0 and step.is_floating_point()


def refuse_other_method(own: Mapping[str, Any], state: Any) -> None:
    """Raise `UsageError` for a method's state that a method of this kind does not write.

    Names are those of `own`, the state of the method before anything was trained. What it has already must have the
    same form, tensors the same shape. What it has not yet may be numbers, words and finite tensors, nested or not.

    Args:
        own: The state of a new method.
        state: The state from a checkpoint.
    """
    if not isinstance(state, Mapping) or state.keys() != own.keys():
        raise UsageError("the state of the method has other names")
    for name, value in own.items():
        if not (_is_finite(state[name]) if _is_empty(value) else _has_form(state[name], value)):
            raise UsageError(f"{name} of the method is of another form")


def _is_empty(value: Any) -> bool:
    """Whether nothing was there yet when training began."""
    return value is None or (isinstance(value, (Mapping, list, tuple)) and not value)


def _has_form(saved: Any, own: Any) -> bool:
    """As `matches_structure`; floats may have been saved in another precision, and what is empty is not known yet."""
    if _is_empty(own):
        return _is_finite(saved)
    if type(own) is int:  # counts
        return type(saved) is int and 0 <= saved < 2**63
    if isinstance(own, float) and math.isinf(own):
        return saved == own or _is_number(saved)
    if isinstance(own, Tensor) and own.is_floating_point():
        return isinstance(saved, Tensor) and saved.is_floating_point() and saved.shape == own.shape
    if isinstance(own, Mapping):
        same = isinstance(saved, Mapping) and saved.keys() == own.keys()
        return same and all(_has_form(saved[name], own[name]) for name in own)
    if isinstance(own, (list, tuple)):
        return isinstance(saved, (list, tuple)) and len(saved) == len(own) and all(map(_has_form, saved, own))
    return matches_structure(saved, own)


def _is_finite(value: Any) -> bool:
    """Whether a value is made of finite tensors and numbers, and words alone."""
    if isinstance(value, Tensor):
        return bool(torch.isfinite(value).all())
    if isinstance(value, Mapping):
        return all(isinstance(name, (str, int)) for name in value) and all(map(_is_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_finite, value))
    return value is None or isinstance(value, (bool, str)) or _is_number(value)


def fsdp(ranks: int) -> ModelParallelStrategy:
    """Fabric's strategy that spreads weights, gradients and optimizer state over all ranks by torch's `fully_shard`.

    Args:
        ranks: Number of processes on all nodes.
    """
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy

    return ModelParallelStrategy(_shard, data_parallel_size=ranks, tensor_parallel_size=1)


def _shard(network: nn.Module, mesh: DeviceMesh) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    fully_shard(network, mesh=mesh["data_parallel"])
    return network


def is_sharded(network: nn.Module) -> bool:
    """Whether any parameter of a model is a DTensor, as `fully_shard` makes them.

    Args:
        network: The model.
    """
    return any(is_dtensor(p) for p in network.parameters())


def full_state(state: Any) -> Any:
    """The same nested state with every sharded tensor gathered, on the CPU. Every rank must call it.

    Args:
        state: Dictionaries and lists of tensors and plain values.
    """
    if isinstance(state, Tensor) and is_dtensor(state):
        return state.full_tensor().cpu()
    if isinstance(state, dict):
        return {name: full_state(value) for name, value in state.items()}
    return [full_state(value) for value in state] if isinstance(state, list) else state


def _placed(value: Any, parameter: Tensor) -> Any:
    """A full tensor of a parameter's shape, sharded like it; anything else unchanged."""
    return placed_like(parameter, value) if isinstance(value, Tensor) and value.shape == parameter.shape else value


def load_network(network: nn.Module, state: dict[str, Any]) -> None:
    """Load full tensors into a model, sharded or not.

    Args:
        network: The model without wrappers.
        state: Tensors by name, the same on all ranks.
    """
    there = network.state_dict()
    network.load_state_dict({name: _placed(value, there[name]) for name, value in state.items()})


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load full tensors into an optimizer, of sharded parameters or not.

    Args:
        optimizer: A base optimizer, or a sharpness-aware one.
        state: Its state with full tensors, the same on all ranks.

    Raises:
        UsageError: The state is of another optimizer or model.
    """
    refuse_other_optimizer(optimizer, state)
    params = [p for group in optimizer.param_groups for p in group["params"]]
    cut = {
        number: {name: _placed(value, params[number]) for name, value in entry.items()}
        for number, entry in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": cut})


def share_buffers(network: nn.Module) -> None:
    """Give all ranks the first one's buffers (BatchNorm's statistics), as DDP does by itself.

    Args:
        network: The model; every rank must call this with its own.
    """
    for buffer in network.buffers():
        dist.broadcast(buffer, src=0)


class Learner:
    """One of a method's models, set up for its device, ranks and precision.

    Args:
        fabric: Device and ranks of the run.
        network: The model without wrappers; its memory format is changed to channels last unless it will be sharded.
        method: The learning method, which computes the loss.
        config: The resolved configuration.
        steps_per_epoch: Optimizer steps per epoch.
        number: Which of the method's models it is, from 0.

    Raises:
        UsageError: Options of the optimizer are invalid, or it perturbs locally while the weights are sharded.
    """

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
        """One optimizer step; the loss at the weights before it. `clean_targets` serve telemetry alone.

        Args:
            plan: What the method wants to train this model on.
            clean_targets: True labels of the samples of the plan, where they are known.
        """
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
        """Set the learning rate of every group to a share of its initial one.

        Args:
            factor: The share, as the schedule returns it.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor

    def restart(self, fresh: nn.Module | None) -> None:
        """Begin a stage: the base optimizer loses its momentum, and the model takes the weights of a fresh one.

        Args:
            fresh: A new model whose weights are taken; `None` keeps the trained ones.
        """
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
        """Load what `state_dict` returned. Every rank must call it.

        Args:
            state: Model and optimizer as full tensors.
        """
        load_network(self.bare, state["network"])
        load_optimizer(self.optimizer, state["optimizer"])
