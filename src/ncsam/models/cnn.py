"""Plain convolutional networks: the three of the Co-teaching line, and a small one for the CPU."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._arguments import positive
from ncsam.models.backbone import MOST, Backbone, check_probability, check_size, init_kaiming
from ncsam.models.registry import register


class CNN9(Backbone):
    """Nine 3x3 convolutions, each with BN and leaky ReLU (slope 0.01), in three groups; the last has no padding.

    32x32 images pass at 32, 16 and 8 pixels and leave at 2x2, which is averaged. PyTorch's default initialization,
    as in the source (bhanML/Co-teaching). One difference: the source's dropout stays on at test time; here
    `eval()` turns it off.

    Args:
        num_classes: Number of classes.
        in_channels: Channels of the images.
        dropout: Dropout probability, in [0, 1).
    """

    family = "conv"
    num_features = 128

    def __init__(self, num_classes: int, in_channels: int, dropout: float) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for widths, padding in (((128, 128, 128), 1), ((256, 256, 256), 1), ((512, 256, 128), 0)):
            for width in widths:
                layers += [nn.Conv2d(in_channels, width, 3, padding=padding), nn.BatchNorm2d(width), nn.LeakyReLU(0.01)]
                in_channels = width
            if padding:
                layers += [nn.MaxPool2d(2), nn.Dropout2d(dropout)]
        self.body = nn.Sequential(*layers)
        self.fc = nn.Linear(self.num_features, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """Features (N, 128).

        Args:
            x: Images (N, channels, H, W), of 28x28 pixels or more.

        Raises:
            ValueError: The images are smaller.
        """
        check_size(x, 28, "cnn9")
        return F.adaptive_avg_pool2d(self.body(x), 1).flatten(1)


class CNN7(Backbone):
    """Six 3x3 convolutions (64-64, 128-128, 196-16), each with BN and ReLU, and a max-pool after every second.

    The model of JoCoR's code for CIFAR and of Co-teaching+'s for CIFAR-100; PyTorch's default initialization. At
    32x32 the 16 maps are 4x4 when they are flattened; an adaptive pool brings other sizes there and changes nothing at
    32.

    Args:
        num_classes: Number of classes.
        in_channels: Channels of the images.
    """

    family = "conv"
    num_features = 16 * 4 * 4

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for widths in ((64, 64), (128, 128), (196, 16)):
            for width in widths:
                layers += [nn.Conv2d(in_channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
                in_channels = width
            layers.append(nn.MaxPool2d(2))
        self.body = nn.Sequential(*layers)
        self.fc = nn.Linear(self.num_features, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """Features (N, 256).

        Args:
            x: Images (N, channels, H, W), of 8x8 pixels or more.

        Raises:
            ValueError: The images are smaller.
        """
        check_size(x, 8, "cnn7")
        return F.adaptive_avg_pool2d(self.body(x), 4).flatten(1)


class CNNCoteachingPlus(Backbone):
    """Two 5x5 convolutions (6 and 16 maps), each with ReLU and a max-pool, then layers of 120 and 84.

    The small model of Co-teaching+ for CIFAR-10 (xingruiyu/coteaching_plus); PyTorch's default initialization. At
    32x32 the maps are 5x5 when they are flattened; an adaptive pool brings other sizes there and changes nothing at 32.

    Args:
        num_classes: Number of classes.
        in_channels: Channels of the images.
    """

    family = "conv"
    num_features = 84

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc = nn.Linear(84, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """Features (N, 84).

        Args:
            x: Images (N, channels, H, W), of 16x16 pixels or more.

        Raises:
            ValueError: The images are smaller.
        """
        check_size(x, 16, "cnn_coteaching_plus")
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.adaptive_avg_pool2d(x, 5).flatten(1)
        return F.relu(self.fc2(F.relu(self.fc1(x))))


class CNNSmall(Backbone):
    """Three 3x3 convolutions with BN and ReLU, widths w-2w-4w, max-pools between, a global average: for the CPU.

    Args:
        num_classes: Number of classes.
        in_channels: Channels of the images.
        width: Channels of the first convolution; then twice and four times as many.
    """

    family = "conv"

    def __init__(self, num_classes: int, in_channels: int, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for out in (width, 2 * width, 4 * width):
            layers += [nn.Conv2d(in_channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
            layers.append(nn.AdaptiveAvgPool2d(1) if out == 4 * width else nn.MaxPool2d(2))
            in_channels = out
        self.body = nn.Sequential(*layers)
        self.num_features = 4 * width
        self.fc = nn.Linear(self.num_features, num_classes)
        init_kaiming(self)

    def features(self, x: Tensor) -> Tensor:
        """Features (N, 4 width).

        Args:
            x: Images (N, channels, H, W), of 4x4 pixels or more.

        Raises:
            ValueError: The images are smaller.
        """
        check_size(x, 4, "cnn_small")
        out: Tensor = self.body(x)
        return out.flatten(1)


@register
def cnn9(num_classes: int, in_channels: int = 3, *, dropout: float = 0.25) -> CNN9:
    """The 9-layer CNN of Co-teaching.

    Args:
        num_classes: Number of classes.
        in_channels: Channels of the images.
        dropout: Dropout probability, in [0, 1).
    """
    check_probability("dropout", dropout)
    return CNN9(num_classes, in_channels, dropout)


@register
def cnn7(num_classes: int, in_channels: int = 3) -> CNN7:
    """The 7-layer CNN of JoCoR, and of Co-teaching+ for CIFAR-100.

    Args:
        num_classes: Number of classes.
        in_channels: Channels of the images.
    """
    return CNN7(num_classes, in_channels)


@register
def cnn_coteaching_plus(num_classes: int, in_channels: int = 3) -> CNNCoteachingPlus:
    """The small CNN of Co-teaching+ for CIFAR-10.

    Args:
        num_classes: Number of classes.
        in_channels: Channels of the images.
    """
    return CNNCoteachingPlus(num_classes, in_channels)


@register
def cnn_small(num_classes: int, in_channels: int = 3, *, width: int = 32) -> CNNSmall:
    """A small CNN for the CPU and for images from 4x4 up.

    Args:
        num_classes: Number of classes.
        in_channels: Channels of the images.
        width: Channels of the first convolution; then twice and four times as many.
    """
    return CNNSmall(num_classes, in_channels, positive("width", width, MOST))
