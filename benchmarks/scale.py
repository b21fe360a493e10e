"""What a large dataset costs beyond a small one: the loader's batches and the table of samples.

The loader cuts an epoch into batches of indices and reads rows of an array; the table writes a number and a row of
ten probabilities for each sample of a batch. Both are measured at ten thousand, one million and ten million samples
in one run, as ratios to the smallest; batches have 256 samples. Bytes are counted, not measured.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch

from ncsam.data import from_arrays
from ncsam.data.loader import Loader
from ncsam.engine.samples import SampleTable
from timing import Candidate, arguments, ratio, table, take_turns, write_json

SIZES = (10_000, 1_000_000, 10_000_000)
BATCH, CLASSES, BATCHES = 256, 10, 20


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
    write_json(options.json, rows)


if __name__ == "__main__":
    main()
