"""Small result files of the runs of `ncsam reproduce variants`, and from them the table and the figure of the docs.

    ncsam reproduce variants --scale medium --data-root data --images 5000
    ncsam reproduce variant-ablations --scale medium --data-root data --images 5000
    python experiments/variants.py collect runs/reproduce-medium docs/experiments/medium
    python experiments/variants.py show docs/experiments/medium

`collect` writes a JSON of a few numbers for each finished cell and seed, then does what `show` does: writes
`FOLDER.md` and `FOLDER.svg` beside the folder. Cells that are not finished are marked.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ncsam._errors import need
from ncsam._files import atomic_path, read_json
from ncsam._statistics import Spread
from ncsam.report.markdown import table as markdown_table
from ncsam.reproduce.results import run_name
from ncsam.reproduce.tables import TABLES, Column, Row

TABLE, ABLATIONS = TABLES["variants"], TABLES["variant-ablations"]
MISSING = "not run"
#: Gradients of a step in units of SGD's; those of the methods with stages of their own are not one number.
COST = {"sgd": 1, "cheap": 1, "bsam": 3, "ncsam": 3, "authors": 3, "length": 3, "gce": 1, "elr": 1}
#: How the figure marks a row; a dotted line joins SGD and SAM's fixed radii.
MARKERS = {"sgd": "o", "sam": "^", "sam.1": "^", "sam.2": "^", "sam.5": "^", "bsam": "1", "ncsam": "x", "kappa0": "+"}
MARKERS |= {"authors": "*", "length": "D", "recommended": "s", "cheap": "v"}
NO_LENGTH = 0.01  # where the figure's logarithmic axis shows a step without a perturbation
Cells = dict[tuple[str, str], list[dict[str, Any]]]


def collected(runs: Path, row: Row, column: Column, seed: int) -> dict[str, Any] | None:
    """The numbers of a finished run; `None` for any other."""
    folder = runs / run_name(row, column, seed)
    if not (folder / "summary.json").is_file():
        return None
    summary = read_json(folder / "summary.json")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    telemetry = [line["telemetry"] for line in lines if line["telemetry"].get("perturbation_norm")]
    found = {"row": row.name, "column": column.name, "seed": seed}
    found |= {name: summary[name] for name in ("best", "last", "last5", "memorized", "epochs", "noise_rate")}
    found["curve"] = [round(line["test_accuracy"], 2) for line in lines]
    if telemetry:
        found["length"] = sum(each["perturbation_norm"] for each in telemetry) / len(telemetry)
        found["last_radius"] = telemetry[-1]["rho"]
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in found.items()}


def collect(runs: Path, folder: Path) -> None:
    """Write the numbers of all finished cells."""
    folder.mkdir(parents=True, exist_ok=True)
    record = read_json(runs / "reproduce.json")
    about = {name: record[name] for name in ("scale", "changes", "versions")}
    write(folder / "about.json", about)
    for row, column in dict.fromkeys([*TABLE.cells, *ABLATIONS.cells]):
        for seed in range(1, 10):
            found = collected(runs, row, column, seed)
            if found is not None:
                write(folder / f"{column.name}_{row.name}_s{seed}.json", found)


def write(path: Path, content: Any) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content) + "\n", encoding="utf-8")


def read(folder: Path) -> Cells:
    """The collected numbers by row and column."""
    cells: Cells = {}
    for path in sorted(folder.glob("*_s*.json")):
        found = read_json(path)
        cells.setdefault((found["row"], found["column"]), []).append(found)
    return cells


def text(cells: Cells, row: Row, column: Column, name: str, digits: int = 1) -> str:
    spread = Spread.of(each.get(name) for each in cells.get((row.name, column.name), ()))
    if spread is None:
        return MISSING if (row.name, column.name) not in cells else "-"
    return spread.text(digits, error=True)


def page(cells: Cells, about: dict[str, Any], figure: str) -> Iterator[str]:
    """The document, block by block."""
    changes = ", ".join(f"`--{name} {value}`" for name, value in about["changes"].items())
    done = sum((row.name, column.name) in cells for row, column in TABLE.cells)
    images = about["changes"].get("images")
    yield f"# {TABLE.title}: {f'{images:,} images' if images else 'all images'}"
    yield (
        f"`ncsam reproduce variants --scale {about['scale']}`{', ' + changes if changes else ''}; "
        f"{done} of {len(TABLE.cells)} cells have a finished run. Written by `python experiments/variants.py show`."
    )
    columns = [column for column in TABLE.columns if any(key[1] == column.name for key in cells)]
    finished = [row for row in TABLE.rows if any(key[0] == row.name for key in cells)]
    if absent := [each.title for each in (*TABLE.rows, *TABLE.columns) if each not in (*finished, *columns)]:
        yield f"Rows and columns without a finished run are left out: {'; '.join(absent)}."
    head = ["", *(column.title for column in columns)]
    parts = (
        ("last5", "Test accuracy in percent, mean of the last five epochs (± standard error over seeds)"),
        ("best", "Best epoch on the test set"),
        ("last", "Last epoch"),
        ("memorized", "Mislabeled training samples predicted as their wrong label after the last epoch, percent"),
    )
    for name, title in parts:
        yield f"**{title}**"
        yield markdown_table(head, [[row.title, *(text(cells, row, c, name) for c in columns)] for row in finished])
    yield "**Perturbation: mean length after warm-up, and gradients of a step in units of SGD's**"
    rows = []
    for row in finished:
        lengths = [text(cells, row, c, "length", 2) if row.optimizer != "sgd" else "-" for c in columns]
        cost = COST.get(row.name, 2 if row.method == "ce" else None)
        rows.append([row.title, *lengths, "stages" if cost is None else str(cost)])
    yield markdown_table([*head, "cost"], rows)
    yield from ablations(cells)
    if cells:
        yield f"![Accuracy and memorized share against the length of the perturbation]({figure})"


def ablations(cells: Cells) -> Iterator[str]:
    """The table of strengths and flip ratios, where it was run."""
    own = {row.name for row in ABLATIONS.rows} - {row.name for row in TABLE.rows}
    for column in ABLATIONS.columns:
        if any(name in own and of == column.name for name, of in cells):
            yield f"**kappa and flip ratio, {column.title}** (`ncsam reproduce variant-ablations`)"
            names = {"last five epochs": ("last5", 1), "memorized": ("memorized", 1), "length": ("length", 2)}
            rows = [
                [row.title, *(text(cells, row, column, name, digits) for name, digits in names.values())]
                for row in ABLATIONS.rows
                if (row.name, column.name) in cells
            ]
            yield markdown_table(["", *names], rows)


def draw(cells: Cells, path: Path) -> None:
    """Accuracy of the last five epochs, and the memorized share, against the length of the perturbation."""
    pyplot = need("matplotlib.figure", "plot", "drawing")
    lines = need("matplotlib.lines", "plot", "drawing")
    image = pyplot.Figure((9.6, 4.2), layout="constrained")
    panels = {"last5": "test accuracy, last five epochs", "memorized": "wrong labels memorized, %"}
    columns = [column for column in TABLE.columns if any(key[1] == column.name for key in cells)]
    colors = {column.name: f"C{i}" for i, column in enumerate(columns)}
    for ax, (name, label) in zip(image.subplots(1, 2), panels.items(), strict=True):
        for column in columns:
            found = {row: cells[row, column.name] for row in MARKERS if (row, column.name) in cells}
            at = {row: (mean_of(runs, "length") or NO_LENGTH, mean_of(runs, name)) for row, runs in found.items()}
            fixed = [at[row] for row in ("sgd", "sam", "sam.1", "sam.2", "sam.5") if row in at]
            ax.plot(*zip(*fixed, strict=True), color=colors[column.name], lw=0.8, ls=":")
            for row, (x, y) in at.items():
                ax.scatter(x, y, s=34, marker=MARKERS[row], color=colors[column.name], linewidths=1.2)
        ax.set_xscale("log")
        ax.set_xlabel(f"mean length of the perturbation (SGD at {NO_LENGTH:g})")
        ax.set_ylabel(label)
    titles = {row.name: row.title for row in TABLE.rows} | {"sam": "SAM, fixed radius"}
    drawn = [row for row in MARKERS if row not in ("sam.1", "sam.2", "sam.5") and any(key[0] == row for key in cells)]
    handles = [lines.Line2D([], [], color="C7", marker=MARKERS[row], ls="", label=titles[row]) for row in drawn]
    handles += [lines.Line2D([], [], color=colors[c.name], lw=3, label=c.title) for c in columns]
    image.legend(handles=handles, loc="outside right upper", fontsize=7, frameon=False)
    with need("matplotlib", "plot", "drawing").rc_context({"svg.fonttype": "none", "svg.hashsalt": "variants"}):
        image.savefig(path, metadata={"Date": None})


def mean_of(runs: list[dict[str, Any]], name: str) -> float | None:
    """The mean over the seeds; `None` where a run does not have the number."""
    values = [run[name] for run in runs if run.get(name) is not None]
    return sum(values) / len(values) if values else None


def show(folder: Path) -> None:
    """Write page and figure."""
    cells, about = read(folder), read_json(folder / "about.json")
    figure = folder.with_suffix(".svg")
    if cells:
        draw(cells, figure)
    with atomic_path(folder.with_suffix(".md")) as temporary:
        temporary.write_text("\n\n".join(page(cells, about, figure.name)) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    gather = commands.add_parser("collect")
    gather.add_argument("runs", type=Path)
    gather.add_argument("folder", type=Path)
    commands.add_parser("show").add_argument("folder", type=Path)
    asked = parser.parse_args()
    if asked.command == "collect":
        collect(asked.runs, asked.folder)
    show(asked.folder)


if __name__ == "__main__":
    main()
