"""What all models share: features next to logits, one name for the layer in between, memory order, initialization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar, cast

import torch
from torch import Tensor, nn

from ncsam._arguments import number

#: Of channels, classes and widths: a model beyond that fits into no memory.
MOST = 1_000_000
Family: TypeAlias = Literal["linear", "mlp", "conv", "transformer", "text", "other"]


class Backbone(nn.Module):
    """A model in two parts: `features(x)` of shape (N, `num_features`), and the linear layer `head` on top of them.

    `forward(x) = head(features(x))`. The head is registered under `head_name`, which differs between families so that
    published weights load by their own names ("fc" in ResNets, "classifier.6" in VGG). A subclass sets `num_features`,
    registers its head, and defines `features`.

    Attributes:
        num_features: Width of the features.
        head_name: Dotted name of the head.
        family: "linear", "mlp", "conv", "transformer", "text" or "other"; defaults of training depend on it.
        pretrained: Whether `create` loaded weights into it.
    """

    num_features: int
    head_name: str = "fc"
    family: Family = "other"
    pretrained: bool = False
    features: Callable[[Any], Tensor]

    @property
    def head(self) -> nn.Linear:
        """The last linear layer. Replace it with `replace_head`, not by assignment."""
        return cast(nn.Linear, self.get_submodule(self.head_name))

    def replace_head(self, num_classes: int) -> None:
        """Replace the head with a fresh linear layer, in PyTorch's default initialization.

        Args:
            num_classes: Number of classes.
        """
        old = self.head.weight
        fresh = nn.Linear(self.num_features, num_classes, device=old.device, dtype=old.dtype)
        parent, _, last = self.head_name.rpartition(".")
        setattr(self.get_submodule(parent), last, fresh)

    def forward(self, x: Any) -> Tensor:
        """Logits (N, classes).

        Args:
            x: A batch, in the form that `features` takes.
        """
        logits: Tensor = self.head(self.features(x))
        return logits


def init_kaiming(network: nn.Module) -> None:
    """He's initialization: convolution weights ~ N(0, 2 / fan_out), fan_out = out_channels * kernel area; biases 0.

    Normalization layers keep scale 1 and shift 0, linear layers PyTorch's default. Used for ResNets by torchvision and
    for WRNs by their authors.

    Args:
        network: The model.

    References:
        He et al., 2015, Delving deep into rectifiers, arXiv 1502.01852, eq. 14.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and not module.weight.is_meta:  # there, drawing would import torch's compiler
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def check_size(x: Tensor, minimum: int, name: str) -> None:
    """Refuse images that the model's own pooling would shrink to nothing.

    Args:
        x: A batch of images.
        minimum: Smallest side in pixels.
        name: Name of the model.
    """
    height, width = x.shape[-2:]
    if min(height, width) < minimum:
        raise ValueError(f"{name} needs images of at least {minimum}x{minimum} pixels, got {height}x{width}")


def check_probability(name: str, value: float) -> None:
    """Check a probability in [0, 1).

    Args:
        name: Name of the argument, for the error message.
        value: The probability.

    Raises:
        UsageError: It is no number in [0, 1).
    """
    number(name, value, "a probability in [0, 1)", lambda share: 0 <= share < 1)


_Module = TypeVar("_Module", bound=nn.Module)


def is_convolutional(network: nn.Module) -> bool:
    """Whether a model has two-dimensional convolutions.

    Args:
        network: The model.
    """
    return any(isinstance(module, nn.Conv2d) for module in network.modules())


def to_channels_last(network: _Module) -> _Module:
    """Store the weights of two-dimensional convolutions channels last, in place; shapes and values stay.

    Args:
        network: The model. Others than convolutional ones are not changed.

    Returns:
        The model itself.

    Examples:
        >>> to_channels_last(nn.Conv2d(2, 3, 3)).weight.stride()
        (18, 1, 6, 2)
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network
