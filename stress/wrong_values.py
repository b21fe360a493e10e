"""Wrong values for the arguments of a call, and which of them must not be accepted, by the type of the argument."""

from __future__ import annotations

import inspect
import math
import numbers
import random
import types
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stress.callables import Call

_FLOAT32 = 3.5e38
_TEXTS = ("", "abc", "nan", "0.5", "-1", "cuda:77", "sam", "mean", "none", "None", "1e400")


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


#: Nothing here is what any argument asks for, but for the plain numbers.
_WRONG: tuple[Callable[[], Any], ...] = (
    *map(_constant, (None, True, False, np.bool_(True), b"x", *_TEXTS)),
    *map(_constant, (math.nan, math.inf, -math.inf, np.float64("nan"), 1j, Decimal("0.1"), Fraction(1, 3))),
    *map(_constant, (-1, 0, 1, 2, 7, 10**9, 2**63, 10**30, 10**5000, -0.5, 0.0, 0.3, 1.5, 1e300)),
    *map(_constant, (np.float32(0.1), np.int64(3), range(3))),
    lambda: np.array(0.5),
    lambda: np.array([1, 2]),
    lambda: np.zeros((2, 2)),
    lambda: np.zeros(0),
    lambda: np.array(["a", "b"]),
    lambda: np.array([1, None, "a"], dtype=object),
    lambda: torch.tensor(0.5),
    lambda: torch.tensor(3),
    lambda: torch.zeros(2, 2),
    lambda: torch.zeros(0),
    list,
    dict,
    set,
    tuple,
    object,
    lambda: [1, 2],
    lambda: ["a", "a"],
    lambda: [None],
    lambda: (0.5, 0.5),
    lambda: [math.nan],
    lambda: {"a": 1},
    lambda: {0: 1},
    lambda: [[1, 2], [3]],
    lambda: torch.nn.Linear(2, 2),
    lambda: torch.Generator(),
)


def changed(call: Call, name: str, right: Any, chance: random.Random) -> Any:
    """A wrong value for an argument: of another type, out of range, or the right one spoiled."""
    base = call.defaults.get(name) if right is None else right
    spoil = _spoilers(base)
    if isinstance(base, Tensor) and name in ("targets", "clean_targets"):
        spoil.append(lambda t: t.to("meta"))  # for another device than this machine's
    if spoil and chance.random() < 0.6:
        return chance.choice(spoil)(base)
    return chance.choice(_WRONG)()


def _spoilers(value: Any) -> list[Callable[[Any], Any]]:
    if isinstance(value, bool):
        return [int, str, np.bool_]
    if isinstance(value, (int, float)):
        number = np.int64 if isinstance(value, int) else np.float32
        return [number, np.float64, str, lambda v: [v], torch.tensor, np.array, lambda v: -v - 1, lambda v: v * 1e30]
    if isinstance(value, str):
        return [str.upper, lambda v: v[:-1], lambda v: v + "x", str.encode, lambda v: [v], list]
    if isinstance(value, Tensor):
        return [*_OF_TENSORS, *([] if value.ndim != 1 else [lambda v: torch.nn.functional.one_hot(v.long())])]
    if isinstance(value, np.ndarray):
        return [*map(_of_array, _OF_TENSORS), *_OF_ARRAYS]
    if isinstance(value, (list, tuple)) and value:
        kind = type(value)
        within = [] if isinstance(value[0], (list, tuple)) else _spoilers(value[0])
        whole: list[Callable[[Any], Any]] = [lambda v: v[:-1], lambda v: [*v, v[0]], lambda v: kind([*v[:-1], None])]
        return [*whole, iter, *(_of_first(spoil, kind) for spoil in within)]
    return []


def _of_first(spoil: Callable[[Any], Any], kind: type) -> Callable[[Any], Any]:
    return lambda several: kind([spoil(several[0]), *several[1:]])


def _of_array(spoil: Callable[[Tensor], Any]) -> Callable[[Any], Any]:
    def spoiled(array: Any) -> Any:
        found = spoil(torch.tensor(np.ascontiguousarray(array)))
        return found.numpy() if isinstance(found, Tensor) else found

    return spoiled


def _as(kind: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor.to(kind)


def _with(entry: float) -> Callable[[Tensor], Tensor]:
    def spoiled(tensor: Tensor) -> Tensor:
        fits = tensor.is_floating_point() or (tensor.dtype == torch.int64 and abs(entry) < 2**63)
        other = (tensor.clone() if fits else tensor.double()).contiguous()
        if other.numel():
            other.view(-1)[other.numel() // 2] = entry
        return other

    return spoiled


_OF_TENSORS: tuple[Callable[[Tensor], Any], ...] = (
    *map(_as, (torch.float64, torch.float32, torch.float16, torch.complex64, torch.bool)),
    *map(_as, (torch.int64, torch.int32, torch.uint8)),
    *map(_with, (math.nan, math.inf, -1, 10**6, -100, 3, 1e30)),
    lambda t: t[:0],
    lambda t: t[:-1],
    lambda t: t[None],
    lambda t: t[..., None],
    lambda t: t.T if t.ndim == 2 else t.flip(0),
    lambda t: t.reshape(-1)[0],
    lambda t: t.tolist(),
    lambda t: t.numpy(),
    lambda t: t[:1].expand(t.shape),
)
_OF_ARRAYS: list[Callable[[Any], Any]] = [
    lambda a: a.astype(object),
    lambda a: a.astype(str),
    lambda a: a.astype("S"),
    lambda a: a.astype("datetime64[s]") if a.dtype.kind in "iu" else a.astype(np.complex128),
]


# --- what must be accepted, and what must not


def is_same(call: Call, name: str, value: Any) -> bool:
    """Whether a value is the right number as numpy has it."""
    right = call.right().get(name, call.defaults.get(name))
    if isinstance(right, bool) or type(value) not in (
        (np.int64,) if isinstance(right, int) else (np.float32, np.float64)
    ):
        return False
    return isinstance(right, (int, float)) and math.isclose(right, value, rel_tol=1e-6)


def refused(call: Call, name: str, value: Any) -> bool:
    """Whether a value is of none of the types that an argument may have, or a number that no such argument can be."""
    hint = call.hints[name]
    hints = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if set(get_args(npt.ArrayLike)) <= {*hints}:
        return False  # of these there are too many kinds
    strict = call.name.partition(".")[0] in ("optim", "losses", "models", "methods")
    return not any(_fits(value, kind, strict) for kind in hints)


def _fits(value: Any, kind: Any, strict: bool) -> bool:
    base = get_origin(kind) or kind
    if base is Any:
        return True
    if base is type(None):
        return value is None
    if base is Literal:
        return isinstance(value, (str, numbers.Real)) and not isinstance(value, bool) and value in get_args(kind)
    if base is bool:
        return isinstance(value, (bool, np.bool_))
    if base in (int, float):
        return _is_number(value, base, strict)
    if base is str:
        return isinstance(value, str)
    if base in (list, tuple, Sequence):
        return not isinstance(value, (str, bytes, Mapping, set, type(None)))
    if base in (dict, Mapping):
        return isinstance(value, Mapping)
    if base is Tensor:
        return isinstance(value, (Tensor, np.ndarray, list))
    if base is np.ndarray:
        return isinstance(value, (np.ndarray, Sequence))
    if base is Callable:
        return callable(value)
    return not inspect.isclass(base) or isinstance(value, base)


def _is_number(value: Any, kind: type, strict: bool) -> bool:
    if isinstance(value, str):  # as configuration files have it
        try:
            return math.isfinite(float(value))
        except ValueError:
            return False
    if isinstance(value, (np.ndarray, Tensor)):
        return value.ndim == 0 and math.isfinite(float(value))
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (numbers.Real, Decimal)):
        return False
    value = value.item() if isinstance(value, np.generic) else value
    if abs(value) > (_FLOAT32 if kind is float else 2**63):
        return not strict
    if not math.isfinite(value) or (strict and abs(float(value)) > _FLOAT32):
        return False
    return kind is float or value == int(value)


def shown(value: Any) -> str:
    """A value in few words, with its type."""
    kind = type(value).__name__
    if isinstance(value, (Tensor, np.ndarray)):
        kind += f" {value.dtype} {tuple(value.shape)}"
    try:
        text = f"{kind} {value!r}".replace("\n", "")
    except ValueError:  # of so many digits
        return f"{kind} of {value.bit_length()} bits"
    return text if len(text) < 120 else text[:117] + "..."
