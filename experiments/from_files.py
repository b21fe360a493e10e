"""From raw files to label issues and a report, one command each: seconds, and how many of the first 50 are wrong.

    python experiments/from_files.py --images cifar10_subset.npz --texts texts_youtube.csv

Writes 1,500 thumbnails in class folders (CIFAR-10N, `random1`), 1,500 texts (rule-based labels) and a table of 5,000
rows with categories, dates, missing values and 13 % wrong labels, then runs `ncsam train` and `ncsam report` on them.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import ncsam


def photos(source: Path, folder: Path) -> list[str]:
    """Class folders of thumbnails; the true labels by file name, which is the sample's number."""
    from PIL import Image

    with np.load(source) as found:
        names, given, true = found["class_names"], found["y_random1"][:1500], found["y_train"][:1500]
        for number, (image, label) in enumerate(zip(found["x_train"][:1500], given, strict=True)):
            (folder / "photos" / names[label]).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / "photos" / names[label] / f"{number}.png")
    return [str(names[label]) for label in true]


def texts(source: Path, folder: Path) -> list[str]:
    """A table of texts and weak labels."""
    with source.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[:1500]
    _write(folder / "texts.csv", [["text", "label"], *([row["text"], row["weak"]] for row in rows)])
    return [row["clean"] for row in rows]


def table(folder: Path, rows: int = 5000) -> list[str]:
    """Eight numbers, a category and a date; the class depends on three of the numbers and on the category."""
    rng = np.random.default_rng(0)
    x, city = rng.normal(size=(rows, 8)), rng.choice(["Rome", "Oslo", "Lima", "Cairo"], rows)
    days = np.datetime64("2024-01-01") + rng.integers(0, 700, rows)
    score = x[:, 0] + x[:, 1] * x[:, 2] + 1.5 * (city == "Oslo") - (city == "Lima") + 0.3 * rng.normal(size=rows)
    true = np.where(score > 0.8, "high", np.where(score < -0.8, "low", "mid"))
    given = np.where(rng.random(rows) < 0.2, rng.choice(["high", "mid", "low"], rows), true)
    missing = rng.random(x.shape) < 0.03
    cells = np.where(missing, "", np.char.mod("%.4f", x))
    lines = [[*row, *rest] for row, *rest in zip(cells, city, days.astype(str), given, strict=True)]
    _write(folder / "table.csv", [[*(f"f{number}" for number in range(8)), "city", "day", "label"], *lines])
    return [str(label) for label in true]


def _write(path: Path, rows: list[list[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--texts", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        truths = {"table.csv": table(folder)}
        if options.images:
            truths["photos"] = photos(options.images, folder)
        if options.texts:
            truths["texts.csv"] = texts(options.texts, folder)
        for data, true in truths.items():
            out, began = folder / "runs" / data, time.perf_counter()
            for words in (["train", data, "--out", str(out), "--quiet"], ["report", str(out)]):
                subprocess.run([sys.executable, "-m", "ncsam", *words], cwd=folder, check=True, capture_output=True)
            seconds = time.perf_counter() - began
            issues = ncsam.load_run(out).find_label_issues().head(50)
            numbers = [Path(path).stem for path in issues["path"]] if data == "photos" else issues["index"]
            wrong = sum(true[int(n)] != given for n, given in zip(numbers, issues["given_label"], strict=True))
            print(
                f"{data}: {seconds:.0f} s to a report, {2 * wrong} % of the first 50 label issues are wrong labels",
                flush=True,
            )


if __name__ == "__main__":
    main()
