"""`LabelIssues`: the table of label issues, and the sentences about how far to trust it."""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import need
from ncsam._text import printable

#: The columns that every table has, and those that a run adds; `path`, `text` and `clean_label` where known.
MAIN = ("index", "given_label", "predicted_label", "label_quality", "p_wrong", "is_label_issue")
DIAGNOSTICS = (
    *("suggested_label", "p_suggested", "loss", "margin"),
    *("times_flipped", "times_forgotten", "first_learned", "held_out"),
)
#: The columns that hold class numbers.
CLASS_COLUMNS = ("given_label", "predicted_label", "suggested_label", "clean_label")
UNKNOWN = -1  # a clean label that is known to differ from the given one, while the true class is not known
_SHOWN = 10  # rows of a repr
_TEXT = 60  # characters of a cell there


class LabelIssues:
    """Labels sorted by `label_quality`, the one most likely wrong first.

    It behaves like a `pandas.DataFrame`: columns by name, and every other method or attribute is that of `to_frame()`
    (`issues[issues["is_label_issue"]]`, `issues.query(...)`, `issues.describe()`). Only that needs pandas.
    `to_label_studio`, `to_huggingface`, `to_datalab` and `to_csv` send them to other tools.

    Columns: `index` (position in the data), `path` or `text` where there is one, `given_label`, `predicted_label`,
    `label_quality` (in [0, 1], low where the label is likely wrong), `p_wrong` (probability that the label is wrong;
    NaN where it cannot be estimated reliably), `is_label_issue`, `suggested_label` (the most likely other class),
    `p_suggested` (probability that it is right), and `clean_label` where that is known. Issues of a run also have
    `loss`, `margin`, `times_flipped`, `times_forgotten`, `first_learned` and `held_out`.

    Attributes:
        classes: the class names, or `None`.
        about: `reliable` (whether p_wrong is stated), `reason` (why not), `source` (whose predictions they are),
            `label_issues_auroc` (against clean labels, where these are known) and estimates.
        sample: what the sample of an index is, in plain values (`ncsam.exchange.samples`); `None` where only its path
            or text is known.
    """

    def __init__(
        self,
        columns: Mapping[str, npt.NDArray[Any]],
        classes: Sequence[str] | None = None,
        about: Mapping[str, Any] | None = None,
        sample: Callable[[int], dict[str, Any]] | None = None,
    ) -> None:
        self._columns = dict(columns)
        self.sample = sample
        self.classes = None if classes is None else list(classes)
        self.about = dict(about or {})

    # --- as a table

    def __len__(self) -> int:
        return len(self._columns["index"])

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._columns)

    def numbers(self, name: str) -> npt.NDArray[Any]:
        """A column with class numbers in place of class names.

        Args:
            name: one of `columns`.
        """
        return self._columns[name]

    def __getitem__(self, key: Any) -> Any:
        return self.to_frame()[key]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.to_frame(), name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.asarray(self.to_frame(), dtype=dtype)

    def head(self, count: int = 5) -> LabelIssues:
        """The first `count` labels, which are the most likely wrong.

        Args:
            count: number of rows, at most.
        """
        columns = {name: values[:count] for name, values in self._columns.items()}
        return LabelIssues(columns, self.classes, self.about, self.sample)

    def to_frame(self) -> Any:
        """A `pandas.DataFrame` with class names where they are known."""
        return self._frame

    @cached_property
    def _frame(self) -> Any:
        pandas = need("pandas", "tables", "a table of label issues")
        return pandas.DataFrame({name: self._named(name) for name in self._columns})

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each label as a dictionary of plain values; `None` for what is not known."""
        columns = {name: self._named(name).tolist() for name in self._columns}
        for i in range(len(self)):
            yield {name: None if _is_nan(values[i]) else values[i] for name, values in columns.items()}

    def _named(self, name: str) -> npt.NDArray[Any]:
        values = self._columns[name]
        if name not in CLASS_COLUMNS or self.classes is None:
            return values
        return np.array([class_name(self.classes, int(label)) for label in values], dtype=object)

    # --- to other tools and back

    def to_label_studio(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        root: str | os.PathLike[str] = "/",
        model_version: str = "ncsam",
    ) -> list[dict[str, Any]]:
        """Tasks for Label Studio, with the suggested label as a prediction, in this order.

        Args:
            path: a `.json` file to write; the labeling configuration is written beside it as `.xml`.
            root: the folder that LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT names, for image files.
            model_version: shown beside the predictions.

        Returns:
            The tasks.
        """
        import json
        from pathlib import Path

        from ncsam._files import atomic_path
        from ncsam.exchange import label_studio

        samples = [self._sample(row) for row in self.rows()]
        made = label_studio.tasks(self.rows(), samples, model_version=model_version, root=root)
        if path is not None:
            kinds = {"image": "image", "row": "table"}
            kind = next((kinds[name] for name in kinds if samples and name in samples[0]), "text")
            names = self.classes or sorted({str(label) for label in self._columns["given_label"]})
            out = Path(path)
            texts = {
                out: json.dumps(made, ensure_ascii=False),
                out.with_suffix(".xml"): label_studio.labeling_config(names, kind),
            }
            for file, text in texts.items():
                with atomic_path(file) as temporary:
                    temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
        return made

    def to_huggingface(self, dataset: Any = None) -> Any:
        """A `datasets.Dataset` with these columns and empty ones for `decision` and `reviewer`.

        Args:
            dataset: the `Dataset` of the samples, to which the columns are added; its row i is the sample of index i.
        """
        from ncsam.exchange import hugging_face

        return hugging_face.to_dataset(self._whole_texts()._columns, self.classes, dataset)

    def to_datalab(self) -> Any:
        """A `pandas.DataFrame` in the form of cleanlab's `Datalab.get_issues("label")`, in the order of the data."""
        from ncsam.exchange import datalab

        return datalab.issues_table(self._columns, self.classes)

    @classmethod
    def from_datalab(cls, issues: Any, classes: Sequence[str] | None = None) -> LabelIssues:
        """From the table of `Datalab.get_issues("label")`; `classes` are the class names in the order of pred_probs.

        Args:
            issues: the `pandas.DataFrame` of label issues, a row per sample in the order of the data.
            classes: the class names; `None` takes the names in the table, sorted.
        """
        from ncsam.exchange import datalab

        columns, names = datalab.label_columns(issues, classes)
        return cls(columns, names, {"reliable": False, "reason": "Datalab does not state p_wrong", "source": "Datalab"})

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a CSV for a spreadsheet, with empty columns `decision` (a class, keep, accept, unsure or drop) and
        `reviewer`; `to_frame().to_csv` writes the bare table.

        Args:
            path: the file; an existing one is replaced.
        """
        from ncsam.exchange import spreadsheet

        spreadsheet.write(list(self._whole_texts().rows()), path)

    def _whole_texts(self) -> LabelIssues:
        """With texts as they are in the data, where a run folder keeps them on one line."""
        if self.sample is None or "text" not in self._columns:
            return self
        texts = [self.sample(index)["text"] for index in self._columns["index"].tolist()]
        columns = {**self._columns, "text": np.array(texts, dtype=object)}
        return LabelIssues(columns, self.classes, self.about, self.sample)

    def _sample(self, row: Mapping[str, Any]) -> dict[str, Any]:
        if self.sample is not None:
            return self.sample(row["index"])
        known = {"path": "image", "text": "text"}
        return {known[name]: row[name] for name in known if row.get(name)}

    # --- what it says

    @property
    def reliable(self) -> bool:
        """Whether p_wrong can be estimated for this data and model."""
        return bool(self.about.get("reliable"))

    @property
    def num_issues(self) -> int:
        """How many labels are flagged."""
        return int(self._columns["is_label_issue"].sum())

    def expectation(self, which: str = "these") -> str:
        """How many of these labels are probably wrong, in a sentence; or why that cannot be estimated.

        Args:
            which: stands before the number of labels: "these" gives "Of these 100 labels, ...".
        """
        if not len(self):
            return ""
        if not self.reliable:
            return unreliable(self.about)
        wrong, right = (float(self._columns[name].sum()) for name in ("p_wrong", "p_suggested"))
        return expectation(f"{which} {len(self):,} labels" if len(self) > 1 else "this label", wrong, right)

    def __repr__(self) -> str:
        head = self._shown_columns()
        lines = [head, *self._cells(head)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        table = "\n".join("  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)) for line in lines)
        more = f"\n[{len(self) - _SHOWN:,} more]" if len(self) > _SHOWN else ""
        return f"<LabelIssues: {self._title()}>\n{table}{more}"

    def _repr_html_(self) -> str:
        head = self._shown_columns()
        top = "".join(f"<th>{html.escape(name)}</th>" for name in head)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in self._cells(head)
        )
        more = f"<p>{len(self) - _SHOWN:,} more</p>" if len(self) > _SHOWN else ""
        return (
            f"<p><b>Label issues</b>: {html.escape(self._title())}</p>"
            f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>{more}"
        )

    def _title(self) -> str:
        rule = "p_wrong > 0.5" if self.reliable else "confident learning"
        return f"{self.num_issues:,} of {len(self):,} labels flagged ({rule})"

    def _shown_columns(self) -> list[str]:
        hidden = () if self.reliable else ("p_wrong",)
        wanted = ("index", "path", "text", *MAIN[1:], "clean_label")
        return [name for name in wanted if name in self._columns and name not in hidden]

    def _cells(self, names: Sequence[str]) -> list[list[str]]:
        return [[_cell(row[name]) for name in names] for row in self.head(_SHOWN).rows()]


def class_name(classes: Sequence[str] | None, label: int) -> str:
    """A class by its name, or by its number where names are not known; a clean label may be known to differ only.

    Args:
        classes: the class names, or `None`.
        label: a class number, or `UNKNOWN` (-1).
    """
    if label == UNKNOWN:
        return "another class"
    return classes[label] if classes and 0 <= label < len(classes) else str(label)


def expectation(which: str, wrong: float, right: float) -> str:
    """How many of some labels are wrong, and for how many the suggestion is right.

    Args:
        which: the labels in words, such as "these 100 labels".
        wrong: expected number of wrong labels.
        right: expected number of labels whose suggestion is right.
    """
    are = "is" if round(wrong) == 1 else "are"
    return f"Of {which}, about {wrong:,.0f} {are} wrong; the suggestion is right for about {right:,.0f}."


def unreliable(about: Mapping[str, Any]) -> str:
    """Why the number of wrong labels cannot be estimated.

    Args:
        about: `LabelIssues.about`, of which `reason` is used.
    """
    reason = about.get("reason") or "the run did not estimate it"
    return f"How many of these labels are wrong cannot be estimated: {reason}."


def _cell(value: object) -> str:
    if value is None:
        return ""
    text = f"{value:.3f}" if isinstance(value, float) else printable(str(value).replace("\n", " "))
    return text if len(text) <= _TEXT else f"{text[: _TEXT - 1]}…"


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and value != value
