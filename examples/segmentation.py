"""Segmentation with SAM: which pixels of scikit-learn's digits are ink, seen through noise.

Logits are (batch, classes, height, width) and targets (batch, height, width), as torch's cross-entropy takes them. A
fifth of the training pixels carries a wrong class, and another fifth is unknown: -100, which the loss ignores.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

from ncsam import SAM

UNKNOWN = -100


def main(epochs: int = 4) -> tuple[float, float]:
    """Train; the share of test pixels classified right, before and after."""
    torch.manual_seed(0)
    clean = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 16
    ink = (clean > 0.4).long().squeeze(1)
    images = clean + 0.3 * torch.randn_like(clean)
    noisy = torch.where(torch.rand(ink.shape) < 0.2, 1 - ink, ink)
    noisy[torch.rand(ink.shape) < 0.2] = UNKNOWN

    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
        torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(16, 2, 1),
    )  # fmt: skip
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = SAM(base, rho=0.05, criterion=F.cross_entropy, model=model)

    def accuracy() -> float:
        model.eval()
        with torch.no_grad():
            found = model(images[1500:]).argmax(dim=1)
        model.train()
        return float((found == ink[1500:]).float().mean())

    before = accuracy()
    for _ in range(epochs):
        for index in torch.randperm(1500).split(64):
            optimizer.step(lambda index=index: model(images[index]), noisy[index])
    return before, accuracy()


if __name__ == "__main__":
    before, after = main()
    print(f"pixels right: {100 * before:.1f} % before, {100 * after:.1f} % after")
