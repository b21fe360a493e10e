"""Results on the screen: the summary of a run, the table of a comparison, each number with its meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ncsam._statistics import Spread
from ncsam.cli.output import is_narrow, say, show_table
from ncsam.engine.metrics import SUMMARY
from ncsam.issues.noise_rate import noise_rate_words
from ncsam.runs.reader import RunFolder

#: Choices between epochs, which say nothing of a model that is fitted at once.
_OF_EPOCHS = ("best", "val_chosen")
#: Columns of a comparison that a narrow window has no room for.
_WIDE = ("last10", "test_balanced_accuracy", "test_f1", "test_auc", "label_issues_auroc", "seconds")


def show_summary(run: RunFolder) -> None:
    """The summary of a run."""
    known = {name: run.summary[name] for name in SUMMARY if run.summary.get(name) is not None}
    meanings = run.metric_names
    if run.summary.get("method") == "fit":
        known = {name: value for name, value in known.items() if name not in _OF_EPOCHS}
        meanings = {name: text.replace(" after the last epoch", "") for name, text in meanings.items()}
    rows = [[name, f"{value:.{SUMMARY[name].digits}f}", meanings.get(name, "")] for name, value in known.items()]
    show_table(["metric", "value", "meaning"], rows, left=3)
    if "noise_estimate" in run.summary:
        say(f"noise rate: {noise_rate_words(run.summary['noise_estimate'])}")


def show_comparison(rows: Sequence[Mapping[str, Any]], meanings: Mapping[str, str]) -> None:
    """Mean ± standard deviation over seeds of every metric that was measured, a line for each combination."""
    columns = [name for name in SUMMARY if any(_spread(row, name) for row in rows)]
    if is_narrow():
        columns = [name for name in columns if name not in _WIDE]
    lines = [[row["method"], row["optimizer"], _seeds(row["seeds"]), *(_text(row, c) for c in columns)] for row in rows]
    show_table(["method", "optimizer", "seeds", *columns], lines, left=2)
    say("mean ±standard deviation over seeds" + ("; further columns in a wider window" if is_narrow() else ""))
    for name in columns:
        if name in meanings:
            say(f"{name}: {meanings[name]}")


def _seeds(seeds: Any) -> str:
    return str(len(seeds)) if isinstance(seeds, Sequence) else str(seeds)


def _spread(row: Mapping[str, Any], name: str) -> Spread | None:
    cell = row.get(name)
    if not isinstance(cell, Mapping) or cell.get("mean") is None:
        return None
    return Spread(cell["mean"], cell.get("std"))


def _text(row: Mapping[str, Any], name: str) -> str:
    spread = _spread(row, name)
    return (
        "not known"
        if spread is None
        else spread.text(SUMMARY[name].digits).replace(" ± ", "\n±" if is_narrow() else " ±")
    )
