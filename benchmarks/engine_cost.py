"""The engine's own cost: time per epoch against a bare PyTorch loop that does the same work.

Both train the same network on the same batches of the same loader (crop and mirror, 32 x 32 images), with the same
optimizer, learning rates, precision and memory format, and evaluate the test and the training split after each epoch.
The engine also keeps its statistics per sample, writes metrics and a checkpoint. Epochs of the two take turns in one
process, in float32 and under bf16 autocast; a ratio is the median of the ratios within a turn. On a busy machine that
of processor times is the steadier one.

    python benchmarks/engine_cost.py [--quick] [--rounds 11] [--json FILE]
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ncsam import NCSAM, models
from ncsam.data import from_arrays
from ncsam.data.types import DataSet
from ncsam.engine import RunConfig
from ncsam.engine.config import ResolvedConfig
from ncsam.engine.device import choose_device
from ncsam.engine.resolve import resolve
from ncsam.engine.sinks import CheckpointSink, MetricsSink
from ncsam.engine.task import load_task
from ncsam.engine.trainer import Trainer
from ncsam.models.backbone import to_channels_last
from timing import Candidate, parser, ratio, table, take_turns, write_json

WARMUP = 2  # epochs of each that are not counted


def images(samples: int) -> DataSet:
    rng = np.random.default_rng(0)
    y = np.arange(samples + 500) % 10
    x = rng.integers(0, 256, size=(samples + 500, 32, 32, 3), dtype=np.uint8)
    return from_arrays(x[:samples], y[:samples], x_test=x[samples:], y_test=y[samples:], name="noise")


def bare_epochs(config: ResolvedConfig, trainer: Trainer) -> Iterator[None]:
    """The loop as one would write it by hand; each `next` is an epoch with its evaluation."""

    def logits(x: Tensor) -> Tensor:
        if config.precision == "32-true":
            return network(x)
        with torch.autocast("cpu", torch.bfloat16):
            outputs = network(x)
        return outputs.float()

    torch.manual_seed(config.seed)
    network = to_channels_last(models.create(config.model, 10, 3, **config.model_options))
    base = torch.optim.SGD(network.parameters(), config.lr, config.momentum, weight_decay=config.weight_decay)
    loader = trainer.loader.with_options()
    total = config.epochs * len(loader)
    warmup = config.warmup_epochs * len(loader)
    optimizer = None
    if config.optimizer == "ncsam":
        optimizer = NCSAM(base, config.rho, config.kappa, 0.4, total_steps=total, warmup_steps=warmup)
    schedule = torch.optim.lr_scheduler.LambdaLR(base, lambda step: 0.5 * (1 + math.cos(math.pi * step / total)))
    for epoch in range(1, config.epochs + 1):
        network.train()
        total_loss = 0.0
        for batch in loader.iterate(epoch):
            x, y = batch.views[0], batch.labels
            if optimizer is None:
                base.zero_grad()
                loss = F.cross_entropy(logits(x), y)
                loss.backward()
                base.step()
            else:
                loss = optimizer.step(lambda x=x: logits(x), y)
            schedule.step()
            total_loss += loss.item()
        network.eval()
        with torch.no_grad():
            for split in (trainer.evaluator.test, trainer.evaluator.train):
                right = 0
                for batch in split.iterate(0):
                    right += int((logits(batch.views[0]).argmax(1) == batch.labels).sum())
        yield


def measure(optimizer: str, precision: str, samples: int, rounds: int, folder: Path) -> dict[str, float]:
    config = RunConfig(
        data="noise",
        noise="symmetric",
        rate=0.4,
        optimizer=optimizer,
        rho=0.05,
        lr=0.05,
        model="cnn_small",
        model_options={"width": 8},
        epochs=rounds + WARMUP,
        warmup=0.0,
        batch_size=128,
        augment="standard",
        val_share=0.0,
        telemetry_every=0,
        accelerator="cpu",
        precision=precision,
    )
    task = load_task(config, images(samples))
    resolved = resolve(config, task)
    trainer = Trainer(choose_device(config), resolved, task)
    trainer.sinks = [MetricsSink(folder), CheckpointSink(folder / "checkpoints")]
    for sink in trainer.sinks:
        sink.on_train_start(trainer)
    bare = bare_epochs(resolved, trainer)
    processor: dict[str, list[float]] = {"engine": [], "bare": []}

    def timed(name: str, run: Callable[[], object]) -> Candidate:
        def turn() -> None:
            began = time.process_time()
            run()
            processor[name].append(time.process_time() - began)

        return Candidate(turn)

    candidates = {"engine": timed("engine", trainer.train_epoch), "bare": timed("bare", lambda: next(bare))}
    seconds = take_turns(candidates, rounds, WARMUP, clock=time.perf_counter)
    for sink in trainer.sinks:
        sink.close()
    return {
        "engine s": statistics.median(seconds["engine"]),
        "bare s": statistics.median(seconds["bare"]),
        "ratio": ratio(seconds["engine"], seconds["bare"]),
        "CPU ratio": ratio(processor["engine"][WARMUP:], processor["bare"][WARMUP:]),
    }


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=11)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    samples, rounds = (1024, 5) if chosen.quick else (4096, chosen.rounds)
    found: dict[str, dict[str, float]] = {}
    for precision in ("bf16-mixed", "32-true"):
        for optimizer in ("sgd", "ncsam"):
            with tempfile.TemporaryDirectory() as folder:
                row = measure(optimizer, precision, samples, rounds, Path(folder))
            found[f"{optimizer}, {precision}"] = row
            table(f"seconds per epoch of {samples:,} images, cnn_small of width 8", {f"{optimizer}, {precision}": row})
    worst = max(row["CPU ratio"] for row in found.values())
    print(f"\nengine_vs_bare {worst:.3f} (the largest ratio of processor times; goal: at most 1.05)")
    write_json(chosen.json, {"engine_vs_bare": worst, **found})


if __name__ == "__main__":
    main()
