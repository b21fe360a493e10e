"""A run whose backbone is frozen and whose images are not augmented sees the same features in every epoch: once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import nn

from ncsam.embed.encoder import Encoder
from ncsam.embed.features import features_of, image_loader
from ncsam.engine.config import RunConfig
from ncsam.engine.task import Task
from ncsam.models.backbone import Backbone
from ncsam.models.freeze import BACKBONE


def with_features(
    config: RunConfig,
    task: Task,
    create: Callable[[], nn.Module],
    views: Sequence[str],
    *,
    device: torch.device | str = "cpu",
    say: Callable[[str], None] = print,
) -> Task:
    """The task on the features of its images, where that is the same: else the task itself.

    It is the same where the backbone is frozen, every view is plain, and the head's answer is the network's. Features
    are kept by content, see `ncsam.embed.cache`.
    """
    dataset = task.dataset
    if BACKBONE not in config.freeze or dataset.size is None or set(views) != {"plain"}:
        return task
    network = create().to(device).eval()
    assert isinstance(network, Backbone)
    encoder = Encoder(network, dataset.mean, dataset.std, dataset.size)
    if not _head_is_last(encoder, task):
        return task
    found = features_of(dataset, encoder, batch_size=config.batch_size or 64, workers=config.workers, say=say)
    width = network.num_features
    # the network of the run is the whole one, which answers images: the features are no encoding to be stored with it
    plain = dataclasses.replace(found, mean=(0.0,) * width, std=(1.0,) * width, extra=dataset.extra, encoding=None)
    return dataclasses.replace(task, dataset=plain, source=dataset)


@torch.no_grad()
def _head_is_last(encoder: Encoder, task: Task) -> bool:
    """Whether head(features(x)) is what the network answers, on two samples."""
    loader = image_loader(task.dataset.train, encoder, 2, 0, task.train[:2])
    images = next(loader.iterate(0)).views[0]
    network = encoder.network
    return torch.allclose(network.head(network.features(images)), network(images), atol=1e-5)
