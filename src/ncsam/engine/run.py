"""A run from its configuration to its summary."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from ncsam import models
from ncsam.data.types import DataSet
from ncsam.engine import defaults
from ncsam.engine.by_class import measure_by_class
from ncsam.engine.config import RunConfig
from ncsam.engine.device import choose_device
from ncsam.engine.fitted_run import fit_run, smooth_out_of_fold
from ncsam.engine.label_issues import label_issues_of
from ncsam.engine.metrics import summarize
from ncsam.engine.network import create_network
from ncsam.engine.task import Task, load_task, resolve_auto, view_names
from ncsam.engine.trainer import Trainer
from ncsam.errors import RunError
from ncsam.methods import create as create_method
from ncsam.models.freeze import BACKBONE
from ncsam.runs import layout
from ncsam.runs.lock import FolderLock, locked
from ncsam.runs.reader import read_summary
from ncsam.runs.writer import begin_run, write_run

if TYPE_CHECKING:
    from ncsam.engine.device import Device


def train(
    config: RunConfig,
    out: str | os.PathLike[str],
    *,
    dataset: DataSet | None = None,
    console: bool = True,
    command: str | None = None,
) -> dict[str, Any]:
    """Train as `config` says, write the run folder `out`, and return its summary.

    A folder with an unfinished run of the same configuration is continued from its checkpoint, and ends with the same
    bits as if it had never stopped; a finished one is not trained again. `dataset` is used in place of `config.data`.
    `command` is noted in `config.yaml`.

    >>> from ncsam.engine import RunConfig, train
    >>> summary = train(RunConfig(noise="symmetric", rate=0.4, epochs=1), "runs/example", console=False)
    >>> summary["last"] > 50  # of ten digits, four in ten of whose labels are wrong
    True

    Raises `RunError` for what stands in the way of this run (folder in use, changed labels, full disk, divergence) and
    `Interrupted` after Ctrl-C; both leave a folder that can be continued.
    """
    fabric = choose_device(config)
    main: Any = _train
    result: dict[str, Any] = fabric.launch(main, config, Path(out), dataset, console, command)
    return result


def _train(
    fabric: Device, config: RunConfig, folder: Path, dataset: DataSet | None, console: bool, command: str | None
) -> dict[str, Any]:
    if fabric.world_size > 1:
        atexit.register(_leave_group)
    with contextlib.ExitStack() as stack:
        held: list[FolderLock] = []  # by the first rank alone
        _first_rank_first(fabric, lambda: layout.refuse_other_work(folder, layout.CONFIG))
        _first_rank_first(fabric, lambda: held.append(stack.enter_context(locked(folder))))
        summary = read_summary(folder, config)
        if summary is not None:
            if console and fabric.is_global_zero:
                print(f"{folder} is finished; its summary is returned", flush=True)
            return summary
        for each in held:
            layout.clear_leftovers(each.folder)
        with fabric.rank_zero_first(local=True):  # one process fetches, the others find it there
            task = load_task(config, dataset)
        config = resolve_auto(config, task)
        if models.is_closed_form(config.model):  # fitted at once, by one process
            say = print if console else lambda text: None
            fitted = fit_run(config, task, folder, command=command, say=say) if fabric.is_global_zero else {}
            return fabric.broadcast(fitted)
        with fabric.rank_zero_first(local=True):
            task = _on_features(fabric, config, task, console)
        trainer = Trainer(fabric, config, task, folder, console)
        continued = trainer.resume()
        if held:
            trainer.before_writing = held[0].check
            trainer.begin = partial(
                begin_run, folder, config, task.dataset, record=task.record, damaged=task.damaged, command=command
            )
        if held and continued and not (folder / layout.CONFIG).is_file():
            trainer.begin()
        fabric.barrier()
        where = f"epoch {trainer.epoch}, batch {trainer.batch}" if continued else "the beginning"
        trainer.console.say(f"{folder}: {config.method} with {config.optimizer} on {fabric.device}, from {where}")
        if config.sharpness_aware and (warning := defaults.harm(config.method, config.rho)) is not None:
            trainer.console.say(warning)
        if task.damaged:
            listed = folder / layout.DAMAGED
            trainer.console.say(f"{len(task.damaged):,} files could not be read and are left out: see {listed}")
        trainer.fit()
        trainer.before_writing()
        return _finish(fabric, trainer)


def _leave_group() -> None:
    """End the threads that connect the ranks: a process that exits with them running may abort, though all is done."""
    if dist.is_initialized():
        gc.collect()  # networks in reference cycles hold the group
        dist.destroy_process_group()


def _on_features(fabric: Device, config: RunConfig, task: Task, console: bool) -> Task:
    """The task on cached features, where the backbone is frozen and nothing is augmented."""
    if BACKBONE not in config.freeze:
        return task
    from ncsam.engine.frozen import with_features

    return with_features(
        config,
        task,
        partial(create_network, config, task.dataset.num_classes, task.modality.in_channels, pretrained=True),
        view_names(config, create_method(config.method, **config.method_options).views, task.modality),
        device=fabric.device,
        say=print if console and fabric.is_global_zero else lambda text: None,
    )


def _first_rank_first(fabric: Device, action: Any) -> None:
    """Do something on the first rank; if it fails there, fail everywhere with the same words."""
    problem: str | None = None
    if fabric.is_global_zero:
        try:
            action()
        except RunError as error:
            problem = str(error)
    problem = fabric.broadcast(problem)
    if problem is not None:
        raise RunError(problem)


def _finish(fabric: Device, trainer: Trainer) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    by_class = measure_by_class(trainer.evaluator, trainer.networks)
    if fabric.is_global_zero:
        task, config = trainer.task, trainer.config
        results = {
            **summarize(trainer.history),
            "noise_rate": task.noise_rate,
            "seconds": trainer.seconds,
            "epochs": config.epochs,
            "method": config.method,
            "optimizer": config.optimizer,
            "seed": config.seed,
            "data": config.data,
            "model": config.model,
            "warmup_epochs": trainer.settling.warmup_epochs if config.sharpness_aware else None,
            "flip_ratio": trainer.settling.flip_ratio if config.optimizer == "ncsam" else None,
            "noise_estimate": trainer.settling.noise_estimate,
            "verified": trainer.verified,
            "noise_at_end": None if by_class.noise is None else asdict(by_class.noise),
        }
        oof = smooth_out_of_fold(config, task) if config.fold is None else None
        issues = label_issues_of(task.original, trainer.dynamics, task.val, oof)
        summary = write_run(trainer.folder, results, issues, by_class=by_class.arrays(), oof=oof)
    return fabric.broadcast(summary)
