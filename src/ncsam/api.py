"""The public functions `train`, `auto`, `audit`, `compare`, `load_run`. The shell commands are wrappers around them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ncsam._errors import bad_value
from ncsam._named import is_reference
from ncsam._text import printable_lines
from ncsam.audits import Audit
from ncsam.comparison.result import Comparison
from ncsam.run import Run
from ncsam.runs import layout

if TYPE_CHECKING:
    from torch import nn

    from ncsam.data.types import DataSet
    from ncsam.engine.config import RunConfig

__all__ = ["Audit", "Comparison", "Run", "audit", "auto", "compare", "load_run", "make_config", "train"]

#: Options of `ncsam.data.as_dataset`, for data in memory.
_OF_THE_DATA = ("label_column", "input_column", "test")


def train(
    data: Any = None,
    out: str | os.PathLike[str] | None = None,
    *,
    preset: str | None = None,
    model: str | nn.Module | Callable[..., nn.Module] | None = None,
    config: RunConfig | str | os.PathLike[str] | None = None,
    folds: int | None = None,
    console: bool = False,
    command: str | None = None,
    approve: Callable[[float, str], None] | None = None,
    **options: Any,
) -> Run:
    """Train a model on data whose labels may be wrong.

    A run that was interrupted is resumed by the same call and ends with the same result; a finished one is not trained
    again.

    Args:
        data: a name (`ncsam.data.names()`), or the path of a folder, table, `.npz` or `.tar` file; or data in memory:
            `(X, y)` arrays or texts, a DataFrame, a torch or Hugging Face dataset, an `ncsam.data.DataSet`. By default
            that of `config` or `preset`.
        out: the run folder. `None`: a temporary one, removed with the returned object.
        preset: start from one of `ncsam.engine.preset_names()`.
        model: a model by name, an `nn.Module`, or a function of the number of classes that builds one.
        config: start from a configuration, or from a YAML file such as a run's `config.yaml`.
        folds: cross-validate afterwards, as in `Run.find_label_issues(folds=...)`.
        console: print progress.
        command: recorded in `config.yaml`.
        approve: called with the expected seconds of "features" and of "training" before they start; what it raises
            ends the call.
        **options: fields of `RunConfig` (`epochs=30`, `optimizer="ncsam"`, `noise="symmetric"`, `rate=0.4`), which win
            over `config` and `preset`; for data in memory also `test`, `label_column` and `input_column`.

    Returns:
        The run.

    Raises:
        UsageError: if an option is invalid or does not suit the data.
        RunError: if the run cannot start or continue (folder in use, changed labels, full disk).
        DivergedError: if the loss is not finite any more.

    Examples:
        >>> import ncsam
        >>> run = ncsam.train("digits", noise="symmetric", rate=0.4, epochs=2, optimizer="sgd")
        >>> run.summary["epochs"], len(run.find_label_issues())
        (2, 1438)
    """
    from ncsam.engine.run import train as engine_train

    chosen, dataset = make_config(data, preset=preset, config=config, model=model, **options)
    if folds is not None:
        from ncsam.engine.out_of_fold import check_folds

        check_folds(chosen, folds, dataset)
    folder, temporary = _folder(out)
    given: dict[str, Any] = {} if model is None or isinstance(model, str) else {"model": model}
    engine_train(chosen, folder, dataset=dataset, console=console, command=command, approve=approve, **given)
    run = Run(folder, dataset=dataset, **given, named=_named(chosen), temporary=temporary)
    if folds is not None:
        run.find_label_issues(folds, console=console)
    return run


def auto(
    data: Any = None,
    out: str | os.PathLike[str] | None = None,
    *,
    folds: int = 5,
    budget: float | None = None,
    verified: Any = None,
    metric: Literal["auto", "accuracy", "balanced_accuracy"] = "auto",
    config: RunConfig | str | os.PathLike[str] | None = None,
    console: bool = False,
    command: str | None = None,
    approve: Callable[[float, str], None] | None = None,
    **options: Any,
) -> Run:
    """Find a classifier with nothing to tune: the recommended one, or with verified labels a combination.

    Args:
        data: as in `train`; features (`ncsam embed`) are much faster than images.
        out: the run folder. `None`: a temporary one, removed with the returned object.
        folds: parts, each held out once.
        budget: seconds of training; no limit by default.
        verified: labels that a person has verified: `{index: class}`, a class or `None` for every sample, the name of a
            column of `data`, a CSV file (`index`, `label` and, unless drawn evenly, `probability`), or a run folder
            with review decisions. They decide how candidates are combined, are trained on, and give estimates.
        metric: what predictions are to maximize on true labels: "accuracy", "balanced_accuracy" (the mean recall of the
            classes), or "auto": the latter for tables with a rare class and verified labels.
        config: start from a configuration or YAML file; data, labels, seed and hardware count.
        console: print progress.
        command: recorded in `config.yaml`.
        approve: as in `train`.
        **options: fields of `RunConfig`, as in `train`.

    Returns:
        The run of the result; all candidates are in `run.leaderboard`.
    """
    from ncsam.automl import auto as engine_auto

    options.setdefault("val_share", 0.0)  # the folds hold out what is needed
    if isinstance(verified, str) and hasattr(data, "columns") and verified in data.columns:  # of a DataFrame
        verified, data = data[verified].tolist(), data.drop(columns=[verified])
    chosen, dataset = make_config(data, config=config, **options)
    folder, temporary = _folder(out)
    say = _print if console else _silent
    engine_auto(
        chosen,
        folder,
        folds=folds,
        budget=budget,
        dataset=dataset,
        verified=verified,
        metric=metric,
        say=say,
        command=command,
        approve=approve,
    )
    return Run(folder, dataset=dataset, temporary=temporary)


def audit(
    data: Any,
    out: str | os.PathLike[str] | None = None,
    *,
    checks: Sequence[str] | None = None,
    features: Any = None,
    pred_probs: Any = None,
    console: bool = False,
    command: str | None = None,
    **options: Any,
) -> Audit:
    """Find what is wrong with a dataset: labels, duplicates, outliers, classes, images, texts, columns, splits.

    The recommended classifier is fitted to the data (on embeddings of a pretrained model, for images and texts), so
    that every label is judged by a model that never saw it. The result is an ordinary run with an audit beside it.

    Args:
        data: as in `train`; or a run, or its folder, whose data is audited.
        out: the run folder. `None`: a temporary one, removed with the returned object.
        checks: names of `ncsam.auditing.findings.CHECKS`; all by default.
        features: embeddings (samples, features) of the training samples, in place of those of a pretrained model.
        pred_probs: out-of-sample class probabilities (samples, classes) of the training samples, in place of the
            classifier's.
        console: print progress.
        command: recorded in `config.yaml`.
        **options: fields of `RunConfig`, as in `train`.

    Returns:
        The findings: `.table`, `.summary`, `.report()`, `.cleaned()`.

    Examples:
        >>> import ncsam, numpy as np
        >>> x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
        >>> x[30:] += 5
        >>> x[59] = x[58]
        >>> ncsam.audit((x, np.repeat(["a", "b"], 30)), checks=["exact_duplicate"]).findings[0].evidence
        'identical to training sample 58, label b'
    """
    from ncsam.auditing.findings import known_checks

    known_checks(checks)
    if isinstance(data, Run):
        run = data
    elif out is None and isinstance(data, (str, os.PathLike)) and (Path(data) / layout.CONFIG).is_file():
        run = load_run(data)
    else:
        run = _fitted(data, out, console, command, options)
    return run.audit(checks, features=features, pred_probs=pred_probs, console=console)


def _fitted(
    data: Any, out: str | os.PathLike[str] | None, console: bool, command: str | None, options: dict[str, Any]
) -> Run:
    """A run of the recommended classifier, on embeddings where there is a pretrained model for the data."""
    from ncsam.engine.audit import recommended
    from ncsam.engine.run import train as engine_train

    chosen, dataset = make_config(data, **{"val_share": 0.0, "skip_damaged": True, **options})
    folder, temporary = _folder(out)
    chosen = recommended(chosen, dataset)
    engine_train(chosen, folder, dataset=dataset, console=console, command=command)
    return Run(folder, dataset=dataset, named=_named(chosen), temporary=temporary)


def compare(
    data: Any = None,
    out: str | os.PathLike[str] | None = None,
    *,
    methods: Sequence[str] = ("ce",),
    optimizers: Sequence[str] = ("sgd", "sam", "ncsam"),
    seeds: int | Sequence[int] = 3,
    preset: str | None = None,
    config: RunConfig | str | os.PathLike[str] | None = None,
    workers: int | None = None,
    on: Literal["local", "ray"] = "local",
    resources: str = "",
    mirror: str = "",
    console: bool = False,
    command: str | None = None,
    **options: Any,
) -> Comparison:
    """Train every combination of methods, optimizers and seeds, and compare them.

    Args:
        data: as in `train`.
        out: folder of the runs. `None`: a temporary one, removed with the returned object.
        methods: names of methods, with options after colons: `"mixup:alpha=8"`.
        optimizers: likewise: `"sam:rho=0.1"`.
        seeds: how many, or a list of them.
        preset: as in `train`.
        config: as in `train`.
        workers: runs at a time; by default as many as the machine allows.
        on: "local" or "ray"; this and the next two as in `ncsam.jobs.ExecutorConfig`.
        resources: what each run needs on Ray.
        mirror: URL of copies of the run folders.
        console: print a line for every run that ends.
        command: recorded in the folder.
        **options: fields of `RunConfig` that all runs share.

    Returns:
        The comparison: `.table`, `.plot()`, `.report()`, `.runs`.

    Examples:
        >>> import ncsam
        >>> found = ncsam.compare("digits", optimizers=["sgd", "sam"], seeds=1, epochs=1, workers=1)
        >>> found.table["optimizer"].tolist()
        ['sgd', 'sam']
    """
    from ncsam.comparison import compare as engine_compare

    chosen, dataset = make_config(data, preset=preset, config=config, **options)
    folder, temporary = _folder(out)
    say = _print if console else _silent
    rows = engine_compare(
        chosen,
        folder,
        methods=list(methods),
        optimizers=list(optimizers),
        seeds=seeds,
        workers=workers,
        on=on,
        resources=resources,
        mirror=mirror,
        dataset=dataset,
        say=say,
        command=command,
    )
    return Comparison(folder, rows, dataset=dataset, temporary=temporary)


def load_run(
    folder: str | os.PathLike[str],
    *,
    data: Any = None,
    model: str | nn.Module | Callable[..., nn.Module] | None = None,
    method: str | None = None,
) -> Run:
    """A run from its folder.

    Args:
        folder: the run folder.
        data: the data, if it was passed as Python objects and is not stored in the folder.
        model: the model that the run was trained with, if it was passed as an object or is a `module:factory`: a folder
            does not decide what code runs.
        method: likewise the `module:Name` of its method.

    Raises:
        UsageError: if it is no run folder.
    """
    named = {name: value for name, value in (("model", model), ("method", method)) if isinstance(value, str)}
    given: dict[str, Any] = {} if model is None or isinstance(model, str) else {"model": model}
    run = Run(folder, dataset=None if data is None else _dataset(data, {}), **given, named=named)
    run.folder  # noqa: B018 - raises for what is no run folder
    return run


def make_config(
    data: Any = None,
    *,
    preset: str | None = None,
    config: RunConfig | str | os.PathLike[str] | None = None,
    model: Any = None,
    **options: Any,
) -> tuple[RunConfig, DataSet | None]:
    """The configuration that a call asks for (preset, config, options: later ones win), and data that is in memory."""
    from ncsam.engine.config import RunConfig
    from ncsam.engine.config_files import read_preset

    if isinstance(data, RunConfig):
        raise bad_value("data", "a RunConfig", "data; pass the configuration as config=")
    in_memory = data is not None and not isinstance(data, (str, os.PathLike))
    given = {name: options.pop(name) for name in _OF_THE_DATA if in_memory and name in options}
    if in_memory:
        given |= options.pop("data_options", None) or {}
    start: dict[str, Any] = read_preset(preset) if preset else {}
    if isinstance(config, RunConfig):
        start |= config.to_dict()
    elif config is not None:
        named = {"model": model} if isinstance(model, str) else {}
        known = {name: value for name, value in (named | options).items() if is_reference(value)}
        start |= RunConfig.from_yaml(config, **known).to_dict()
    if data is not None and not in_memory:
        start["data"] = os.fspath(data)
    if isinstance(model, str):
        start["model"] = model
    chosen = RunConfig.from_dict(start | options)
    return chosen, _dataset(data, given) if in_memory else None


def _dataset(data: Any, options: dict[str, Any]) -> DataSet:
    from ncsam.data import as_dataset

    return as_dataset(data, **options)


def _folder(out: str | os.PathLike[str] | None) -> tuple[Path, tempfile.TemporaryDirectory[str] | None]:
    """The folder of a run, and the owner of a temporary one."""
    if out is not None:
        return Path(out), None
    temporary = tempfile.TemporaryDirectory(prefix="ncsam-")
    return Path(temporary.name) / "run", temporary


def _named(config: RunConfig) -> dict[str, str]:
    """The options by which the caller named code (`module:Name`)."""
    return {name: value for name, value in config.to_dict().items() if is_reference(value)}


def _print(text: str) -> None:
    print(printable_lines(text), flush=True)


def _silent(text: str) -> None:
    pass
