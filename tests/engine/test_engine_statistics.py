"""BatchNorm's statistics after an epoch of an optimizer that evaluates at moved weights alone."""

from __future__ import annotations

import copy
import itertools

import torch
from torch import nn

from ncsam.engine import RunConfig, train
from ncsam.engine.trainer import Trainer


def trained(optimizer: str, rho: float | str) -> Trainer:
    config = RunConfig(
        optimizer=optimizer, rho=rho, model="cnn_small", epochs=1, batch_size=128, lr=0.05, accelerator="cpu",
        precision="32-true",
    )  # fmt: skip
    trainer = train(config, console=False).trainer
    assert trainer is not None
    return trainer


def norms(network: nn.Module) -> list[nn.BatchNorm2d]:
    return [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]


def at_w(trainer: Trainer, batches: int) -> list[torch.Tensor]:
    """Mean over batches of the batch statistics at the weights, by a hook on each layer."""
    network = copy.deepcopy(trainer.learners[0].bare).train()
    seen: list[list[torch.Tensor]] = [[] for _ in norms(network)]
    for layer, found in zip(norms(network), seen, strict=True):
        layer.register_forward_pre_hook(lambda _, x, found=found: found.append(x[0].mean((0, 2, 3))))
    with torch.no_grad():
        for batch in itertools.islice(trainer.loader.iterate(1, 0), batches):
            network(batch.views[0])
    return [torch.stack(found).mean(0) for found in seen]


def test_msam_is_evaluated_with_statistics_of_w() -> None:
    trainer = trained("msam", 2.0)
    layers = norms(trainer.learners[0].bare)
    assert layers
    for layer, expected in zip(layers, at_w(trainer, 2), strict=True):
        assert layer.running_mean is not None
        torch.testing.assert_close(layer.running_mean, expected, rtol=1e-4, atol=1e-5)
        assert layer.momentum == 0.1


def test_other_optimizers_keep_the_statistics_of_training() -> None:
    trainer = trained("sam", 0.05)
    steps = trainer.steps_per_epoch
    assert [int(layer.num_batches_tracked) for layer in norms(trainer.learners[0].bare)] == [steps] * 3  # type: ignore[arg-type]
