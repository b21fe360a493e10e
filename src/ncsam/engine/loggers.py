"""Where an epoch's metrics go: JSONL and CSV always; TensorBoard, Weights & Biases and MLflow when asked for."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from ncsam._errors import need
from ncsam._files import atomic_path
from ncsam.engine.metrics import EVALUATED, TELEMETRY
from ncsam.runs import layout
from ncsam.runs.writer import writing

Record = Mapping[str, Any]

FIELDS = (
    "epoch",
    "train_loss",
    *EVALUATED,
    "noise_estimate",
    "lr",
    "seconds",
    "train_seconds",
    "samples_per_second",
)
COLUMNS = (*FIELDS, *(f"telemetry.{name}" for name in TELEMETRY))


class Logger(Protocol):
    def log(self, record: Record) -> None:
        """Take an epoch's record.

        Args:
            record: Metrics by name, with the number of the epoch under "epoch".
        """

    def close(self) -> None:
        """No more will come."""


class MetricsFiles:
    """`metrics.jsonl` and `metrics.csv`: a line per epoch, flushed as it comes.

    They begin with the history of the checkpoint, so that a run that was killed and continued ends with the same
    lines as one that was not.

    Args:
        folder: The run folder, which must exist.
        history: Records of the epochs so far; lines of later epochs are removed.
    """

    def __init__(self, folder: Path, history: Sequence[Record]) -> None:
        self._lines = {folder / layout.METRICS: _json_line, folder / layout.METRICS_TABLE: _csv_line}
        self._open: dict[Path, IO[str]] = {}
        for path in self._lines:
            if history or path.exists():  # else the first epoch makes them
                self._begin(path, history)

    def _begin(self, path: Path, history: Sequence[Record]) -> None:
        first = ",".join(COLUMNS) + "\n" if path.suffix == ".csv" else ""
        with writing(path):
            with atomic_path(path, make_folder=False) as temporary:
                temporary.write_text(first + "".join(map(self._lines[path], history)), encoding="utf-8")
            self._open[path] = path.open("a", encoding="utf-8")

    def log(self, record: Record) -> None:
        for path, line in self._lines.items():
            if path not in self._open:
                self._begin(path, [])
            with writing(path):
                self._open[path].write(line(record))
                self._open[path].flush()

    def close(self) -> None:
        for path, file in self._open.items():
            with writing(path):
                file.close()


def flat(record: Record) -> dict[str, float]:
    """The numbers of a record, telemetry as `telemetry.NAME`, without those that are not known.

    Args:
        record: Metrics by name, with a mapping under "telemetry".
    """
    values = {name: record.get(name) for name in FIELDS}
    values |= {f"telemetry.{name}": value for name, value in record["telemetry"].items()}
    return {name: value for name, value in values.items() if value is not None}


def _json_line(record: Record) -> str:
    return json.dumps(record) + "\n"


def _csv_line(record: Record) -> str:
    text = io.StringIO()
    csv.DictWriter(text, COLUMNS, lineterminator="\n").writerow(flat(record))
    return text.getvalue()


class TensorBoard:
    """Event files in `FOLDER/tensorboard`.

    Args:
        folder: The run folder.
        config: Not used.
        epochs_done: Epochs of the checkpoint; what was logged beyond them is hidden.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], epochs_done: int) -> None:
        module = need("torch.utils.tensorboard", "tensorboard", "loggers: [tensorboard]")
        # what a killed run logged beyond its checkpoint is logged again
        self._writer = module.SummaryWriter(str(folder / "tensorboard"), purge_step=epochs_done + 1)

    def log(self, record: Record) -> None:
        for name, value in flat(record).items():
            self._writer.add_scalar(name.replace(".", "/"), value, record["epoch"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A run of the project "ncsam", which a resumed run continues.

    Args:
        folder: The run folder, which names the run.
        config: All options as plain values, which are recorded.
        epochs_done: Not used.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], epochs_done: int) -> None:
        wandb = need("wandb", "wandb", "loggers: [wandb]")
        self._run = wandb.init(
            project="ncsam", name=folder.name, dir=str(folder), config=dict(config), resume="allow", id=_name(folder)
        )

    def log(self, record: Record) -> None:
        self._run.log(flat(record), step=record["epoch"])

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """A run of the experiment "ncsam".

    Args:
        folder: The run folder, which names the run.
        config: All options as plain values, recorded when training starts.
        epochs_done: Epochs of the checkpoint, 0 for a new run.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], epochs_done: int) -> None:
        self._mlflow = need("mlflow", "mlflow", "loggers: [mlflow]")
        self._mlflow.set_experiment("ncsam")
        self._mlflow.start_run(run_name=_name(folder))
        if epochs_done == 0:
            self._mlflow.log_params({name: str(value) for name, value in config.items()})

    def log(self, record: Record) -> None:
        self._mlflow.log_metrics(flat(record), step=record["epoch"])

    def close(self) -> None:
        self._mlflow.end_run()


_BY_NAME: dict[str, Any] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow}


def open_loggers(
    names: Sequence[str], folder: Path, config: Mapping[str, Any], history: Sequence[Record]
) -> list[Logger]:
    """The metrics files, and the loggers asked for by name.

    Args:
        names: Any of "tensorboard", "wandb" and "mlflow".
        folder: The run folder.
        config: All options as plain values, for loggers that record them.
        history: Records of the epochs so far.
    """
    asked = [_BY_NAME[name](folder, config, len(history)) for name in names]
    return [MetricsFiles(folder, history), *asked]


def _name(folder: Path) -> str:
    """A name that tells runs in different places apart."""
    absolute = folder.absolute()
    return f"{absolute.parent.name}-{absolute.name}"
