"""`ncsam export-predictions`."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

from ncsam._errors import bad_value, need
from ncsam._files import atomic_path, read_array
from ncsam._text import table_cell
from ncsam.cli.main import BriefCommand
from ncsam.cli.options import Readable, RunPath, Written, files_of, keep, method_option, model_option
from ncsam.cli.output import say
from ncsam.runs.reader import RunFolder

EPILOG = """\b
Examples:
  ncsam export-predictions runs/first --out pred_probs.npy
  ncsam export-predictions runs/first --out pred_probs.npy --table labels.csv
  ncsam export-predictions runs/first --table issues.parquet
  ncsam export-predictions runs/first --take pred_probs.npy

\b
In cleanlab, with the labels of the table:
  find_label_issues(labels, np.load("pred_probs.npy"))
"""


@click.command("export-predictions", cls=BriefCommand, epilog=EPILOG, rare=frozenset({"model", "method"}))
@click.argument("run", type=RunPath())
@click.option("--out", type=Written(), help="file to write (.npy)")
@click.option(
    "--table",
    type=Written(),
    help="also write labels and label issues (.csv, .parquet)",
)
@click.option(
    "--take",
    type=Readable(),
    help="use the probabilities in this file, from another model, for RUN's label issues",
)
@model_option
@method_option
def export_predictions(
    run: Path, out: Path | None, table: Path | None, take: Path | None, model: str | None, method: str | None
) -> None:
    """Write the class probabilities of RUN's training samples as an array (samples, classes), in the order of the data.

    These are out-of-fold predictions, as other tools expect, if RUN has them (`ncsam issues RUN --folds 5`). Otherwise
    they come from the model that was trained on these labels, with a warning.
    """
    from ncsam.engine.label_issues import take_predictions, training_predictions

    if out is None and take is None and table is None:
        raise click.UsageError("Nothing to do: give --out FILE, --table FILE or --take FILE.")
    if out is not None and out.suffix != ".npy":
        raise bad_value("out", str(out), "a file that ends in .npy")
    if table is not None and table.suffix.lower() not in (".csv", ".parquet"):
        raise bad_value("table", str(table), "a file that ends in .csv or .parquet")
    keep([*files_of(run), *([take] if take else [])], out, table)
    if take is not None:
        take_predictions(run, read_array(take))
        say(f"{run}: label_issues.csv now rests on {take}")
    issues = RunFolder.read(run).label_issues() if table is not None else None  # before anything is written
    if out is not None:
        found = training_predictions(run, model=model, method=method)
        with atomic_path(out) as temporary, temporary.open("wb") as file:
            np.save(file, found.probabilities, allow_pickle=False)
        say(str(out))
        if not found.out_of_fold:
            say(
                f"warning: the run has seen the labels of these samples; `ncsam issues {run} --folds 5` first "
                "gives predictions that have not",
                err=True,
            )
    if table is not None and issues is not None:
        frame = issues.to_frame().assign(given_label_id=issues.numbers("given_label"))  # cleanlab takes numbers
        frame = frame.sort_values("index").reset_index(drop=True)
        with atomic_path(table) as temporary:
            if table.suffix.lower() == ".parquet":
                need("pyarrow", "parquet", "writing Parquet files")
                with temporary.open("wb") as file:  # Arrow opens no name that is not UTF-8
                    frame.to_parquet(file, index=False)
            else:
                harmless = frame.rename(columns=table_cell).apply(lambda column: column.map(table_cell))
                harmless.to_csv(temporary, index=False)
        say(str(table))
