"""`Run`: a training run, in a run folder or in memory, as a Python object."""

from __future__ import annotations

import html
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value, need
from ncsam._files import read_json
from ncsam.issues.posterior import noise_rate_words
from ncsam.issues.table import LabelIssues
from ncsam.runs import layout
from ncsam.runs.reader import RunFolder

if TYPE_CHECKING:
    from torch import nn

    from ncsam.audits import Audit
    from ncsam.data.types import DataSet
    from ncsam.engine.config import RunConfig
    from ncsam.engine.predictor import LoadedRun
    from ncsam.predictions import Predictions

_SHOWN = ("last", "val_accuracy", "memorized", "noise_rate", "label_issues_auroc")


class Run:
    """A training run: its configuration, metrics, model, label issues and report.

    `ncsam.train`, `ncsam.auto` and `ncsam.load_run` return a `Run`. It is a thin view of a run folder and reads files
    on access. Without a folder (`out=None`) the files are in a temporary folder that is deleted with the object; use
    `save` to keep them.

    Args:
        folder: the run folder.
        dataset: the data, if it was passed as Python objects. `None` reads it as the configuration says.
        model: the model, if it was passed as an object or a factory.
        named: code that the run refers to and that may be imported, such as `{"model": "module:factory"}`. A run folder
            never decides which code is imported.
        temporary: the owner of the folder, if it is temporary.

    Examples:
        >>> import ncsam
        >>> run = ncsam.train("digits", noise="symmetric", rate=0.4, model="lda")
        >>> run.classes[:3], len(run.find_label_issues())
        (['0', '1', '2'], 1438)
        >>> run.predict(run.data.test.inputs[:2])
        <Predictions: 2 samples, 10 classes>
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        dataset: DataSet | None = None,
        model: nn.Module | Callable[..., nn.Module] | None = None,
        named: Mapping[str, Any] | None = None,
        temporary: tempfile.TemporaryDirectory[str] | None = None,
    ) -> None:
        self.path = Path(folder)
        self._dataset = dataset
        self._given_model = model
        self._named = dict(named or {})
        self._temporary = temporary

    # --- what it holds

    @property
    def folder(self) -> RunFolder:
        """The contents of the run folder, read again on every access."""
        return RunFolder.read(self.path)

    @cached_property
    def config(self) -> RunConfig:
        """The configuration, with every "auto" resolved."""
        from ncsam.engine.config import RunConfig

        options = {name: value for name, value in self.folder.config.items() if name in RunConfig.describe()}
        return RunConfig.from_dict(options)

    @property
    def summary(self) -> dict[str, Any]:
        """The results by name, as in `summary.json`. Empty until the run is finished."""
        return self.folder.summary

    @property
    def finished(self) -> bool:
        """Whether training has ended."""
        return layout.is_finished(self.path)

    @property
    def metrics(self) -> Any:
        """A `pandas.DataFrame` with a row per epoch. Optimizer telemetry is in columns `telemetry.NAME`."""
        pandas = need("pandas", "tables", "a table of metrics")
        rows = []
        for record in self.folder.metrics:
            telemetry = {f"telemetry.{name}": value for name, value in (record.get("telemetry") or {}).items()}
            rows.append({name: value for name, value in record.items() if name != "telemetry"} | telemetry)
        return pandas.DataFrame(rows).set_index("epoch") if rows else pandas.DataFrame()

    @property
    def leaderboard(self) -> Any:
        """A `pandas.DataFrame` of all candidates of `ncsam.auto`, best first.

        Raises:
            UsageError: if the run does not come from `ncsam.auto`.
        """
        pandas = need("pandas", "tables", "a leaderboard")
        path = self.path / layout.LEADERBOARD
        if not path.is_file():
            raise bad_value("run", str(self.path), "a run of ncsam.auto, which has a leaderboard")
        return pandas.DataFrame(read_json(path)["candidates"])

    @property
    def classes(self) -> list[str]:
        """The class names."""
        return self.folder.classes or list(self._predictor.classes)

    @cached_property
    def data(self) -> DataSet:
        """The data, with the labels that the run was trained on.

        Raises:
            RunError: if the labels have changed since training, or the data can no longer be read.
        """
        from ncsam.engine.task import task_of
        from ncsam.errors import RunError

        task = task_of(self.path, self._dataset)
        then = self.folder.labels_sha256
        if then is not None and then != task.labels_sha256:
            raise RunError(f"the labels of {self.folder.config.get('data')} have changed since {self.path} was trained")
        return task.dataset

    @property
    def model(self) -> nn.Module:
        """The trained model. It maps preprocessed inputs to logits; `predict` also does the preprocessing."""
        return self._predictor.network

    @cached_property
    def _predictor(self) -> LoadedRun:
        from ncsam.engine.predictor import load_predictor

        return load_predictor(self.path, **self._code)

    @property
    def _code(self) -> dict[str, Any]:
        """The model and method that the caller brought, by object or by name."""
        model = self._named.get("model") if self._given_model is None else self._given_model
        return {"model": model, "method": self._named.get("method")}

    @property
    def _allowed(self) -> list[str]:
        """The code that the caller named, which may be imported."""
        return [name for name in self._named.values() if name is not None]

    # --- what it can do

    def predict(
        self, inputs: Any, *, batch_size: int = 256, workers: int = 0, skip_damaged: bool = False
    ) -> Predictions:
        """Classify new samples.

        Args:
            inputs: a path or a list of paths of images, folders, tables, texts or `.npz` files, as for `ncsam predict`;
                or samples in memory: an array of images or features, a list of texts, a DataFrame with the columns the
                run was trained on, or a `Split`.
            batch_size: samples per batch.
            workers: number of processes that decode image files; 0 decodes in this process.
            skip_damaged: skip image files that cannot be read; `Predictions.skipped` lists them.

        Returns:
            Predicted labels and probabilities, in the order of the inputs.

        Raises:
            UsageError: if the samples do not fit the model.
            DamagedFileError: if an image file cannot be read.
        """
        from ncsam.embed import encoded_inputs, read_samples
        from ncsam.predictions import Predictions

        samples = read_samples(self._predictor.modality, inputs)
        names = samples.names
        found = encoded_inputs(self._predictor.modality, samples.inputs, workers=workers, named=self._allowed)
        skipped: list[str] = []
        if skip_damaged:
            from ncsam.data import Split, check_images

            kept, bad = check_images(Split(found, np.zeros(len(names), dtype=np.int64)), skip=True)
            if bad and not len(kept):
                raise bad_value("inputs", len(names), "at least one file that can be read")
            gone = {each.index for each in bad}
            names = [name for number, name in enumerate(names) if number not in gone]
            found, skipped = kept.inputs, [str(each) for each in bad]
        batches = list(self._predictor.probabilities(found, batch_size=batch_size, workers=workers))
        rows = np.concatenate([batch.cpu().numpy() for batch in batches])
        labels = np.array(self.classes, dtype=object)[rows.argmax(axis=1)]
        return Predictions(names, labels, rows, self.classes, skipped, samples.texts)

    def export(self, path: str | os.PathLike[str], format: str = "torchscript") -> str:
        """Write the model for use elsewhere, without ncsam, and next to it a `.json` with its classes and inputs.

        Args:
            path: the file to write.
            format: "torchscript", "onnx" or "safetensors" (the weights alone).

        Returns:
            What the inputs are, if they are not the samples that the run was trained on, such as embeddings of texts;
            else "".

        Raises:
            UsageError: if the format is unknown, or the file ends in `.json`.
        """
        from ncsam.engine.export import export_model

        return export_model(self._predictor, Path(path), format, named=self._allowed)

    def find_label_issues(
        self, folds: int | None = None, *, top: int | None = None, console: bool = False
    ) -> LabelIssues:
        """Rank the training labels, most likely wrong first.

        Args:
            folds: cross-validate: train this many more models, each without one part of the samples, so that every
                label is judged by a model that was not trained on it. This takes that many times longer, finds more
                wrong labels, and usually allows `p_wrong` to be estimated. Finished folds are reused. `None` uses the
                predictions the run has.
            top: number of labels to return. `None` returns all.
            console: print progress.

        Returns:
            A table with the columns of `LabelIssues`.

        Raises:
            UsageError: if the run is not finished.
        """
        if folds is not None:
            if not self.finished:
                raise bad_value("run", str(self.path), "a finished run: rerun the command that started this one")
            from ncsam.engine.out_of_fold import find_label_issues_cv

            _ = self.folder.classes  # damaged notes are an error now, not after the folds
            find_label_issues_cv(
                self.path,
                folds,
                dataset=self._dataset,
                model=self._given_model,
                console=console,
                named=self._named,
            )
        issues = self.folder.label_issues(top)
        issues.sample = self._sample
        return issues

    def _sample(self, index: int) -> dict[str, Any]:
        from ncsam.exchange.samples import describe

        return describe(self.data.original, index)

    def read_decisions(self, tool: str, source: Any) -> int:
        """Import decisions that people made in another tool. `cleaned` then applies them.

        Args:
            tool: "label-studio" (an exported JSON or JSON-MIN file), "huggingface" (a `datasets.Dataset`, or the folder
                or Parquet file it was saved to) or "csv".
            source: the file or object.

        Returns:
            The number of new decisions.

        Raises:
            UsageError: if an answer refers to a sample, label or class that the run does not have. Nothing is written
                then.
        """
        from ncsam.review.imported import imported, take_decisions
        from ncsam.runs.decisions import Decisions

        found = imported(self.path, tool, source)
        decisions = Decisions(self.path, write=True)
        try:
            return take_decisions(decisions, found)
        finally:
            decisions.close()

    def to_datalab(self, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """Return the inputs of cleanlab's Datalab.

        Class probabilities are out-of-fold if the run has them. Features are included if the data consists of features.

        Args:
            path: an `.npz` file to write them to. `None` writes nothing.

        Returns:
            `labels` (names), `pred_probs`, `features` (or `None`) and the columns of Datalab's label issues, each with
            one entry per training sample, and `classes`, the class names.
        """
        from ncsam.engine.label_issues import training_predictions
        from ncsam.exchange import datalab

        dataset, table = self.data, self.find_label_issues().to_datalab()
        inputs = dataset.train.inputs
        features = isinstance(inputs, np.ndarray) and inputs.dtype == np.float32 and inputs.ndim == 2
        found = {
            "labels": np.array(dataset.classes)[dataset.train.labels],
            "classes": np.array(dataset.classes),
            "pred_probs": training_predictions(self.path, dataset=self._dataset, **self._code).probabilities,
            "features": inputs if features else None,
            **{name: table[name].to_numpy() for name in table.columns},
        }
        if path is not None:
            datalab.save(path, **found)
        return found

    def audit(
        self,
        checks: Sequence[str] | None = None,
        *,
        features: npt.ArrayLike | None = None,
        pred_probs: npt.ArrayLike | None = None,
        console: bool = False,
    ) -> Audit:
        """Find problems in the data beyond wrong labels, and store the findings in the run folder (`audit.json`).

        Afterwards the report has a section for every check that found something, the review page has a filter, and
        `cleaned(findings=...)` applies the decisions.

        Args:
            checks: names from `ncsam.auditing.findings.CHECKS`. `None` runs all of them.
            features: embeddings (samples, features) of the training samples, used instead of a pretrained model's.
            pred_probs: out-of-sample class probabilities (samples, classes) of the training samples, used instead of
                the run's own to judge labels.
            console: print progress.

        Returns:
            The findings.
        """
        from ncsam.audits import Audit
        from ncsam.engine.audit import audit_folder
        from ncsam.runs.findings import save_findings

        if pred_probs is not None:
            from ncsam.engine.label_issues import take_predictions

            take_predictions(self.path, np.asarray(pred_probs, dtype=np.float64), dataset=self._dataset)
        say: Callable[[str], None] = print if console else (lambda text: None)
        findings, notes = audit_folder(
            self.path,
            dataset=self._dataset,
            checks=checks,
            features=features,
            pred_probs=pred_probs,
            say=say,
        )
        save_findings(self.path, findings, notes)
        return Audit(self, findings, notes)

    def cleaned(self, apply: str = "reviewed", threshold: float = 0.9, *, findings: Sequence[str] = ()) -> Any:
        """Return the data with corrected labels, ready for training. The data itself is not changed.

        Args:
            apply: what may change a label. "reviewed": only reviewers' decisions (`review`). "confident": also
                suggestions that are correct with probability `threshold` or more. "all": also every suggestion for a
                flagged label.
            threshold: the minimum probability for "confident".
            findings: names of checks whose decisions to apply after `audit`: samples and columns are removed, classes
                merged. Reviewers' decisions take precedence.

        Returns:
            A `pandas.DataFrame` with a row per remaining training sample: what it is (path, text, features or index),
            `label`, `given_label`, `source` of the label (given, reviewed, confident, suggested or audit) and its
            `probability`.

        Raises:
            UsageError: if `apply` is "confident" and p_wrong cannot be estimated for this run.
        """
        from ncsam.review.clean import cleaned

        return cleaned(self.path, apply, threshold, findings=findings, dataset=self._dataset).to_frame()

    def review(
        self,
        *,
        purpose: str = "label-issues",
        reviewer: str | None = None,
        port: int = 0,
        open_browser: bool = True,
    ) -> None:
        """Serve the review page on this machine until interrupted. Decisions are saved in the run folder.

        Args:
            purpose: "label-issues" to review likely wrong labels, or "model-selection" to label ten samples at a time
                that tell candidates apart. Pass the answers on with `ncsam.auto(..., verified=run.path)`.
            reviewer: the name to record with each decision. `None` uses the last one, at first "reviewer".
            port: the port to listen on; 0 picks a free one.
            open_browser: open the page in a browser.
        """
        import webbrowser

        from ncsam.review.serve import serve

        def ready(address: str) -> None:
            print(address, flush=True)
            if open_browser:
                webbrowser.open(address)

        serve(self.path, port=port, reviewer=reviewer, ready=ready, dataset=self._dataset, purpose=purpose)

    def report(self, path: str | os.PathLike[str] | None = None, *, images: int = 24) -> Path:
        """Write a self-contained HTML report: curves, label issues with their samples, results per class.

        Args:
            path: the file to write. `.md` and `.tex` give Markdown and LaTeX. `None` writes `report.html` into the run
                folder, or into the current folder if the run's folder is temporary.
            images: number of label issues to show.

        Returns:
            The path of the report.
        """
        from ncsam.report.content import write_report

        out = path if path is not None else (Path() if self._temporary else self.path) / "report.html"
        return write_report([self.path], out, images=images)[0]

    def save(self, folder: str | os.PathLike[str]) -> Run:
        """Copy the run folder, for example to keep a run in memory.

        Args:
            folder: the new run folder, which must not exist.

        Returns:
            The run in its new folder.

        Raises:
            UsageError: if the folder exists.
        """
        target = Path(folder)
        if target.exists():
            raise bad_value("folder", str(folder), "a folder that does not exist yet")
        shutil.copytree(self.path, target, ignore=shutil.ignore_patterns(layout.LOCK))
        return Run(target, dataset=self._dataset, model=self._given_model, named=self._named)

    # --- as text

    def _facts(self) -> dict[str, str]:
        folder = self.folder
        config, summary = folder.config, folder.summary
        what = ", ".join(str(summary.get(name) or config.get(name)) for name in ("method", "optimizer", "model"))
        facts = {"data": str(config.get("data")), "trained": what if len(what) < 80 else f"{what[:77]}..."}
        if not folder.finished:
            facts["state"] = f"{len(folder.metrics)} of {folder.epochs} epochs"
        for name in _SHOWN:
            if isinstance(value := summary.get(name), (int, float)):
                facts[name] = f"{value:.3g}" if value < 1 else f"{value:.2f}"
        if "noise_estimate" in summary:
            facts["noise_estimate"] = noise_rate_words(summary["noise_estimate"])
        return facts

    def __repr__(self) -> str:
        where = "in memory" if self._temporary else str(self.path)
        return f"<Run {where}: {', '.join(f'{name} {value}' for name, value in self._facts().items())}>"

    def _repr_html_(self) -> str:
        where = "in memory" if self._temporary else str(self.path)
        facts: Mapping[str, str] = {"run": where, **self._facts()}
        meaning = self.folder.metric_names
        cells = ((name, value, meaning.get(name, "")) for name, value in facts.items())
        rows = "".join(
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td><td>{html.escape(words)}</td></tr>"
            for name, value, words in cells
        )
        return f"<table><tbody>{rows}</tbody></table>"
