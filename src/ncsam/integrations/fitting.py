"""A small training loop over arrays in memory: any method, any optimizer, one process, nothing written to disk.

`ncsam.engine` is the full loop, with images, ranks, checkpoints and a run folder. This one needs torch alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ncsam._errors import bad_value
from ncsam.data.loading.loader import Batch
from ncsam.engine.modes import evaluating
from ncsam.engine.optimizers import build_optimizer, learning_rate
from ncsam.engine.samples import SampleTable
from ncsam.methods import Method, Plan, State
from ncsam.methods.heads import output_of
from ncsam.optim import SharpnessAware

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ncsam.engine.config import RunConfig

_ROWS = 1024  # in one forward of a prediction


def fit_arrays(
    config: RunConfig, method: Method, create: Callable[[], nn.Module], inputs: Tensor, labels: Tensor, num_classes: int
) -> tuple[list[nn.Module], list[float]]:
    """Train the method's networks on rows in memory; the networks and the mean loss of each epoch.

    Method, optimizer, epochs, batch size and schedule are those of `config`, as in `ncsam train`; every view that the
    method asks for is the row itself. An epoch's order depends on (seed, epoch) alone.
    """
    assert config.batch_size is not None, "the caller settles it"
    if method.images_only or method.verified_share or len(method.stages(config.epochs)) > 1:
        raise bad_value("method", method.name, "only by `ncsam train`: it needs images, verified labels or stages")
    device = inputs.device
    steps = -(-len(inputs) // config.batch_size)  # batches whose sizes differ by at most one
    networks = [network.to(device) for network in method.build(create)]
    optimizers = [build_optimizer(config, network, method, steps, number) for number, network in enumerate(networks)]
    state = State(
        num_classes=num_classes,
        labels=labels,
        epochs=config.epochs,
        steps_per_epoch=steps,
        samples=SampleTable(len(inputs), device),
        seed=config.seed,
        noise_rate=config.rate,
    )
    state.engine = Rows(method, inputs, state, min(config.batch_size, len(inputs)))
    method.on_train_start(state)
    factor = learning_rate(config)
    total, done, losses = config.epochs * steps, 0, []
    for epoch in range(1, config.epochs + 1):
        state.epoch, state.batch = epoch, 0
        method.on_epoch_start(networks, state)
        for network, optimizer in zip(networks, optimizers, strict=True):
            network.train()
            if isinstance(optimizer, SharpnessAware):
                optimizer.progress = epoch / config.epochs
        generator = torch.Generator().manual_seed(config.seed * 100_003 + epoch)
        order = torch.randperm(len(inputs), generator=generator).to(device)
        seen = torch.zeros((), device=device)
        for state.batch, index in enumerate(torch.tensor_split(order, steps)):
            rows = inputs[index]
            with torch.no_grad():
                plans = method.plan(Batch((rows,) * len(method.views), labels[index], index), networks, state)
            for network, optimizer, plan in zip(networks, optimizers, plans, strict=True):
                state.lr = config.lr * factor(done / total)
                for group in optimizer.param_groups:
                    group["lr"] = group["initial_lr"] * factor(done / total)
                seen += step(method, network, optimizer, plan) / len(networks)
            method.on_step_end(networks, state)
            done += 1
        losses.append(float(seen) / steps)
    return networks, losses


class Rows:
    """What a method may ask (see `ncsam.methods.base.Engine`), answered from rows in memory."""

    def __init__(self, method: Method, inputs: Tensor, state: State, batch_size: int) -> None:
        self.method = method
        self.inputs = inputs
        self.state = state
        self.batch_size = batch_size

    def predict(self, networks: Sequence[nn.Module], output: str = "probabilities") -> Tensor:
        if output == "probabilities":
            return predict_arrays(self.method, networks, self.inputs).float()
        (network,) = networks
        with torch.no_grad(), evaluating(networks):
            return torch.cat([output_of(network, rows, output) for rows in torch.split(self.inputs, _ROWS)])

    def batches(
        self, index: Tensor, view: str | Sequence[str] = "plain", *, batch_size: int | None = None, stream: int = 0
    ) -> Iterator[Batch]:
        order = torch.from_numpy(self.state.random(1 + stream).permutation(len(index))).to(index.device)
        views = 1 if isinstance(view, str) else len(view)
        for some in torch.split(index[order], batch_size or self.batch_size):
            yield Batch((self.inputs[some],) * views, self.state.labels[some], some)

    def backward(self, loss: Tensor) -> None:
        torch.autograd.backward(loss)


def step(method: Method, network: nn.Module, optimizer: Optimizer, plan: Plan) -> Tensor:
    """One step on a plan, with a sharpness-aware optimizer or another; the loss at the weights before it."""
    if not isinstance(optimizer, SharpnessAware):
        optimizer.zero_grad()
        loss = method.loss(network, plan).loss
        torch.autograd.backward(loss)
        optimizer.step()
        return loss.detach()
    loss = optimizer.run_passes(lambda: method.loss(network, plan))
    optimizer.step()
    return loss


@torch.no_grad()
def predict_arrays(method: Method, networks: Sequence[nn.Module], inputs: Tensor) -> Tensor:
    """Class probabilities of all rows, in evaluation mode; the networks' own mode is kept."""
    with evaluating(networks):
        return torch.cat(
            [method.predict(networks, rows).double().softmax(dim=1) for rows in torch.split(inputs, _ROWS)]
        )
