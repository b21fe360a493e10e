"""Residual networks (He et al. 2016, arXiv:1512.03385), under torchvision's parameter names.

With stem "cifar" the first convolution is 3x3 with stride 1 and nothing is pooled after it, so that 32x32 images
pass through the stages at 32, 16, 8 and 4 pixels; with "imagenet" it is 7x7 with stride 2 and a 3x3 max-pool follows.
All are initialized by `init_kaiming`. (Several noisy-label repositories leave their CIFAR ResNets in PyTorch's default
initialization instead; the shapes are the same.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam.models.backbone import Backbone, init_kaiming
from ncsam.models.registry import register

#: Builds one residual block from its input width, its stage's width and its stride.
Block = Callable[[int, int, int], nn.Module]


def conv3x3(in_width: int, width: int, stride: int = 1) -> nn.Conv2d:
    """A 3x3 convolution without bias that keeps the image's size at stride 1.

    Args:
        in_width: Channels of the input.
        width: Channels of the output.
        stride: Stride.
    """
    return nn.Conv2d(in_width, width, 3, stride=stride, padding=1, bias=False)


def conv1x1(in_width: int, width: int, stride: int = 1) -> nn.Conv2d:
    """A 1x1 convolution without bias.

    Args:
        in_width: Channels of the input.
        width: Channels of the output.
        stride: Stride.
    """
    return nn.Conv2d(in_width, width, 1, stride=stride, bias=False)


def _projection(in_width: int, width: int, stride: int) -> nn.Sequential | None:
    """The shortcut where a block changes shape; `None` is the identity."""
    if stride == 1 and in_width == width:
        return None
    return nn.Sequential(conv1x1(in_width, width, stride), nn.BatchNorm2d(width))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut.

    Args:
        in_width: Channels of the input.
        width: Number of channels.
        stride: Stride of the block.
    """

    def __init__(self, in_width: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(in_width, width, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _projection(in_width, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps (N, width, H / stride, W / stride), rounded up.

        Args:
            x: (N, in_width, H, W).
        """
        shortcut = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x)) + shortcut)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut; the stride sits on the 3x3 one, as in torchvision.

    Args:
        in_width: Channels of the input.
        width: Number of channels.
        stride: Stride of the block.
    """

    expansion = 4

    def __init__(self, in_width: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv1x1(in_width, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = conv1x1(width, width * self.expansion)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.downsample = _projection(in_width, width * self.expansion, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps (N, 4 width, H / stride, W / stride), rounded up.

        Args:
            x: (N, in_width, H, W).
        """
        shortcut = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        return F.relu(self.bn3(self.conv3(x)) + shortcut)


class Stages(Backbone):
    """A backbone whose middle is `layer1`, `layer2`, ...: stages of blocks; each after the first halves the image."""

    family = "conv"

    def add_stages(self, block: Block, in_width: int, widths: Sequence[int], depths: Sequence[int]) -> int:
        """Register the stages; the width that comes out of the last one.

        Args:
            block: Builds a block from input width, width and stride; its `expansion`, if any, multiplies the width.
            in_width: Channels that the stem returns.
            widths: Channels of each stage.
            depths: Blocks of each stage, as many numbers as `widths`.
        """
        expansion: int = getattr(block, "expansion", 1)
        self.stage_names = tuple(f"layer{i}" for i in range(1, len(widths) + 1))
        for name, width, depth in zip(self.stage_names, widths, depths, strict=True):
            first = block(in_width, width, 1 if name == "layer1" else 2)
            in_width = width * expansion
            self.add_module(name, nn.Sequential(first, *(block(in_width, width, 1) for _ in range(depth - 1))))
        return in_width

    def run_stages(self, x: Tensor) -> Tensor:
        """Pass feature maps through all stages in turn.

        Args:
            x: What the stem returns, (N, in_width, H, W).
        """
        for name in self.stage_names:
            x = cast(nn.Module, getattr(self, name))(x)
        return x


def average(x: Tensor) -> Tensor:
    """Mean over the image: (N, C, H, W) to (N, C).

    Args:
        x: Feature maps (N, C, H, W).
    """
    return F.adaptive_avg_pool2d(x, 1).flatten(1)


class ResNet(Stages):
    """Stem, stages, global average, linear layer.

    Args:
        block: The block to repeat.
        widths: Channels of each stage.
        depths: Blocks of each stage.
        num_classes: Number of classes.
        in_channels: Channels of the images.
        stem: "cifar" (3x3, stride 1, no pooling) or "imagenet" (7x7, stride 2, max-pool).
    """

    def __init__(
        self,
        block: Block,
        widths: Sequence[int],
        depths: Sequence[int],
        num_classes: int,
        in_channels: int,
        stem: str = "cifar",
    ) -> None:
        super().__init__()
        if stem not in ("cifar", "imagenet"):
            raise bad_value("stem", stem, "'cifar' (3x3, stride 1, no pooling) or 'imagenet' (7x7, stride 2, max-pool)")
        self.pooled_stem = stem == "imagenet"
        if self.pooled_stem:
            self.conv1 = nn.Conv2d(in_channels, widths[0], 7, stride=2, padding=3, bias=False)
        else:
            self.conv1 = conv3x3(in_channels, widths[0])
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.num_features = self.add_stages(block, widths[0], widths, depths)
        self.fc = nn.Linear(self.num_features, num_classes)
        init_kaiming(self)

    def features(self, x: Tensor) -> Tensor:
        """Mean over the positions of the last feature map, (N, `num_features`).

        Args:
            x: Images (N, channels, H, W).
        """
        x = F.relu(self.bn1(self.conv1(x)))
        if self.pooled_stem:
            x = F.max_pool2d(x, 3, stride=2, padding=1)
        return average(self.run_stages(x))


_WIDTHS = (64, 128, 256, 512)


@register
def resnet18(num_classes: int, in_channels: int = 3, *, stem: str = "cifar") -> ResNet:
    """ResNet-18: basic blocks 2-2-2-2, widths 64-128-256-512.

    Args:
        num_classes: Number of classes.
        in_channels: Channels of the images.
        stem: "cifar" (3x3, stride 1, no pooling) or "imagenet" (7x7, stride 2, max-pool).
    """
    return ResNet(BasicBlock, _WIDTHS, (2, 2, 2, 2), num_classes, in_channels, stem)


@register
def resnet34(num_classes: int, in_channels: int = 3, *, stem: str = "cifar") -> ResNet:
    """ResNet-34: basic blocks 3-4-6-3, widths 64-128-256-512.

    Args:
        num_classes: Number of classes.
        in_channels: Channels of the images.
        stem: "cifar" (3x3, stride 1, no pooling) or "imagenet" (7x7, stride 2, max-pool).
    """
    return ResNet(BasicBlock, _WIDTHS, (3, 4, 6, 3), num_classes, in_channels, stem)


@register
def resnet50(num_classes: int, in_channels: int = 3, *, stem: str = "imagenet") -> ResNet:
    """ResNet-50: bottlenecks 3-4-6-3, widths 64-128-256-512 times 4; torchvision's weights load into it.

    Args:
        num_classes: Number of classes.
        in_channels: Channels of the images.
        stem: "cifar" (3x3, stride 1, no pooling) or "imagenet" (7x7, stride 2, max-pool).
    """
    return ResNet(Bottleneck, _WIDTHS, (3, 4, 6, 3), num_classes, in_channels, stem)


@register
def resnet8(num_classes: int, in_channels: int = 3) -> ResNet:
    """ResNet-(6n+2) with n = 1: basic blocks 1-1-1, widths 16-32-64; for the CPU and for images from 8x8 up.

    Args:
        num_classes: Number of classes.
        in_channels: Channels of the images.
    """
    return ResNet(BasicBlock, (16, 32, 64), (1, 1, 1), num_classes, in_channels)
