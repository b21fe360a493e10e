"""Photos and texts as features of a frozen backbone, computed once and cached: the recommended way on a CPU."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ncsam import classifiers
from ncsam._errors import bad_value
from ncsam._text import format_duration
from ncsam.data.loading.loader import Loader
from ncsam.data.modalities.images import Images
from ncsam.data.modalities.text import Texts
from ncsam.data.types import DataSet
from ncsam.embed import Choice, Encoder, NamedTextEncoder, choose_encoder, features_of, image_encoder, text_encoder
from ncsam.embed.choose import input_size
from ncsam.embed.encoder import PHOTOGRAPH
from ncsam.embed.features import encode, image_loader
from ncsam.engine.config import ResolvedConfig, RunConfig
from ncsam.engine.forecast import Approve
from ncsam.engine.task import Task
from ncsam.models.backbone import Backbone, to_channels_last
from ncsam.models.freeze import BACKBONE

_SHRINKAGE = 0.8


@torch.no_grad()
def fit_head(network: nn.Module, loader: Loader, labels: Tensor, device: torch.device) -> nn.Module:
    """Replace the weights of the head by those of discriminant analysis on the features of the training samples.

    Args:
        network: A model with a linear head; it is moved to the device and left in training mode.
        loader: The training samples, un-augmented and in order.
        labels: The given labels of the samples of the loader.
        device: Where features are computed.

    Returns:
        The model.

    Raises:
        UsageError: The model has no linear head on features.
    """
    if not isinstance(network, Backbone):
        raise bad_value("head_init", "lda", "random, because the model is no Backbone as those of ncsam.models")
    network.to(device).eval()
    x = torch.cat([network.features(batch.views[0]).float().cpu() for batch in loader.iterate(0)])
    network.train()
    fit_linear(network.head, x, labels.cpu())
    return network


@torch.no_grad()
def fit_linear(head: nn.Linear, x: Tensor, labels: Tensor) -> None:
    """Set a linear layer to discriminant analysis of its inputs, fitted without confident label issues.

    Args:
        head: The layer.
        x: Its inputs (N, features).
        labels: The given labels (N,).
    """
    mean, std = x.mean(dim=0), x.std(dim=0).clamp(min=1e-6)
    options: dict[str, Any] = {"shrinkage": _SHRINKAGE, "unit": False, "prune": 1}
    state = classifiers.cross_fit("lda", (x - mean) / std, labels, head.out_features, **options).member.state
    weight = state["scale"] * state["weight"] / std
    head.weight.copy_(weight)
    head.bias.copy_(state["scale"] * state["bias"] - weight @ mean)


NONE = "none"
_TIMED = 16  # samples from which the time of all is extrapolated


def with_backbone(
    config: RunConfig,
    task: Task,
    device: str = "cpu",
    say: Callable[[str], None] = lambda text: None,
    *,
    wanted: bool | None = None,
    approve: Approve | None = None,
) -> tuple[RunConfig, Task]:
    """The task on features of the backbone that a configuration asks for, and the configuration that names it.

    `backbone: auto` is the one that `choose_encoder` finds for photos or texts where nothing asks for a certain model
    or way of training; on an accelerator it is fine-tuned instead. Otherwise the task is returned unchanged.

    Args:
        config: The configuration.
        task: Its data.
        device: Where features are computed.
        say: Gets what was chosen, why, and how long it will take.
        wanted: Whether "auto" asks for a backbone; by default as described above.
        approve: Called with the expected seconds before features are computed.
    """
    if config.backbone == NONE or not isinstance(task.modality, (Images, Texts)) or task.dataset.encoding is not None:
        return config.replace(backbone=NONE), task
    if config.backbone != "auto":
        encoder: Encoder | NamedTextEncoder | None = named_encoder(
            config.backbone, task.dataset, device, config.max_length
        )
        choice = Choice(config.backbone, f"backbone {config.backbone}")
    elif config.leaves_training_open if wanted is None else wanted:
        encoder, choice = choose_encoder(task.dataset, device)
        if choice.name is not None and config.max_length is not None:
            encoder = named_encoder(choice.name, task.dataset, device, config.max_length)
    else:
        return config.replace(backbone=NONE), task
    if encoder is None or choice.name is None:
        say(choice.reason)
        return config.replace(backbone=NONE), task
    if not choice.frozen and choice.name != "minilm":
        say(f"{choice.reason}: fine-tuned on {device}")
        return config.replace(model=choice.name, pretrained=True, backbone=NONE), task
    return config.replace(backbone=choice.name), on_features(task, encoder, choice.reason, config.workers, say, approve)


def on_features(
    task: Task,
    encoder: Encoder | NamedTextEncoder,
    reason: str,
    workers: int,
    say: Callable[[str], None],
    approve: Approve | None = None,
) -> Task:
    """The task with features in the place of its samples, which it remembers.

    Args:
        task: Images or texts with their labels.
        encoder: Computes the features.
        reason: Why this encoder was chosen, for the message.
        workers: Processes that decode image files.
        say: Gets what is computed and the expected time.
        approve: Called with the expected seconds and "features" before anything is computed; raises to refuse.
    """
    dataset = task.dataset
    samples = sum(len(split) for split in dataset.splits.values())
    seconds = _forecast(dataset, encoder, samples)
    say(f"{reason}: features of {samples:,} samples in at most {format_duration(seconds)}")
    if approve is not None:
        approve(seconds, "features")
    return dataclasses.replace(task, dataset=features_of(dataset, encoder, workers=workers, say=say))


def named_encoder(
    name: str, dataset: DataSet, device: str, max_length: int | None = None
) -> Encoder | NamedTextEncoder:
    """The encoder of a name for a dataset of images or texts, with the input size that suits it.

    Args:
        name: Name of a pretrained encoder, such as "lite0", "minilm" or "timm:NAME".
        dataset: Gives the size of its images; texts have none.
        device: Where features are computed, such as "cpu" or "cuda:0"; images are smaller on a CPU.
        max_length: Tokens of a text that are read; `None` for the encoder's own limit.
    """
    if dataset.size is None:
        return text_encoder(name, device=device, max_length=max_length)
    side = input_size(dataset.size, device.partition(":")[0] == "cpu")
    return image_encoder(name, size=(side, side), crop=min(dataset.size) >= PHOTOGRAPH, device=device)


def _forecast(dataset: DataSet, encoder: Encoder | NamedTextEncoder, samples: int) -> float:
    """About how many seconds features take where none is cached, from a few of them."""
    few: Any = dataset.train.inputs[:_TIMED]
    began = time.perf_counter()
    encode(few, encoder, None, _TIMED)
    return (time.perf_counter() - began) / max(1, len(few)) * samples


def with_features(
    config: ResolvedConfig,
    task: Task,
    create: Callable[[], nn.Module],
    views: Sequence[str],
    *,
    device: torch.device | str = "cpu",
    say: Callable[[str], None] = print,
) -> Task:
    """The task on the features of its images, where that gives the same model; otherwise the task itself.

    It does where the backbone is frozen, no view is augmented, and the head is the last layer. Features
    are cached by content, see `ncsam.embed.cache`.

    Args:
        config: The resolved configuration.
        task: Images with their labels.
        create: Builds the model with its pretrained weights.
        views: The views that the method wants; only "plain" ones allow features.
        device: Where features are computed.
        say: Gets lines of progress.
    """
    dataset = task.dataset
    if BACKBONE not in config.freeze or dataset.size is None or set(views) != {"plain"}:
        return task
    network = to_channels_last(create()).to(device).eval()
    assert isinstance(network, Backbone)
    encoder = Encoder(network, dataset.mean, dataset.std, dataset.size)
    if not _head_is_last(encoder, task):
        return task
    found = features_of(dataset, encoder, batch_size=config.batch_size, workers=config.workers, say=say)
    width = network.num_features
    # the run's model is the whole network, which takes images: the features are not stored as its encoding
    plain = dataclasses.replace(found, mean=(0.0,) * width, std=(1.0,) * width, extra=dataset.extra, encoding=None)
    return dataclasses.replace(task, dataset=plain, source=dataset)


@torch.no_grad()
def _head_is_last(encoder: Encoder, task: Task) -> bool:
    """Whether head(features(x)) is the output of the model, on two samples."""
    loader = image_loader(task.dataset.train, encoder, 2, 0, task.train[:2])
    images = next(loader.iterate(0)).views[0]
    network = encoder.network
    return torch.allclose(network.head(network.features(images)), network(images), atol=1e-5)
