"""Options fit the annotations of what takes them, or are refused in one sentence."""

import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytest

from ncsam import methods, models
from ncsam._options import fitted, fitted_options


@pytest.mark.parametrize(
    ("value", "hint", "result"),
    [
        (1, float, 1.0),
        ("1e-3", float, 1e-3),
        (np.float32(0.5), float, 0.5),
        (np.int64(3), int, 3),
        (True, bool, True),
        (None, float | None, None),
        ("auto", float | Literal["auto"], "auto"),
        ((1, 2), list[int], [1, 2]),
        ((1, 2), Sequence[int], (1, 2)),
        (["1e-1"], Sequence[float], [0.1]),
        ([32, 48], tuple[int, int] | None, (32, 48)),
        (["1e-1", 2], tuple[float, ...], (0.1, 2.0)),
        ({"a": 1}, dict[str, Any], {"a": 1}),
        (print, Any, print),
    ],
)
def test_what_fits_comes_back(value, hint, result):
    found = fitted("x", value, hint)
    assert found == result
    assert type(found) in (type(result), np.int64)


@pytest.mark.parametrize(
    ("value", "hint", "said"),
    [
        ("abc", float, "x='abc' is not allowed: a number"),
        (True, float, "x=True is not allowed: a number"),
        (10**400, float, "is not allowed: a number"),
        (True, int, "x=True is not allowed: a whole number"),
        (1.0, int, "x=1.0 is not allowed: a whole number"),
        ("abc", bool, "x='abc' is not allowed: true or false"),
        (1, bool, "x=1 is not allowed: true or false"),
        (None, Sequence[int], "x=None is not allowed: a list (of each: a whole number)"),
        (7, Sequence[int], "x=7 is not allowed: a list"),
        ("12", Sequence[int], "x='12' is not allowed: a list"),
        ([1, "a"], Sequence[int], "x=[1, 'a'] is not allowed: a list"),
        ("now", float | Literal["auto"] | None, "x='now' is not allowed: a number or auto or null"),
        ([], dict[str, Any], "x=[] is not allowed: a mapping"),
    ],
)
def test_what_does_not_fit_is_said(value, hint, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        fitted("x", value, hint)


def test_numbers_of_options_are_finite():
    def takes(alpha: float = 1.0) -> None: ...

    for number in (float("nan"), float("inf"), ".inf", "nan"):
        with pytest.raises(ValueError, match=r"alpha=.* is not allowed"):
            fitted_options(takes, {"alpha": number})


@pytest.mark.parametrize("name", methods.names())
def test_no_option_of_a_method_takes_a_mapping_of_nonsense(name):
    import inspect

    for option in inspect.signature(type(methods.create(name)).__init__).parameters:
        if option not in ("self", "transition"):
            with pytest.raises(ValueError, match=f"{option}=.* is not allowed"):
                methods.create(name, **{option: {"non": "sense"}})


@pytest.mark.parametrize("name", models.names())
def test_no_option_of_a_network_takes_a_mapping_of_nonsense(name):
    import inspect

    from ncsam.models.registry import _BUILDERS

    for option in inspect.signature(_BUILDERS[name]).parameters:
        if option not in ("num_classes", "in_channels"):
            with pytest.raises(ValueError, match=f"{option}=.* is not allowed"):
                models.create(name, 3, **{option: {"non": "sense"}})
