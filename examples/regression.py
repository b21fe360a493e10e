"""Regression with SAM: scikit-learn's diabetes data, a tenth of whose targets are replaced by others'.

The radius needs no classes: what guessing costs is measured in the first steps.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sklearn.datasets import load_diabetes

from ncsam import SAM


def main(epochs: int = 30) -> tuple[float, float]:
    """Train; the mean absolute error on clean targets before and after, in standard deviations."""
    torch.manual_seed(0)
    rows, values = (torch.tensor(a, dtype=torch.float32) for a in load_diabetes(return_X_y=True))
    rows = (rows - rows.mean(0)) / rows.std(0)
    values = (values - values.mean()) / values.std()
    order = torch.randperm(len(rows))
    train, test = order[:342], order[342:]
    noisy = values[train].clone()
    wrong = torch.randperm(len(train))[: len(train) // 10]
    noisy[wrong] = noisy[wrong.roll(1)]

    model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1), torch.nn.Flatten(0))
    base = torch.optim.Adam(model.parameters(), lr=3e-3)
    optimizer = SAM(base, rho="auto", criterion=F.smooth_l1_loss, model=model)

    def error() -> float:
        with torch.no_grad():
            return float((model(rows[test]) - values[test]).abs().mean())

    before = error()
    for _ in range(epochs):
        for index in torch.randperm(len(train)).split(32):
            optimizer.step(lambda index=index: model(rows[train[index]]), noisy[index])
    return before, error()


if __name__ == "__main__":
    before, after = main()
    print(f"mean absolute error on clean targets: {before:.3f} before, {after:.3f} after, in standard deviations")
