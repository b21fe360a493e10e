"""A job: work that fills a folder and writes `summary.json` there when it is finished."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ncsam._errors import unexpected
from ncsam._files import read_json
from ncsam.engine import RunConfig, RunError
from ncsam.jobs.mirror import mirrored
from ncsam.runs import layout
from ncsam.runs.reader import read_summary

TRAIN = "ncsam.jobs.job:train_run"


@dataclass(frozen=True)
class Job:
    """What a worker needs to know. Everything in it can be written as JSON.

    Args:
        name: name of the job, unique among the jobs of a command; also the location of its copy below `mirror`.
        config: the configuration of the run.
        out: the folder that the job fills.
        work: `module:function` in ncsam, called as `function(config, out, **options)`, which returns the summary.
        options: further arguments of `work`.
        mirror: URL of a copy of the folder, or "" (see `ncsam.jobs.mirror`).
    """

    name: str
    config: RunConfig
    out: Path
    work: str = TRAIN
    options: Mapping[str, Any] = field(default_factory=dict)
    mirror: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as `do` reads them in another process."""
        plain = {"name": self.name, "config": self.config.to_dict(), "out": os.path.abspath(self.out)}
        return {**plain, "work": self.work, "options": dict(self.options), "mirror": self.mirror}

    def summary(self) -> dict[str, Any] | None:
        """Return the summary of a finished job, or `None` if it is not finished.

        Raises:
            RunError: if the folder holds a run of another configuration.
        """
        if self.work == TRAIN:
            return read_summary(self.out, self.config)
        path = self.out / layout.SUMMARY
        return read_json(path) if path.is_file() else None


@dataclass(frozen=True)
class Result:
    """How a job ended.

    Attributes:
        name: name of the job.
        summary: its summary. `None` if it failed.
        error: the error message. `None` if it finished.
    """

    name: str
    summary: dict[str, Any] | None
    error: str | None = None


def do(job: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """Run a job in this process.

    Args:
        job: plain values, from `Job.to_dict`.
        threads: number of threads for torch.

    Returns:
        `summary`, or `summary=None` and `error`, a sentence. Exceptions are not raised.
    """
    import torch

    try:
        config = RunConfig.from_dict(job["config"])
        torch.set_num_threads(threads)
        module, _, function = job.get("work", TRAIN).partition(":")
        if not module.startswith("ncsam."):
            raise RunError(f"a job may run code of ncsam only, not {module}")
        with mirrored(job.get("mirror", ""), job.get("name", ""), Path(job["out"])):
            work = getattr(importlib.import_module(module), function)
            return {"summary": work(config, Path(job["out"]), **job.get("options", {}))}
    except (RunError, ValueError, TypeError, OSError, ImportError) as error:
        return {"summary": None, "error": str(error)}
    except Exception as error:
        return {"summary": None, "error": unexpected(error)}


def train_run(config: RunConfig, out: Path) -> dict[str, Any]:
    """Train a run. Small models get one thread, since more would spend their time waiting for each other.

    Args:
        config: the configuration of the run.
        out: the run folder.

    Returns:
        The summary of the run.
    """
    import torch

    from ncsam.engine import train

    if is_small(config):
        torch.set_num_threads(1)
    return train(config, out, console=False)


_SMALL = ("linear", "mlp", "text")  # families of models


def is_small(config: RunConfig) -> bool:
    """Return whether the model is so small that one thread is fastest.

    Args:
        config: the configuration of the run. For an automatic model the data is read, unless it is a folder.
    """
    from ncsam import models
    from ncsam.engine.resolve import resolve
    from ncsam.engine.task import load_task

    if config.model in ("auto", "network"):
        if Path(config.data).is_dir():  # a folder of images: never small, and slow to look through
            return False
        config = resolve(config, load_task(config))
    return ":" not in config.model and models.traits(config.model, **config.model_options).family in _SMALL
