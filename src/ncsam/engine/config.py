"""The configuration of a run: what the user asked for (`RunConfig`), and its values for given data."""

# ruff: noqa: RUF009 - `_option` returns a dataclass field

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from ncsam._checks import below_one, count, number, ratio
from ncsam._errors import bad_value, need, unknown_name
from ncsam._files import atomic_path, parse_yaml, read_text
from ncsam._named import find_named, is_reference, require_explicit_import
from ncsam._options import coerce
from ncsam._version import __version__
from ncsam.engine import recipes
from ncsam.errors import UsageError
from ncsam.issues.folds import parse_fold

#: Base optimizers and their default learning rates.
BASES = {"sgd": 0.05, "adamw": 0.001}
AUGMENTATIONS = ("auto", "none", "standard", "paper", "strong")
SCHEDULES = ("auto", "cosine", "linear", "constant", "steps")
LOGGERS = ("tensorboard", "wandb", "mlflow")
#: Fabric's names.
ACCELERATORS = ("auto", "cpu", "cuda", "gpu", "mps", "tpu")
PRECISIONS = (
    *("32-true", "bf16-mixed", "16-mixed", "64-true", "bf16-true", "16-true", "32", "64", "16", "bf16"),
    *("transformer-engine", "transformer-engine-float16"),
)
#: `data` of a run on data, and `model` of a run on a model, that were passed as Python objects.
IN_MEMORY = "<in memory>"

#: Options that may change when a run is resumed: they affect where and how fast it runs, never its result.
NEUTRAL = frozenset({"data_root", "download", "workers", "loggers", "checkpoint_every"})
_MOST, _LARGEST = 10**9, 1e30  # of counts, and of numbers that are multiplied in float32
_DEVICES = re.compile(r"auto|\d+(,\d+)*,?")
_WITH_COLUMNS = (".npz", ".csv", ".tsv", ".parquet")
_ABOUT_THE_FILE = ("version", "command")  # written next to the options for the reader, and ignored when read
#: What leaves an option to `resolve`: it agrees with any value that a saved run has.
_OPEN: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("model", "backbone", "augment", "rho_target", "lr", "weight_decay", "epochs"), ("auto",)),
    **dict.fromkeys(("base", "schedule", "lr_warmup", "clip_norm", "layer_decay", "precision"), ("auto",)),
    **dict.fromkeys(("head_init", "interpolation"), ("auto",)),
    **dict.fromkeys(("rho", "kappa", "flip_ratio", "warmup", "max_length"), (None,)),
    "batch_size": ("auto", None),
}
#: As `model`: the default network, trained by gradient steps, whatever else is left open.
NETWORK = "network"
_Config = TypeVar("_Config", bound="RunConfig")
Check = Callable[[str, Any], object]


# --- checks of single options: each raises a `UsageError`; None and words such as "auto" do not reach them


def _one_of(known: Sequence[str], kind: str | None = None) -> Check:
    def check(name: str, value: str) -> None:
        if value not in known:
            raise unknown_name(kind or name, value, known)

    return check


def _named_or_own(known: Callable[[], Sequence[str]]) -> Check:
    """One of some names, or `module:Name`."""
    return lambda name, value: None if is_reference(value) else _one_of(known())(name, value)


def _each(check: Check) -> Check:
    return lambda name, values: [check(name, value) for value in values]


def _without(*taken: str) -> Check:
    """Options of a reader, model or method, except those that the run itself passes."""

    def check(name: str, options: Mapping[str, Any]) -> None:
        for option in taken:
            if option in options:
                raise bad_value(name, options, f"options other than {option!r}, which the run itself passes")

    return check


def _devices(name: str, value: int | str) -> None:
    if not (value >= 1 if isinstance(value, int) else _DEVICES.fullmatch(value)):
        raise bad_value(name, value, "a number of devices from 1, auto, or device numbers such as 0,1")


_from_one = partial(count, least=1, most=_MOST)
_from_zero = partial(count, most=_MOST)
_size = partial(number, allowed=f"a number from 0 to {_LARGEST:g}", fine=lambda v: 0 <= v <= _LARGEST)
_target = partial(number, allowed="a number above 0 and below 5", fine=lambda v: 0 < v < 5)


def _option(default: Any, about: str, check: Check | None = None) -> Any:
    """A field with the sentence that `--help` shows for it and the check of its values."""
    metadata = {"help": about, "check": check}
    if isinstance(default, (dict, list)):
        return field(default_factory=type(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run, as the user asks for it.

    The defaults are the recommended setting: cross-entropy and SAM with a validation-guided radius. `None` and "auto"
    leave an option to the data; `ncsam.engine.resolve.resolve` turns them into values. `RunConfig.describe()` lists
    all options with a sentence each, and `replace` returns a changed copy.

    Args:
        data: Name of a dataset, or path of a folder, table, `.npz` or `.tar` file.
        noise: Recipe that corrupts the training labels, with its `rate`.
        method: Learning method, one of `ncsam.methods.names()` or "module:Name".
        optimizer: "sam", "ncsam" or another sharpness-aware optimizer; "sgd" or "adamw" for a base optimizer alone.
        model: Name of a model, or "auto".
        epochs: Number of passes over the training split, or "auto".
        seed: Seed of initialization, order, augmentation and draws.

    The other arguments are described by `RunConfig.describe()`.

    Raises:
        UsageError: An option is invalid.

    Examples:
        >>> config = RunConfig(data="digits", noise="symmetric", rate=0.4, optimizer="ncsam")
        >>> config.replace(optimizer="sgd").sharpness_aware
        False
    """

    # data and labels
    data: str = _option("digits", "name of a dataset, or your folder, .csv, .tsv, .parquet, .npz or .tar file")
    data_root: str | None = _option(None, "folder of a named dataset")
    data_options: dict[str, Any] = _option(
        {}, "options of the dataset's reader", _without("source", "root", "download")
    )
    skip_damaged: bool = _option(False, "decode every image file first and leave out those that cannot be read")
    download: bool = _option(False, "download a named dataset if it is missing")
    noise: str | None = _option(None, "recipe that corrupts the training labels: symmetric, pairflip, instance, ...")
    rate: float | None = _option(None, "noise rate of the recipe; without a recipe, the rate you assume", ratio)
    noise_seed: int | None = _option(0, "seed of the corruption; null: the value of `seed`", count)
    noise_options: dict[str, Any] = _option({}, "further options of the recipe")
    label_file: str | None = _option(None, "published file of noisy labels for the training split")
    label_column: str | None = _option(None, "label column of the label file or table, or label array of the .npz")
    val_share: float = _option(
        0.1, "share of the training split held out, with its noisy labels, for validation", below_one
    )
    fold: str | None = _option(
        None, "hold out this part of the training split instead: 2/5 is the second of five", lambda _, v: parse_fold(v)
    )
    # method and optimizer
    method: str = _option("ce", "learning method, or module:Name for your own class")
    method_options: dict[str, Any] = _option({}, "options of the method", _without("name"))
    optimizer: str = _option(
        "auto",
        "sam, ncsam, asam, bsam, friendlysam, saner; or sgd or adamw alone; or module:Name; auto: adamw for "
        "transformers:NAME, otherwise sam",
        _named_or_own(lambda: ["auto", *optimizer_names()]),
    )
    base: str = _option(
        "auto",
        "optimizer inside a sharpness-aware one: sgd, adamw or module:Name; auto: adamw for transformers and ConvNeXt, "
        "otherwise sgd",
        _named_or_own(lambda: ["auto", *BASES]),
    )
    lr: float | Literal["auto"] | None = _option(
        "auto",
        "initial learning rate; null: .05, for adamw .001; auto: a quarter of that for mlps and pretrained models, by "
        "the model's size for pretrained transformers",
        _size,
    )
    momentum: float = _option(0.9, "momentum of sgd", below_one)
    weight_decay: float | Literal["auto"] = _option(
        "auto",
        "weight decay of the base optimizer, with adamw not of biases and norms; auto: .001, for mlps .005, on a "
        "frozen backbone .3, for pretrained transformers .01",
        _size,
    )
    rho: float | Literal["auto", "validation"] | None = _option(
        "validation",
        "radius of the perturbation; null: the optimizer's default, .05 for most; auto: adapted to its effect on the "
        "loss; validation: also to the loss on validation samples",
        _size,
    )
    rho_target: float | Literal["auto"] = _option(
        "auto",
        "target relative loss increase of an adaptive radius; auto: .5, for mlps .4, next to augmentation or most "
        "methods .1",
        _target,
    )
    kappa: float | None = _option(
        None, "maximum strength of NCSAM's compensation; null: the optimizer's default, .1 for ncsam", _size
    )
    flip_ratio: float | Literal["auto"] | None = _option(
        None,
        "share of a batch that NCSAM flips; null: the noise rate, at most .4; auto: estimated after warm-up",
        ratio,
    )
    warmup: float | Literal["auto"] | None = _option(
        None,
        "share of epochs trained by the base optimizer; null: .25 for ncsam, and for methods that need a warm-up with "
        "an adaptive radius, otherwise 0; auto: until labels are memorized",
        ratio,
    )
    optimizer_options: dict[str, Any] = _option({}, "further options of the optimizer")
    schedule: str = _option(
        "auto",
        "learning-rate schedule: cosine (to 0), linear (to 0), constant, steps; auto: linear for pretrained "
        "transformers, otherwise cosine",
        _one_of(SCHEDULES),
    )
    schedule_options: dict[str, Any] = _option({}, "for steps: milestones (shares of training), gamma")
    lr_warmup: float | Literal["auto"] = _option(
        "auto",
        "share of training in which the learning rate rises linearly from 0; auto: .1 for pretrained transformers, "
        "otherwise 0",
        below_one,
    )
    clip_norm: float | Literal["auto"] | None = _option(
        "auto",
        "largest norm of the gradient; null: no limit; auto: 1 for pretrained transformers, else no limit",
        _size,
    )
    # model
    model: str = _option(
        "auto",
        "name of a model; auto: the recommended classifier for features and tables, fitted in seconds, unless another "
        "option asks for training; transformers:NAME_OR_FOLDER, timm:NAME, torchvision:NAME; network: mlp for "
        "features and up to 16 pixels, text_mean, resnet18",
    )
    backbone: str = _option(
        "auto",
        "pretrained encoder whose frozen features are classified: lite0, minilm, wordllama, timm:NAME, ...; none; "
        "auto: the one for photos or texts on this machine, unless another option asks for training",
    )
    model_options: dict[str, Any] = _option(
        {}, "options of the model", _without("name", "num_classes", "in_channels", "pretrained")
    )
    pretrained: bool | str = _option(False, "true for published weights, or their name, or a file")
    freeze: list[str] = _option(
        [], "parts that are not trained, by prefixes of their names; backbone: all but the head"
    )
    head_lr: float | None = _option(None, "learning rate of the head; null: lr", _size)
    layer_decay: float | Literal["auto"] = _option(
        "auto",
        "factor of the learning rate from each layer to the one below; auto: .75 for pretrained models of timm and "
        "torchvision, otherwise 1",
        ratio,
    )
    head_init: Literal["auto", "random", "lda"] = _option(
        "auto",
        "random, or lda: the head starts as discriminant analysis of the pretrained features; auto: lda for pretrained "
        "transformers, otherwise random",
    )
    interpolation: float | Literal["auto"] = _option(
        "auto",
        "share of the trained weights in the model that is kept, the rest being those before training; auto: .5 for "
        "pretrained transformers, otherwise 1",
        partial(number, allowed="a number above 0 and at most 1", fine=lambda share: 0 < share <= 1),
    )
    lora: int | None = _option(
        None, "rank of low-rank updates trained in the place of a transformer's weights", _from_one
    )
    max_length: int | None = _option(
        None, "tokens of a text that a model reads; null: 256, or as many as a transformer can read", _from_one
    )
    # training
    epochs: int | Literal["auto"] = _option(
        "auto",
        "passes over the training split; auto: 60, for mlps 30 and at least 800 steps, for pretrained transformers 3",
        _from_one,
    )
    patience: int | None = _option(
        None,
        "stop after so many epochs without a higher accuracy on validation labels, and restore the best weights; null: "
        "train to the end and keep the last",
        _from_one,
    )
    batch_size: int | Literal["auto"] | None = _option(
        "auto",
        "samples per step, over all devices; auto: 128, for pretrained transformers 32; null: 128, or 32 below 5,000 "
        "samples",
        _from_one,
    )
    batches: Literal["equal", "full"] = _option(
        "equal", "equal: batch sizes of an epoch differ by at most one; full: all are full except a short last one"
    )
    augment: str = _option(
        "auto",
        "none, standard (crop, flip), paper (plus Cutout); auto: standard for color images",
        _one_of(AUGMENTATIONS),
    )
    seed: int = _option(1, "seed of initialization, order, augmentation and draws", count)
    # hardware
    precision: str = _option(
        "auto",
        "Fabric's name: 32-true, bf16-mixed, 16-mixed, 64-true; auto: bf16-mixed for convolutional networks and "
        "transformers on hardware with bf16 arithmetic, otherwise 32-true",
        _one_of(("auto", *PRECISIONS)),
    )
    devices: int | str = _option(1, "number of devices per node, or auto", _devices)
    accelerator: str = _option("auto", "Fabric's name: auto, cpu, cuda, mps", _one_of(ACCELERATORS))
    strategy: str = _option("auto", "Fabric's name: auto, ddp, ddp_spawn, ...")
    num_nodes: int = _option(1, "number of nodes", _from_one)
    compile: bool = _option(False, "compile the model with torch.compile")
    workers: int = _option(0, "processes that decode image files", partial(count, most=1024))
    # logging
    telemetry_every: int = _option(25, "measure the optimizer's telemetry every N steps; 0: never", _from_zero)
    evaluate_train_every: int | None = _option(
        1, "evaluate the training split every N epochs and after the last one; null: never", _from_one
    )
    loggers: list[str] = _option([], "also log to tensorboard, wandb or mlflow", _each(_one_of(LOGGERS, "logger")))
    checkpoint_every: int | None = _option(None, "also checkpoint every N steps; null: after epochs only", _from_one)

    def __post_init__(self) -> None:
        kind: Any = type(self)
        if self.optimizer == "auto":
            transformer = isinstance(self.model, str) and self.model.startswith("transformers:")
            chosen = recipes.TRANSFORMER_OPTIMIZER if transformer else recipes.OPTIMIZER
            object.__setattr__(self, "optimizer", chosen.value)
        for name, hint in _hints(kind).items():
            value = coerce(name, getattr(self, name), hint)
            object.__setattr__(self, name, value)
            check = _checks()[name]
            if check is not None and value is not None and value not in _words(hint):
                check(name, value)
        if self.noise is not None and self.label_file is not None:
            raise bad_value("label_file", self.label_file, f"null, because noise={self.noise!r} makes the labels")
        if self.label_column is not None and self.label_file is None and not self.data.endswith(_WITH_COLUMNS):
            allowed = f"null, or a label_file, or data in a file that ends in {', '.join(_WITH_COLUMNS)}"
            raise bad_value("label_column", self.label_column, allowed)

    @property
    def sharpness_aware(self) -> bool:
        """Whether the optimizer is a sharpness-aware one around a base optimizer."""
        return self.optimizer not in BASES

    @property
    def leaves_training_open(self) -> bool:
        """Whether no option asks for a certain model or way of training; the recommended classifier is then fitted."""
        return all(getattr(self, name) == _defaults()[name] for name in TRAINING)

    @property
    def uses_validation(self) -> bool:
        """Whether validation samples influence training."""
        return self.sharpness_aware and (self.rho == "validation" or self.warmup == "auto")

    # --- reading and writing

    @classmethod
    def from_dict(cls: type[_Config], options: Mapping[str, Any]) -> _Config:
        """Build a configuration from plain values.

        Raises:
            UsageError: A name is unknown (the nearest names are suggested) or a value invalid.
        """
        return cls(**_known(options))

    @classmethod
    def from_yaml(cls: type[_Config], path: str | os.PathLike[str], **overrides: Any) -> _Config:
        """Read a file such as the `config.yaml` of a run.

        Args:
            path: The file.
            **overrides: Options that replace those of the file. Code from elsewhere (`module:Name`) must be among
                them: a file does not decide what code runs.
        """
        options = {**read_yaml(Path(path)), **overrides}
        require_explicit_import(str(path), options, overrides)
        return cls.from_dict(options)

    @classmethod
    def from_preset(cls: type[_Config], name: str, **overrides: Any) -> _Config:
        """Read one of `preset_names()`; `overrides` replace its options."""
        return cls.from_dict({**read_preset(name), **overrides})

    def replace(self: _Config, **changes: Any) -> _Config:
        """Return a copy with some options changed."""
        return dataclasses.replace(self, **_known(changes))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, in the order of the fields."""
        return dataclasses.asdict(self)

    def save(self, path: str | os.PathLike[str], command: str | None = None) -> None:
        """Write YAML that `from_yaml` reads, with the version and the command that wrote it."""
        yaml = need("yaml", "train", "saving a configuration")
        about = {"version": __version__, **({} if command is None else {"command": command})}
        with atomic_path(path) as temporary:
            text = yaml.safe_dump({**about, **self.to_dict()}, sort_keys=False, allow_unicode=True)
            temporary.write_text(text, encoding="utf-8")

    def conflicts(self, saved: RunConfig) -> dict[str, tuple[Any, Any]]:
        """Options that would change the result of a saved run, by name: (saved, wanted).

        An option that is left to the data here agrees with whatever value it has there.
        """
        wanted, there = self.to_dict(), saved.to_dict()
        for config, options in ((self, wanted), (saved, there)):
            base = config.base if config.sharpness_aware else config.optimizer
            base = saved.base if base == "auto" else base
            options["base"] = base
            if config.lr is None and (base == self.base or not is_reference(base)):
                options["lr"] = default_lr(base)  # independent of the data; a foreign base is not called
        for name, unresolved in _OPEN.items():
            if wanted[name] in unresolved or (name == "model" and wanted[name] == NETWORK):
                wanted[name] = there[name]
        wanted["model_options"] = {**there["model_options"], **wanted["model_options"]}
        return {n: (there[n], wanted[n]) for n in wanted if n not in NEUTRAL and wanted[n] != there[n]}

    @classmethod
    def describe(cls) -> dict[str, str]:
        """Each option's name and meaning."""
        return {f.name: f.metadata["help"] for f in dataclasses.fields(RunConfig)}


@dataclass(frozen=True, kw_only=True)
class ResolvedConfig(RunConfig):
    """A configuration for given data: all values are concrete. `ncsam.engine.resolve.resolve` makes it.

    `rho` as a word is a rule that adapts the radius; "auto" as `warmup` or `flip_ratio` is decided during training.
    """

    lr: float
    weight_decay: float
    rho_target: float
    kappa: float
    epochs: int
    batch_size: int
    warmup: float | Literal["auto"]
    lr_warmup: float
    clip_norm: float | None
    layer_decay: float
    head_init: Literal["random", "lda"]
    interpolation: float

    @property
    def warmup_epochs(self) -> int:
        """Whole epochs of warm-up, rounded; for "auto" the largest possible number."""
        return self.epochs if self.warmup == "auto" else round(self.warmup * self.epochs)


#: Options of which any other value than the default asks for a model that is trained by gradient steps.
TRAINING = (
    *("method", "method_options", "optimizer", "base", "lr", "momentum", "weight_decay", "rho", "rho_target", "kappa"),
    *("flip_ratio", "warmup", "optimizer_options", "schedule", "schedule_options", "lr_warmup", "clip_norm"),
    *("model", "model_options", "layer_decay", "lora", "patience", "head_init", "interpolation"),
    *("pretrained", "freeze", "head_lr", "epochs", "batch_size", "batches", "augment", "compile", "loggers"),
    *("checkpoint_every", "evaluate_train_every", "devices", "num_nodes", "strategy"),
)


def default_lr(base: str) -> float:
    """The default learning rate of a base optimizer; for your own the default of its `lr`, otherwise that of SGD."""
    if not is_reference(base):
        return BASES[base]
    lr = inspect.signature(find_named("base", base)).parameters.get("lr")
    return float(lr.default) if lr is not None and isinstance(lr.default, (int, float)) else BASES["sgd"]


def preset_names() -> list[str]:
    """The names of the presets, sorted."""
    files = resources.files("ncsam.presets").iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def preset_text(name: str) -> str:
    """The text of a preset file, with the comments that name its source and what is unknown."""
    if name not in preset_names():
        raise unknown_name("preset", name, preset_names())
    return (resources.files("ncsam.presets") / f"{name}.yaml").read_text(encoding="utf-8")


def read_preset(name: str) -> dict[str, Any]:
    """The options of a preset."""
    return _mapping(preset_text(name), f"preset {name}")


def read_yaml(path: Path) -> dict[str, Any]:
    """The options of a configuration file."""
    if not path.is_file():
        raise FileNotFoundError(f"config={str(path)!r}: there is no such file")
    return _mapping(read_text(path), str(path))


def _mapping(text: str, where: str) -> dict[str, Any]:
    content = parse_yaml(text, where)
    if not isinstance(content, dict):
        raise UsageError(f"{where} must contain `option: value` lines, not {type(content).__name__}")
    return {name: value for name, value in content.items() if name not in _ABOUT_THE_FILE}


def optimizer_names() -> list[str]:
    """The names of all optimizers: sharpness-aware ones, and the base optimizers alone."""
    from ncsam import optim  # here, because it imports torch

    return [*optim.names(), *BASES]


def _known(options: Mapping[str, Any]) -> dict[str, Any]:
    names = [f.name for f in dataclasses.fields(RunConfig)]
    for name in options:
        if name not in names:
            raise unknown_name("option", name, names)
    return dict(options)


@functools.cache
def _hints(kind: Callable[..., RunConfig]) -> dict[str, Any]:
    return get_type_hints(kind)


@functools.cache
def _defaults() -> dict[str, Any]:
    """The defaults by name, without building a configuration: its checks would import torch."""
    found: dict[str, Any] = {}
    for each in dataclasses.fields(RunConfig):
        made = each.default_factory is not dataclasses.MISSING
        found[each.name] = each.default_factory() if made else each.default  # type: ignore[operator]
    return found | {"optimizer": recipes.OPTIMIZER.value}


@functools.cache
def _checks() -> dict[str, Check | None]:
    return {f.name: f.metadata["check"] for f in dataclasses.fields(RunConfig)}


def _words(hint: Any) -> tuple[Any, ...]:
    """The words that a type allows besides its values, such as "auto"."""
    return tuple(word for kind in get_args(hint) if get_origin(kind) is Literal for word in get_args(kind))
