"""Models passed as Python objects: how they are built, what is refused, and what is left as it was."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ncsam.data.modalities.features import Features
from ncsam.engine import RunConfig
from ncsam.engine.checkpoint import kept_random_state
from ncsam.engine.given_model import GivenModel, build_model, check_outputs
from ncsam.errors import UsageError


class Head(nn.Linear):
    """A class whose parameter says what it takes."""

    def __init__(self, width: int = 5, *, n_classes: int = 10) -> None:
        super().__init__(width, n_classes)


class Positional(nn.Linear):
    def __init__(self, outputs: int, width: int = 5) -> None:
        super().__init__(width, outputs)


def anything(*args: int, **options: int) -> nn.Module:
    return nn.Linear(5, options["num_classes"] if options else args[0])


@pytest.mark.parametrize(
    "build",
    [
        Head,
        Positional,
        anything,
        lambda classes: nn.Linear(5, classes),
        lambda width=5, *, num_classes: nn.Linear(width, num_classes),
        lambda *sizes: nn.Linear(5, *sizes),
        lambda: nn.Linear(5, 3),
    ],
)
def test_the_number_of_classes_goes_where_the_signature_says(build: Callable[..., nn.Module]) -> None:
    network = build_model(build, 3)
    assert isinstance(network, nn.Linear)
    assert (network.in_features, network.out_features) == (5, 3)


def needs_two(num_classes: int, width: int) -> nn.Module:
    return nn.Linear(width, num_classes)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (needs_two, "missing a required argument: 'width'"),
        (lambda classes: classes, "this one returned int"),
    ],
)
def test_what_builds_no_model_is_refused(build: Any, said: str) -> None:
    with pytest.raises(UsageError, match=f"model=.*expected a torch.nn.Module, or a function.*{said}"):
        build_model(build, 3)


def test_an_error_inside_the_function_is_the_users_to_see() -> None:
    def broken(num_classes: int) -> nn.Module:
        raise KeyError("weights")

    with pytest.raises(KeyError, match="weights"):
        build_model(broken, 3)


def test_a_module_serves_once_and_a_function_as_often_as_needed() -> None:
    config = RunConfig(method="coteaching")
    module = nn.Linear(5, 3)
    given = GivenModel(module, config, 3)
    assert given() is module
    with pytest.raises(UsageError, match=r"model='Linear'.*coteaching builds several models"):
        given()
    built = GivenModel(Positional, config, 3)
    first, second = built(), built()
    assert first is not second
    with pytest.raises(UsageError, match=r"model=3.*the name of a model"):
        GivenModel(3, config, 3)  # type: ignore[arg-type]


class Tuple(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


MODALITY = Features(mean=(), std=(), shape=(5,))


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (nn.Linear(4, 3), r"inputs of shape \(2, 5\); it raised RuntimeError: mat1 and mat2"),
        (nn.Linear(5, 2), r"a logit for each of the 3 classes: \(2, 3\) for two samples, not \(2, 2\)"),
        (nn.Sequential(nn.Linear(5, 3), nn.Unflatten(1, (3, 1))), r"not \(2, 3, 1\)"),
        (Tuple(), "not tuple"),
    ],
)
def test_a_model_that_does_not_fit_the_data_is_refused(network: nn.Module, said: str) -> None:
    with pytest.raises(UsageError, match=f"model='{type(network).__name__}'.*{said}"):
        check_outputs(network, MODALITY, 3)


def test_the_check_leaves_model_and_generators_as_they_were() -> None:
    network = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3))
    network[2].eval()  # a frozen part stays frozen
    modes = [module.training for module in network.modules()]
    before = {name: value.clone() for name, value in network.state_dict().items()}
    generator = torch.get_rng_state()
    check_outputs(network, MODALITY, 3)
    assert [module.training for module in network.modules()] == modes
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert torch.equal(generator, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in network.parameters())


def draws() -> tuple[float, float, float]:
    return torch.rand(()).item(), float(np.random.random()), random.random()  # noqa: NPY002 - the global generator


def test_generators_continue_where_they_were_also_after_an_error() -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    expected = [draws(), draws()]
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    first = draws()
    with pytest.raises(ZeroDivisionError), kept_random_state():
        draws()[0] / 0
    assert [first[1:], draws()[1:]] == [each[1:] for each in expected]
    torch.manual_seed(0)
    with kept_random_state():
        torch.rand(7)
    assert torch.rand(()).item() == first[0]
