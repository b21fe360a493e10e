"""The color distortions of SimCLR (Chen et al., 2020, arXiv:2002.05709), for whole batches of uint8 images.

Brightness, contrast and saturation change by factors in 1 +- .8 s, hue turns by up to .2 s of a circle, s being the
`strength`; then some images lose their color. The paper shuffles the four; here they come in this order. Hue,
saturation and loss of color leave images alone that do not have three channels.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ncsam.data.augment.basic import Real
from ncsam.data.augment.randaugment import blend_factor, brightness, color, contrast, gray
from ncsam.data.loading.sampling import Draws

#: Uniform numbers for one image: whether at all, four amounts, whether without color.
DRAWS = 6


def jitter(images: Tensor, draws: Draws, strength: float, probability: float, gray_probability: float) -> Tensor:
    """Distort colors; `draws` (B, 6).

    Args:
        images: uint8 (B, C, H, W).
        draws: Uniform numbers (B, 6), as `DRAWS` counts them.
        strength: s, in [0, 1].
        probability: That brightness, contrast, saturation and hue of an image are changed.
        gray_probability: That an image loses its color.
    """
    u = draws.astype(np.float64)
    amount = np.where(u[:, :1] < probability, 2 * u[:, 1:5] - 1, 0.0)  # in [-1, 1), or nothing
    for step, operation in enumerate((brightness, contrast, color)):
        images = operation(images, blend_factor(1 + 0.8 * strength * amount[:, step]))
    images = turned(images, 0.2 * strength * amount[:, 3])
    if images.shape[1] != 3:
        return images
    colorless = torch.from_numpy(u[:, 5] < gray_probability).to(images.device).view(-1, 1, 1, 1)
    return torch.where(colorless, gray(images), images)


def turned(images: Tensor, turn: Real) -> Tensor:
    """Turn the hue by a share of the circle, keeping saturation and value (the hexagonal HSV model).

    Args:
        images: uint8 (B, C, H, W); returned as they are unless C is 3.
        turn: (B,) shares of the circle; 1 is a full turn.
    """
    if images.shape[1] != 3:
        return images
    rgb = images.float()
    value, low = rgb.amax(1), rgb.amin(1)
    span = value - low
    red, green, blue = rgb.unbind(1)
    safe = span.clamp(min=1e-6)
    hue = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    hue = (hue + 6 * torch.from_numpy(turn.astype(np.float32)).to(rgb.device).view(-1, 1, 1)) % 6
    # a channel is `value` within 1 of its own hue, `low` beyond 2, and linear between
    distance = torch.stack([((hue - center + 3) % 6 - 3).abs() for center in (0, 2, 4)], dim=1)
    channel = (2 - distance).clamp(0, 1)
    return (low.unsqueeze(1) + span.unsqueeze(1) * channel).round_().to(torch.uint8)
