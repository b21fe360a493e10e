"""Hypothesis strategies for wrong arguments of a call, and which of them must be rejected, by the argument's type."""

from __future__ import annotations

import inspect
import math
import numbers
import types
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np
import numpy.typing as npt
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from stress.callables import Call

_FLOAT32 = 3.5e38
#: Integers are not arbitrary: sizes between these legitimately take long.
_INTEGERS = [-1, 0, 1, 2, 7, 10**9, 2**63, 10**30, 10**5000]
_TEXTS = ["", "abc", "nan", "0.5", "-1", "cuda:77", "sam", "mean", "none", "None", "1e400"]
_FLOATS = [math.nan, math.inf, -math.inf, -0.5, 0.0, 0.3, 1.5, 1e300]
_SHAPES = [(), (0,), (1,), (2,), (2, 2)]

_scalars = st.one_of(
    st.sampled_from([None, True, False, np.bool_(True), b"x", 1j, range(3)]),
    st.sampled_from(_INTEGERS),
    st.sampled_from(_FLOATS) | st.floats(),
    st.sampled_from(_TEXTS) | st.text(max_size=4),
    st.decimals() | st.fractions(),
    st.sampled_from([np.float32(0.1), np.float64("nan"), np.int64(3)]),
)
_arrays = hnp.arrays(hnp.scalar_dtypes() | st.just(np.dtype("U1")), st.sampled_from(_SHAPES))
_tensors = st.builds(torch.full, st.sampled_from(_SHAPES), st.sampled_from([0, 3, 0.5, math.nan]))
_containers = st.one_of(
    st.lists(_scalars, max_size=3),
    st.tuples(st.floats(), st.floats()),
    st.dictionaries(st.sampled_from(["a", 0]), _scalars, max_size=2),
    st.sampled_from([[[1, 2], [3]], ["a", "a"]]),
    st.sampled_from([set, object, torch.Generator, partial(torch.nn.Linear, 2, 2)]).map(lambda make: make()),
)
#: Nothing here is what an argument expects, except for plain numbers.
_anything = st.one_of(_scalars, _scalars, _arrays, _tensors, _containers)


def wrong(call: Call, name: str, right: Any) -> st.SearchStrategy[Any]:
    """A wrong value for an argument: of another type, out of range, or the right one changed."""
    base = call.defaults.get(name) if right is None else right
    changes = _changes(base)
    if isinstance(base, Tensor) and name in ("targets", "clean_targets"):
        changes.append(lambda t: t.to("meta"))  # for another device than this machine's
    if not changes:
        return _anything
    changed = st.sampled_from(changes).map(lambda change: change(base))
    return st.one_of(changed, changed, _anything)


def _changes(value: Any) -> list[Callable[[Any], Any]]:
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
        return [*(partial(_of_array, change) for change in _OF_TENSORS), *_OF_ARRAYS]
    if isinstance(value, (list, tuple)) and value:
        kind = type(value)
        within = [] if isinstance(value[0], (list, tuple)) else _changes(value[0])
        whole: list[Callable[[Any], Any]] = [lambda v: v[:-1], lambda v: [*v, v[0]], lambda v: kind([*v[:-1], None])]
        return [*whole, iter, *(partial(_of_first, change, kind) for change in within)]
    return []


def _of_first(change: Callable[[Any], Any], kind: type, several: Any) -> Any:
    return kind([change(several[0]), *several[1:]])


def _of_array(change: Callable[[Tensor], Any], array: Any) -> Any:
    found = change(torch.tensor(np.ascontiguousarray(array)))
    return found.numpy() if isinstance(found, Tensor) else found


def _with(entry: float, tensor: Tensor) -> Tensor:
    fits = tensor.is_floating_point() or (tensor.dtype == torch.int64 and abs(entry) < 2**63)
    other = (tensor.clone() if fits else tensor.double()).contiguous()
    if other.numel():
        other.view(-1)[other.numel() // 2] = entry
    return other


_DTYPES = (torch.float64, torch.float32, torch.float16, torch.complex64, torch.bool)
_OF_TENSORS: list[Callable[[Tensor], Any]] = [
    *(lambda t, kind=kind: t.to(kind) for kind in (*_DTYPES, torch.int64, torch.int32, torch.uint8)),  # type: ignore[misc]
    *(partial(_with, entry) for entry in (math.nan, math.inf, -1, 10**6, -100, 3, 1e30)),
    lambda t: t[:0],
    lambda t: t[:-1],
    lambda t: t[None],
    lambda t: t[..., None],
    lambda t: t.T if t.ndim == 2 else t.flip(0),
    lambda t: t.reshape(-1)[0],
    lambda t: t.tolist(),
    lambda t: t.numpy(),
    lambda t: t[:1].expand(t.shape),
]
_OF_ARRAYS: list[Callable[[Any], Any]] = [
    lambda a: a.astype(object),
    lambda a: a.astype(str),
    lambda a: a.astype("S"),
    lambda a: a.astype("datetime64[s]") if a.dtype.kind in "iu" else a.astype(np.complex128),
]


# --- what must be accepted, and what must be rejected


def is_same(call: Call, name: str, value: Any) -> bool:
    """Whether a value is the right number as a numpy type."""
    right = call.right().get(name, call.defaults.get(name))
    if isinstance(right, bool) or type(value) not in (
        (np.int64,) if isinstance(right, int) else (np.float32, np.float64)
    ):
        return False
    return isinstance(right, (int, float)) and math.isclose(right, value, rel_tol=1e-6)


def refused(call: Call, name: str, value: Any) -> bool:
    """Whether a value is of none of the types of an argument, or a number that no such argument can be."""
    hint = call.hints[name]
    hints = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if set(get_args(npt.ArrayLike)) <= {*hints}:
        return False  # too many kinds
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
    if isinstance(value, str):  # as in configuration files
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
    """A short description of a value, with its type."""
    kind = type(value).__name__
    if isinstance(value, (Tensor, np.ndarray)):
        kind += f" {value.dtype} {tuple(value.shape)}"
    try:
        text = f"{kind} {value!r}".replace("\n", "")
    except ValueError:  # too many digits
        return f"{kind} with too many digits to print"
    return text if len(text) < 120 else text[:117] + "..."
