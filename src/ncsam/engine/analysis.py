"""Measurements of a finished run: its data, its radius, its alignment at the last checkpoint."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from ncsam._arguments import positive, require_explicit_import
from ncsam._errors import bad_value
from ncsam.engine import recipes
from ncsam.engine.predictor import LoadedRun
from ncsam.engine.resolve import resolve
from ncsam.engine.task import Task, load_task, view_names
from ncsam.optim.ramps import ramp_by_name
from ncsam.runs.reader import RunFolder
from ncsam.theory.alignment import Alignment, alignments
from ncsam.theory.batches import WithClean

_TURNING = ("sign", "compensation", "noise_mean", "selection", "flip_target")  # options that turn NCSAM's perturbation


def training_data(folder: Path, trained: LoadedRun, data: str | None = None) -> Task:
    """The data that a run was trained on, read again; refused if its labels are not those of the checkpoint.

    Where it is a function (`module:name`), that is called only if `data` is that very name.

    Args:
        folder: The run folder, for messages.
        trained: The run's model, which knows the configuration and the checksum of the labels.
        data: The `module:name` that the user gave; `None` if the run's data is no function.

    Raises:
        UsageError: The labels have changed, or the data is code that the user did not name.
    """
    require_explicit_import(f"the checkpoint of {folder}", {"data": trained.config.data}, {"data": data})
    task = load_task(trained.config.replace(download=False))
    if trained.labels_sha256 != task.labels_sha256:
        raise bad_value("run", str(folder), "a run whose training labels have not changed since")
    return task


def radius(trained: LoadedRun, given: float | None) -> float:
    """The rho that was asked for, or the run's own where that is a number.

    Args:
        trained: The run's model with its configuration.
        given: The radius that the user asked for; `None` for the run's own.

    Raises:
        UsageError: If that is not a number above 0.
    """
    rho = trained.config.rho if given is None else given
    if rho is None or isinstance(rho, str) or not rho > 0:
        raise bad_value("rho", rho, "a number above 0")
    return rho


def last_radius(run: RunFolder, trained: LoadedRun, given: float | None) -> float:
    """The same; of a radius that follows training, the telemetry's last.

    Args:
        run: The run folder with its telemetry.
        trained: The run's model with its configuration.
        given: The radius that the user asked for; `None` for the run's own.

    Raises:
        UsageError: If there is no radius above 0.
    """
    followed = run.curve("telemetry.rho")
    if given is None and isinstance(trained.config.rho, str) and followed:
        return followed[max(followed)]
    return radius(trained, given)


def alignments_at_end(
    run: RunFolder, trained: LoadedRun, task: Task, *, rho: float | None, kappa: float | None, batches: int
) -> list[Alignment]:
    """Of NCSAM's perturbation at the last checkpoint, on batches as the run would draw and augment them next.

    `rho` and `kappa` are the run's where they are `None`. Clean labels must be known.

    Args:
        run: The run folder, with metrics and summary.
        trained: The run's model at its last checkpoint.
        task: The run's data.
        rho: Radius of the perturbation; `None` for the run's last.
        kappa: Largest strength of the compensation; the ramp of the run is applied to it.
        batches: How many batches to measure, from 1.

    Raises:
        UsageError: The clean labels are not known, or there is no radius.
    """
    positive("batches", batches)
    config, split = resolve(trained.config.replace(precision="32-true"), task), task.dataset.train
    if split.clean is None or task.noise_rate is None:
        raise bad_value("run", str(run.folder), "a run whose clean labels are known, for the clean gradient")
    loader = task.loader(
        split, config, config.batch_size, views=view_names(config, ("train",), task.modality), subset=task.train
    )
    drawn = list(islice(loader.iterate(config.epochs + 1), batches))
    ramp = ramp_by_name(config.optimizer_options.get("ramp", "smooth"))
    strength = (config.kappa if kappa is None else kappa) * ramp(len(run.metrics) / config.epochs)
    known = [ratio for ratio in (run.summary.get("flip_ratio"), config.flip_ratio) if isinstance(ratio, float)]
    return alignments(
        trained.network.networks[0].train(),
        WithClean(drawn, split.clean),
        rho=last_radius(run, trained, rho),
        strength=strength,
        flip_ratio=known[0] if known else min(task.noise_rate, recipes.MAX_FLIP_RATIO.value),
        criterion=trained.network.method.criterion,
        **{name: config.optimizer_options[name] for name in _TURNING if name in config.optimizer_options},
    )
