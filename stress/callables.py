"""The public Python calls of the package, each with valid arguments.

Everything in a package's `__all__` or in a registry is included automatically; arguments without a default are found by
their names in `_RIGHT`. A call that fails with valid arguments counts as broken, so a new name cannot be forgotten.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, get_type_hints
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ncsam import api, data, losses, methods, models, noise, optim, theory
from ncsam.automl import auto
from ncsam.engine import RunConfig
from ncsam.issues.find import find_label_issues
from ncsam.jobs import local
from ncsam.methods.registry import _METHODS
from ncsam.models.registry import _BUILDERS
from ncsam.optim.registry import _DEFAULTS
from stress.commands import in_this_process

#: Results, base classes and registries: users pass nothing to them. Files belong to the part `inputs`.
_LEFT_OUT = {"NoiseEstimate", "from_file"} | {
    *("Alignment", "Eigenvalues", "Estimate", "Landscape", "NeighborhoodMaximum", "NoisyLabelBound", "Sharpness")
}
_OF_DATA = ("from_arrays", "from_texts", "check", "hold_out", "Loader", "View")
#: Models that are quick to build.
_MODELS = ("mlp", "cnn_small", "text_mean", "cnn7", "resnet8", "wrn_28_2")
#: Arguments of losses that are not called with logits and targets.
_INPUTS = {"ELR": ("logits", "targets", "memory"), "GJS": ("views", "targets")}
#: Names in quoted type aliases, which are not imported where the aliases are used.
_IN_ALIASES = {"Any": Any, "Iterable": Iterable, "Sequence": Sequence, "Tensor": Tensor, "np": np, "npt": npt}


@dataclass(frozen=True)
class Call:
    """A public function, the types and defaults of its arguments, and valid values of the required ones."""

    name: str
    function: Callable[..., Any]
    hints: dict[str, Any]
    right: Callable[[], dict[str, Any]]
    defaults: dict[str, Any]


@cache
def calls() -> tuple[Call, ...]:
    """All of them, in a fixed order."""
    return (
        *_of_package(losses, losses.__all__),
        *_of_package(noise, dict.fromkeys([*noise.GENERATORS, *noise.__all__])),
        *_of_package(theory, theory.__all__),
        *_of_package(data, _OF_DATA),
        *_of_package(optim, [name for name in optim.__all__ if name.endswith("Radius")]),
        *map(_optimizer, optim.names()),
        *(_call(f"optim.{name}.step", partial(_whole_step, name), _whole_step) for name in optim.names()),
        *(_call(f"optim.{name}.backward", partial(_phases, name), _phases) for name in optim.names()),
        _call("optim.SharpnessAware.report_val_loss", _report_val_loss),
        _call("optim.SharpnessAware.progress", _progress),
        _call("models.create", models.create, but={"options"}),
        *(_call(f"models.create.{name}", partial(models.create, name), _BUILDERS[name]) for name in _MODELS),
        *(_call(f"methods.create.{name}", partial(methods.create, name), kind) for name, kind in _METHODS.items()),
        _call("engine.RunConfig", RunConfig),
        _call("find_label_issues", _find_label_issues),
        *(_call(function.__name__.strip("_"), function) for function in (_as_dataset, _train, _auto, _compare)),
    )


def _rows(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _model() -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return nn.Linear(4, 3)


def _dataset() -> data.DataSet:
    return data.from_arrays(_rows(12, 4).numpy(), np.arange(12) % 3)


#: Valid values, by the name of an argument.
_RIGHT: dict[str, Callable[[], Any]] = {
    "logits": lambda: _rows(6, 3),
    "targets": lambda: torch.arange(6) % 3,
    "views": lambda: [_rows(6, 3), _rows(6, 3)],
    "transition": lambda: torch.full((3, 3), 0.1) + 0.7 * torch.eye(3),
    "memory": lambda: _rows(6, 3).softmax(1),
    "prior": lambda: torch.full((3,), 1 / 3),
    "probabilities": lambda: _rows(6, 3).softmax(1),
    "labels": lambda: torch.arange(6) % 3,
    "num_classes": lambda: 3,
    "rate": lambda: 0.3,
    "class_map": lambda: [1, 2, 0],
    "inputs": lambda: (255 * _rows(6, 4).sigmoid()).numpy(),
    "clean": lambda: np.arange(12) % 3,
    "noisy": lambda: np.arange(12)[::-1] % 3,
    "recipe": lambda: {"name": "by hand"},
    "model": _model,
    "data": lambda: (_rows(8, 4), torch.arange(8) % 3, torch.arange(8) // 2 % 3),
    "rho": lambda: 0.1,
    "alignments": lambda: theory.alignments(_model(), _RIGHT["data"]()),
    "neighborhood_loss": lambda: 0.2,
    "n": lambda: 1000,
    "alpha": lambda: 0.2,
    "num_parameters": lambda: 100,
    "weight_norm": lambda: 3.0,
    "loader": lambda: data.Loader(_dataset().train, 4),
    "x": lambda: _rows(6, 4).numpy(),
    "y": lambda: np.arange(6) % 3,
    "texts": lambda: ["one", "two", "three", "four", "five", "six"],
    "dataset": _dataset,
    "fraction": lambda: 0.5,
    "split": lambda: _dataset().train,
    "batch_size": lambda: 4,
    "loss": lambda: 1.0,
    "value": lambda: 0.5,
    "samples": lambda: (_rows(12, 4).numpy(), np.arange(12) % 3),
    "pred_probs": lambda: _rows(6, 3).softmax(1).numpy(),
}
#: The same for functions where a name means something else.
_RIGHT_FOR: dict[str, dict[str, Any]] = {
    "noise.make": {"name": "symmetric", "rate": 0.3},
    "noise.beta_instance": {"rate": 0.3},
    "models.create": {"name": "mlp"},
    "theory.sam_bound": {"rho": 0.05},
}


def _call(
    name: str, function: Callable[..., Any], described: Callable[..., Any] | None = None, but: Iterable[str] = ()
) -> Call:
    """A call under a public name; `described` has the signature if `function` has not."""
    within = described or function
    hints = {each: hint for each, hint in _hints(within).items() if each not in but}
    defaults = {p.name: p.default for p in _parameters(within) if p.default is not p.empty}
    needed = hints.keys() - defaults.keys()

    def right() -> dict[str, Any]:
        return {each: _RIGHT[each]() for each in _RIGHT if each in needed} | _RIGHT_FOR.get(name, {})

    return Call(name, function, hints, right, defaults)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    named = inspect.signature(function).parameters.values()
    return [p for p in named if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and p.name != "kind"]


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    within = getattr(function, "__init__", None) if inspect.isclass(function) else function
    types = get_type_hints(within, localns=_IN_ALIASES)
    return {p.name: types.get(p.name, Any) for p in _parameters(function)}


def _of_package(package: Any, names: Iterable[str]) -> Iterable[Call]:
    for name in names:
        member, title = getattr(package, name), f"{package.__name__.removeprefix('ncsam.')}.{name}"
        if name in _LEFT_OUT or not callable(member):
            continue
        if inspect.isclass(member) and issubclass(member, nn.Module):
            yield _loss(title, member, _INPUTS.get(name, ("logits", "targets")))
        else:
            function = partial(_then, member, _USED[name]) if name in _USED else member
            yield _call(title, function, member)


# --- how results are used: a wrong option may be noticed only then


def _then(make: Callable[..., Any], use: Callable[[Any], Any], **given: Any) -> Any:
    return use(make(**given))


def _first_batch(loader: data.Loader) -> data.Batch:
    return next(iter(loader))


def _of_criterion(criterion: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    return criterion(_rows(6, 3), torch.arange(6) % 3)


def _value(surface: theory.LossSurface) -> list[float]:
    return surface.value()


_USED: dict[str, Callable[[Any], Any]] = {
    "Loader": _first_batch,
    "WithClean": list,
    "clipped": _of_criterion,
    "LossSurface": _value,
}


def _loss(title: str, kind: type[nn.Module], inputs: tuple[str, ...]) -> Call:
    options = _call(title, kind)

    def call(**given: Any) -> Any:
        taken = [given.pop(each) for each in inputs]
        return kind(**given)(*taken)

    def right() -> dict[str, Any]:
        return {each: _RIGHT[each]() for each in inputs} | options.right()

    tensors = {each: list[Tensor] if each == "views" else Tensor for each in inputs}
    return Call(title, call, tensors | options.hints, right, options.defaults)


def _made(name: str, **options: Any) -> tuple[nn.Module, Any]:
    model = _model()
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    kind: Any = optim.get(name)
    return model, kind(base, **{"model": model, "total_steps": 10, **options})


def _optimizer(name: str) -> Call:
    kind = optim.get(name)
    types = get_type_hints(optim.Options) | get_type_hints(kind.__init__)

    def call(**given: Any) -> Any:
        model, optimizer = _made(name, **given)
        for _ in range(2):
            found = optimizer.step(lambda: model(_rows(6, 4)), torch.arange(6) % 3)
        return found

    hints = {each: types.get(each, Any) for each in optim.option_names(kind)}
    defaults = {p.name: p.default for p in _parameters(kind)}
    return Call(f"optim.{name}", call, hints, dict, {**_DEFAULTS, **defaults})


def _whole_step(kind: str, logits: Tensor, targets: Tensor, clean_targets: Tensor | None = None) -> Any:
    model, optimizer = _made(kind, telemetry_every=1)

    def forward() -> Any:
        return logits + 0 * model(_rows(6, 4)).sum() if isinstance(logits, Tensor) else logits

    return optimizer.step(forward, targets, clean_targets=clean_targets)


def _phases(kind: str, logits: Any, targets: Any, clean_targets: Any = None) -> Any:
    model, optimizer = _made(kind, telemetry_every=1)
    with optimizer.first_pass():
        loss = nn.functional.cross_entropy(model(_rows(6, 4)), torch.arange(6) % 3)
        if isinstance(logits, Tensor) and logits.is_floating_point():
            logits = logits + 0 * model(_rows(6, 4)).sum()
        optimizer.backward(loss, logits, targets, clean_targets=clean_targets)
    for perturbed in optimizer.perturbations():
        with perturbed:
            optimizer.backward(nn.functional.cross_entropy(model(_rows(6, 4)), torch.arange(6) % 3))
    return optimizer.step()


# --- data in memory, of any kind


def _as_dataset(samples: Any) -> data.DataSet:
    return data.as_dataset(samples)


def _find_label_issues(labels: Any, pred_probs: Any, classes: Any = None, train_accuracy: Any = None) -> None:
    find_label_issues(labels, pred_probs, classes=classes, train_accuracy=train_accuracy)


def _train(samples: Any) -> None:
    run = api.train(samples, epochs=1, batch_size=8, model="mlp", optimizer="sgd", val_share=0.0)
    run.find_label_issues()


def _auto(samples: Any, verified: Any = None) -> None:
    config, dataset = api.make_config(samples, val_share=0.0)
    with tempfile.TemporaryDirectory() as folder:
        auto(config, folder, folds=2, budget=1e-9, dataset=dataset, verified=verified, say=lambda text: None)


def _compare(samples: Any) -> None:
    options: dict[str, Any] = {"epochs": 1, "batch_size": 8, "model": "mlp", "val_share": 0.0}
    with mock.patch.object(local, "run_all", in_this_process):
        api.compare(samples, optimizers=["sgd"], seeds=1, workers=1, **options)


def _report_val_loss(loss: Any) -> None:
    _made("sam", rho="validation")[1].report_val_loss(loss)


def _progress(value: float | None) -> None:
    _made("sam")[1].progress = value
