"""How much longer a decision and a page take among 100,000 samples than among 1,000, in the review's own server.

    python benchmarks/review_page.py [--samples 1000 100000] [--decisions 200]

Features of eight numbers in ten classes, random label issues; every request goes through the routes of the page and,
for decisions, to the disk. The review has half of `--decisions` behind it when the measuring begins. Times are medians,
measured in turns in one run.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ncsam.engine import RunConfig
from ncsam.review.server import Review

TURNS = 15


def made_run(folder: Path, samples: int) -> Path:
    """A run folder whose label issues nobody trained for."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 10, samples)
    x = generator.normal(size=(samples, 8)).astype(np.float32)
    folder.mkdir()
    np.savez(folder / "data.npz", x=x, y=labels, x_test=x[:10], y_test=labels[:10])
    RunConfig(data=str(folder / "data.npz"), epochs=1).save(folder / "config.yaml")
    (folder / "summary.json").write_text(json.dumps({"epochs": 1}))
    (folder / "label_posterior.json").write_text(json.dumps({"reliable": True, "reason": ""}))
    chances = np.sort(generator.random(samples))[::-1]
    with (folder / "label_issues.csv").open("w", newline="") as file:
        table = csv.writer(file)
        head = ["index", "given_label", "predicted_label", "label_quality", "p_wrong", "is_label_issue"]
        table.writerow([*head, "suggested_label", "p_suggested"])
        for i, p in zip(generator.permutation(samples), chances, strict=True):
            other = (labels[i] + 1) % 10
            table.writerow([i, labels[i], other, 1 - p, p, int(p > 0.5), other, 0.8 * p])
    return folder


def actions(review: Review, decided: int) -> dict[str, Callable[[int], object]]:
    """What a reviewer does, by name; each takes the number of the turn."""
    view = {"status": "undecided", "layout": "grid"}
    order = review.queue.index.tolist()
    for index in order[:decided]:
        review.decide({"index": index, "choice": "accept", "reviewer": "Ada"})
    return {
        "a decision": lambda turn: review.decide({"index": order[decided + turn], "choice": "keep", "reviewer": "Ada"}),
        "a page of 24": lambda turn: review.items({**view, "place": 24 * turn}, 24, False),
        "a page by class pair": lambda turn: review.items({**view, "order": "pair", "place": 24 * turn}, 24, False),
        "a filtered page": lambda turn: review.items({**view, "observed": turn % 10, "search": "7"}, 24, False),
        "neighbors": lambda turn: review.neighbors(order[turn]),
        "an undo": lambda turn: review.undo({"reviewer": "Ada"}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", nargs=2, type=int, default=[1_000, 100_000])
    parser.add_argument("--decisions", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sides, opened = [], []
        for samples in options.samples:
            run = made_run(Path(folder) / str(samples), samples)
            began = time.perf_counter()
            review = Review(run)
            review.start()
            opened.append(time.perf_counter() - began)
            sides.append((review, actions(review, options.decisions // 2)))
        few, many = options.samples
        print(f"| | {few:,} samples, ms | {many:,} samples, ms | ratio |\n|---|---|---|---|")
        print(f"| opening | {1e3 * opened[0]:.0f} | {1e3 * opened[1]:.0f} | {opened[1] / opened[0]:.1f} |")
        for name in sides[0][1]:
            times: list[list[float]] = [[], []]
            for turn in range(TURNS):
                for side, (_, does) in enumerate(sides):
                    began = time.perf_counter()
                    does[name](turn)
                    times[side].append(time.perf_counter() - began)
            one, other = map(statistics.median, times)
            print(f"| {name} | {1e3 * one:.2f} | {1e3 * other:.2f} | {other / one:.1f} |")
        for review, _ in sides:
            review.close()


if __name__ == "__main__":
    main()
