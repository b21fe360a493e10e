"""From what the user asked for to concrete values: the only place where "auto" and `None` are given a meaning.

What is known only during training (when a warm-up "auto" ends, the flip ratio "auto") is decided by
`ncsam.engine.optimizers`. All constants are in `ncsam.engine.recipes`.
"""

from __future__ import annotations

import inspect
import math
from typing import Any, Literal

from ncsam import methods, models, optim
from ncsam._errors import bad_value
from ncsam._hardware import native_bfloat16
from ncsam.data.modalities import Modality
from ncsam.data.modalities.features import Features
from ncsam.data.modalities.images import Images
from ncsam.data.modalities.text import Texts
from ncsam.engine import recipes
from ncsam.engine.config import IN_MEMORY, NETWORK, ResolvedConfig, RunConfig, default_lr
from ncsam.engine.device import first_device
from ncsam.engine.task import Task
from ncsam.methods import Method
from ncsam.models.backbone import Family
from ncsam.models.freeze import BACKBONE
from ncsam.optim.sharpness_aware import SharpnessAware
from ncsam.pretrained.hub import PREFIX

#: Options of our models that say how large their inputs are.
_INPUT_SIZES = {"mlp": "in_features", "text_mean": "tokens"}
_SMALL_FAMILIES = ("linear", "mlp")
#: Families whose models take arrays of numbers, not tokens.
_FOR_NUMBERS = (*_SMALL_FAMILIES, "conv")


def resolve(config: RunConfig, task: Task, *, family: Family = "other") -> ResolvedConfig:
    """Give every option that is left to the data its value.

    Args:
        config: What the user asked for. A resolved configuration is returned unchanged.
        task: The data with its observed labels.
        family: The family of a model that was passed as an object (`model: <in memory>`).

    Returns:
        A configuration with concrete values, as `config.yaml` stores it.

    Raises:
        UsageError: Options do not fit the data or each other.
    """
    model, options = _model(config, task)
    traits = models.Traits(family) if config.model == IN_MEMORY else models.traits(model, **options)
    family, encoder = traits.family, _is_pretrained_encoder(config, model, traits)
    vectors = isinstance(task.modality, Features) and len(task.modality.shape) == 1
    if (isinstance(task.modality, Texts) and family in _FOR_NUMBERS) or (vectors and family == "conv"):
        raise bad_value("model", model, f"a model for {task.modality.name}, such as auto")
    augment = _augment(config, task)
    batch_size = _batch_size(config, len(task.train), encoder)
    method = methods.get(config.method)
    optimizer = optim.get(config.optimizer) if config.sharpness_aware else None
    base = config.optimizer if optimizer is None else config.base
    if base == "auto":
        base = "adamw" if _has_layer_norm(model, traits) else "sgd"
    epochs = config.epochs
    if epochs == "auto":
        epochs = recipes.ENCODER_EPOCHS.value if encoder else _epochs(family, len(task.train), batch_size)
    warmup = default_warmup(optimizer, method, config.rho) if config.warmup is None else config.warmup
    found: dict[str, Any] = {
        "model": model,
        "model_options": options,
        "backbone": "none" if config.backbone == "auto" else config.backbone,
        "augment": augment,
        "batch_size": batch_size,
        "base": base,
        "epochs": epochs,
        "warmup": warmup,
        "lr": _learning_rate(config, base, family, traits.weights if encoder else None),
        "weight_decay": config.weight_decay,
        "rho": _default(optimizer, "rho", 0.05) if config.rho is None and optimizer is not None else config.rho,
        "kappa": _default(optimizer, "kappa", 0.1) if config.kappa is None else config.kappa,
        "rho_target": config.rho_target,
        "flip_ratio": config.flip_ratio,
        "precision": _precision(config, model, family) if config.precision == "auto" else config.precision,
        **_fine_tuning(config, model, encoder),
    }
    if config.weight_decay == "auto":
        found["weight_decay"] = recipes.ENCODER_WEIGHT_DECAY.value if encoder else _weight_decay(config, family)
    if config.rho_target == "auto":
        found["rho_target"] = _rho_target(family, method, augment, options.get("in_features"))
    warmup_epochs = epochs if warmup == "auto" else round(warmup * epochs)
    if optimizer is not None and optimizer.flips_labels:
        found["flip_ratio"] = _flip_ratio(config, warmup_epochs)
    if not models.is_closed_form(model):
        _check(config, task, flips=optimizer is not None and optimizer.flips_labels, warmup_epochs=warmup_epochs)
    return ResolvedConfig(**{**config.to_dict(), **found})


def _has_layer_norm(model: str, traits: models.Traits) -> bool:
    """Transformers, and convolutional networks of other libraries without batch normalization, such as ConvNeXt."""
    return traits.family == "transformer" or (":" in model and traits.family == "conv" and not traits.batch_norm)


def _is_pretrained_encoder(config: RunConfig, model: str, traits: models.Traits) -> bool:
    """Whether the run fine-tunes a pretrained transformer, or a network that is trained like one."""
    pretrained = bool(config.pretrained) or model.startswith(PREFIX)
    return pretrained and BACKBONE not in config.freeze and _has_layer_norm(model, traits)


def _fine_tuning(config: RunConfig, model: str, encoder: bool) -> dict[str, Any]:
    """Schedule, clipping, layer-wise learning rates, and what keeps the model near the pretrained one."""
    library = bool(config.pretrained) and model.startswith(("timm:", "torchvision:")) and not config.freeze
    usual: dict[str, Any] = {
        "schedule": "linear" if encoder else "cosine",
        "lr_warmup": recipes.ENCODER_LR_WARMUP.value if encoder else 0.0,
        "clip_norm": recipes.ENCODER_CLIP.value if encoder else None,
        "layer_decay": recipes.LAYER_DECAY.value if library else 1.0,
        "head_init": recipes.ENCODER_HEAD_INIT.value if encoder else "random",
        "interpolation": recipes.ENCODER_INTERPOLATION.value if encoder else 1.0,
    }
    return {name: value if getattr(config, name) == "auto" else getattr(config, name) for name, value in usual.items()}


def recommended_model(task: Task) -> str:
    """The closed-form model of `model: auto` for features: of tables, whose columns have names, or of embeddings.

    Args:
        task: The data.
    """
    return "smooth_table" if getattr(task.modality, "columns", ()) else "smooth"


def default_model(modality: Modality) -> tuple[str, dict[str, Any]]:
    """The model of `model: network` and its options; a modality of your own names it by `default_model()`.

    Args:
        modality: The kind of data, with the size of its images.

    Returns:
        The name, and options that are not the model's defaults.
    """
    mlp = "mlp", {"hidden": list(recipes.HIDDEN.value)}
    match modality:
        case Features():
            return mlp
        case Texts():
            return "text_mean", {}
        case Images(size=size) if max(size) <= recipes.TINY_IMAGE.value:
            return mlp
        case Images(size=size):
            return "resnet18", {"stem": "cifar" if max(size) <= recipes.SMALL_IMAGE.value else "imagenet"}
    return modality.default_model()


def default_warmup(optimizer: type[SharpnessAware] | None, method: type[Method], rho: float | str | None) -> float:
    """The share of epochs that `warmup: null` means: the optimizer's own, or what the method needs.

    Args:
        optimizer: The class of the sharpness-aware optimizer; `None` for a base optimizer alone.
        method: The class of the learning method.
        rho: The radius; a word is an adaptive one.

    Returns:
        A share in [0, 1].
    """
    if optimizer is None:
        return 0.0
    needed = recipes.METHOD_WARMUP.value if method.needs_warmup and isinstance(rho, str) else 0.0
    return max(optimizer.default_warmup, needed)


def sam_warning(config: RunConfig) -> str | None:
    """A warning where an adaptive radius made this method worse in our experiments.

    Args:
        config: The configuration.

    Returns:
        A sentence, or `None`.
    """
    worse = methods.get(config.method).worse_with_sam
    if not config.sharpness_aware or not isinstance(config.rho, str) or not worse:
        return None
    return (
        f"{config.method} with an adaptive radius was worse than with sgd in our experiments, on {', '.join(worse)} "
        "(docs/experiments/methods.md); optimizer sgd is the safer choice"
    )


def _default(optimizer: type[SharpnessAware] | None, option: str, otherwise: float) -> float:
    """The default of an optimizer's option, or of its nearest parent that has one."""
    for each in () if optimizer is None else optimizer.__mro__:
        own = vars(each).get("__init__")
        parameter = None if own is None else inspect.signature(own).parameters.get(option)
        if parameter is not None and isinstance(parameter.default, float):
            return parameter.default
    return otherwise


def _model(config: RunConfig, task: Task) -> tuple[str, dict[str, Any]]:
    modality = task.modality
    if isinstance(modality, Features) and config.leaves_training_open:
        return recommended_model(task), {}
    name, usual = default_model(modality) if config.model in ("auto", NETWORK) else (config.model, {})
    option, sizes = _INPUT_SIZES.get(name), modality.input_sizes()
    required: dict[str, Any] = {option: sizes[option]} if option in sizes else {}
    if config.lora is not None:
        if not name.startswith(PREFIX):
            raise bad_value("lora", config.lora, f"null, because {name} is no model of transformers")
        required["lora"] = config.lora
    return name, {**required, **usual, **config.model_options}


def _augment(config: RunConfig, task: Task) -> str:
    augment, modality = config.augment, task.modality
    if augment == "auto":  # the features of a frozen backbone are computed once, so its inputs must not change
        augment = "none" if BACKBONE in config.freeze else modality.augmentation()
    if augment not in modality.augmentations:
        raise bad_value("augment", augment, f"none, because {task.dataset.name} contains {modality.name}, not images")
    return augment


def _batch_size(config: RunConfig, samples: int, encoder: bool) -> int:
    if config.batch_size == "auto":
        return (recipes.ENCODER_BATCH if encoder else recipes.BATCH).value
    if config.batch_size is None:
        return (recipes.BATCH if samples >= recipes.SMALL_DATA.value else recipes.SMALL_BATCH).value
    return config.batch_size


def _epochs(family: Family, samples: int, batch_size: int) -> int:
    if family not in _SMALL_FAMILIES:
        return recipes.EPOCHS.value
    return max(recipes.MLP_EPOCHS.value, math.ceil(recipes.MLP_STEPS.value / math.ceil(samples / batch_size)))


def _learning_rate(config: RunConfig, base: str, family: Family, encoder_weights: int | None) -> float:
    """The learning rate; `encoder_weights` is the size of a pretrained transformer that is fine-tuned."""
    if isinstance(config.lr, float):
        return config.lr
    usual = default_lr(base)
    if config.lr is None:
        return usual
    if encoder_weights is not None and base == "adamw":
        if config.lora is not None:
            return recipes.LORA_LR.value
        large = encoder_weights >= recipes.LARGE_ENCODER.value
        return (recipes.LARGE_ENCODER_LR if large else recipes.SMALL_ENCODER_LR).value
    small = family in _SMALL_FAMILIES or config.pretrained or BACKBONE in config.freeze
    return recipes.LR_FACTOR.value * usual if small else usual


def _weight_decay(config: RunConfig, family: Family) -> float:
    if BACKBONE in config.freeze:
        return recipes.HEAD_WEIGHT_DECAY.value
    return (recipes.MLP_WEIGHT_DECAY if family in _SMALL_FAMILIES else recipes.WEIGHT_DECAY).value


def _rho_target(family: Family, method: type[Method], augment: str, features: int | None) -> float:
    """The full target where nothing else prevents memorization, otherwise the small one."""
    small = family in _SMALL_FAMILIES
    few = small and features is not None and features < recipes.FEW_FEATURES.value
    if method.resists_memorization or augment != "none" or few:
        return recipes.SMALL_RHO_TARGET.value
    return (recipes.MLP_RHO_TARGET if small else recipes.RHO_TARGET).value


def _precision(config: RunConfig, model: str, family: Family) -> str:
    """bf16 where the hardware has it and convolutions or attention take the time; a small network would get slower."""
    library = model.startswith(("timm:", "torchvision:"))
    large = (family in ("conv", "transformer") or library) and BACKBONE not in config.freeze
    return "bf16-mixed" if large and native_bfloat16(first_device(config.accelerator)) else "32-true"


def _flip_ratio(config: RunConfig, warmup_epochs: int) -> float | Literal["auto"]:
    """The noise rate where it is known; without, estimated after warm-up; without a warm-up, the largest."""
    if config.flip_ratio is not None:
        return config.flip_ratio
    if config.rate is not None:
        return min(config.rate, recipes.MAX_FLIP_RATIO.value)
    return "auto" if warmup_epochs else recipes.MAX_FLIP_RATIO.value


def _check(config: RunConfig, task: Task, *, flips: bool, warmup_epochs: int) -> None:
    """Refuse what a run could decide only with samples or epochs that it will not have."""
    no_validation = task.val is None and task.dataset.val is None
    if config.uses_validation and no_validation:
        needed = "validation samples to watch: val_share above 0 (now 0)"
        if config.warmup == "auto":
            raise bad_value("warmup", "auto", f"a number, or {needed}")
        raise bad_value("rho", "validation", f"a number or auto, or {needed}")
    if isinstance(config.patience, int) and no_validation:
        raise bad_value("patience", config.patience, "null, or validation samples to watch: val_share above 0 (now 0)")
    if flips and config.flip_ratio == "auto" and warmup_epochs == 0:
        raise bad_value("flip_ratio", "auto", "a number, or at least one epoch of warm-up to estimate it after (now 0)")
