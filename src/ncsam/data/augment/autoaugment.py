"""AutoAugment's policy for CIFAR-10 (Cubuk et al., 2019, arXiv:1805.09501), for whole batches of uint8 images.

Each image draws one of 25 pairs of operations; each operation of the pair is applied with its probability, at its
magnitude (0 to 9), signed ones with a random sign. The operations are those of
`ncsam.data.augment.randaugment`, whose ranges are AutoAugment's; what that module says of signs, filling and gray
images holds here, too.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ncsam.data.augment.randaugment import operated
from ncsam.data.loading.sampling import Draws

#: Operation, probability in tenths, magnitude: twice for each pair. The paper's appendix lists them.
CIFAR_POLICY = (
    (("invert", 1, 7), ("contrast", 2, 6)),
    (("rotate", 7, 2), ("translate_x", 3, 9)),
    (("sharpness", 8, 1), ("sharpness", 9, 3)),
    (("shear_y", 5, 8), ("translate_y", 7, 9)),
    (("autocontrast", 5, 8), ("equalize", 9, 2)),
    (("shear_y", 2, 7), ("posterize", 3, 7)),
    (("color", 4, 3), ("brightness", 6, 7)),
    (("sharpness", 3, 9), ("brightness", 7, 9)),
    (("equalize", 6, 5), ("equalize", 5, 1)),
    (("contrast", 6, 7), ("sharpness", 6, 5)),
    (("color", 7, 7), ("translate_x", 5, 8)),
    (("equalize", 3, 7), ("autocontrast", 4, 8)),
    (("translate_y", 4, 3), ("sharpness", 2, 6)),
    (("brightness", 9, 6), ("color", 2, 8)),
    (("solarize", 5, 2), ("invert", 0, 3)),
    (("equalize", 2, 0), ("autocontrast", 6, 0)),
    (("equalize", 2, 8), ("equalize", 6, 4)),
    (("color", 9, 9), ("equalize", 6, 6)),
    (("autocontrast", 8, 4), ("solarize", 2, 8)),
    (("brightness", 1, 3), ("color", 7, 0)),
    (("solarize", 4, 5), ("autocontrast", 9, 3)),
    (("translate_y", 9, 9), ("translate_y", 7, 9)),
    (("autocontrast", 9, 2), ("solarize", 8, 3)),
    (("equalize", 8, 8), ("invert", 1, 3)),
    (("translate_y", 7, 9), ("autocontrast", 9, 1)),
)
_NAMES = ("identity", *sorted({name for pair in CIFAR_POLICY for name, _, _ in pair}))
#: For each pair and step: the operation's number in `_NAMES`, its probability, its level in [0, 1].
_TABLE = np.array([[(_NAMES.index(n), p / 10, m / 9) for n, p, m in pair] for pair in CIFAR_POLICY])

#: Uniform numbers for one image: the pair, then for each operation whether and with which sign.
DRAWS = 5


def autoaugment(images: Tensor, draws: Draws) -> Tensor:
    """Apply the policy; `draws` (B, 5).

    Args:
        images: uint8 (B, C, H, W).
        draws: Uniform numbers (B, 5), as `DRAWS` counts them.
    """
    pair = _TABLE[(draws[:, 0].astype(np.float64) * len(_TABLE)).astype(np.int64)]
    for step in range(2):
        number, probability, level = pair[:, step].T
        chance, sign = draws[:, 1 + 2 * step], draws[:, 2 + 2 * step]
        choice = np.where(chance < probability, number, 0).astype(np.int64)
        images = operated(images, choice, np.where(sign < 0.5, -level, level), _NAMES)
    return images
