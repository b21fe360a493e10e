"""`Comparison`: runs over methods, optimizers and seeds, with their table, curves and report."""

from __future__ import annotations

import html
import os
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncsam._errors import need
from ncsam.run import Run
from ncsam.runs import layout
from ncsam.runs.reader import RunFolder, find_runs

if TYPE_CHECKING:
    from ncsam.data.types import DataSet


class Comparison:
    """The result of `ncsam.compare`.

    Args:
        path: the folder of the runs.
        rows: a dictionary per combination, as in `comparison.json`.
        dataset: the data, if it was passed as Python objects.
        temporary: the owner of the folder, if it is temporary.
    """

    def __init__(
        self,
        path: Path,
        rows: Sequence[Mapping[str, Any]],
        *,
        dataset: DataSet | None = None,
        temporary: tempfile.TemporaryDirectory[str] | None = None,
    ) -> None:
        self.path = path
        self.rows = rows
        self._dataset = dataset
        self._temporary = temporary

    @property
    def table(self) -> Any:
        """A `pandas.DataFrame` with a row per combination: mean and `_std` of every metric over seeds."""
        pandas = need("pandas", "tables", "a table of results")
        return pandas.DataFrame([_flat(row) for row in self.rows]).dropna(axis="columns", how="all")

    @property
    def runs(self) -> list[Run]:
        """All runs with at least one finished epoch, in the order of the table."""
        return [Run(run.folder, dataset=self._dataset) for run in self._folders]

    @property
    def metric_names(self) -> dict[str, str]:
        """The meaning of each metric, by name."""
        return {name: text for run in self._folders for name, text in run.metric_names.items()}

    @property
    def failed(self) -> list[dict[str, Any]]:
        """The runs that failed: `method`, `optimizer`, `seed` and `error`."""
        names = ("method", "optimizer")
        return [{**{name: row[name] for name in names}, **each} for row in self.rows for each in row["failed"]]

    def plot(self, path: str | os.PathLike[str] | None = None, *, title: str = "") -> Any:
        """Plot test accuracy and memorization over epochs: mean over seeds, with a band of one standard deviation.

        Args:
            path: a PNG file to write. `None` writes nothing.
            title: title of the plot.

        Returns:
            The `matplotlib` figure, or `path` if it was given.
        """
        from ncsam.report.figures import curves_figure, curves_png, group_runs

        groups = group_runs(self._folders)
        return curves_figure(groups, title) if path is None else curves_png(groups, Path(path), title)

    def report(self, path: str | os.PathLike[str] | None = None, *, images: int = 24) -> Path:
        """Write a self-contained HTML report about all runs.

        Args:
            path: the file to write. `None` writes `report.html` into the folder, or into the current folder if that is
                temporary.
            images: number of label issues to show for each combination.

        Returns:
            The path of the report.
        """
        from ncsam.report.content import write_report

        out = path if path is not None else (Path() if self._temporary else self.path) / "report.html"
        return write_report([run.folder for run in self._folders], out, images=images)[0]

    @cached_property
    def _folders(self) -> list[RunFolder]:
        begun = [self.path / name for row in self.rows for name in row["runs"]]
        return [run for run in find_runs(path for path in begun if (path / layout.CONFIG).is_file()) if run.metrics]

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        lines = [f"{row['method']} + {row['optimizer']}: {_result(row)}" for row in self.rows]
        return "\n  ".join([f"<Comparison of {len(self.rows)}, test accuracy after the last epoch:", *lines]) + ">"

    def _repr_html_(self) -> str:
        head = ("method", "optimizer", "seeds", "last")
        top = "".join(f"<th>{name}</th>" for name in head)
        body = "".join(
            "<tr>"
            + "".join(
                f"<td>{html.escape(text)}</td>"
                for text in (str(row["method"]), str(row["optimizer"]), str(len(row["seeds"])), _result(row))
            )
            + "</tr>"
            for row in self.rows
        )
        return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping) and "mean" in value:
            found |= {name: value["mean"], f"{name}_std": value.get("std")}
        elif name == "seeds":
            found[name] = len(value) if isinstance(value, Sequence) else value
        elif not isinstance(value, (list, dict)):
            found[name] = value
    return found


def _result(row: Mapping[str, Any]) -> str:
    last, failed = row.get("last") or {}, row.get("failed") or []
    why = f"{len(failed)} failed ({failed[0]['error']})" if failed else "no test accuracy"
    if last.get("mean") is None:
        return why
    spread = "" if last.get("std") is None else f" ± {last['std']:.2f}"
    return f"{last['mean']:.2f}{spread} %" + (f"; {why}" if failed else "")
