"""Wide residual networks (Zagoruyko & Komodakis 2016, arXiv:1605.07146)."""

from __future__ import annotations

from ncsam.models.backbone import check_probability
from ncsam.models.preact_resnet import PreActResNet
from ncsam.models.registry import register


@register
def wrn_28_2(num_classes: int, in_channels: int = 3, *, dropout: float = 0.0) -> PreActResNet:
    """WRN-28-2: 4 pre-activation blocks a stage (28 = 6 * 4 + 4), widths 32-64-128 after a stem of 16, final BN.

    As its authors have it: no biases in convolutions, dropout (if any) between a block's two convolutions. SLN's code
    differs: biases, the stride on a block's second convolution, shortcuts from the raw input.

    Args:
        num_classes: Number of classes.
        in_channels: Channels of the images.
        dropout: Dropout probability, in [0, 1).
    """
    check_probability("dropout", dropout)
    return PreActResNet(
        (32, 64, 128),
        (4, 4, 4),
        num_classes,
        in_channels,
        stem_width=16,
        stem_bn=False,
        final_bn=True,
        dropout=dropout,
    )
