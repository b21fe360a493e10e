"""Build a model by a user's function or class, whose signature says where the number of classes goes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from torch import nn

from ncsam._errors import bad_value

EXPECTED = "a torch.nn.Module, or a function of the number of classes that returns one"
#: Names of a parameter that is the number of classes; `classifier_dropout` and `class_weights` are not.
_COUNT = re.compile(r"(n|num|number|nr|nb)?(_of)?_?(class(es)?|labels)|class_?(num|count)|classes_?num")


def build_model(build: Callable[..., nn.Module], num_classes: int, **options: Any) -> nn.Module:
    """The model that a user's function or class makes.

    It is called with the number of classes: by the name of its parameter that says so (`num_classes`, `n_class`,
    `num_labels`), else in the first place if that must be given.

    Args:
        build: Takes the number of classes, or nothing.
        num_classes: Number of classes.
        **options: Its other arguments.

    Raises:
        UsageError: It needs other arguments, or returns no module.
    """
    name = getattr(build, "__qualname__", type(build).__name__)
    args, named = _arguments(build, num_classes)
    named |= options
    try:
        inspect.signature(build).bind(*args, **named)
    except TypeError as error:
        raise bad_value("model", name, f"{EXPECTED}, such as lambda num_classes: {name}(...): {error}") from None
    except ValueError:  # what is written in C has no signature
        pass
    network = build(*args, **named)
    if not isinstance(network, nn.Module):
        raise bad_value("model", name, f"{EXPECTED}; this one returned {type(network).__name__}{instead(network)}")
    return network


def instead(model: object) -> str:
    """The end of an error: what a scikit-learn estimator, which cannot be trained here, serves for.

    Args:
        model: What was passed as a model, or returned as one.
    """
    if not hasattr(model, "predict_proba"):
        return ""
    how = 'cross_val_predict(estimator, X, labels, method="predict_proba")'
    return f"; with a scikit-learn estimator, use ncsam.find_label_issues(labels, {how})"


def _arguments(build: Callable[..., Any], num_classes: int) -> tuple[tuple[int, ...], dict[str, Any]]:
    try:
        parameters = list(inspect.signature(build).parameters.values())
    except (TypeError, ValueError):
        return (num_classes,), {}
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for parameter in parameters:
        if parameter.kind in by_name and _COUNT.fullmatch(parameter.name):
            return (), {parameter.name: num_classes}
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return (), {"num_classes": num_classes}
    first = parameters[0] if parameters else None
    takes_any = first is not None and first.kind is inspect.Parameter.VAR_POSITIONAL
    needed = first is not None and first.default is first.empty and first.kind is not inspect.Parameter.KEYWORD_ONLY
    return ((num_classes,), {}) if takes_any or needed else ((), {})
