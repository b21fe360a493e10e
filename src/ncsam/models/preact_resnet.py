"""Pre-activation residual networks (He et al. 2016, arXiv:1603.05027): normalize and rectify before each convolution.

The paper puts a normalization after the last block (`final_bn`) and none in the stem. The noisy-label literature uses
two other variants of the 18-layer model: DivideMix and UNICON normalize the stem and not the end (the default here),
Co-teaching+ and NCT normalize neither. All are initialized by `init_kaiming`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from ncsam.models.backbone import init_kaiming
from ncsam.models.registry import register
from ncsam.models.resnet import Stages, average, conv1x1, conv3x3


class PreActBlock(nn.Module):
    """Two 3x3 convolutions, each after BN and ReLU; a shortcut that changes shape is a bare 1x1 convolution.

    Args:
        in_width: Channels of the input.
        width: Number of channels.
        stride: Stride of the block.
        dropout: Dropout probability, in [0, 1).
    """

    def __init__(self, in_width: int, width: int, stride: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_width)
        self.conv1 = conv3x3(in_width, width, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = conv3x3(width, width)
        self.shortcut = None if stride == 1 and in_width == width else conv1x1(in_width, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps (N, width, H / stride, W / stride), rounded up.

        Args:
            x: (N, in_width, H, W), not yet normalized.
        """
        active = F.relu(self.bn1(x))
        # A projection starts from the activated input, an identity from the raw one.
        shortcut = x if self.shortcut is None else self.shortcut(active)
        branch = self.dropout(F.relu(self.bn2(self.conv1(active))))
        out: Tensor = self.conv2(branch) + shortcut
        return out


class PreActResNet(Stages):
    """3x3 stem, stages of pre-activation blocks, global average, linear layer.

    `stem_bn` adds BN and ReLU after the stem's convolution, `final_bn` after the last block.

    Args:
        widths: Channels of each stage.
        depths: Blocks of each stage.
        num_classes: Number of classes.
        in_channels: Channels of the images.
        stem_width: Channels of the stem.
        stem_bn: Whether BN and ReLU follow the stem's convolution.
        final_bn: Whether BN and ReLU follow the last block.
        dropout: Dropout probability, in [0, 1).
    """

    def __init__(
        self,
        widths: Sequence[int],
        depths: Sequence[int],
        num_classes: int,
        in_channels: int,
        *,
        stem_width: int,
        stem_bn: bool,
        final_bn: bool,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.conv1 = conv3x3(in_channels, stem_width)
        self.stem_bn = nn.BatchNorm2d(stem_width) if stem_bn else None
        self.num_features = self.add_stages(partial(PreActBlock, dropout=dropout), stem_width, widths, depths)
        self.final_bn = nn.BatchNorm2d(self.num_features) if final_bn else None
        self.fc = nn.Linear(self.num_features, num_classes)
        init_kaiming(self)

    def features(self, x: Tensor) -> Tensor:
        """Mean over the positions of the last feature map, (N, `num_features`).

        Args:
            x: Images (N, channels, H, W).
        """
        x = self.conv1(x)
        if self.stem_bn is not None:
            x = F.relu(self.stem_bn(x))
        x = self.run_stages(x)
        if self.final_bn is not None:
            x = F.relu(self.final_bn(x))
        return average(x)


def _four_stages(
    depths: Sequence[int], num_classes: int, in_channels: int, stem_bn: bool, final_bn: bool
) -> PreActResNet:
    widths = (64, 128, 256, 512)
    return PreActResNet(widths, depths, num_classes, in_channels, stem_width=64, stem_bn=stem_bn, final_bn=final_bn)


@register
def preact_resnet18(
    num_classes: int, in_channels: int = 3, *, stem_bn: bool = True, final_bn: bool = False
) -> PreActResNet:
    """PreAct-ResNet-18: blocks 2-2-2-2, widths 64-128-256-512; DivideMix's variant by default.

    Args:
        num_classes: Number of classes.
        in_channels: Channels of the images.
        stem_bn: Whether BN and ReLU follow the stem's convolution.
        final_bn: Whether BN and ReLU follow the last block.
    """
    return _four_stages((2, 2, 2, 2), num_classes, in_channels, stem_bn, final_bn)


@register
def preact_resnet34(
    num_classes: int, in_channels: int = 3, *, stem_bn: bool = True, final_bn: bool = False
) -> PreActResNet:
    """PreAct-ResNet-34: blocks 3-4-6-3, widths 64-128-256-512.

    Args:
        num_classes: Number of classes.
        in_channels: Channels of the images.
        stem_bn: Whether BN and ReLU follow the stem's convolution.
        final_bn: Whether BN and ReLU follow the last block.
    """
    return _four_stages((3, 4, 6, 3), num_classes, in_channels, stem_bn, final_bn)


@register
def preact_resnet32(
    num_classes: int, in_channels: int = 3, *, stem_bn: bool = False, final_bn: bool = True
) -> PreActResNet:
    """PreAct-ResNet-(6n+2) with n = 5: blocks 5-5-5, widths 16-32-64, projection shortcuts.

    Args:
        num_classes: Number of classes.
        in_channels: Channels of the images.
        stem_bn: Whether BN and ReLU follow the stem's convolution.
        final_bn: Whether BN and ReLU follow the last block.
    """
    return PreActResNet(
        (16, 32, 64), (5, 5, 5), num_classes, in_channels, stem_width=16, stem_bn=stem_bn, final_bn=final_bn
    )
