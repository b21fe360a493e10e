"""`python -m ncsam.models` prints our models: parameters at 10 and 100 classes, and the width of their features."""

import torch

from ncsam.models import Backbone, create, names


def _row(name: str) -> str:
    with torch.device("meta"):  # shapes without numbers: nothing is allocated or initialized
        ten, hundred = create(name, 10), create(name, 100)
    assert isinstance(ten, Backbone)
    counts = [sum(p.numel() for p in network.parameters()) for network in (ten, hundred)]
    return f"{name:<20} {counts[0]:>12,} {counts[1]:>12,} {ten.num_features:>9}"


if __name__ == "__main__":
    print(f"{'name':<20} {'C=10':>12} {'C=100':>12} {'features':>9}")
    for each in names():
        print(_row(each))
