"""A run whose backbone is frozen and whose images are not augmented sees the same features in every epoch: once."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence

import torch
from torch import nn

from ncsam.data.readers.arrays import from_npz
from ncsam.data.readers.download import data_root
from ncsam.embed.encoder import Encoder
from ncsam.embed.run import embed, fingerprint, image_loader
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
    are kept under `~/.cache/ncsam/features` (or `NCSAM_DATA`), by the weights and the images they come from.
    """
    dataset = task.dataset
    if BACKBONE not in config.freeze or dataset.size is None or set(views) != {"plain"}:
        return task
    network = create().to(device).eval()
    assert isinstance(network, Backbone)
    encoder = Encoder(network, dataset.mean, dataset.std, dataset.size)
    if not _head_is_last(encoder, task):
        return task
    digest = hashlib.sha256(encoder.fingerprint().encode())
    for name, split in dataset.splits.items():
        if name not in dataset.extra:
            digest.update(f"{name} {fingerprint(split)}".encode())
    path = data_root() / "features" / f"{digest.hexdigest()[:32]}.npz"
    if not path.is_file():
        say(f"features of {config.model} are computed once, and kept in {path}")
        embed(dataset, encoder, path, batch_size=config.batch_size or 64, workers=config.workers, say=say)
    found = from_npz(path, mean=(0.0,), std=(1.0,), allow_empty=True)
    width = network.num_features
    splits = {
        name: None if here is None else dataclasses.replace(here, inputs=there.inputs)
        for name, here, there in (
            ("train", dataset.train, found.train),
            ("test", dataset.test, found.test or found.train),
            ("val", dataset.val, found.val or found.train),
        )
    }
    plain = dataclasses.replace(dataset, mean=(0.0,) * width, std=(1.0,) * width, size=None, **splits)  # type: ignore[arg-type]
    return dataclasses.replace(task, dataset=plain, source=dataset)


@torch.no_grad()
def _head_is_last(encoder: Encoder, task: Task) -> bool:
    """Whether head(features(x)) is what the network answers, on two samples."""
    loader = image_loader(task.dataset.train, encoder, 2, 0, task.train[:2])
    images = next(loader.iterate(0)).views[0]
    network = encoder.network
    return torch.allclose(network.head(network.features(images)), network(images), atol=1e-5)
