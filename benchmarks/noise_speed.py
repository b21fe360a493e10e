"""How long it takes to make wrong labels, against the usual ways, on one thread, in one run.

    python benchmarks/noise_speed.py [--quick] [--json FILE]

Symmetric noise, 10 million labels, against
  vectorized   one uniform per sample against the cumulated row of the transition matrix, a million samples at a time;
  multinomial  a Python loop with one numpy multinomial per sample, the habit of the field, timed on 50,000 labels.
Instance noise, 50,000 images of 3,072 pixels, against
  per sample   a Python loop with one projection, one softmax and one categorical draw per sample, all projections made
               first; timed on 1,000 samples.
What is timed on fewer samples is scaled up in proportion and marked so.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import statistics
import time
import tracemalloc
from pathlib import Path

import numpy as np

from ncsam import noise

RATE, CLASSES = 0.4, 10


def vectorized(labels, rng):
    matrix = np.full((CLASSES, CLASSES), RATE / (CLASSES - 1))
    np.fill_diagonal(matrix, 1 - RATE)
    cumulated = matrix.cumsum(axis=1)
    parts = np.split(labels, range(1_000_000, len(labels), 1_000_000))
    return np.concatenate([(cumulated[part] <= rng.random((len(part), 1))).sum(axis=1) for part in parts])


def multinomial(labels, rng):
    matrix = np.full((CLASSES, CLASSES), RATE / (CLASSES - 1))
    np.fill_diagonal(matrix, 1 - RATE)
    return np.array([rng.multinomial(1, matrix[label]).argmax() for label in labels])


def projections(width, rng):
    return rng.standard_normal((CLASSES, width, CLASSES))


def per_sample(labels, images, projection, rng):
    noisy = []
    for image, label in zip(images, labels, strict=True):
        q = -1.0
        while not 0 <= q <= 1:
            q = rng.normal(RATE, 0.1)
        scores = image.reshape(-1).astype(np.float64) @ projection[label]
        scores[label] = -np.inf
        weights = np.exp(scores - scores.max())
        chances = q * weights / weights.sum()
        chances[label] += 1 - q
        noisy.append(rng.choice(CLASSES, p=chances))
    return np.array(noisy)


def medians(repeats, **contestants):
    """Median seconds of each, taken in turn so that a busy moment hits all alike; and what each returned last."""
    seconds = {name: [] for name in contestants}
    results = {}
    for _ in range(repeats):
        for name, run in contestants.items():
            start = time.perf_counter()
            results[name] = run()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}, results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three repeats instead of seven: under 40 s")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    repeats = 3 if options.quick else 7
    rng = np.random.default_rng(0)

    many, few = 10_000_000, 50_000
    labels = rng.integers(CLASSES, size=many)
    seconds, results = medians(
        repeats,
        ours=lambda: noise.symmetric(labels, RATE, num_classes=CLASSES, seed=0),
        vectorized=lambda: vectorized(labels, rng),
        multinomial=lambda: multinomial(labels[:few], rng),
    )
    assert abs(results["ours"].rate - RATE) < 1e-3
    assert abs((results["vectorized"] != labels).mean() - RATE) < 1e-3
    assert abs((results["multinomial"] != labels[:few]).mean() - RATE) < 1e-2
    seconds["multinomial"] *= many / few
    figures = {"symmetric": report(f"symmetric, {many:,} labels", seconds, scaled={"multinomial": few})}

    count, width, subset = 50_000, 3072, 1000
    images = rng.integers(0, 256, (count, width), dtype=np.uint8)
    labels = np.arange(count) % CLASSES
    projection = projections(width, rng)
    seconds, results = medians(
        repeats,
        ours=lambda: noise.instance(labels, RATE, inputs=images, seed=0),
        making=lambda: projections(width, rng),
        per_sample=lambda: per_sample(labels[:subset], images[:subset], projection, rng),
    )
    assert abs(results["ours"].rate - RATE) < 1e-2
    assert abs((results["per_sample"] != labels[:subset]).mean() - RATE) < 7e-2
    seconds["per_sample"] = seconds.pop("making") + seconds["per_sample"] * count / subset
    figures["instance"] = report(f"instance, {count:,} x {width:,}", seconds, scaled={"per_sample": subset})

    tracemalloc.start()
    noise.instance(labels, RATE, inputs=images, seed=0)
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    whole = 8 * count * width * CLASSES / 1e6
    print(f"  peak memory beyond the images {peak:.0f} MB; an N x C x S array of float64 would be {whole:,.0f} MB")
    figures["instance"] |= {"peak_mb": peak, "n_c_s_array_mb": whole}
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def report(title, seconds, scaled):
    print(title)
    ours = seconds["ours"]
    print(f"  {'ours':<14}{ours:9.3f} s")
    for name, time_taken in seconds.items():
        if name != "ours":
            note = f"  (scaled up from {scaled[name]:,} samples)" if name in scaled else ""
            print(f"  {name:<14}{time_taken:9.3f} s  {time_taken / ours:7.1f} times ours{note}")
    return {"seconds": seconds, "times_ours": {name: value / ours for name, value in seconds.items()}, "scaled": scaled}


if __name__ == "__main__":
    main()
