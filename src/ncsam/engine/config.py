"""One run in one flat record: what to train on, with what, for how long. Read from YAML, presets and options."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_type_hints

from ncsam._errors import bad_value, need, unknown_name
from ncsam._files import atomic_path, parse_yaml, read_text
from ncsam._named import find_named, is_reference
from ncsam._options import coerce
from ncsam._version import __version__
from ncsam.engine.untrusted import require_explicit_import
from ncsam.issues.folds import parse_fold

#: Base optimizers, and the learning rate that each has where none is named.
BASES = {"sgd": 0.05, "adamw": 0.001}
AUGMENTATIONS = ("auto", "none", "standard", "paper", "strong")
SCHEDULES = ("cosine", "linear", "constant", "steps")
LOGGERS = ("tensorboard", "wandb", "mlflow")
#: As Fabric calls them.
ACCELERATORS = ("auto", "cpu", "cuda", "gpu", "mps", "tpu")
PRECISIONS = (
    *("32-true", "bf16-mixed", "16-mixed", "64-true", "bf16-true", "16-true", "32", "64", "16", "bf16"),
    *("transformer-engine", "transformer-engine-float16"),
)

#: What may differ when a run is continued: it changes where and how fast a run is computed, never its result.
NEUTRAL = frozenset({"data_root", "download", "workers", "loggers", "checkpoint_every"})
#: Old names of options, which 0.1 still takes.
RENAMED = {"target": "rho_target"}
_MOST, _LARGEST = 10**9, 1e30  # of counts, and of numbers that are multiplied in float32
_DEVICES = re.compile(r"auto|\d+(,\d+)*,?")
_WITH_COLUMNS = (".npz", ".csv", ".tsv", ".parquet")
#: Methods that need a network which knows something, to let go of samples or to teach another one, or that learn
#: nothing for a while. Perturbed from the start it knows less, or stays where it was: an automatic radius waits.
_SLOW, _WAIT = ("gce_truncated", "limit", "nct", "nested_coteaching"), 0.25
#: What the readers, networks and methods are given by the run itself.
_ALREADY_GIVEN = {
    "data_options": ("source", "root", "download"),
    "model_options": ("name", "num_classes", "in_channels", "pretrained"),
    "method_options": ("name",),
}
_ABOUT_THE_FILE = ("version", "command")  # written beside the options for the reader's sake, and ignored when read


if TYPE_CHECKING:  # what a settled configuration holds, and a run computes with
    Number: TypeAlias = float
    Rate: TypeAlias = float
    Count: TypeAlias = int
else:
    Number = float | Literal["auto"]
    Rate = Number | None
    Count = int | Literal["auto"]


def _about(sentence: str) -> dict[str, str]:
    return {"help": sentence}


def _option(default: Any, about: str) -> Any:
    """A field with the sentence that `--help` and the documentation show for it."""
    return field(default=default, metadata=_about(about))


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run. Defaults are the paper's protocol; `None` and "auto" are settled from the data.

    `RunConfig.describe()` lists the options with a sentence each; `replace` gives a changed copy.

    >>> config = RunConfig(data="digits", noise="symmetric", rate=0.4, optimizer="sam", rho="auto")
    >>> config.replace(optimizer="adamw").usual_lr
    0.001
    """

    # data and labels
    data: str = _option("digits", "name of a dataset, or a folder, .csv, .tsv, .parquet, .npz or .tar of your own")
    data_root: str | None = _option(None, "where a named dataset lies")
    data_options: dict[str, Any] = field(default_factory=dict, metadata=_about("options of the dataset's reader"))
    skip_damaged: bool = _option(False, "look at every image file first and leave out those that cannot be read")
    download: bool = _option(False, "fetch a named dataset if it is not there")
    noise: str | None = _option(None, "recipe that corrupts the training labels: symmetric, pairflip, instance, ...")
    rate: float | None = _option(None, "noise rate of the recipe; without a recipe, the rate you believe in")
    noise_seed: int | None = _option(0, "seed of the corruption; null follows `seed`")
    noise_options: dict[str, Any] = field(default_factory=dict, metadata=_about("further options of the recipe"))
    label_file: str | None = _option(None, "published file of noisy labels for the training split")
    label_column: str | None = _option(None, "column of the label file or of the table, or array of the .npz, to take")
    val_share: float = _option(0.1, "share of the training split held out, with its noisy labels, for validation")
    fold: str | None = _option(None, "hold out this part of the training split instead: 2/5 is the second of five")
    # method and optimizer
    method: str = _option("ce", "learning method, or module:Name for a class of yours")
    method_options: dict[str, Any] = field(default_factory=dict, metadata=_about("options of the method"))
    optimizer: str = _option("ncsam", "ncsam, sam, asam, bsam, friendlysam, saner, or sgd or adamw alone")
    base: str = _option("sgd", "optimizer inside a sharpness-aware one: sgd or adamw")
    lr: Rate = _option(  # noqa: RUF009
        None, "learning rate at the start; null: .05, of adamw .001; auto: a quarter for mlps and pretrained networks"
    )
    momentum: float = _option(0.9, "momentum of sgd")
    weight_decay: Number = _option(  # noqa: RUF009
        1e-3, "weight decay of the base optimizer; auto: .001, of mlps .005, on a frozen backbone .3"
    )
    rho: float | Literal["auto", "validation"] | None = _option(
        None,
        "radius of the perturbation; null: the optimizer's own, .05 for most; auto: by its own effect; validation: by "
        "that and the loss of validation samples",
    )
    rho_target: float | Literal["auto"] = _option(
        0.5,
        "share of what was learned that rho auto and validation take away; auto: .5, mlps .4, augmented or with most "
        "methods .1",
    )
    kappa: float = _option(0.1, "largest strength of NCSAM's compensation")
    flip_ratio: float | Literal["auto"] | None = _option(
        None, "share of a batch NCSAM flips; null: the noise rate, at most .4; auto: as estimated after warm-up"
    )
    warmup: float | Literal["auto"] | None = _option(
        None,
        "share of epochs trained by the base optimizer; null: .25 for ncsam, and with rho auto or validation for slow "
        "methods (gce_truncated, limit, nct, nested_coteaching), else 0; auto: until labels are memorized",
    )
    optimizer_options: dict[str, Any] = field(default_factory=dict, metadata=_about("further options of the optimizer"))
    schedule: str = _option("cosine", "learning rate over iterations: cosine (to 0), linear (to 0), constant, steps")
    schedule_options: dict[str, Any] = field(
        default_factory=dict, metadata=_about("of steps: milestones (shares), gamma")
    )
    # network
    model: str = _option(
        "auto",
        "network by name; auto: text_mean for texts, mlp for vectors and up to 16 pixels, else resnet18",
    )
    model_options: dict[str, Any] = field(default_factory=dict, metadata=_about("options of the network"))
    pretrained: bool | str = _option(False, "true for published weights, or their name, or a file")
    freeze: list[str] = field(
        default_factory=list,
        metadata=_about("parts that are not trained, by the beginnings of their names; backbone: all but the head"),
    )
    head_lr: float | None = _option(None, "learning rate of the head; null: lr")
    # training
    epochs: Count = _option(60, "passes over the training split; auto: 60, of mlps 30 and at least 800 steps")  # noqa: RUF009
    batch_size: int | None = _option(None, "samples per step, over all devices; null: 128, or 32 below 5,000 samples")
    batches: Literal["equal", "full"] = _option(
        "equal", "equal: the batches of an epoch differ by at most one sample; full: all are full but a short last one"
    )
    augment: str = _option("auto", "none, standard (crop, mirror), paper (and Cutout); auto: standard for color")
    seed: int = _option(1, "seed of initialization, order, augmentation and draws")
    # machine
    precision: str = _option("32-true", "Fabric's name: 32-true, bf16-mixed, 16-mixed, 64-true")
    devices: int | str = _option(1, "how many devices per node, or auto")
    accelerator: str = _option("auto", "Fabric's name: auto, cpu, cuda, mps")
    strategy: str = _option("auto", "Fabric's name: auto, ddp, ddp_spawn, ...")
    num_nodes: int = _option(1, "how many nodes")
    compile: bool = _option(False, "compile the network with torch.compile")
    workers: int = _option(0, "processes that decode image files")
    # watching
    telemetry_every: int = _option(25, "measure the optimizer's telemetry every so many steps; 0 never")
    evaluate_train_every: int = _option(1, "evaluate the training split every so many epochs (and after the last)")
    loggers: list[str] = field(default_factory=list, metadata=_about("also log to tensorboard, wandb or mlflow"))
    checkpoint_every: int | None = _option(None, "checkpoint every so many steps, too; null: after epochs only")

    def __post_init__(self) -> None:
        for name, hint in _hints().items():
            object.__setattr__(self, name, coerce(name, getattr(self, name), hint))
        self._settle_optimizer()
        for name, known in (("optimizer", (*optimizer_names(),)), ("base", (*BASES,)), ("augment", AUGMENTATIONS)):
            if name == "augment" or not is_reference(getattr(self, name)):  # one of the user's own
                _one_of(name, getattr(self, name), known)
        _one_of("schedule", self.schedule, SCHEDULES)
        _one_of("accelerator", self.accelerator, ACCELERATORS)
        _one_of("precision", self.precision, PRECISIONS)
        for name, already in _ALREADY_GIVEN.items():
            given = getattr(self, name)
            for option in already:
                _require(name, given, option not in given, f"without {option}, which the run itself gives")
        for logger in self.loggers:
            _one_of("logger", logger, LOGGERS)
        for name in ("epochs", "num_nodes", "evaluate_train_every"):
            value = getattr(self, name)
            _require(name, value, value == "auto" or 1 <= value <= _MOST, "a whole number from 1 to 10^9")
        for name in ("workers", "telemetry_every", "seed"):
            most = {"workers": 1024, "seed": 2**63 - 1}.get(name, _MOST)
            _require(name, getattr(self, name), 0 <= getattr(self, name) <= most, f"a whole number from 0 to {most}")
        fine = self.devices >= 1 if isinstance(self.devices, int) else _DEVICES.fullmatch(self.devices)
        _require("devices", self.devices, bool(fine), "a number from 1, auto, or numbers of devices such as 0,1")
        _require("noise_seed", self.noise_seed, self.noise_seed is None or self.noise_seed >= 0, "from 0, or null")
        for name in ("batch_size", "checkpoint_every"):
            value = getattr(self, name)
            _require(name, value, value is None or 1 <= value <= _MOST, "a whole number from 1 to 10^9, or null")
        _require("momentum", self.momentum, 0 <= self.momentum < 1, "a share in [0, 1)")
        for name in ("lr", "weight_decay", "kappa"):
            value = getattr(self, name)
            fine = value in ("auto", None) or 0 <= value <= _LARGEST
            _require(name, value, fine, f"a finite number from 0 to {_LARGEST:g}")
        fine = self.rho is None or self.rho in ("auto", "validation") or 0 <= float(self.rho) <= _LARGEST
        _require("rho", self.rho, fine, "a finite number from 0, auto, validation, or null")
        fine = self.head_lr is None or 0 <= self.head_lr <= _LARGEST
        _require("head_lr", self.head_lr, fine, "a finite number from 0, or null")
        fine = self.rho_target == "auto" or 0 < self.rho_target < 5
        _require("rho_target", self.rho_target, fine, "a share above 0 and below 5, or auto")
        _require("rate", self.rate, self.rate is None or 0 <= self.rate <= 1, "a share in [0, 1], or null")
        for name in ("flip_ratio", "warmup"):
            value = getattr(self, name)
            _require(name, value, value in (None, "auto") or 0 <= value <= 1, "a share in [0, 1], auto, or null")
        _require("val_share", self.val_share, 0 <= self.val_share < 1, "a share in [0, 1)")
        if self.fold is not None:
            parse_fold(self.fold)
        if self.noise is not None and self.label_file is not None:
            raise bad_value("label_file", self.label_file, f"only without a recipe, and noise={self.noise!r} is one")
        if self.label_column is not None and self.label_file is None and not self.data.endswith(_WITH_COLUMNS):
            allowed = f"only with label_file, or with data in a file that ends in {', '.join(_WITH_COLUMNS)}"
            raise bad_value("label_column", self.label_column, allowed)

    def _settle_optimizer(self) -> None:
        """A base optimizer alone is its own base."""
        if self.optimizer == "sgd" and self.base == "adamw":
            warnings.warn("optimizer sgd with base adamw is called optimizer adamw now", FutureWarning, 4)
            object.__setattr__(self, "optimizer", "adamw")
        if not self.sharpness_aware:
            object.__setattr__(self, "base", self.optimizer)

    @property
    def sharpness_aware(self) -> bool:
        """Whether the optimizer perturbs, or is a base optimizer alone."""
        return self.optimizer not in BASES

    # --- in and out

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> RunConfig:
        """From plain values; a mistyped name is refused with the nearest known ones."""
        return cls(**_known(options))

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str], **overrides: Any) -> RunConfig:
        """From a file such as a run's `config.yaml`; `overrides` win.

        A network from elsewhere (`module:factory`) must be among the overrides: a file does not decide what code runs.
        """
        options = {**read_yaml(Path(path)), **overrides}
        require_explicit_import(str(path), options, overrides)
        return cls.from_dict(options)

    @classmethod
    def from_preset(cls, name: str, **overrides: Any) -> RunConfig:
        """From one of `preset_names()`; `overrides` win."""
        return cls.from_dict({**read_preset(name), **overrides})

    def replace(self, **changes: Any) -> RunConfig:
        """A copy with some options changed."""
        return dataclasses.replace(self, **_known(changes))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, in the order of the fields."""
        return dataclasses.asdict(self)

    def save(self, path: str | os.PathLike[str], command: str | None = None) -> None:
        """Write YAML that `from_yaml` reads back, with the version and the command that made it."""
        yaml = need("yaml", "train", "saving a configuration")
        about = {"version": __version__, **({} if command is None else {"command": command})}
        with atomic_path(path) as temporary:
            text = yaml.safe_dump({**about, **self.to_dict()}, sort_keys=False, allow_unicode=True)
            temporary.write_text(text, encoding="utf-8")

    def conflicts(self, saved: RunConfig) -> dict[str, tuple[Any, Any]]:
        """Options that would change the result of a run that was saved: name to (saved, wanted).

        What is left to the data here agrees with whatever it was settled to there.
        """
        wanted, there = self.to_dict(), saved.to_dict()
        for config, options in ((self, wanted), (saved, there)):
            if config.lr is None and (config.base == self.base or not is_reference(config.base)):
                options["lr"] = config.usual_lr  # no matter of the data; of a foreign base nothing is asked
        for name, unsettled in (
            ("model", "auto"),
            ("augment", "auto"),
            ("rho", None),
            ("rho_target", "auto"),
            ("lr", "auto"),
            ("weight_decay", "auto"),
            ("epochs", "auto"),
            ("batch_size", None),
            ("flip_ratio", None),
        ):
            if wanted[name] == unsettled:
                wanted[name] = there[name]
        wanted["model_options"] = {**there["model_options"], **wanted["model_options"]}
        return {n: (there[n], wanted[n]) for n in wanted if n not in NEUTRAL and wanted[n] != there[n]}

    @classmethod
    def describe(cls) -> dict[str, str]:
        """Each option's name and what it means."""
        return {f.name: f.metadata["help"] for f in dataclasses.fields(cls)}

    # --- what None means

    @property
    def usual_lr(self) -> float:
        """The base optimizer's; of one of the user's own its default, else that of SGD."""
        if not is_reference(self.base):
            return BASES[self.base]
        lr = inspect.signature(find_named("base", self.base)).parameters.get("lr")
        return float(lr.default) if lr is not None and isinstance(lr.default, (int, float)) else BASES["sgd"]

    @property
    def listens(self) -> bool:
        """Whether validation samples have a say in training."""
        return self.sharpness_aware and (self.rho == "validation" or self.warmup == "auto")

    @property
    def warmup_epochs(self) -> int:
        """Whole epochs of warm-up, rounded; for "auto" the most that there may be."""
        if self.warmup == "auto":
            return self.epochs
        waits = self.optimizer == "ncsam" or (self.method in _SLOW and isinstance(self.rho, str))
        share = self.warmup if self.warmup is not None else _WAIT if waits else 0.0
        return round(share * self.epochs)


def preset_names() -> list[str]:
    """The names of the presets, sorted."""
    files = resources.files("ncsam.presets").iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def preset_text(name: str) -> str:
    """A preset as it stands in its file, with the comments that name its source and what is unknown."""
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
        raise ValueError(f"{where} must hold `option: value` lines, not {type(content).__name__}")
    return {name: value for name, value in content.items() if name not in _ABOUT_THE_FILE}


def optimizer_names() -> list[str]:
    """All optimizers that a run may name: sharpness-aware ones, and the base optimizers alone."""
    from ncsam import optim  # here, because it brings torch

    return [*optim.names(), *BASES]


def _known(options: Mapping[str, Any]) -> dict[str, Any]:
    names = [f.name for f in dataclasses.fields(RunConfig)]
    for old in RENAMED.keys() & options.keys():
        warnings.warn(
            f"the option {old!r} is called {RENAMED[old]!r} now; the old name goes with 0.2", FutureWarning, 4
        )
    options = {RENAMED.get(name, name): value for name, value in options.items()}
    for name in options:
        if name not in names:
            raise unknown_name("option", name, names)
    return dict(options)


@functools.cache
def _hints() -> dict[str, Any]:
    return get_type_hints(RunConfig)


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise unknown_name(name, value, known)


def _require(name: str, value: Any, fine: bool, allowed: str) -> None:
    if not fine:
        raise bad_value(name, value, allowed)
