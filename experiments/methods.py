"""A table of methods from finished comparisons: accuracy under each optimizer, and the cost of an epoch.

    ncsam compare digits --noise symmetric --rate 0.4 --methods ce,gce,... --optimizers sgd,ncsam --out runs/symmetric
    python experiments/methods.py runs/symmetric [runs/pairflip ...] --markdown table.md

Each folder holds the `comparison.json` that `ncsam compare` wrote, and its runs. Accuracies are means over seeds, with
the sample standard deviation, of the test accuracy over the last five epochs. The cost is the median time of training
an epoch (planning included, evaluation not), as a ratio to `ce` under the same optimizer. Comparisons that shall tell
costs should run one job at a time.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from ncsam._files import atomic_path


def accuracy(row: dict[str, Any] | None) -> str:
    if row is None or row["last5"]["mean"] is None:
        return "failed" if row is not None and row["failed"] else "-"
    mean, deviation = row["last5"]["mean"], row["last5"]["std"]
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"


def seconds(folder: Path, row: dict[str, Any] | None) -> float | None:
    """Median seconds of training an epoch, over epochs and seeds."""
    if row is None:
        return None
    times = []
    for name in row["runs"]:
        lines = folder / name / "metrics.jsonl"
        if lines.is_file():
            times += [json.loads(line)["train_seconds"] for line in lines.read_text(encoding="utf-8").splitlines()]
    return statistics.median(times) if times else None


def table(folder: Path) -> list[str]:
    """Markdown lines for one comparison."""
    rows = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    optimizers = list(dict.fromkeys(row["optimizer"] for row in rows))
    by_name = {(row["method"], row["optimizer"]): row for row in rows}
    first = rows[0]
    seeds = max(len(row["seeds"]) for row in rows)
    lines = [
        f"{first['data']}, {first['noise']} noise {first['rate']}, {first['epochs']} epochs, {seeds} seeds:",
        "",
        "| method | " + " | ".join([*optimizers, *(f"time, {optimizer}" for optimizer in optimizers)]) + " |",
        "|---|" + "---:|" * (2 * len(optimizers)),
    ]
    for method in methods:
        cells = [accuracy(by_name.get((method, optimizer))) for optimizer in optimizers]
        for optimizer in optimizers:
            own = seconds(folder, by_name.get((method, optimizer)))
            plain = seconds(folder, by_name.get(("ce", optimizer)))
            cells.append("-" if own is None or not plain else f"{own / plain:.1f}")
        lines.append(f"| `{method}` | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, help="folders of finished comparisons")
    parser.add_argument("--markdown", type=Path, help="write the tables there instead of printing them")
    arguments = parser.parse_args()
    text = "\n\n".join("\n".join(table(folder)) for folder in arguments.folders) + "\n"
    if arguments.markdown is None:
        print(text, end="")
        return
    with atomic_path(arguments.markdown) as temporary:
        temporary.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
