"""A pretrained model as an encoder of images: what it computes, how images reach it, and how to make it again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam import models
from ncsam._errors import bad_value
from ncsam.data.images.files import IMAGENET_MEAN, IMAGENET_STD
from ncsam.embed.cache import Source
from ncsam.models.backbone import Backbone, to_channels_last
from ncsam.models.external import takes_pretrained
from ncsam.models.tapped import as_backbone

PRECISIONS = {"32-true": None, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
_SIZE = 224
#: Photographs have at least so many pixels a side: a margin of 1/8 is cut off, as in the training of most backbones.
PHOTOGRAPH = 128


@dataclass(frozen=True)
class Encoder:
    """A backbone in evaluation mode; images are normalized by `mean` and `std` and brought to `size`.

    Attributes:
        network: The backbone.
        mean, std: Per channel, in units of [0, 1].
        size: (height, width) of its inputs.
        precision: One of `PRECISIONS`.
        crop: Whether files are scaled to 8/7 of `size` and cropped. Default: from 128 pixels on.
        name: The model's name, as `ncsam.models.create` knows it; empty for a model that only exists in memory.
        options: What `image_encoder` needs besides to make it again.
    """

    network: Backbone
    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: tuple[int, int]
    precision: str = "32-true"
    crop: bool | None = None
    name: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    kind: ClassVar[str] = "images"

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    @property
    def num_features(self) -> int:
        return self.network.num_features

    @property
    def crops(self) -> bool:
        return min(self.size) >= PHOTOGRAPH if self.crop is None else self.crop

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """Features (N, F), float32, of normalized images (N, C, H, W)."""
        if tuple(images.shape[-2:]) != self.size:
            images = F.interpolate(images, self.size, mode="bilinear", antialias=True, align_corners=False)
        kind = PRECISIONS[self.precision]
        with torch.autocast(self.device.type, kind or torch.bfloat16, enabled=kind is not None):
            features = self.network.features(images.to(self.device, memory_format=self._memory_format))
        return features.float()

    @cached_property
    def _memory_format(self) -> torch.memory_format:
        """The one that the weights of the first convolution are in."""
        weight = next((p for p in self.network.parameters() if p.ndim == 4), None)
        last = weight is not None and weight.is_contiguous(memory_format=torch.channels_last)
        return torch.channels_last if last and not weight.is_contiguous() else torch.contiguous_format  # type: ignore[union-attr]

    @cached_property
    def weights(self) -> str:
        """SHA-256 of the weights below the head."""
        digest = hashlib.sha256()
        for name, value in self.network.state_dict().items():
            if not name.startswith(f"{self.network.head_name}."):
                digest.update(name.encode())
                digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def source(self) -> Source:
        """What identifies its features in a cache."""
        return Source(self.name, self.weights, repr((self.mean, self.std, self.size, self.precision, self.crops)))

    def fingerprint(self) -> str:
        """SHA-256 of the weights and of how images reach them."""
        return self.source().key([])

    def describe(self) -> dict[str, Any]:
        """Plain values from which `encoder_from` makes the encoder again."""
        return {
            "kind": self.kind,
            "name": self.name,
            "size": list(self.size),
            "precision": self.precision,
            "crop": self.crops,
            "options": dict(self.options),
            "weights": self.weights,
        }


def usable_device(name: str | torch.device) -> torch.device:
    """Resolve a device and check that it can compute.

    Args:
        name: Such as "cpu", "cuda" or "cuda:1".

    Raises:
        UsageError: There is no such device on this machine.
    """
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError) as error:  # torch's words for a word that is none, and for what is not here
        raise bad_value("device", str(name), "cpu, or an accelerator of this machine such as cuda") from error
    return device


def image_encoder(
    name: str,
    *,
    channels: int = 3,
    pretrained: bool | str | None = None,
    size: Sequence[int] | None = None,
    crop: bool | None = None,
    precision: str = "32-true",
    device: str | torch.device = "cpu",
    **options: Any,
) -> Encoder:
    """The encoder of a model by name, as `ncsam.models.create` knows it.

    Args:
        name: Such as "lite0", "timm:resnet50.a1_in1k", "torchvision:resnet18" or "module:factory".
        channels: Of the images. Gray photographs reach a model of three channels as color ones.
        pretrained: By default True; for your own factory only where it takes that argument.
        size: (height, width) or one number. Default: what the model was trained on, where it says so, else 224.
        crop: Whether a margin of 1/8 is cut off image files. Default: from 128 pixels on.
        precision: "32-true", "bf16-mixed" or "16-mixed".
        device: Where to compute.
        options: Of the model.

    Returns:
        The encoder. `describe()` gives plain values to store, from which `encoder_from` makes it again.

    Examples:
        >>> encoder = image_encoder("resnet8", pretrained=False, size=16)
        >>> encoder(torch.zeros(2, 3, 16, 16)).shape
        torch.Size([2, 64])
    """
    if precision not in PRECISIONS:
        raise bad_value("precision", precision, f"one of {', '.join(PRECISIONS)}")
    device = usable_device(device)
    if pretrained is None:
        pretrained = takes_pretrained(name)
    channels = 3 if name == "lite0" else channels
    network = as_backbone(models.create(name, 2, channels, pretrained=pretrained, **options)).eval()
    mean, std, own = input_statistics(network, channels)
    folded: Callable[[], Backbone] | None = getattr(network, "folded", None)
    if folded is not None:  # for inference alone, and much faster
        network = folded()
    if size is None:
        size = own or (_SIZE, _SIZE)
    height, width = (size, size) if isinstance(size, int) else (int(size[0]), int(size[-1]))
    needed = {"channels": channels, "pretrained": pretrained, **options}
    return Encoder(to_channels_last(network).to(device), mean, std, (height, width), precision, crop, name, needed)


def input_statistics(
    network: nn.Module, channels: int
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[int, int] | None]:
    """(mean, std, size) of the images that a model was trained on.

    They are read from the model's `pretrained_cfg` (timm) or from its attributes `mean`, `std` and `size`. Otherwise
    they are those of ImageNet, which almost all published models share (.5 for images that are not in color).

    Args:
        network: The model.
        channels: Channels of its input images.

    Returns:
        Mean and std per channel, in units of [0, 1], and (height, width), or `None` where the size is unknown.
    """
    inner = [network, *(module for module in network.children())]
    for module in inner:
        told = getattr(module, "pretrained_cfg", None)
        if isinstance(told, dict) and "mean" in told and "std" in told:
            size = told.get("input_size")
            return tuple(told["mean"]), tuple(told["std"]), (size[1], size[2]) if size else None
        mean, std = getattr(module, "mean", None), getattr(module, "std", None)
        if isinstance(mean, (tuple, list)) and isinstance(std, (tuple, list)):
            size = getattr(module, "size", None)
            return tuple(mean), tuple(std), (size[0], size[1]) if isinstance(size, (tuple, list)) else None
    if channels != 3:
        return (0.5,) * channels, (0.5,) * channels, None
    return tuple(IMAGENET_MEAN), tuple(IMAGENET_STD), None
