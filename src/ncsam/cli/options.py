"""The options of `train` and `compare`, made from the fields of `RunConfig`: each is written once, there."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import click
import yaml

from ncsam.cli.complete import known
from ncsam.engine.config import RunConfig, read_preset, read_yaml

#: The first field of each section of `--help`; those that follow it belong to the same one.
SECTIONS = {
    "data_root": "Data and labels",
    "method": "Method and optimizer",
    "model": "Network",
    "epochs": "Training",
    "precision": "Machine",
    "telemetry_every": "Watching",
}
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
_METAVARS = {int: "INT", float: "NUMBER", bool: "BOOL", str: "TEXT"}
_Command = TypeVar("_Command", bound=Callable[..., Any])


class Scalar(click.ParamType):
    """Text as one of the types that a field allows, whole numbers before fractions before words."""

    name = "value"

    def __init__(self, kinds: tuple[type, ...]) -> None:
        self.kinds = kinds

    def get_metavar(self, param: click.Parameter, *_: Any) -> str:
        return "|".join(_METAVARS[kind] for kind in (int, float, str, bool) if kind in self.kinds)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
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
        return self.fail(f"{value!r} is not {' or '.join(_WORDS[kind] for kind in self.kinds)}", param, ctx)


class Pair(click.ParamType):
    """`KEY=VALUE`, the value read as YAML: numbers, words, true, null, [1, 2]."""

    name = "KEY=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        if isinstance(value, tuple):
            return value
        key, equals, text = value.partition("=")
        if not key or not equals:
            self.fail(f"{value!r} is not KEY=VALUE", param, ctx)
        try:
            return key, yaml.safe_load(text)
        except yaml.YAMLError:
            return key, text


class Listed(click.ParamType):
    """Names with commas between them."""

    name = "NAME,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else list(value)


class ConfigCommand(click.Command):
    """A command whose help shows its options under headings, those of the run after its own."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        starts = dict(SECTIONS)
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        heading = "Options"
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if isinstance(param, ConfigOption):
                heading = starts.get(str(param.name), heading)
            where = heading if isinstance(param, ConfigOption) else "Options"
            if record is not None:
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
            type=click.Path(dir_okay=False, path_type=Path),
            help="start from a YAML file, such as the config.yaml of a run",
        )(command)
        return click.argument("data", required=False, shell_complete=_data_or_path)(command)

    return add


def resolve(ctx: click.Context) -> RunConfig:
    """The preset, over it the file, over that the options that were given."""
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
    for param in ctx.command.params:
        name = str(param.name)
        if isinstance(param, ConfigOption) and ctx.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE:
            options[name] = {**(options.get(name) or {}), **dict(params[name])} if param.multiple else params[name]
    return RunConfig.from_dict(options)


def _option(field: dataclasses.Field[Any]) -> Callable[[_Command], _Command]:
    flag = "--" + field.name.replace("_", "-")
    hint = get_type_hints(RunConfig)[field.name]
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    about = field.metadata["help"]
    default = field.default_factory() if field.default is dataclasses.MISSING else field.default  # type: ignore[misc]
    if kinds == (bool,):
        return click.option(f"{flag}/--no-{flag[2:]}", field.name, cls=ConfigOption, default=default, help=about)
    settings: dict[str, Any] = {"cls": ConfigOption, "help": about, "shell_complete": known(field.name)}
    if get_origin(hint) is dict:
        return click.option(flag, field.name, type=Pair(), multiple=True, **settings)
    if get_origin(hint) is list:
        return click.option(flag, field.name, type=Listed(), **settings)
    if default is not None:
        settings["help"] += f" [{default}]"
    return click.option(flag, field.name, type=Scalar(kinds), default=default, **settings)


def _data_or_path(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    return [*known("data")(ctx, param, incomplete), CompletionItem(incomplete, type="file")]


def default_out(config: RunConfig, *, comparison: bool = False) -> Path:
    """A folder under `runs/` that says what runs in it: data, noise and, for one run, method, optimizer and seed."""
    noise = f"{config.noise}{config.rate:g}" if config.noise and config.rate is not None else config.noise
    parts = [
        Path(config.data).stem,
        noise,
        *([] if comparison else [config.method, config.optimizer, f"s{config.seed}"]),
    ]
    return Path("runs") / "-".join(["compare"] * comparison + [part for part in parts if part])


def echo_config(config: RunConfig) -> None:
    """The configuration as YAML, "auto" settled by the data where that is at hand."""
    from ncsam.engine.task import load_task, settled

    try:
        config = settled(config, load_task(config.replace(download=False))).replace(download=config.download)
    except FileNotFoundError:
        if not config.download:
            raise
        click.echo(f"# {config.data} is not here yet and would be downloaded")
    click.echo(yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True), nl=False)
