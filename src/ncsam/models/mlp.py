"""Fully connected networks, for features and for small images."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from ncsam._arguments import positive
from ncsam._errors import bad_value
from ncsam.models.backbone import MOST, Backbone, check_probability
from ncsam.models.registry import register

_MOST_FEATURES = 1_000_000_000


class MLP(Backbone):
    """Flatten, then linear layers with ReLU, then the head; PyTorch's default initialization.

    Args:
        num_classes: Number of classes.
        in_features: Numbers per sample.
        hidden: Widths of the hidden layers; () is logistic regression.
        dropout: Dropout probability, in [0, 1).
    """

    def __init__(self, num_classes: int, in_features: int, hidden: Sequence[int], dropout: float) -> None:
        super().__init__()
        self.in_features = in_features
        self.family = "mlp" if hidden else "linear"
        layers: list[nn.Module] = []
        for width in hidden:
            layers += [nn.Linear(in_features, width), nn.ReLU(), nn.Dropout(dropout)]
            in_features = width
        self.body = nn.Sequential(*layers)
        self.num_features = in_features
        self.fc = nn.Linear(self.num_features, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """Output of the last hidden layer; the flat input where there is none.

        Args:
            x: (N, ...), of `in_features` numbers per sample.

        Raises:
            ValueError: A sample has another number of them.
        """
        flat = x.flatten(1)
        if flat.shape[1] != self.in_features:
            raise ValueError(
                f"this mlp takes {self.in_features} numbers a sample, got {flat.shape[1]} (input of shape "
                f"{tuple(x.shape)}); build it with in_features={flat.shape[1]}"
            )
        out: Tensor = self.body(flat)
        return out


@register
def mlp(
    num_classes: int,
    in_channels: int = 3,
    *,
    in_features: int | None = None,
    hidden: Sequence[int] = (256,),
    dropout: float = 0.0,
) -> MLP:
    """A multilayer perceptron on inputs of any shape.

    With `hidden=()` it is logistic regression. With `in_features=784` and the default hidden width it is the MNIST
    model of Co-teaching+.

    Args:
        num_classes: Number of classes.
        in_channels: Channels of the images, if `in_features` is not given.
        in_features: Numbers per sample; None means 32x32 images, in_channels * 1024.
        hidden: Widths of the hidden layers.
        dropout: Dropout probability, in [0, 1).
    """
    if in_features is None:
        in_features = in_channels * 32 * 32
    positive("in_features", in_features, _MOST_FEATURES)
    check_probability("dropout", dropout)
    return MLP(num_classes, in_features, widths(hidden), dropout)


def widths(hidden: Sequence[int]) -> Sequence[int]:
    """The widths of hidden layers, if they are such.

    Args:
        hidden: Widths of the hidden layers; () is logistic regression.
    """
    if not isinstance(hidden, Sequence) or not all(isinstance(width, int) and 1 <= width <= MOST for width in hidden):
        raise bad_value("hidden", hidden, f"a sequence of widths from 1 to {MOST:,}, such as (256, 128)")
    return hidden
