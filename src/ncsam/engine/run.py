"""A run from its configuration to its summary."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import nn

from ncsam import models
from ncsam._errors import bad_value
from ncsam.data.modalities.features import Features
from ncsam.data.stored import load_dataset, save_dataset
from ncsam.data.types import DataSet
from ncsam.engine.backbone import with_backbone
from ncsam.engine.checkpoint import kept_random_state
from ncsam.engine.config import IN_MEMORY, ResolvedConfig, RunConfig
from ncsam.engine.config_options import read_yaml
from ncsam.engine.device import choose_device
from ncsam.engine.fitted_run import fit_run, smooth_out_of_fold
from ncsam.engine.forecast import Approve, remaining_seconds
from ncsam.engine.given_model import GivenModel, Model
from ncsam.engine.label_issues import label_issues_of
from ncsam.engine.learner import create_network
from ncsam.engine.metrics import measure_by_class, summarize
from ncsam.engine.resolve import resolve, sam_warning
from ncsam.engine.sinks import CheckpointSink, ConsoleSink, FolderSink, MetricsSink, Sink
from ncsam.engine.task import Task, load_task, view_names
from ncsam.engine.trainer import Trainer
from ncsam.errors import DivergedError, Interrupted, RunError
from ncsam.methods import create as create_method
from ncsam.models.external import guess_family
from ncsam.models.freeze import BACKBONE
from ncsam.pretrained.hub import PREFIX
from ncsam.runs import layout
from ncsam.runs.reader import read_summary
from ncsam.runs.writer import FolderLock, begin_run, locked, what_is_left, write_run, writing

if TYPE_CHECKING:
    from ncsam.engine.device import Device


class TrainSummary(dict[str, Any]):
    """The summary of a run, by name; `trainer` has its model, metrics and data if it was trained without a folder."""

    trainer: Trainer | None = None


def train(
    config: RunConfig,
    out: str | os.PathLike[str] | None = None,
    *,
    dataset: DataSet | None = None,
    model: str | Model | None = None,
    console: bool = True,
    command: str | None = None,
    approve: Approve | None = None,
) -> TrainSummary:
    """Train as a configuration says.

    An unfinished run of the same configuration in `out` is resumed from its checkpoint and ends with the same bits as
    if it had never stopped; a finished one is not trained again.

    Args:
        config: What to train on, with what, for how long.
        out: The run folder. `None`: nothing is written, and the result has the trainer.
        dataset: Data to use in place of `config.data`; the run then records `data: <in memory>` and, where it can,
            keeps a copy of the data.
        model: The name of a model; or a model, which is trained in place; or a function of `num_classes` that builds
            one. The latter two are recorded as `model: <in memory>`.
        console: Print progress.
        command: A command line to record in `config.yaml`.
        approve: Called with the expected seconds before features are computed and before training starts, by a run in
            one process; it raises where the run is not to start.

    Returns:
        The summary, as in `summary.json`.

    Raises:
        UsageError: An option is invalid, or does not fit the data.
        RunError: The run cannot start or continue (folder in use, changed labels, full disk); `DivergedError` if it
            diverged. The folder can be resumed.
        Interrupted: Ctrl-C or a request to terminate; the folder can be resumed.

    Examples:
        >>> from ncsam.engine import RunConfig, train
        >>> summary = train(RunConfig(noise="symmetric", rate=0.4, epochs=5), "runs/example", console=False)
        >>> summary["last"] > 50  # ten digits, 40 % of whose labels are wrong
        True
    """
    if dataset is not None:
        config = in_memory(config)
    if isinstance(model, str):
        config, model = config.replace(model=model), None
    if model is not None:
        config = config.replace(model=IN_MEMORY, model_options={}, pretrained=False)
    if out is not None and config.precision == "auto":
        config = config.replace(precision=_started_in(Path(out)))
    device = choose_device(config)
    main: Any = _train
    result: TrainSummary = device.launch(
        main, config, None if out is None else Path(out), dataset, model, console, command, approve
    )
    return result


def _started_in(folder: Path) -> str:
    """The precision of a run that is resumed, whatever this machine would choose; "auto" for a new run."""
    saved = folder / layout.CONFIG
    if not (saved.is_file() and layout.has_checkpoint(folder)):
        return "auto"
    return str(read_yaml(saved).get("precision", "auto"))


def in_memory(config: RunConfig) -> RunConfig:
    """The configuration of a run on data that is passed as a Python object.

    Args:
        config: What the user asked for; its options of the reader are dropped.
    """
    column = config.label_column if config.label_file is not None else None
    return config.replace(data=IN_MEMORY, data_root=None, data_options={}, label_column=column, download=False)


@kept_random_state()  # here, because asking a GPU for its state before the launch keeps notebooks from forking
def _train(
    device: Device,
    config: RunConfig,
    folder: Path | None,
    dataset: DataSet | None,
    model: Model | None,
    console: bool,
    command: str | None,
    approve: Approve | None,
) -> TrainSummary:
    if device.world_size > 1:
        approve = None  # ranks cannot wait for an answer
        atexit.register(_leave_group)
    with contextlib.ExitStack() as stack:
        locks: list[FolderLock] = []  # of the first rank alone
        if folder is not None:
            summary = _open_folder(device, folder, config, stack, locks)
            if summary is not None:
                if console and device.is_global_zero:
                    print(f"{folder} is finished; its summary is returned", flush=True)
                return TrainSummary(summary)
        if dataset is None and config.data == IN_MEMORY and folder is not None:
            dataset = load_dataset(folder / layout.DATA)
        with device.rank_zero_first(local=True):  # one process downloads, the others find the result
            task = load_task(config, dataset)
        if config.may_use_backbone:
            with device.rank_zero_first(local=True):  # one process computes features, the others find them in the cache
                config, task = with_backbone(
                    config, task, str(device.device), print if console else _silent, approve=approve
                )
        resolved = resolve(config, task, family=guess_family(model) if isinstance(model, nn.Module) else "other")
        if models.is_closed_form(resolved.model):  # fitted at once, by one process
            return _fit_closed_form(device, resolved, task, folder, dataset, console, command)
        with device.rank_zero_first(local=True):
            task = _on_features(device, resolved, task, console)
        create = None if model is None else GivenModel(model, resolved, task.dataset.num_classes)
        trainer = Trainer(device, resolved, task, create)
        check = locks[0].check if locks else _nothing
        sinks: list[Sink] = []
        resumed = False
        if folder is not None:
            checkpoints = CheckpointSink(layout.checkpoints(folder), check)
            resumed = checkpoints.resume(trainer)
            if locks:
                begin = partial(_begin_folder, folder, resolved, task, dataset, command)
                begun = resumed and (folder / layout.CONFIG).is_file()
                if resumed and not begun:
                    begin()
                sinks += [FolderSink(begin, check, begun=resumed), MetricsSink(folder)]
            sinks.append(checkpoints)
        if device.is_global_zero and console:
            shown = ConsoleSink(True, resolved.epochs, trainer.steps_per_epoch, str(device.device), task.modality.name)
            sinks.insert(len(sinks) - 1 if folder is not None else 0, shown)
            _introduce(shown, trainer, folder, resumed)
        if approve is not None and not trainer.is_finished:
            approve(remaining_seconds(trainer), "training")
        device.barrier()
        _fit(trainer, sinks, folder)
        if resolved.evaluate_train_every is None:
            trainer.measure_training_split()
        check()
        return _finish(trainer, folder)


def _nothing() -> None:
    pass


def _silent(text: str) -> None:
    pass


def _fit_closed_form(
    device: Device,
    config: ResolvedConfig,
    task: Task,
    folder: Path | None,
    dataset: DataSet | None,
    console: bool,
    command: str | None,
) -> TrainSummary:
    if folder is None:
        raise bad_value("out", None, f"a run folder, because {config.model} is fitted and written at once")
    fitted: dict[str, Any] = {}
    if device.is_global_zero:
        if dataset is not None and config.fold is None:
            with writing(folder):
                save_dataset(folder / layout.DATA, dataset)
        fitted = fit_run(config, task, folder, command=command, say=print if console else _silent)
    return TrainSummary(device.broadcast(fitted))


def _open_folder(
    device: Device, folder: Path, config: RunConfig, stack: contextlib.ExitStack, locks: list[FolderLock]
) -> dict[str, Any] | None:
    """Lock a run folder; the summary of a run that is finished there."""
    _first_rank_first(device, lambda: layout.refuse_other_work(folder, layout.CONFIG))
    _first_rank_first(device, lambda: locks.append(stack.enter_context(locked(folder))))
    summary = read_summary(folder, config)
    if summary is None:
        for lock in locks:
            layout.clear_leftovers(lock.folder)
    return summary


def _fit(trainer: Trainer, sinks: Sequence[Sink], folder: Path | None) -> None:
    """Train, and say in what fails what there is to resume from."""
    try:
        trainer.fit(*sinks)
    except DivergedError as error:
        if folder is None:
            raise
        raise DivergedError(f"{error}. {what_is_left(layout.checkpoints(folder))}") from error
    except Interrupted as error:
        if folder is None:
            raise
        raise Interrupted(f"{error}; rerun the same command to resume") from error


def _introduce(console: ConsoleSink, trainer: Trainer, folder: Path | None, resumed: bool) -> None:
    config, task = trainer.config, trainer.task
    where = f"resumed at epoch {trainer.epoch}, batch {trainer.batch}" if resumed else "from the start"
    console.say(f"{folder or 'training'}: {config.method} with {config.optimizer} on {trainer.fabric.device}, {where}")
    if config.model.startswith(PREFIX):
        weights = sum(p.numel() for p in trainer.networks[0].parameters())
        stops = "" if config.patience is None else f", stopped after {config.patience} without a better validation"
        console.say(
            f"fine-tuning {config.model} ({weights / 1e6:.1f} million weights): {config.base}, learning rate "
            f"{config.lr:g}, batches of {config.batch_size}, at most {config.epochs} epochs{stops}"
        )
    if (warning := sam_warning(config)) is not None:
        console.say(warning)
    for note in task.notes:
        console.say(note)
    if task.damaged:
        listed = "" if folder is None else f": see {folder / layout.DAMAGED}"
        console.say(f"{len(task.damaged):,} files could not be read and are left out{listed}")


def _leave_group() -> None:
    """End the threads that connect the ranks: a process that exits while they run may abort."""
    if dist.is_initialized():
        gc.collect()  # models in reference cycles keep the group alive
        dist.destroy_process_group()


def _on_features(device: Device, config: ResolvedConfig, task: Task, console: bool) -> Task:
    """The task on cached features, where the backbone is frozen and nothing is augmented."""
    if BACKBONE not in config.freeze or config.model == IN_MEMORY:
        return task
    from ncsam.engine.backbone import with_features

    return with_features(
        config,
        task,
        partial(create_network, config, task.dataset.num_classes, task.modality.in_channels, pretrained=True),
        view_names(config, create_method(config.method, **config.method_options).views, task.modality),
        device=device.device,
        say=print if console and device.is_global_zero else lambda text: None,
    )


def _first_rank_first(device: Device, action: Any) -> None:
    """Do something on the first rank; if it fails there, fail everywhere with the same message."""
    problem: str | None = None
    if device.is_global_zero:
        try:
            action()
        except RunError as error:
            problem = str(error)
    problem = device.broadcast(problem)
    if problem is not None:
        raise RunError(problem)


def _begin_folder(
    folder: Path, config: ResolvedConfig, task: Task, dataset: DataSet | None, command: str | None
) -> None:
    with writing(folder):
        (folder / layout.DATA).unlink(missing_ok=True)  # of a run that failed before its first checkpoint
        if dataset is not None and config.fold is None:
            save_dataset(folder / layout.DATA, dataset)
    begin_run(folder, config, task.dataset, record=task.record, damaged=task.damaged, command=command)


def _finish(trainer: Trainer, folder: Path | None) -> TrainSummary:
    device, task, config, control = trainer.fabric, trainer.task, trainer.config, trainer.control
    by_class = measure_by_class(trainer.evaluator, trainer.networks)
    summary: dict[str, Any] = {}
    if device.is_global_zero:
        summary = {
            **summarize(trainer.history[: trainer.kept_epoch]),
            "noise_rate": task.noise_rate,
            "seconds": trainer.seconds,
            "epochs": config.epochs,
            "kept_epoch": trainer.kept_epoch,
            "method": config.method,
            "optimizer": config.optimizer,
            "seed": config.seed,
            "data": config.data,
            "model": config.model,
            "warmup_epochs": control.warmup_epochs if config.sharpness_aware else None,
            "flip_ratio": control.flip_ratio if control.flips_labels else None,
            "warmup_noise": control.noise_estimate,
            "verified": trainer.verified,
        }
        on_features = isinstance(task.modality, Features) and config.fold is None
        oof = smooth_out_of_fold(config, task) if on_features else None
        summary["noise_estimate"] = by_class.noise if oof is None else oof.about["noise_rate"]
        issues = label_issues_of(task.original, trainer.dynamics, task.val, oof)
        if folder is None:
            summary["label_issues_auroc"] = issues.about.get("label_issues_auroc")
        else:
            summary = write_run(folder, summary, issues, by_class=by_class.arrays(), oof=oof)
    result = TrainSummary(device.broadcast(summary))
    result.trainer = trainer if folder is None else None
    return result
