"""What a large dataset costs beyond a small one: the loader's batches and the table of samples.

The loader cuts an epoch into batches of indices and reads rows of an array; the table writes a number and a row of
ten probabilities for each sample of a batch. Both are measured at ten thousand, one million and ten million samples
in one run, as ratios to the smallest; batches have 256 samples. Then what each method keeps of a sample (counted), and
how many photographs a core decodes and crops for training (by the processor's own time, whatever else it does).
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from ncsam import methods
from ncsam.data import from_arrays
from ncsam.data.loading.loader import Loader
from ncsam.engine import RunConfig
from ncsam.engine.label_issues import Dynamics, SampleTable
from ncsam.engine.task import load_task, view_names
from ncsam.methods import Method, State
from timing import Candidate, arguments, ratio, table, take_turns, write_json

SIZES = (10_000, 1_000_000, 10_000_000)
BATCH, CLASSES, BATCHES = 256, 10, 20
CLOTHING, ROWS = 14, 100  # classes of Clothing1M; rows of a table whose bytes are counted


def batches(samples: int) -> Candidate:
    """Some batches from the middle of an epoch; to begin with, the epoch's order is drawn."""
    inputs = np.zeros((samples, 4), dtype=np.uint8)
    dataset = from_arrays(inputs.astype(np.float32), np.arange(samples) % CLASSES)
    loader = Loader(dataset.train, BATCH, seed=0)
    stream = itertools.chain.from_iterable(loader.iterate(epoch) for epoch in itertools.count())
    return Candidate(lambda: list(itertools.islice(stream, BATCHES)))


def order(samples: int) -> Candidate:
    """The first batch of an epoch, with the order of all its samples."""
    dataset = from_arrays(np.zeros((samples, 4), dtype=np.float32), np.arange(samples) % CLASSES)
    loader = Loader(dataset.train, BATCH, seed=0)
    epochs = itertools.count()
    return Candidate(lambda: next(iter(loader.iterate(next(epochs)))))


def writes(samples: int) -> Candidate:
    """A batch's losses and probabilities into the table, and back."""
    held = SampleTable(samples)
    held.column("loss")
    held.column("probabilities", (CLASSES,))
    random = np.random.default_rng(0)
    chosen = [torch.from_numpy(random.integers(samples, size=BATCH)) for _ in range(BATCHES)]
    values, rows = torch.rand(BATCH), torch.rand(BATCH, CLASSES)

    def run() -> None:
        for index in chosen:
            held.write("loss", index, values)
            held.write("probabilities", index, rows)
            held["probabilities"][index].sum()

    return Candidate(run)


def kept(classes: int) -> dict[str, int]:
    """Bytes that a run keeps per sample: those of all runs, which label issues need, and each method's own."""
    found = {"every run": _bytes(lambda samples: Dynamics(samples, classes))}
    for name in methods.names():
        method = methods.create(name)
        labels = torch.arange(ROWS) % classes

        def start(samples: SampleTable, method: Method = method, labels: torch.Tensor = labels) -> None:
            state = State(classes, labels, epochs=100, steps_per_epoch=10, samples=samples, noise_rate=0.4)
            state.verified = torch.ones(ROWS, dtype=torch.int8)
            method.start(state)

        found[name] = _bytes(start)
    return found


def _bytes(fill: Callable[[SampleTable], object]) -> int:
    samples = SampleTable(ROWS)
    fill(samples)
    return sum(column.element_size() * column[0].numel() for column in samples.state_dict().values())


def decoded(images: int) -> float:
    """Photographs of 340 x 256 that a core decodes, crops to 224 and mirrors in a second of its own time."""
    with tempfile.TemporaryDirectory() as folder:
        random = np.random.default_rng(0)
        for number in range(images):
            place = Path(folder) / str(number % 2)
            place.mkdir(exist_ok=True)
            coarse = random.integers(256, size=(16, 22, 3), dtype=np.uint8)
            Image.fromarray(coarse).resize((340, 256), Image.Resampling.BICUBIC).save(
                place / f"{number}.jpg", quality=95
            )
        config = RunConfig(
            data=folder, data_options={"size": [224, 224]}, model="resnet18", augment="standard", val_share=0
        )
        task = load_task(config)
        loader = task.loader(task.dataset.train, config, 32, views=view_names(config, ["train"], task.modality))
        began = time.process_time()
        seen = sum(len(batch) for batch in loader.iterate(1))
        return seen / (time.process_time() - began)


def main() -> None:
    options = arguments(__doc__ or "")
    rounds = 3 if options.quick else 15
    sizes = SIZES[:2] if options.quick else SIZES
    rows: dict[str, dict[str, float]] = {}
    for name, kind in (("batches", batches), ("order of an epoch", order), ("table", writes)):
        seconds = take_turns({str(size): kind(size) for size in sizes}, rounds)
        rows[name] = {f"{size:,}": ratio(seconds[str(size)], seconds[str(sizes[0])]) for size in sizes}
        per = min(seconds[str(sizes[-1])]) / (1 if kind is order else BATCHES)
        rows[name]["ms at the largest"] = 1e3 * per
    table("time as a ratio to the smallest; milliseconds a batch (of the order: an epoch)", rows)
    bytes_kept = kept(CLOTHING)
    keeping = {name: count for name, count in bytes_kept.items() if count}
    table(
        f"bytes kept of a sample, {CLOTHING} classes; the other methods: none", {n: {"": c} for n, c in keeping.items()}
    )
    speed = decoded(64 if options.quick else 256)
    print(f"\nphotographs of 340 x 256 decoded and cropped to 224 in a core's second: {speed:.0f}")
    write_json(options.json, {**rows, "bytes": bytes_kept, "photographs": {"per core second": speed}})


if __name__ == "__main__":
    main()
