"""What "auto" stands for in a run's options: gentle steps, long enough, and a radius that does no harm.

Found in docs/experiments/real_noise.md. SAM wants a smaller step than SGD does: at lr .05 the automatic radius loses
most of what it gains at .0125. Weight decay makes the length of training matter less. Too few steps leave a perturbed
network untrained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ncsam.engine.config import RunConfig
from ncsam.models.freeze import BACKBONE

_GENTLE = 0.25  # of the usual learning rate
_HEAD_WEIGHT_DECAY, _MLP_WEIGHT_DECAY, _WEIGHT_DECAY = 0.3, 0.005, 0.001
_MLP_EPOCHS, _EPOCHS = 30, 60
_LEAST_STEPS = 800  # of an mlp
#: Targets of the automatic radius. Augmentation and most methods keep a network from memorizing, too: where they do,
#: the full target costs more of what the network learns than it spares. Small steps make .4 enough for an mlp.
_MLP_TARGET, _TARGET, _GENTLE_TARGET = 0.4, 0.5, 0.1
#: Inputs of an mlp. Below these it is slow to learn and slower to memorize, and the full target lost up to 2.5 points.
_FEW_INPUTS = 40
#: Methods that do not keep from memorizing on their own.
_PLAIN = ("ce",)
#: Methods that lose to SGD by more than a point and a standard error, and where, as docs/experiments/methods.md has it
#: (tested).
HARMED: Mapping[str, Sequence[str]] = {
    "apl": ["digits pair flip 40", "all sets together"],
    "js": ["digits symmetric 40", "digits pair flip 40"],
    "gjs": ["digits symmetric 40", "digits pair flip 40"],
    "dmi": ["CIFAR-10"],
    "decoupling": ["digits pair flip 40"],
    "mentornet": ["digits pair flip 40"],
    "disc": ["CIFAR-10"],
    "unicon": ["digits pair flip 40"],
    "limit": ["digits symmetric 40"],
    "nested_coteaching": ["digits symmetric 40", "digits pair flip 40", "all sets together"],
}


def resolve_auto(
    config: RunConfig, model: str, augment: str, samples: int, inputs: int | None, batch_size: int
) -> RunConfig:
    """The configuration with what these options leave open; `inputs` is the number of features, for an mlp."""
    found = {
        "lr": learning_rate(config.usual_lr, model, config.pretrained or BACKBONE in config.freeze),
        "weight_decay": weight_decay(model, config.freeze),
        "epochs": epochs(model, samples, batch_size),
        "rho_target": rho_target(model, config.method, augment, inputs),
    }
    changes = {name: value for name, value in found.items() if getattr(config, name) == "auto"}
    if config.lr is None:
        changes["lr"] = config.usual_lr
    return config.replace(**changes)


def learning_rate(usual: float, model: str, pretrained: bool | str) -> float:
    """Of a base optimizer whose usual one this is."""
    return _GENTLE * usual if model == "mlp" or pretrained else usual


def weight_decay(model: str, freeze: Sequence[str] = ()) -> float:
    """Much for a linear head on a frozen backbone, which by its many features memorizes most labels otherwise."""
    if BACKBONE in freeze:
        return _HEAD_WEIGHT_DECAY
    return _MLP_WEIGHT_DECAY if model == "mlp" else _WEIGHT_DECAY


def epochs(model: str, samples: int, batch_size: int) -> int:
    """Passes over `samples`: 60; of an mlp 30, or as many as make 800 steps."""
    if model != "mlp":
        return _EPOCHS
    return max(_MLP_EPOCHS, math.ceil(_LEAST_STEPS / math.ceil(samples / batch_size)))


def rho_target(model: str, method: str, augment: str, inputs: int | None = None) -> float:
    """The full target where nothing else keeps from memorizing, else the gentle one."""
    few = model == "mlp" and inputs is not None and inputs < _FEW_INPUTS
    if method not in _PLAIN or augment != "none" or few:
        return _GENTLE_TARGET
    return _MLP_TARGET if model == "mlp" else _TARGET


def harm(method: str, rho: float | str | None) -> str | None:
    """A warning, where the trial saw an automatic radius do harm to this method."""
    if not isinstance(rho, str) or method not in HARMED:
        return None
    return (
        f"{method} with an automatic radius was below {method} with sgd in our trial, on {', '.join(HARMED[method])} "
        "(docs/experiments/methods.md); --optimizer sgd is the safer choice"
    )
