"""A pretrained network as something that turns images into vectors, with the inputs it was trained on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam import models
from ncsam._errors import bad_value
from ncsam.data.images.files import IMAGENET_MEAN, IMAGENET_STD
from ncsam.models.backbone import Backbone
from ncsam.models.external import takes_pretrained
from ncsam.models.tapped import as_backbone

PRECISIONS = {"32-true": None, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
_SIZE = 224


@dataclass(frozen=True)
class Encoder:
    """A backbone in evaluation mode; images are normalized by `mean` and `std` and brought to `size`."""

    network: Backbone
    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: tuple[int, int]
    precision: str = "32-true"

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Features (N, F), float32, of normalized images (N, C, H, W)."""
        if tuple(images.shape[-2:]) != self.size:
            images = F.interpolate(images, self.size, mode="bilinear", antialias=True, align_corners=False)
        kind = PRECISIONS[self.precision]
        with torch.autocast(self.device.type, kind or torch.bfloat16, enabled=kind is not None):
            features = self.network.features(images.to(self.device))
        return features.float()

    def fingerprint(self) -> str:
        """SHA-256 of the weights and of how images reach them."""
        digest = hashlib.sha256(repr((self.mean, self.std, self.size, self.precision)).encode())
        for name, value in self.network.state_dict().items():
            if not name.startswith(f"{self.network.head_name}."):
                digest.update(name.encode())
                digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def usable_device(name: str | torch.device) -> torch.device:
    """The device of this name, if numbers can be computed there and brought back."""
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
    precision: str = "32-true",
    device: str | torch.device = "cpu",
    **options: Any,
) -> Encoder:
    """The encoder of a network by name, as `ncsam.models.create` knows it.

    pretrained: by default `True`, and for a factory of yours only where it takes that argument.
    size: (height, width) or one number; by default what the network was trained on, where it says so, else 224.
    """
    if precision not in PRECISIONS:
        raise bad_value("precision", precision, f"one of {', '.join(PRECISIONS)}")
    device = usable_device(device)
    if pretrained is None:
        pretrained = takes_pretrained(name)
    network = as_backbone(models.create(name, 2, channels, pretrained=pretrained, **options)).to(device).eval()
    mean, std, own = input_statistics(network, channels)
    if size is None:
        size = own or (_SIZE, _SIZE)
    height, width = (size, size) if isinstance(size, int) else (int(size[0]), int(size[-1]))
    return Encoder(network, mean, std, (height, width), precision)


def input_statistics(
    network: nn.Module, channels: int
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[int, int] | None]:
    """(mean, std, size) of the images that a network was trained on.

    As the network says: in `pretrained_cfg` (timm's way), or in attributes `mean`, `std` and `size` of its own; else
    those of ImageNet, which almost all published networks share (.5 for images that are not in color).
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
