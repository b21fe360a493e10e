"""Networks made on the spot, in the place of pretrained ones."""

import torch
from torch import nn


class Tiny(nn.Module):
    """A convolution with BatchNorm, a mean over the pixels, and a head; it says how it wants its images."""

    mean, std, size = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3), (8, 8)

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(6, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.drop(self.norm(self.conv(x)).relu().mean(dim=(2, 3))))


def build(num_classes: int) -> Tiny:
    """The same weights at every call, but for the head's shape; statistics that are not the initial ones."""
    state = torch.get_rng_state()
    torch.manual_seed(5)
    network = Tiny(num_classes)
    network.norm.running_mean.uniform_(-0.2, 0.2)
    network.norm.running_var.uniform_(0.5, 2.0)
    torch.set_rng_state(state)
    return network
