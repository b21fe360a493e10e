"""The image at the top of the README: labels of Fashion-MNIST itself that ncsam finds likely to be wrong.

    python tools/readme_figure.py FOLDER

FOLDER holds Fashion-MNIST's four files (MIT license; the Debian package dataset-fashion-mnist has them). No label is
changed: the first images of the test split are classified out of fold from their pixels, and the ones whose given label
is the least likely are shown, in this order and without a choice by hand. Nobody has verified the suggestions.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
import numpy as np

import ncsam
from ncsam.data.readers.idx import read_idx

matplotlib.use("agg")
import matplotlib.pyplot as plt

OUT = Path(__file__).parents[1] / "docs/assets/label-issues.png"
NAMES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=3000, help="how many images of the test split [3000]")
    parser.add_argument("--shown", type=int, default=12, help="how many are drawn, in two rows [12]")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    images = read_idx(options.folder / "t10k-images-idx3-ubyte.gz", 3)[: options.images]
    labels = read_idx(options.folder / "t10k-labels-idx1-ubyte.gz", 1)[: options.images].astype(np.int64)
    run = ncsam.train((images.reshape(len(images), -1).astype(np.float32) / 255, labels))
    issues = run.find_label_issues()
    rows = issues.head(options.shown).to_dict("records")  # the lowest label quality first
    draw(images, rows, options.out)
    for row in rows:
        given, suggested = NAMES[int(row["given_label"])], NAMES[int(row["suggested_label"])]
        print(
            f"{int(row['index']):5d}  given {given:<10}  suggested {suggested:<10}  quality {row['label_quality']:.3f}"
        )
    print(f"{options.out}: {options.out.stat().st_size / 1024:.0f} kB")


def draw(images: np.ndarray, rows: list[dict[str, object]], out: Path) -> None:
    """Two rows of images, each under its given and its suggested label."""
    columns = -(-len(rows) // 2)
    figure, axes = plt.subplots(2, columns, figsize=(1.45 * columns, 4.1), dpi=110)
    for axis in axes.flat:
        axis.axis("off")
    for axis, row in zip(axes.flat, rows, strict=False):
        axis.imshow(255 - images[int(row["index"])], cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        given, suggested = NAMES[int(row["given_label"])], NAMES[int(row["suggested_label"])]
        axis.set_title(f"given: {given}", fontsize=8.5, color="#b3261e", pad=15, loc="center")
        axis.text(
            0.5, 1.02, f"suggested: {suggested}", fontsize=8.5, color="#14663a", ha="center", transform=axis.transAxes
        )
    figure.tight_layout(pad=0.4, h_pad=1.2)
    figure.savefig(out, metadata={"Software": None})


if __name__ == "__main__":
    main()
