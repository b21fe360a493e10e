"""An epoch of the engine with its evaluations, against the same epoch by another version of ncsam, in one run.

    python benchmarks/epoch.py --against 9907717 [--models resnet8 mlp] [--samples 2000] [--rounds 5]

`--against` is a commit, or a folder that holds another version's `ncsam`. Each version runs in a process of its own,
with its own defaults (precision, memory format), on one thread; their epochs take turns. Images are random, of CIFAR's
size, with standard augmentation; the mlp has 64 features. Ratios are medians of the ratios within a round, of wall
clock and processor time, the steadier one on a busy machine.
"""

from __future__ import annotations

from pathlib import Path

from timing import parser, ratio, table, write_json
from versions import in_turns, serve, sources

MODELS = ("resnet8", "preact_resnet32", "resnet18", "mlp")


def work(model: str, samples: int, optimizer: str) -> None:
    """A process of one version: an epoch for every line that is read, and its seconds as a line."""
    import numpy as np
    import torch

    from ncsam.data import from_arrays
    from ncsam.engine import RunConfig
    from ncsam.engine.device import choose_device
    from ncsam.engine.resolve import resolve
    from ncsam.engine.task import load_task
    from ncsam.engine.trainer import Trainer

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    tests = samples // 5
    y = np.arange(samples + tests) % 10
    x = rng.integers(0, 256, size=(samples + tests, 32, 32, 3), dtype=np.uint8)
    if model == "mlp":
        x = rng.normal(size=(samples + tests, 64)).astype(np.float32)
    data = from_arrays(x[:samples], y[:samples], x_test=x[samples:], y_test=y[samples:], name="noise")
    # no epoch is the last one: that has further work
    config = RunConfig(model=model, optimizer=optimizer, rho=0.05, lr=0.01, epochs=1000, batch_size=128, warmup=0.0)
    task = load_task(config, data)
    trainer = Trainer(choose_device(config), resolve(config, task), task)
    serve(trainer.train_epoch)


def measure(found: dict[str, Path], model: str, samples: int, rounds: int, optimizer: str) -> dict[str, float]:
    """Epochs of both versions in turns, after one of each that is not counted."""
    words = [__file__, "--worker", model, "--samples", str(samples), "--optimizer", optimizer]
    seconds = in_turns(found, {model: words}, rounds)
    (wall, processor), (other_wall, other_processor) = (
        [list(column) for column in zip(*seconds[model, name], strict=True)] for name in ("here", "other")
    )
    return {
        "here CPU s": min(processor),
        "other CPU s": min(other_processor),
        "wall ratio": ratio(wall, other_wall),
        "CPU ratio": ratio(processor, other_processor),
        "ratio of minima": min(processor) / min(other_processor),
    }


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--against", help="a commit, or a folder with another version of the package")
    options.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    options.add_argument("--samples", type=int, default=2000)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--optimizer", default="sgd")
    options.add_argument("--worker", help="(internal) the model of a process that waits for lines")
    chosen = options.parse_args()
    if chosen.worker:
        work(chosen.worker, chosen.samples, chosen.optimizer)
        return
    if not chosen.against:
        options.error("--against is needed: a commit or a folder")
    samples, rounds = (500, 2) if chosen.quick else (chosen.samples, chosen.rounds)
    with sources(chosen.against) as found:
        rows = {}
        for model in chosen.models:
            rows[model] = measure(found, model, samples, rounds, chosen.optimizer)
            table(f"an epoch of {samples:,} samples, {chosen.optimizer}", {model: rows[model]})
    write_json(chosen.json, rows)


if __name__ == "__main__":
    main()
