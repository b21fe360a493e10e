"""A detector with SAM: outputs and targets are dictionaries, as in torchvision, and the loss has several parts.

One digit lies somewhere on a larger canvas; the network says which and where. A fifth of the classes is wrong.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from ncsam import SAM

SIDE = 16


class Detector(nn.Module):
    """Logits of ten classes and a box (x, y) in [0, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1, stride=2), nn.ReLU(),
            nn.Flatten(), nn.Linear(32 * 16, 64), nn.ReLU(),
        )  # fmt: skip
        self.classes, self.box = nn.Linear(64, 10), nn.Linear(64, 2)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        seen = self.body(images)
        return {"logits": self.classes(seen), "boxes": self.box(seen).sigmoid()}


def criterion(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
    parts = {
        "class": F.cross_entropy(outputs["logits"], targets["labels"]),
        "box": F.l1_loss(outputs["boxes"], targets["boxes"]),
    }
    return torch.stack(list(parts.values())).sum()


def main(epochs: int = 6) -> tuple[float, float]:
    """Train; the mean distance of a box from its place, in canvas sides, before and after."""
    torch.manual_seed(0)
    data = load_digits()
    digits, labels = torch.tensor(data.images, dtype=torch.float32) / 16, torch.tensor(data.target)
    corners = torch.randint(SIDE - 8 + 1, (len(digits), 2))
    canvas = torch.zeros(len(digits), 1, SIDE, SIDE)
    for image, digit, (x, y) in zip(canvas, digits, corners.tolist(), strict=True):
        image[0, y : y + 8, x : x + 8] = digit
    boxes = corners / (SIDE - 8)
    noisy = torch.where(torch.rand(len(labels)) < 0.2, torch.randint(10, labels.shape), labels)

    model = Detector()
    base = torch.optim.AdamW(model.parameters(), lr=3e-3)
    optimizer = SAM(base, rho="auto", criterion=criterion, model=model)

    def distance() -> float:
        with torch.no_grad():
            return float((model(canvas[1500:])["boxes"] - boxes[1500:]).abs().mean())

    before = distance()
    for _ in range(epochs):
        for index in torch.randperm(1500).split(64):
            targets = {"labels": noisy[index], "boxes": boxes[index]}
            optimizer.step(lambda index=index: model(canvas[index]), targets)
    return before, distance()


if __name__ == "__main__":
    before, after = main()
    print(f"mean distance of a box: {before:.3f} before, {after:.3f} after, in sides of the canvas")
