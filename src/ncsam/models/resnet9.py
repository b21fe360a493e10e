"""A residual network for 32x32 images on the CPU: few layers, and few of them at full resolution."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._arguments import positive
from ncsam.models.backbone import MOST, Backbone, check_size, init_kaiming
from ncsam.models.registry import register


def _block(in_width: int, width: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(in_width, width, kernel, stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(width), nn.ReLU(inplace=True))


class _Residual(nn.Module):
    """Two blocks beside the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = _block(width, width)
        self.second = _block(width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.second(self.first(x))
        return out


class ResNet9(Backbone):
    """Seven 3x3 and 4x4 convolutions with BN and ReLU, two pairs of them beside a shortcut, and a linear head.

    The layout of the fast CIFAR networks of DAWNBench, with a 4x4 convolution of stride 2 in place of the layers at
    full resolution: 32x32 images pass at 16, 8 and 4 pixels, with w, 2w and 4w channels. At width 32 it has 464
    thousand parameters, and an image costs 19 million multiplications, half of a ResNet-20's.

    Args:
        num_classes: Number of classes.
        in_channels: Channels of the images.
        width: Channels of the first convolution; then twice and four times as many.
    """

    family = "conv"

    def __init__(self, num_classes: int, in_channels: int, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _block(in_channels, width, kernel=4, stride=2),
            _block(width, 2 * width),
            nn.MaxPool2d(2),
            _Residual(2 * width),
            _block(2 * width, 4 * width),
            nn.MaxPool2d(2),
            _Residual(4 * width),
        )
        self.num_features = 4 * width
        self.fc = nn.Linear(self.num_features, num_classes)
        init_kaiming(self)

    def features(self, x: Tensor) -> Tensor:
        """Features (N, 4 width).

        Args:
            x: Images (N, channels, H, W), of 8x8 pixels or more.

        Raises:
            ValueError: The images are smaller.
        """
        check_size(x, 8, "resnet9")
        return F.adaptive_avg_pool2d(self.body(x), 1).flatten(1)


@register
def resnet9(num_classes: int, in_channels: int = 3, *, width: int = 32) -> ResNet9:
    """A network that learns CIFAR-10 within minutes on the CPU; images from 8x8 up.

    Args:
        num_classes: Number of classes.
        in_channels: Channels of the images.
        width: Channels of the first convolution; then twice and four times as many.
    """
    return ResNet9(num_classes, in_channels, positive("width", width, MOST))
