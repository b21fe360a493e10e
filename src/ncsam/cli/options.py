"""Options on the command line: kinds of values, paths, and the options made from the fields of `RunConfig`.

Each option of `train` and `compare` is written once, as a field of `RunConfig`. Paths are checked before any work.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shlex
import stat
import sys
import types
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click

from ncsam._arguments import is_reference, require_explicit_import
from ncsam._errors import need
from ncsam.cli.main import BriefCommand, known, shows_all
from ncsam.engine.config import RunConfig
from ncsam.engine.config_options import read_preset, read_yaml
from ncsam.runs import layout

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]  # generic for the type checker, and in newer versions of click only
else:
    _ParamType = click.ParamType

_Command = TypeVar("_Command", bound=Callable[..., Any])
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
_METAVARS = {int: "INT", float: "NUMBER", bool: "BOOL", str: "TEXT"}


class Scalar(_ParamType):
    """Text as one of the words or types that a field allows, whole numbers before fractions before any text."""

    name = "value"

    def __init__(self, kinds: tuple[Any, ...]) -> None:
        self.named = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
        self.kinds = [kind for kind in kinds if get_origin(kind) is not Literal]
        metavars = [_METAVARS[kind] for kind in (int, float, str, bool) if kind in kinds]
        self.metavar = "|".join(metavars + self.named)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or value in self.named:
            return value
        if type(None) in self.kinds and value.lower() in ("null", "none"):
            return None
        if bool in self.kinds and value.lower() in ("true", "false"):
            return value.lower() == "true"
        for kind in (int, float, str):
            if kind in self.kinds:
                try:
                    return kind(value)
                except ValueError:
                    continue
        allowed = [_WORDS[kind] for kind in self.kinds] + self.named
        return self.fail(f"{value!r} is not {' or '.join(allowed)}", param, ctx)


class Settings(_ParamType):
    """`KEY=VALUE`, or several with commas between them; values are read as YAML: numbers, words, true, null, [1, 2]."""

    name = "KEY=VALUE,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        if not isinstance(value, str):
            return dict(value)
        yaml = need("yaml", "train", "reading an option")
        found: dict[str, Any] = {}
        for each in re.split(r",(?=\w+=)", value):  # other commas belong to values
            key, equals, text = each.partition("=")
            if not key or not equals:
                self.fail(f"{each!r} is not KEY=VALUE", param, ctx)
            try:
                found[key] = yaml.safe_load(text)
            except (yaml.YAMLError, ValueError, RecursionError):
                found[key] = text
        return found


def settings_option(flag: str, **settings: Any) -> Callable[[_Command], _Command]:
    """An option that takes `Settings`, may be given more than once, and becomes one dictionary."""

    def joined(ctx: click.Context, param: click.Parameter, given: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {key: value for each in given for key, value in each.items()}

    return click.option(flag, type=Settings(), multiple=True, callback=joined, **settings)


class Listed(_ParamType):
    """Names with commas between them."""

    name = "NAME,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else list(value)


class Seeds(_ParamType):
    """A count, meaning seeds 1 to that, or the seeds themselves with commas between them."""

    name = "COUNT|SEED,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | list[int]:
        if not isinstance(value, str):
            return int(value)
        try:
            return [int(part) for part in value.split(",")] if "," in value else int(value)
        except ValueError:
            return self.fail(f"{value!r} is neither a count nor a list of seeds such as 1,2,3", param, ctx)


class Readable(click.Path):
    """An ordinary file, or a folder. Anything else would be waited for, as a pipe is."""

    def __init__(self, *, folders: bool = False, exists: bool = True) -> None:
        super().__init__(exists=exists, dir_okay=folders, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if path.exists() and not path.is_file() and not path.is_dir():
            self.fail(f"{str(path)!r} is not a regular file.", param, ctx)
        return path


class RunPath(click.Path):
    """The folder of a run."""

    name = "run"

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if path.is_file():
            here = shlex.quote(str(path))
            self.fail(
                f"{str(path)!r} is a file; expected the folder of a run, which `ncsam train {here}` writes.", param, ctx
            )
        if not path.is_dir():
            self.fail(f"there is no run folder {str(path)!r}; `ncsam train DATA --out {path}` writes one.", param, ctx)
        return path


class Written(click.Path):
    """A file or folder to write: one that is not there, or an ordinary one. A device or a pipe would be replaced."""

    def __init__(self, *, folder: bool = False) -> None:
        super().__init__(file_okay=not folder, dir_okay=folder, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if not str(value).strip():
            self.fail(f"{value!r} is not the name of a {self.name}.", param, ctx)
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        try:
            kind = stat.S_IFMT(os.stat(path).st_mode)
            if kind != (stat.S_IFDIR if self.dir_okay else stat.S_IFREG):
                self.fail(f"{str(path)!r} is not a regular {self.name}.", param, ctx)
        except FileNotFoundError:
            self._check_parent(path, param, ctx)
        except OSError as error:  # a name too long, a folder on the way that is a file, links in a circle
            self.fail(f"{str(path)!r} cannot be written: {error.strerror}.", param, ctx)
        return path

    def _check_parent(self, path: Path, param: click.Parameter | None, ctx: click.Context | None) -> None:
        parent = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            self.fail(f"{str(path)!r} cannot be written: {str(parent)!r} is not a writable folder.", param, ctx)


def files_of(run: Path) -> list[str | Path]:
    """What a run is made of: its data, and what training and reviewing wrote."""
    from ncsam.runs.reader import RunFolder

    data = []
    with contextlib.suppress(ValueError, OSError):  # what is wrong with it is said by what needs it
        data = [str(RunFolder.read(run).config.get("data"))]
    return [*data, *(run / name for name in layout.FILES)]


def keep(read: Iterable[str | os.PathLike[str]], *written: Path | None) -> None:
    """Refuse to write over what the command reads."""
    there = [path for path in read if os.path.exists(path)]
    for out in written:
        if out is not None and out.exists() and any(os.path.samefile(out, path) for path in there):
            raise click.UsageError(
                f"{str(out)!r} is an input of this command and would be overwritten: choose another output."
            )


#: The first field of each section of `--help`; those that follow it belong to the same one.
SECTIONS = {
    "data_root": "Data and labels",
    "method": "Method and optimizer",
    "model": "Model",
    "epochs": "Training",
    "precision": "Machine",
    "telemetry_every": "Logging",
}


#: The fields that `--help` shows; `--help-all` shows the others, too.
USUAL = frozenset(
    {"noise", "rate", "label_file", "label_column", "method", "optimizer", "lr", "rho", "model", "backbone", "epochs"}
    | {"batch_size", "seed"}
)


class ConfigCommand(BriefCommand):
    """A command whose full help shows its options under headings, those of the run after its own."""

    def is_shown(self, ctx: click.Context, param: click.Parameter) -> bool:
        if isinstance(param, ConfigOption) and param.name not in USUAL:
            return False
        return super().is_shown(ctx, param)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if not shows_all(ctx):
            super().format_options(ctx, formatter)
            return
        starts = dict(SECTIONS)
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        heading = "Options"
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if isinstance(param, ConfigOption):
                heading = starts.get(str(param.name), heading)
            where = heading if isinstance(param, ConfigOption) else "Options"
            if record is not None and not isinstance(param, click.Argument):  # which the usage line shows
                sections.setdefault(where, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class ConfigOption(click.Option):
    """An option that is a field of `RunConfig`; its default is the configuration's business, not the command's."""


def config_options(*, leave_out: Collection[str] = ()) -> Callable[[_Command], _Command]:
    """A decorator that adds `DATA`, `--config`, `--preset` and an option for each field of `RunConfig`."""

    def add(command: _Command) -> _Command:
        for field in reversed(dataclasses.fields(RunConfig)):
            if field.name not in ("data", *leave_out):
                command = _option(field)(command)
        command = click.option(
            "--preset", metavar="NAME", shell_complete=known("preset"), help="start from a preset (see `ncsam presets`)"
        )(command)
        command = click.option(
            "--config",
            type=Readable(exists=False),  # its absence is said where it is read
            help="start from a YAML file; such as the config.yaml of a run",
        )(command)
        return click.argument("data", required=False, shell_complete=_data_or_path)(command)

    return add


def model_option(command: _Command) -> _Command:
    """`--model`, for commands that use the network of a run which may be someone else's."""
    about = "allow RUN's own model, module:factory, to be imported and called"
    return click.option("--model", metavar="NAME", help=about, callback=_importable)(command)


def method_option(command: _Command) -> _Command:
    """`--method`, likewise."""
    about = "allow RUN's own method, module:Name, to be imported and called"
    return click.option("--method", metavar="NAME", help=about, callback=_importable)(command)


def data_option(command: _Command) -> _Command:
    """`--data`, likewise."""
    about = "allow RUN's own data, module:function, to be imported and called"
    return click.option("--data", metavar="NAME", help=about, callback=_importable)(command)


def _importable(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if is_reference(value):
        make_folder_importable()
    return value


def resolve(ctx: click.Context, *, names_code: bool = False) -> RunConfig:
    """The preset, over it the file, over that the options that were given.

    If one of these is a `module:Name`, or `names_code` says that the command has others, the current folder becomes
    importable.
    """
    params = ctx.params
    options: dict[str, Any] = {}
    if params.get("preset"):
        options |= read_preset(params["preset"])
    if params.get("config"):
        options |= read_yaml(params["config"])
    if params.get("data") is not None:
        options["data"] = params["data"]
    if "data" not in options:
        raise click.UsageError("Missing argument 'DATA': a name, a folder, a table or an .npz file.", ctx)
    read = dict(options)
    given: dict[str, Any] = {} if params.get("data") is None else {"data": params["data"]}
    for param in ctx.command.params:
        name = str(param.name)
        if isinstance(param, ConfigOption) and ctx.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE:
            given[name] = params[name]
            options[name] = {**(options.get(name) or {}), **params[name]} if param.multiple else params[name]
    if params.get("config"):
        require_explicit_import(str(params["config"]), options, given)
    if names_code or any(is_reference(value) for value in given.values()):
        make_folder_importable()
    compared = {name: params.get(f"{name}s") or [] for name in ("method", "optimizer")}
    _drop_options_of_another(read, given, options, compared)
    return RunConfig.from_dict(options)


def make_folder_importable() -> None:
    """Let `module:Name` be a file of the current folder, here and in processes to come; the user has named it."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))


#: What has options of its own, and the default of each.
_WITH_OPTIONS = {
    field.name: field.default
    for field in dataclasses.fields(RunConfig)
    if field.name in ("noise", "method", "optimizer", "model")
}


def _drop_options_of_another(
    read: dict[str, Any], given: dict[str, Any], options: dict[str, Any], compared: dict[str, list[str]]
) -> None:
    """Options that a preset or file has for its own model or noise are not for another; it is said that they go.

    Args:
        read: What the preset and the file have.
        given: What the command line has.
        options: Both together, changed here.
        compared: The specs of the methods and optimizers that are compared.
    """
    for name, default in _WITH_OPTIONS.items():
        kept, before = f"{name}_options", read.get(name, default)
        old, own = read.get(kept) or {}, given.get(kept) or {}
        chosen = [given[name]] if name in given else [spec.partition(":")[0] for spec in compared.get(name, ())]
        if any(each != before for each in chosen) and old.keys() - own.keys():
            options[kept] = own
            gone = ", ".join(f"{option}={value}" for option, value in old.items() if option not in own)
            switch = f"--{name}" if name in given else f"--{name}s"
            click.echo(f"{switch} {','.join(map(str, chosen))}: {gone} of {before} left out", err=True)


def _option(field: dataclasses.Field[Any]) -> Callable[[_Command], _Command]:
    flag = "--" + field.name.replace("_", "-")
    hint = get_type_hints(RunConfig)[field.name]
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    about = field.metadata["help"]
    default = None if field.default is dataclasses.MISSING else field.default
    if kinds == (bool,):
        return click.option(f"{flag}/--no-{flag[2:]}", field.name, cls=ConfigOption, default=default, help=about)
    settings: dict[str, Any] = {"cls": ConfigOption, "help": about, "shell_complete": known(field.name)}
    if get_origin(hint) is dict:
        return settings_option(flag, **settings)
    if get_origin(hint) is list:
        return click.option(flag, field.name, type=Listed(), **settings)
    if default is not None:
        settings["help"] += f" [{default}]"
    kind = Scalar(kinds)
    return click.option(flag, field.name, type=kind, metavar=kind.metavar, default=default, **settings)


def _data_or_path(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    return [*known("data")(ctx, param, incomplete), CompletionItem(incomplete, type="file")]


def default_out(config: RunConfig, *, comparison: bool = False) -> Path:
    """A folder under `runs/` that says what runs in it: data, noise and, for one run, method, optimizer and seed.

    Where the recommended classifier may be fitted, method and optimizer are not named, because it has neither.
    """
    noise = f"{config.noise}{config.rate:g}" if config.noise and config.rate is not None else config.noise
    parts = [
        Path(config.data).stem,
        noise,
        *([] if comparison or config.leaves_training_open else [config.method, config.optimizer]),
        *([] if comparison else [f"s{config.seed}"]),
    ]
    return Path("runs") / "-".join(["compare"] * comparison + [part for part in parts if part])


def resolved_by_data(config: RunConfig, runs: Sequence[RunConfig]) -> RunConfig | None:
    """The configuration with "auto" resolved by the data; `None` if the data is still to be downloaded.

    Mistakes in it, and in the options of the runs that it is for, are reported now.
    """
    from ncsam.engine import resolve as resolution
    from ncsam.engine.learner import check_network
    from ncsam.engine.optimizers import check_options
    from ncsam.engine.task import load_task

    try:
        task = load_task(config.replace(download=False))
    except FileNotFoundError:
        if not config.download:
            raise
        return None
    for run in runs:
        whole = resolution.resolve(run, task)
        check_options(whole)
        check_network(whole, task.dataset.num_classes, task.modality.in_channels)
    return resolution.resolve(config, task).replace(download=config.download)


def echo_config(config: RunConfig, runs: Sequence[RunConfig]) -> None:
    """The configuration as YAML, "auto" resolved where the data is available."""
    found = resolved_by_data(config, runs)
    if found is None:
        click.echo(f"# {config.data} is not here yet and would be downloaded")
    config = found or config
    yaml = need("yaml", "train", "printing a configuration")
    click.echo(yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True), nl=False)
