"""Per-sample SAM of all weights: each sample of a batch perturbs along its own gradient, by `torch.func.vmap`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from ncsam.methods.base import LossOutput, Method, Plan, State
from ncsam.models.backbone import Backbone

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch


class PerSample(Method):
    r"""1-SAM, :math:`\mathrm{mean}_i\, \ell_i(w + \rho\, g_i / \|g_i\|)` with :math:`g_i` sample i's own gradient.

    The closed form for the head alone is `head_losses.PerSampleHead`. BatchNorm normalizes by the statistics of the
    batch at w, as constants: otherwise there is no gradient of one sample. Its running statistics follow that one pass.
    Two gradients and a forward, on a copy of the weights for each of `chunk` samples. One process.
    """

    resists_memorization = False
    effect = "criterion"

    def __init__(self, radius: float = 0.1, chunk: int = 32) -> None:
        self.radius, self.chunk = radius, chunk

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        return (Plan(batch.views[0], batch.labels, batch.index),)

    def loss(self, network: nn.Module, plan: Plan) -> LossOutput:
        backbone = next(module for module in network.modules() if isinstance(module, Backbone))
        weights = {name: p for name, p in backbone.named_parameters() if p.requires_grad}

        def of_one(moves: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            moved = {name: w + moves[name] for name, w in weights.items()}
            return F.cross_entropy(functional_call(backbone, {**fixed, **moved}, (x[None],)), y[None])

        with torch.no_grad(), statistics(backbone) as fixed:
            logits = network(plan.inputs)
        with frozen(backbone):
            still = {name: torch.zeros_like(w) for name, w in weights.items()}
            gradients = vmap(grad(of_one), (None, 0, 0), chunk_size=self.chunk)(still, plan.inputs, plan.targets)
            norms = torch.stack([g.detach().flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
            scale = self.radius / norms.clamp_min(torch.finfo(norms.dtype).tiny)
            moves = {n: g.detach() * scale.view(-1, *[1] * (g.dim() - 1)) for n, g in gradients.items()}
            losses = vmap(of_one, chunk_size=self.chunk)(moves, plan.inputs, plan.targets)
        return LossOutput(losses.mean(), logits, plan.targets)


@contextmanager
def statistics(network: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Collect the mean and variance by which each BatchNorm normalizes, by the names of its running ones."""
    found: dict[str, Tensor] = {}

    def note(name: str, x: Tensor) -> None:
        over = [d for d in range(x.dim()) if d != 1]
        found[f"{name}.running_var"], found[f"{name}.running_mean"] = torch.var_mean(x, over, correction=0)

    norms = [(name, module) for name, module in network.named_modules() if isinstance(module, _BatchNorm)]
    hooks = [m.register_forward_pre_hook(lambda _, x, name=name: note(name, x[0])) for name, m in norms]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def frozen(network: nn.Module) -> Iterator[None]:
    """BatchNorm in evaluation mode."""
    training = [module for module in network.modules() if isinstance(module, _BatchNorm) and module.training]
    try:
        for module in training:
            module.eval()
        yield
    finally:
        for module in training:
            module.train()
