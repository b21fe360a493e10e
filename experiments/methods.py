"""A table of methods from finished comparisons: accuracy under each optimizer, and the cost of an epoch.

    ncsam compare digits --noise symmetric --rate 0.4 --methods ce,gce,... --optimizers sgd,ncsam --out runs/symmetric
    python experiments/methods.py runs/symmetric [runs/pairflip ...] --time 20 --markdown table.md

Each folder holds the `comparison.json` that `ncsam compare` wrote, and its runs. Accuracies are means over seeds of the
test accuracy over the last five epochs, with the standard error of that mean; so are the differences between the first
optimizer and the others, seed by seed.

The cost is the median time of training an epoch (planning included, evaluation not) as a ratio to `ce` under the same
optimizer. By default it is read from the runs, which is rough where they shared the machine with others. With
`--time N` it is measured anew: runs of N epochs of all methods live in one process and train an epoch each in turn, and
every epoch is compared with that of `ce` in the same turn. That is done once, with the first folder's noise.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ncsam._files import atomic_path

Rows = list[dict[str, Any]]
#: Method and optimizer to seconds, or to a ratio.
Times = dict[tuple[str, str], float]


def by_seed(folder: Path, row: dict[str, Any] | None) -> dict[int, float]:
    """The accuracy of each finished run."""
    files = [] if row is None else [folder / name / "summary.json" for name in row["runs"]]
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]
    return {summary["seed"]: summary["last5"] for summary in found}


def mean_and_error(values: Sequence[float], sign: str = "") -> str:
    """The mean, and its standard error, in percent."""
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):{sign}.2f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values) / math.sqrt(len(values)):.2f}"


def names(rows: Rows) -> tuple[list[str], list[str]]:
    """The methods and the optimizers, in order."""
    return list(dict.fromkeys(row["method"] for row in rows)), list(dict.fromkeys(row["optimizer"] for row in rows))


def ratios_of_runs(folder: Path, rows: Rows) -> Times:
    """Median seconds of training an epoch, over epochs and seeds, as a ratio to `ce`."""
    seconds: Times = {}
    for row in rows:
        files = [folder / name / "metrics.jsonl" for name in row["runs"]]
        lines = [line for file in files if file.is_file() for line in file.read_text(encoding="utf-8").splitlines()]
        if lines:
            seconds[row["method"], row["optimizer"]] = statistics.median(
                json.loads(line)["train_seconds"] for line in lines
            )
    plain = {optimizer: value for (method, optimizer), value in seconds.items() if method == "ce"}
    return {key: value / plain[key[1]] for key, value in seconds.items() if key[1] in plain}


def ratios_in_turn(rows: Rows, epochs: int) -> Times:
    """The same, measured in this process: all methods train an epoch in turn."""
    found: Times = {}
    methods, optimizers = names(rows)
    if "ce" not in methods:
        return found
    for optimizer in optimizers:
        with tempfile.TemporaryDirectory() as folder:
            seconds = epochs_in_turn(rows[0], methods, optimizer, epochs, Path(folder))
        for method, times in seconds.items():
            ratios = [own / plain for own, plain in zip(times, seconds["ce"], strict=True)]
            found[method, optimizer] = statistics.median(ratios)
    return found


def epochs_in_turn(
    first: dict[str, Any], methods: Sequence[str], optimizer: str, epochs: int, folder: Path
) -> dict[str, list[float]]:
    """Seconds of each epoch of each method."""
    import torch
    from lightning_fabric import Fabric

    from ncsam.compare.specs import folder_name, with_spec
    from ncsam.engine import RunConfig
    from ncsam.engine.interrupt import Interrupt
    from ncsam.engine.loop import Trainer
    from ncsam.engine.task import load_task, settled

    torch.set_num_threads(1)
    shared = RunConfig(data=first["data"], noise=first["noise"], rate=first["rate"], epochs=epochs, accelerator="cpu")
    task = load_task(shared)
    trainers = {}
    for method in methods:
        config = settled(with_spec(with_spec(shared, "method", method), "optimizer", optimizer), task)
        where = folder / folder_name(method, optimizer, config.seed)
        trainers[method] = Trainer(Fabric(accelerator="cpu", devices=1), config, task, where, console=False)
    with Interrupt() as interrupt:
        for _ in range(epochs):
            for trainer in trainers.values():
                trainer._epoch(interrupt, [])
    return {method: [record["train_seconds"] for record in t.history] for method, t in trainers.items()}


def table(folder: Path, rows: Rows, ratios: Times) -> list[str]:
    """Markdown lines for one comparison."""
    methods, optimizers = names(rows)
    by_name = {(row["method"], row["optimizer"]): row for row in rows}
    first = rows[0]
    seeds = max(len(row["seeds"]) for row in rows)
    differences = [f"{optimizer} less {optimizers[0]}" for optimizer in optimizers[1:]]
    columns = [*optimizers, *differences, *(f"time, {optimizer}" for optimizer in optimizers)]
    lines = [
        f"{first['data']}, {first['noise']} noise {first['rate']}, {first['epochs']} epochs, {seeds} seeds:",
        "",
        "| method | " + " | ".join(columns) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    for method in methods:
        found = [by_seed(folder, by_name.get((method, optimizer))) for optimizer in optimizers]
        cells = [mean_and_error(list(values.values())) for values in found]
        for other in found[1:]:
            cells.append(mean_and_error([other[s] - found[0][s] for s in other if s in found[0]], sign="+"))
        for optimizer in optimizers:
            ratio = ratios.get((method, optimizer))
            cells.append("-" if ratio is None else f"{ratio:.1f}")
        lines.append(f"| `{method}` | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, help="folders of finished comparisons")
    parser.add_argument("--time", type=int, metavar="N", help="measure the cost side by side, in runs of N epochs")
    parser.add_argument("--markdown", type=Path, help="write the tables there instead of printing them")
    arguments = parser.parse_args()
    comparisons = {
        folder: json.loads((folder / "comparison.json").read_text(encoding="utf-8")) for folder in arguments.folders
    }
    measured = ratios_in_turn(comparisons[arguments.folders[0]], arguments.time) if arguments.time else None
    tables = [
        "\n".join(table(folder, rows, ratios_of_runs(folder, rows) if measured is None else measured))
        for folder, rows in comparisons.items()
    ]
    text = "\n\n".join(tables) + "\n"
    if arguments.markdown is None:
        print(text, end="")
        return
    with atomic_path(arguments.markdown) as temporary:
        temporary.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
