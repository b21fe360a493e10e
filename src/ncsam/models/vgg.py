"""VGG-19 with batch normalization (Simonyan & Zisserman 2015, arXiv:1409.1556), under torchvision's parameter names."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ncsam.models.backbone import Backbone, check_size, init_kaiming
from ncsam.models.registry import register

#: Widths of the 16 convolutions; a max-pool of 2 closes each of the five groups.
_GROUPS = ((64, 64), (128, 128), (256,) * 4, (512,) * 4, (512,) * 4)


class _Features(nn.Sequential):
    """All that comes before the last linear layer: convolutions, a pool to 7x7, the classifier's hidden layers.

    torchvision calls the convolutions `features` and keeps the hidden layers in `classifier`. Held in a tuple, the
    classifier is seen from here and registered there, once.
    """

    def __init__(self, in_channels: int, classifier: nn.Sequential) -> None:
        layers: list[nn.Module] = []
        for group in _GROUPS:
            for width in group:
                layers += [nn.Conv2d(in_channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
                in_channels = width
            layers.append(nn.MaxPool2d(2))
        super().__init__(*layers)
        self.classifier = (classifier,)

    def forward(self, x: Tensor) -> Tensor:
        check_size(x, 32, "vgg19_bn")
        for layer in self:
            x = layer(x)
        x = F.adaptive_avg_pool2d(x, 7).flatten(1)
        for layer in list(self.classifier[0])[:-1]:
            x = layer(x)
        return x


class VGG(Backbone):
    """16 convolutions, two hidden layers of 4096 with dropout 1/2, and the head.

    Initialized as in torchvision: convolutions by `init_kaiming`, linear weights ~ N(0, 0.01^2), all biases 0.

    Args:
        num_classes: Number of classes.
        in_channels: Channels of the images.
    """

    family = "conv"
    head_name = "classifier.6"
    num_features = 4096

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        classifier = nn.Sequential(
            *(nn.Linear(512 * 7 * 7, self.num_features), nn.ReLU(), nn.Dropout()),
            *(nn.Linear(self.num_features, self.num_features), nn.ReLU(), nn.Dropout()),
            nn.Linear(self.num_features, num_classes),
        )
        self.features = _Features(in_channels, classifier)
        self.classifier = classifier
        init_kaiming(self)
        for module in classifier.modules():
            if isinstance(module, nn.Linear) and not module.weight.is_meta:
                nn.init.normal_(module.weight, 0.0, 0.01)
                nn.init.zeros_(module.bias)


@register
def vgg19_bn(num_classes: int, in_channels: int = 3) -> VGG:
    """VGG-19-BN with its head of 4096-4096; from 32x32 up, since a pool to 7x7 follows the convolutions.

    Args:
        num_classes: Number of classes.
        in_channels: Channels of the images.
    """
    return VGG(num_classes, in_channels)
