"""Roughly how long training will take on this machine, from a few timed steps of the model."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from ncsam import models, optim
from ncsam.engine.checkpoint import kept_random_state
from ncsam.engine.config import RunConfig
from ncsam.methods import create as create_method

if TYPE_CHECKING:
    from ncsam.engine.trainer import Trainer

_STEPS = 3  # timed steps; the first is slower and does not count
#: Called with expected seconds of "features" or "training" before they start; raises where they are not to start.
Approve = Callable[[float, str], None]


def step_seconds(config: RunConfig, inputs: Any, labels: torch.Tensor, num_classes: int, in_channels: int) -> float:
    """Seconds of one forward and backward pass of the model of `config` over a batch, on the device of the batch.

    Args:
        config: Names the model and its options; its optimizer does not matter.
        inputs: A batch as the model takes it.
        labels: Class indices (batch,) on the same device.
        num_classes: Number of classes.
        in_channels: Channels of images; other models ignore it.
    """
    network = models.create(config.model, num_classes, in_channels, **config.model_options).to(labels.device).train()
    seconds = []
    for _ in range(_STEPS):
        began = time.perf_counter()
        loss = F.cross_entropy(network(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        float(loss.detach())  # waits for an accelerator
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


def training_seconds(config: RunConfig, step: float, samples: int, evaluated: float = 0.0) -> float:
    r"""Seconds of training as a resolved configuration says.

    .. math:: \text{epochs} \cdot \left(\tfrac{n}{b} \cdot \text{passes} \cdot \text{networks} \cdot \text{views} +
              \tfrac{m}{3b}\right) \cdot \text{step}

    Args:
        config: a configuration whose batch size and epochs are numbers.
        step: seconds of one forward and backward pass over a batch (`step_seconds`).
        samples: training samples n.
        evaluated: samples m predicted after each epoch; a forward pass is a third of a step.
    """
    assert isinstance(config.batch_size, int)
    assert config.epochs != "auto"
    method = create_method(config.method, **config.method_options)
    passes = passes_of(config.optimizer) * method.networks * max(1, len(method.views))
    batches = -(-samples // config.batch_size) * passes + evaluated / config.batch_size / 3 * method.networks
    return config.epochs * batches * step


def remaining_seconds(trainer: Trainer) -> float:
    """About how long the rest of a run takes: a copy of its model is timed on its first batches.

    The run itself is not changed, generators included. Early stopping may end it sooner.

    Args:
        trainer: A trainer before its next step.
    """
    with kept_random_state():
        network = copy.deepcopy(trainer.learners[0].bare).train()
        precision, seconds = trainer.fabric.strategy.precision, []
        batches = trainer.loader.iterate(1)
        for _ in range(min(_STEPS, len(trainer.loader))):
            began = time.perf_counter()
            batch = next(batches)
            with precision.forward_context():
                logits = network(precision.convert_input(batch.views[0]))
                loss = F.cross_entropy(logits.float(), batch.labels)
            loss.backward()  # type: ignore[no-untyped-call]
            float(loss.detach())  # waits for an accelerator
            seconds.append(time.perf_counter() - began)
    config, task = trainer.config, trainer.task
    step = sum(seconds[1:]) / len(seconds[1:]) if len(seconds) > 1 else seconds[0]
    evaluated = sum(len(split) for split in task.dataset.splits.values())
    left = config.epochs * trainer.steps_per_epoch - trainer.steps_done
    whole = training_seconds(config, step, len(task.train), evaluated)
    return whole * left / (config.epochs * trainer.steps_per_epoch)


def passes_of(optimizer: str) -> float:
    """Forward and backward passes per step: 1 for a plain optimizer, and what a sharpness-aware one says of itself.

    Args:
        optimizer: Name of an optimizer.
    """
    try:
        return float(getattr(optim.get(optimizer), "passes", 2))
    except ValueError:  # sgd, adamw: no sharpness-aware optimizer
        return 1.0


def random_batch(shape: Sequence[int], num_classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of random images and labels.

    Args:
        shape: Shape of the images, the batch first.
        num_classes: Labels are drawn from 0 to one less.

    Returns:
        Images and labels, the same at every call.
    """
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=generator), torch.randint(num_classes, (shape[0],), generator=generator)
