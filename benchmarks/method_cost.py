"""Cost of an epoch of each method, relative to `ce` under the same optimizer.

    python benchmarks/method_cost.py
    python benchmarks/method_cost.py --methods ce gce mixup dividemix --optimizers sgd ncsam

An epoch includes planning but not evaluation. All methods live in one process and take turns, one epoch each. The
ratio to `ce` is taken within a turn, and the table shows its median over the second half of the epochs, when every
method is past its warm-up. Times are processor times of one thread, which other jobs disturb little. Data: digits with
40 % symmetric noise, an MLP of 2 x 256.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from ncsam import methods
from ncsam.comparison.specs import with_spec
from ncsam.engine import RunConfig
from ncsam.engine.device import choose_device
from ncsam.engine.resolve import resolve
from ncsam.engine.task import load_task
from ncsam.engine.trainer import Trainer
from timing import parser, ratio, table, write_json


class TimedTrainer(Trainer):
    """Records the processor time of each epoch, without its evaluation."""

    def timed_epoch(self) -> None:
        self.began = time.process_time()
        self.train_epoch()

    def _measure(self, epoch: int) -> dict[str, Any]:
        self.epoch_seconds = [*getattr(self, "epoch_seconds", ()), time.process_time() - self.began]
        return super()._measure(epoch)


def epochs_in_turn(names: Sequence[str], optimizer: str, epochs: int) -> dict[str, list[float]]:
    """Processor seconds of each epoch of each method."""
    shared = RunConfig(noise="symmetric", rate=0.4, epochs=epochs, accelerator="cpu")
    task = load_task(shared)
    trainers = {}
    for method in names:
        config = resolve(with_spec(with_spec(shared, "method", method), "optimizer", optimizer), task)
        trainers[method] = TimedTrainer(choose_device(config), config, task)
    for _ in range(epochs):
        for trainer in trainers.values():
            trainer.timed_epoch()
    return {method: trainer.epoch_seconds for method, trainer in trainers.items()}


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--methods", nargs="+", metavar="SPEC", default=methods.names())
    options.add_argument("--optimizers", nargs="+", metavar="SPEC", default=["sgd", "sam:rho=validation"])
    options.add_argument("--epochs", type=int, default=20)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    names = list(dict.fromkeys(["ce", *(chosen.methods[:3] if chosen.quick else chosen.methods)]))
    rows: dict[str, dict[str, float]] = {name: {} for name in names}
    for optimizer in chosen.optimizers:
        seconds = epochs_in_turn(names, optimizer, 4 if chosen.quick else chosen.epochs)
        for name, times in seconds.items():
            half = len(times) // 2
            rows[name][optimizer] = ratio(times[half:], seconds["ce"][half:])
    table("Time of an epoch, ce = 1", rows)
    write_json(
        chosen.json, {f"{name}.{optimizer}": value for name, row in rows.items() for optimizer, value in row.items()}
    )


if __name__ == "__main__":
    main()
