"""The configuration of a run: what the user asked for (`RunConfig`), and its values for given data."""

# ruff: noqa: RUF009 - `option` returns a dataclass field

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from ncsam._arguments import below_one, count, find_named, is_reference, number, ratio, require_explicit_import
from ncsam._errors import bad_value, need
from ncsam._files import atomic_path
from ncsam._version import __version__
from ncsam.engine import recipes
from ncsam.engine.config_options import (
    check_options,
    default_options,
    device_numbers,
    each_is,
    from_one,
    from_zero,
    known_options,
    named_or_own,
    one_of,
    option,
    read_preset,
    read_yaml,
    size,
    without,
)
from ncsam.issues.calibration import parse_fold

#: Base optimizers and their default learning rates.
BASES = {"sgd": 0.05, "adamw": 0.001}
AUGMENTATIONS = ("auto", "none", "standard", "paper", "strong", "stronger")
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
_WITH_COLUMNS = (".npz", ".csv", ".tsv", ".parquet")
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


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run, as the user asks for it.

    The defaults are the recommended setting: cross-entropy and SAM with a validation-guided radius. `None` and "auto"
    leave an option to the data; `ncsam.engine.resolve.resolve` turns them into values. `RunConfig.describe()` lists
    all options with a sentence each, and `replace` returns a changed copy.

    Args:
        data: Name of a dataset, or path of a folder, table, `.npz` or `.tar` file.
        noise: Noise added to the training labels, with its `rate`.
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
    data: str = option("digits", "name of a dataset, or your folder, .csv, .tsv, .parquet, .npz or .tar file")
    data_root: str | None = option(None, "folder of a named dataset")
    data_options: dict[str, Any] = option({}, "options of the dataset's reader", without("source", "root", "download"))
    skip_damaged: bool = option(False, "decode every image file first and leave out those that cannot be read")
    download: bool = option(False, "download a named dataset if it is missing")
    noise: str | None = option(None, "noise added to the training labels: symmetric, pairflip, instance, ...")
    rate: float | None = option(None, "rate of the noise; without `noise`, your estimate of the rate", ratio)
    noise_seed: int | None = option(0, "seed of the noise; null: the value of `seed`", count)
    noise_options: dict[str, Any] = option({}, "further options of the noise")
    label_file: str | None = option(None, "file with the labels of the training split; may be a published one")
    label_column: str | None = option(None, "column of the labels in a table or label file; or array of an .npz")
    val_share: float = option(
        0.1, "share of the training split held out, with its noisy labels, for validation", below_one
    )
    fold: str | None = option(
        None, "hold out this part of the training split instead: 2/5 is the second of five", lambda _, v: parse_fold(v)
    )
    # method and optimizer
    method: str = option("ce", "learning method; module:Name for your own class")
    method_options: dict[str, Any] = option({}, "options of the method", without("name"))
    optimizer: str = option(
        "auto",
        "sam, ncsam, asam, bsam, friendlysam, saner; or sgd or adamw alone; or module:Name; auto: adamw for "
        "transformers:NAME, otherwise sam",
        named_or_own(lambda: ["auto", *optimizer_names()]),
    )
    base: str = option(
        "auto",
        "optimizer inside a sharpness-aware one: sgd, adamw or module:Name; auto: adamw for transformers and ConvNeXt, "
        "otherwise sgd",
        named_or_own(lambda: ["auto", *BASES]),
    )
    lr: float | Literal["auto"] | None = option(
        "auto",
        "initial learning rate; null: .05, for adamw .001; auto: a quarter of that for mlps and pretrained models, by "
        "the model's size for pretrained transformers",
        size,
    )
    momentum: float = option(0.9, "momentum of sgd", below_one)
    weight_decay: float | Literal["auto"] = option(
        "auto",
        "weight decay of the base optimizer, with adamw not of biases and norms; auto: .001, for mlps .005, on a "
        "frozen backbone .3, for pretrained transformers .01",
        size,
    )
    rho: float | Literal["auto", "validation"] | None = option(
        "validation",
        "radius of the perturbation; null: the optimizer's default, .05 for most; auto: adapted to its effect on the "
        "loss; validation: also to the loss on validation samples",
        size,
    )
    rho_target: float | Literal["auto"] = option(
        "auto",
        "target relative loss increase of an adaptive radius; auto: .5, for mlps .4, next to augmentation or most "
        "methods .1",
        partial(number, allowed="a number above 0 and below 5", fine=lambda v: 0 < v < 5),
    )
    kappa: float | None = option(
        None, "maximum strength of NCSAM's compensation; null: the optimizer's default, .1 for ncsam", size
    )
    flip_ratio: float | Literal["auto"] | None = option(
        None,
        "share of a batch that NCSAM flips; null: the noise rate, at most .4; auto: estimated after warm-up",
        ratio,
    )
    warmup: float | Literal["auto"] | None = option(
        None,
        "share of epochs trained by the base optimizer; null: .25 for ncsam, and for methods that need a warm-up with "
        "an adaptive radius, otherwise 0; auto: until labels are memorized",
        ratio,
    )
    optimizer_options: dict[str, Any] = option({}, "further options of the optimizer")
    schedule: str = option(
        "auto",
        "learning-rate schedule: cosine (to 0), linear (to 0), constant, steps; auto: linear for pretrained "
        "transformers, otherwise cosine",
        one_of(SCHEDULES),
    )
    schedule_options: dict[str, Any] = option({}, "for steps: milestones (shares of training), gamma")
    lr_warmup: float | Literal["auto"] = option(
        "auto",
        "share of training in which the learning rate rises linearly from 0; auto: .1 for pretrained transformers, "
        "otherwise 0",
        below_one,
    )
    clip_norm: float | Literal["auto"] | None = option(
        "auto",
        "largest norm of the gradient; null: no limit; auto: 1 for pretrained transformers, else no limit",
        size,
    )
    # model
    model: str = option(
        "auto",
        "name of a model; auto: the recommended classifier for features and tables, fitted in seconds, unless another "
        "option asks for training; transformers:NAME_OR_FOLDER, timm:NAME, torchvision:NAME; network: mlp for "
        "features and up to 16 pixels, text_mean, resnet18",
    )
    backbone: str = option(
        "auto",
        "frozen pretrained encoder: lite0, minilm, wordllama, timm:NAME, ...; none; "
        "auto: the one for photos or texts on this machine, unless another option asks for training",
    )
    model_options: dict[str, Any] = option(
        {}, "options of the model", without("name", "num_classes", "in_channels", "pretrained")
    )
    pretrained: bool | str = option(False, "true for published weights, or their name, or a file")
    freeze: list[str] = option([], "parts that are not trained, by prefixes of their names; backbone: all but the head")
    head_lr: float | None = option(None, "learning rate of the head; null: lr", size)
    layer_decay: float | Literal["auto"] = option(
        "auto",
        "factor of the learning rate from each layer to the one below; auto: .75 for pretrained models of timm and "
        "torchvision, otherwise 1",
        ratio,
    )
    head_init: Literal["auto", "random", "lda"] = option(
        "auto",
        "random, or lda: the head starts as discriminant analysis of the pretrained features; auto: lda for pretrained "
        "transformers, otherwise random",
    )
    interpolation: float | Literal["auto"] = option(
        "auto",
        "share of the trained weights in the model that is kept, the rest being those before training; auto: .5 for "
        "pretrained transformers, otherwise 1",
        partial(number, allowed="a number above 0 and at most 1", fine=lambda share: 0 < share <= 1),
    )
    lora: int | None = option(
        None, "rank of low-rank updates trained in the place of a transformer's weights", from_one
    )
    max_length: int | None = option(
        None, "tokens of a text that a model reads; null: 256, or as many as a transformer can read", from_one
    )
    # training
    epochs: int | Literal["auto"] = option(
        "auto",
        "passes over the training split; auto: 60, for mlps 30 and at least 800 steps, for pretrained transformers 3",
        from_one,
    )
    patience: int | None = option(
        None,
        "stop after so many epochs without a higher accuracy on validation labels, and restore the best weights; null: "
        "train to the end and keep the last",
        from_one,
    )
    batch_size: int | Literal["auto"] | None = option(
        "auto",
        "samples per step, over all devices; auto: 128, for pretrained transformers 32; null: 128, or 32 below 5,000 "
        "samples",
        from_one,
    )
    batches: Literal["equal", "full"] = option(
        "equal", "equal: batch sizes of an epoch differ by at most one; full: all are full except a short last one"
    )
    augment: str = option(
        "auto",
        "none, standard (crop, flip), paper (plus Cutout), strong or stronger (color and geometry); auto: standard for "
        "color images",
        one_of(AUGMENTATIONS),
    )
    seed: int = option(1, "random seed of the run; decides initialization, order, augmentation and draws", count)
    # hardware
    precision: str = option(
        "auto",
        "Fabric's name: 32-true, bf16-mixed, 16-mixed, 64-true; auto: bf16-mixed for convolutional networks and "
        "transformers on hardware with bf16 arithmetic, otherwise 32-true",
        one_of(("auto", *PRECISIONS)),
    )
    devices: int | str = option(1, "number of devices per node, or auto", device_numbers)
    accelerator: str = option("auto", "Fabric's name: auto, cpu, cuda, mps", one_of(ACCELERATORS))
    strategy: str = option("auto", "Fabric's name: auto, ddp, ddp_spawn, ...")
    num_nodes: int = option(1, "number of nodes", from_one)
    compile: bool = option(False, "compile the model with torch.compile")
    workers: int = option(0, "processes that decode image files", partial(count, most=1024))
    # logging
    telemetry_every: int = option(25, "measure the optimizer's telemetry every N steps; 0: never", from_zero)
    evaluate_train_every: int | None = option(
        1, "evaluate the training split every N epochs and after the last one; null: never", from_one
    )
    loggers: list[str] = option([], "also log to tensorboard, wandb or mlflow", each_is(one_of(LOGGERS, "logger")))
    checkpoint_every: int | None = option(None, "also checkpoint every N steps; null: after epochs only", from_one)

    def __post_init__(self) -> None:
        if isinstance(self.optimizer, str) and self.optimizer == "auto":
            transformer = isinstance(self.model, str) and self.model.startswith("transformers:")
            chosen = recipes.TRANSFORMER_OPTIMIZER if transformer else recipes.OPTIMIZER
            object.__setattr__(self, "optimizer", chosen.value)
        check_options(self, RunConfig)
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
        usual = self._usual()
        return all(getattr(self, name) == usual[name] for name in TRAINING)

    @staticmethod
    def _usual() -> dict[str, Any]:
        """What a configuration has where nothing is asked for."""
        return default_options(RunConfig) | {"optimizer": recipes.OPTIMIZER.value}

    @property
    def may_use_backbone(self) -> bool:
        """Whether images or texts may be trained on as features of a pretrained backbone."""
        return self.leaves_training_open if self.backbone == "auto" else self.backbone != "none"

    @property
    def uses_validation(self) -> bool:
        """Whether validation samples influence training."""
        return self.sharpness_aware and (self.rho == "validation" or self.warmup == "auto")

    # --- reading and writing

    @classmethod
    def from_dict(cls: type[_Config], options: Mapping[str, Any]) -> _Config:
        """Build a configuration from plain values.

        Args:
            options: Values by option name; others keep their defaults.

        Raises:
            UsageError: A name is unknown (the nearest names are suggested) or a value invalid.
        """
        return cls(**known_options(RunConfig, options))

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
        """Read one of `ncsam.engine.preset_names()`; `overrides` replace its options.

        Args:
            name: Name of the preset.
            **overrides: Options that replace those of the preset.

        Raises:
            UsageError: The preset or an option is unknown, or a value is invalid.
        """
        return cls.from_dict({**read_preset(name), **overrides})

    def replace(self: _Config, **changes: Any) -> _Config:
        """Return a copy with some options changed.

        Args:
            **changes: New values by option name.

        Raises:
            UsageError: An option is unknown or a value is invalid.
        """
        return dataclasses.replace(self, **known_options(RunConfig, changes))

    def __repr__(self) -> str:
        """The options that differ from their defaults."""
        values = ((name, usual, getattr(self, name)) for name, usual in self._usual().items())
        return f"RunConfig({', '.join(f'{name}={value!r}' for name, usual, value in values if value != usual)})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, in the order of the fields."""
        return dataclasses.asdict(self)

    def save(self, path: str | os.PathLike[str], command: str | None = None) -> None:
        """Write YAML that `from_yaml` reads, with the version and the command that wrote it.

        Args:
            path: The file, which is replaced completely or not at all.
            command: A command line to record; `None` for none.
        """
        yaml = need("yaml", "train", "saving a configuration")
        about = {"version": __version__, **({} if command is None else {"command": command})}
        with atomic_path(path) as temporary:
            text = yaml.safe_dump({**about, **self.to_dict()}, sort_keys=False, allow_unicode=True)
            temporary.write_text(text, encoding="utf-8")

    def conflicts(self, saved: RunConfig) -> dict[str, tuple[Any, Any]]:
        """Options that would change the result of a saved run, by name: (saved, wanted).

        An option that is left to the data here agrees with whatever value it has there.

        Args:
            saved: The configuration of a run that exists, with concrete values.

        Returns:
            An empty dictionary if the saved run can be resumed with this configuration.
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

    Attributes:
        lr: Initial learning rate.
        weight_decay: Weight decay of the base optimizer.
        rho_target: Relative loss increase that an adaptive radius aims at.
        kappa: Largest strength of NCSAM's compensation.
        epochs: Passes over the training split.
        batch_size: Samples per step, over all devices.
        warmup: Share of epochs trained by the base optimizer, or "auto".
        lr_warmup: Share of training in which the learning rate rises.
        clip_norm: Largest norm of the gradient; `None` for no limit.
        layer_decay: Factor of the learning rate from each layer to the one below.
        head_init: How the head starts.
        interpolation: Share of the trained weights in the model that is kept.
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
    """The default learning rate of a base optimizer; for your own the default of its `lr`, otherwise that of SGD.

    Args:
        base: "sgd", "adamw" or `module:Name`, which is imported.
    """
    if not is_reference(base):
        return BASES[base]
    lr = inspect.signature(find_named("base", base)).parameters.get("lr")
    return float(lr.default) if lr is not None and isinstance(lr.default, (int, float)) else BASES["sgd"]


def optimizer_names() -> list[str]:
    """The names of all optimizers: sharpness-aware ones, and the base optimizers alone."""
    from ncsam import optim  # here, because it imports torch

    return [*optim.names(), *BASES]
