"""Options fit the annotations of what takes them, or are refused in one sentence."""

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import pytest

from ncsam import _arguments, methods, models
from ncsam._arguments import coerce, coerce_options


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
    found = coerce("x", value, hint)
    assert found == result
    assert type(found) in (type(result), np.int64)


@pytest.mark.parametrize(
    ("value", "hint", "said"),
    [
        ("abc", float, "x='abc'"),
        (True, float, "x=True"),
        (10**400, float, "invalid "),
        (True, int, "x=True"),
        (1.0, int, "x=1.0"),
        ("abc", bool, "x='abc'"),
        (1, bool, "x=1"),
        (None, Sequence[int], "x=None"),
        (7, Sequence[int], "x=7"),
        ("12", Sequence[int], "x='12'"),
        ([1, "a"], Sequence[int], "x=[1, 'a']"),
        ("now", float | Literal["auto"] | None, "x='now'"),
        ([], dict[str, Any], "x=[]"),
    ],
)
def test_what_does_not_fit_is_said(value, hint, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        coerce("x", value, hint)


def test_numbers_of_options_are_finite():
    def takes(alpha: float = 1.0) -> None: ...

    for number in (float("nan"), float("inf"), ".inf", "nan"):
        with pytest.raises(ValueError, match=r"alpha=.*"):
            coerce_options(takes, {"alpha": number})


@pytest.mark.parametrize("name", methods.names())
def test_no_option_of_a_method_takes_a_mapping_of_nonsense(name):
    import inspect

    for option in inspect.signature(type(methods.create(name)).__init__).parameters:
        if option not in ("self", "transition"):
            with pytest.raises(ValueError, match=f"{option}=.*"):
                methods.create(name, **{option: {"non": "sense"}})


@pytest.mark.parametrize("name", models.names())
def test_no_option_of_a_network_takes_a_mapping_of_nonsense(name):
    import inspect

    from ncsam.models.registry import _BUILDERS

    for option in inspect.signature(_BUILDERS[name]).parameters:
        if option not in ("num_classes", "in_channels"):
            with pytest.raises(ValueError, match=f"{option}=.*"):
                models.create(name, 3, **{option: {"non": "sense"}})


NUMPY = [np.float16(0.25), np.float32(0.25), np.float64(0.25)]


@pytest.mark.parametrize("value", [0.25, *NUMPY])
def test_numbers_of_numpy_are_numbers(value):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # half precision has no number as large as the limit
        for check in (
            _arguments.number,
            _arguments.non_negative,
            _arguments.above_zero,
            _arguments.ratio,
            _arguments.below_one,
        ):
            assert check("x", value) == 0.25
            assert type(check("x", value)) is float
    assert type(_arguments.count("x", np.int64(3))) is int
    assert type(coerce("x", np.int64(3), int | float)) is int  # a span of three epochs, and no share


@pytest.mark.parametrize("value", [True, None, "0.5", float("nan"), float("inf"), [0.5], np.zeros(2), Fraction(1, 3)])
def test_what_is_no_number_is_refused(value):
    for check in (
        _arguments.number,
        _arguments.non_negative,
        _arguments.above_zero,
        _arguments.ratio,
        _arguments.below_one,
    ):
        with pytest.raises(ValueError, match=r"^invalid x=.*"):
            check("x", value)
    with pytest.raises(ValueError, match=r"^invalid x=.*"):
        _arguments.count("x", value)


def test_numbers_that_single_precision_does_not_hold_are_refused():
    for value in (1e300, 10**300):
        with pytest.raises(ValueError, match=r"invalid "):
            _arguments.non_negative("rho", value)
    with pytest.raises(ValueError, match=r"weight=1e\+300"):
        methods.create("elr", weight=1e300)
    with pytest.raises(ValueError, match=r"history=.*"):
        methods.create("selfie", history=10**30)
    with pytest.raises(ValueError, match="steps=9223372036854775808"):
        _arguments.count("steps", 2**63)


def test_a_word_that_is_nearly_right_is_asked_for():
    with pytest.raises(ValueError, match=r"x='absolut'"):
        _arguments.choice("x", "absolut", ("absolute", "relative"))
    with pytest.raises(ValueError, match=r"x='autoo'"):
        coerce("x", "autoo", float | Literal["auto"])
    with pytest.raises(ValueError, match=r"x=\['auto'\]"):
        _arguments.choice("x", ["auto"], ("auto",))


def test_a_value_is_shown_in_one_line():
    with pytest.raises(ValueError, match=r"^invalid x=array\(\[\[0., 0.\], \[0., 0.\]\]\)"):
        _arguments.number("x", np.zeros((2, 2)))
    with pytest.raises(ValueError, match="x=a number of type int"):
        _arguments.count("x", 10**5000)
    with pytest.raises(ValueError, match=r"\.\.\.") as caught:
        _arguments.number("x", list(range(10_000)))
    assert len(str(caught.value)) < 500


def test_arrays_are_lists_of_what_they_hold():
    assert coerce("x", np.array([0.5, 1]), Sequence[float]) == [0.5, 1.0]
    for value in (np.float64("nan"), np.zeros((2, 2)), np.array(["a"])):
        with pytest.raises(ValueError, match=r"x=.*"):
            coerce("x", value, list[float])
