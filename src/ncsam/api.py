"""The public functions `train`, `auto`, `audit`, `compare` and `load_run`. The shell commands wrap them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ncsam._arguments import is_reference
from ncsam._errors import bad_value
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

    Calling it again resumes an interrupted run and gives the same result as an uninterrupted one. A finished run is
    returned without training.

    Args:
        data: a name (`ncsam.data.names()`), or the path of a folder, table, `.npz` or `.tar` file; or data in memory:
            `(X, y)` arrays or texts, a DataFrame, a torch or Hugging Face dataset, an `ncsam.data.DataSet`. `None` uses
            the data named by `config` or `preset`.
        out: the run folder. `None` uses a temporary folder that is deleted with the returned object.
        preset: start from one of `ncsam.engine.preset_names()`.
        model: a model name, an `nn.Module`, or a function that builds one from the number of classes.
        config: start from a configuration, or from a YAML file such as a run's `config.yaml`.
        folds: cross-validate after training, as in `Run.find_label_issues(folds=...)`. `None` skips it.
        console: print progress.
        command: the shell command to record in `config.yaml`.
        approve: called as `approve(seconds, stage)` with the expected duration before each of the stages "features" and
            "training". Raise from it to stop.
        **options: fields of `RunConfig` (`epochs=30`, `optimizer="ncsam"`, `noise="symmetric"`, `rate=0.4`). They
            override `config` and `preset`. For data in memory also `test`, `label_column` and `input_column`.

    Returns:
        The finished run.

    Raises:
        UsageError: if an option is invalid or does not fit the data.
        RunError: if the run cannot start or continue (folder in use, changed labels, full disk).
        DivergedError: if the loss becomes infinite or NaN.

    Examples:
        >>> import ncsam
        >>> run = ncsam.train("digits", noise="symmetric", rate=0.4, epochs=2, optimizer="sgd")
        >>> run.summary["epochs"], len(run.find_label_issues())
        (2, 1438)
    """
    from ncsam.engine.run import train as engine_train

    _check_out(out)
    given: dict[str, Any] = {} if model is None or isinstance(model, str) else {"model": model}
    for name in ("model_options", "pretrained") if given else ():
        if options.get(name):
            raise bad_value(name, options[name], "no value: a model passed as an object has its options and weights")
    by_name = model if isinstance(model, str) else None
    chosen, dataset = make_config(data, preset=preset, config=config, model=by_name, **options)
    if folds is not None:
        from ncsam.engine.out_of_fold import check_folds

        check_folds(chosen, folds, dataset, **given)
    folder, temporary = _folder(out)
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
    """Find a classifier without tuning: the recommended one, or a combination if there are verified labels.

    Args:
        data: as in `train`. Features (`ncsam embed`) are much faster than images.
        out: the run folder. `None` uses a temporary folder that is deleted with the returned object.
        folds: number of cross-validation folds, at least 2.
        budget: limit on training time in seconds. `None` means no limit.
        verified: labels that a person has verified: `{index: class}`, a class or `None` for every sample, the name of a
            column of `data`, a CSV file (`index`, `label` and, unless samples were drawn uniformly, `probability`), or
            a run folder with review decisions. They determine how candidates are combined, replace the given labels in
            training, and give unbiased estimates.
        metric: what to maximize on true labels: "accuracy", "balanced_accuracy" (the mean recall of the classes), or
            "auto", which is balanced accuracy for tables with a rare class and verified labels and accuracy otherwise.
        config: start from a configuration or YAML file. Only its data, label, seed and hardware options are used.
        console: print progress.
        command: the shell command to record in `config.yaml`.
        approve: as in `train`.
        **options: fields of `RunConfig`, as in `train`.

    Returns:
        The run of the chosen model. `run.leaderboard` lists all candidates.

    Raises:
        UsageError: if an option or a verified label is invalid or does not fit the data.
        RunError: if the folder is in use or holds another search.
    """
    from ncsam.automl import auto as engine_auto

    _check_out(out)
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
    """Find problems in a dataset: labels, duplicates, outliers, classes, images, texts, columns and splits.

    The recommended classifier is fitted to the data (for images and texts, to embeddings of a pretrained model), and
    every label is judged by a model that was not trained on it. The result is an ordinary run folder plus the findings.

    Args:
        data: as in `train`; or a run, or its folder, whose data is audited.
        out: the run folder. `None` uses a temporary folder that is deleted with the returned object.
        checks: names from `ncsam.auditing.findings.CHECKS`. `None` runs all of them.
        features: embeddings (samples, features) of the training samples, used instead of a pretrained model's.
        pred_probs: out-of-sample class probabilities (samples, classes) of the training samples, used instead of the
            classifier's.
        console: print progress.
        command: the shell command to record in `config.yaml`.
        **options: fields of `RunConfig`, as in `train`.

    Returns:
        The findings: `.table`, `.summary`, `.report()`, `.cleaned()`.

    Raises:
        UsageError: if an option is invalid or does not fit the data.

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
    """Train the recommended classifier, on embeddings if there is a pretrained model for the data."""
    from ncsam.engine.audit import recommended
    from ncsam.engine.run import train as engine_train

    _check_out(out)
    chosen, dataset = make_config(data, **{"val_share": 0.0, "skip_damaged": True, **options})
    folder, temporary = _folder(out)
    chosen = recommended(chosen, dataset)
    engine_train(chosen, folder, dataset=dataset, console=console, command=command)
    return Run(folder, dataset=dataset, named=_named(chosen), temporary=temporary)


def compare(
    data: Any = None,
    out: str | os.PathLike[str] | None = None,
    *,
    methods: Sequence[str] | Literal["all"] = ("ce",),
    optimizers: Sequence[str] | Literal["all"] = ("sgd", "sam", "ncsam"),
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
    """Train every combination of methods, optimizers and seeds, and compare the results.

    Args:
        data: as in `train`.
        out: the folder that holds the run folders. `None` uses a temporary folder that is deleted with the returned
            object.
        methods: method names, with options after colons: `"mixup:alpha=8"`; or "all".
        optimizers: optimizer names, in the same form: `"sam:rho=0.1"`; or "all".
        seeds: the number of seeds, or a list of seeds.
        preset: as in `train`.
        config: as in `train`.
        workers: number of runs to train in parallel. `None` trains two, or one on a single core.
        on: "local" or "ray" (see `ncsam.jobs.ExecutorConfig`).
        resources: resources that each run needs on Ray, such as "gpu=1,cpu=4".
        mirror: URL to copy the run folders to. Empty: no copies.
        console: print a line for every finished run.
        command: the shell command to record in the folder.
        **options: fields of `RunConfig` shared by all runs. `model` may also be a class or function of a module that
            other processes can import.

    Returns:
        The comparison: `.table`, `.plot()`, `.report()`, `.runs`.

    Raises:
        UsageError: if a method, optimizer or option is unknown or invalid.

    Examples:
        >>> import ncsam
        >>> found = ncsam.compare("digits", optimizers=["sgd", "sam"], seeds=1, epochs=1, workers=1)
        >>> found.table["optimizer"].tolist()
        ['sgd', 'sam']
    """
    from ncsam.comparison import compare as engine_compare

    _check_out(out)
    if (model := options.get("model")) is not None and not isinstance(model, str):
        options["model"] = _reference(model)
    chosen, dataset = make_config(data, preset=preset, config=config, **options)
    folder, temporary = _folder(out)
    say = _print if console else _silent
    rows = engine_compare(
        chosen,
        folder,
        methods=methods,
        optimizers=optimizers,
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
    """Open the run in a folder.

    Args:
        folder: the run folder.
        data: the data, if it was passed as Python objects and is not stored in the folder.
        model: the model that the run was trained with, if it was passed as an object or is a `module:factory`. A run
            folder never decides which code is imported.
        method: for the same reason, the `module:Name` of the method if it is not built in.

    Returns:
        The run. Its files are read on access.

    Raises:
        UsageError: if `folder` is not a run folder.
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
    model: str | None = None,
    **options: Any,
) -> tuple[RunConfig, DataSet | None]:
    """Build the configuration for a call.

    Args:
        data: a name, a path, or data in memory, as in `train`.
        preset: the name of a preset to start from.
        config: a configuration or YAML file; it overrides the preset.
        model: a model name, which overrides `config`.
        **options: fields of `RunConfig`, which override everything else; for data in memory also `test`, `label_column`
            and `input_column`.

    Returns:
        The configuration, and the dataset if `data` is in memory, else `None`.

    Raises:
        UsageError: if `data` is a `RunConfig`, `model` is an object, or an option is unknown or invalid.
    """
    from ncsam.engine.config import RunConfig
    from ncsam.engine.config_options import read_preset

    for name in ("method", "optimizer", "base"):
        if isinstance(value := options.get(name), type):
            own = f"'{value.__module__}:{value.__qualname__}' for a class of your own"
            raise bad_value(name, value, f"a name; as module:Name, such as {own}")
    if isinstance(data, RunConfig):
        raise bad_value("data", "a RunConfig", "data; pass the configuration as config=")
    if model is not None and not isinstance(model, str):
        raise bad_value("model", model, "the name of a model; `ncsam.train` takes the model itself")
    in_memory = data is not None and not isinstance(data, (str, os.PathLike))
    given = {name: options.pop(name) for name in _OF_THE_DATA if in_memory and name in options}
    if in_memory:
        given |= options.pop("data_options", None) or {}
    start: dict[str, Any] = read_preset(preset) if preset else {}
    if isinstance(config, RunConfig):
        start |= config.to_dict()
    elif config is not None:
        named = {} if model is None else {"model": model}
        known = {name: value for name, value in (named | options).items() if is_reference(value)}
        start |= RunConfig.from_yaml(config, **known).to_dict()
    if data is not None and not in_memory:
        start["data"] = os.fspath(data)
    if model is not None:
        start["model"] = model
    chosen = RunConfig.from_dict(start | options)
    return chosen, _dataset(data, given) if in_memory else None


def _dataset(data: Any, options: dict[str, Any]) -> DataSet:
    from ncsam.data import as_dataset

    return as_dataset(data, **options)


def _check_out(out: Any) -> None:
    """Refuse labels in the place of the run folder, as scikit-learn's `fit(X, y)` has them."""
    if out is not None and not isinstance(out, (str, os.PathLike)):
        raise bad_value("out", type(out).__name__, "the path of the run folder; labels go with the samples, as (X, y)")


def _folder(out: str | os.PathLike[str] | None) -> tuple[Path, tempfile.TemporaryDirectory[str] | None]:
    """The run folder, and the object that deletes it if it is temporary."""
    if out is not None:
        return Path(out), None
    temporary = tempfile.TemporaryDirectory(prefix="ncsam-")
    return Path(temporary.name) / "run", temporary


def _named(config: RunConfig) -> dict[str, str]:
    """The options in which the caller named code (`module:Name`)."""
    return {name: value for name, value in config.to_dict().items() if is_reference(value)}


def _reference(model: Any) -> str:
    """The `module:Name` of a class or function, by which the processes of a comparison import it."""
    name = f"{getattr(model, '__module__', '')}:{getattr(model, '__qualname__', '')}"
    if name.startswith("__main__:") or not is_reference(name):
        expected = "the name of a model, or a class or function defined in a file that other processes can import"
        raise bad_value("model", model, f"{expected}, such as build in nets.py (model=nets.build)")
    return name


def _print(text: str) -> None:
    print(printable_lines(text), flush=True)


def _silent(text: str) -> None:
    pass
