"""What a radius that sets itself costs: an epoch of SAM with it against one with a fixed radius.

Networks train in a plain loop on 20 batches of 128 an epoch, and the candidates take turns in one process. `validation`
also passes 256 held-out samples forward after each epoch, a tenth of what it trains on, as a loop does that validates.
The goal is at most 1.1 times SAM's price.

    python benchmarks/radius_cost.py [--quick] [--json FILE]
"""

from __future__ import annotations

import statistics

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam import SAM, models
from timing import Candidate, arguments, ratio, table, take_turns, write_json

BATCHES, BATCH, HELD_OUT = 20, 128, 256
NETWORKS = {
    "mlp 512-256-256": lambda: models.create("mlp", 10, 1, in_features=512, hidden=[256, 256]),
    "cnn_small, width 16": lambda: models.create("cnn_small", 10, 3, width=16),
}
RADII: dict[str, float | str] = {"fixed": 0.05, "auto": "auto", "validation": "validation"}


def epoch(network: nn.Module, rho: float | str, x: Tensor, y: Tensor, epochs: int) -> Candidate:
    base = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    optimizer = SAM(base, rho=rho, total_steps=epochs * BATCHES, model=network)

    def run() -> None:
        network.train()
        for number in range(BATCHES):
            rows = slice(number * BATCH, (number + 1) * BATCH)
            optimizer.step(lambda rows=rows: network(x[rows]), y[rows])
        if rho == "validation":
            network.eval()
            with torch.no_grad():
                optimizer.report_val_loss(F.cross_entropy(network(x[:HELD_OUT]), y[:HELD_OUT]).item())

    return Candidate(run)


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    torch.set_num_threads(1)
    rounds = 7 if options.quick else 25
    found: dict[str, dict[str, float]] = {}
    for name, create in NETWORKS.items():
        torch.manual_seed(0)
        shape = (512,) if name.startswith("mlp") else (3, 32, 32)
        x, y = torch.randn(BATCHES * BATCH, *shape), torch.randint(0, 10, (BATCHES * BATCH,))
        candidates = {radius: epoch(create(), rho, x, y, rounds + 2) for radius, rho in RADII.items()}
        seconds = take_turns(candidates, rounds)
        own = {f"{radius} / fixed": ratio(seconds[radius], seconds["fixed"]) for radius in ("auto", "validation")}
        found[name] = {"fixed s": statistics.median(seconds["fixed"]), **own}
    table(f"seconds per epoch of {BATCHES} batches, and ratios", found)
    worst = max(row["validation / fixed"] for row in found.values())
    print(f"\nheldout_vs_fixed {worst:.3f} (goal: at most 1.1)")
    write_json(options.json, {"heldout_vs_fixed": worst, **found})


if __name__ == "__main__":
    main()
