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
import pandas as pd
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

_FLOAT32 = 3.5e38
_SHAPES = [(), (0,), (1,), (2,), (2, 2)]
_scalars = st.one_of(
    st.sampled_from([None, True, False, np.bool_(True), b"x", 1j, range(3), np.float64("nan"), np.int64(3)]),
    st.sampled_from([-1, 0, 1, 2, 7, 10**9, 2**63, 10**30]),  # sizes between these legitimately take long
    st.just(5000).map(lambda digits: 10**digits),  # Python refuses to print it
    st.sampled_from([math.nan, math.inf, -math.inf, -0.5, 0.0, 0.3, 1.5, 1e300]) | st.floats(),
    st.sampled_from(["abc", "nan", "0.5", "-1", "cuda:77", "sam", "mean", "none", "None", "1e400"])
    | st.text(max_size=4),
    st.decimals() | st.fractions(),
)
_arrays = hnp.arrays(hnp.scalar_dtypes() | st.just(np.dtype("U1")), st.sampled_from(_SHAPES))
_tensors = st.builds(torch.full, st.sampled_from(_SHAPES), st.sampled_from([0, 3, 0.5, math.nan]))
_containers = st.one_of(
    st.lists(_scalars, max_size=3) | st.tuples(st.floats(), st.floats()) | st.sampled_from([[[1, 2], [3]], ["a", "a"]]),
    st.dictionaries(st.sampled_from(["a", 0]), _scalars, max_size=2),
    st.sampled_from([set, object, torch.Generator, partial(torch.nn.Linear, 2, 2)]).map(lambda make: make()),
)
#: Nothing here is what an argument expects, except for plain numbers.
_anything = st.one_of(_scalars, _scalars, _arrays, _tensors, _containers)


def wrong(name: str, right: Any) -> st.SearchStrategy[Any]:
    """A wrong value for an argument: of another type, out of range, or the right one changed."""
    changes = _changes(right)
    if isinstance(right, Tensor) and name in ("targets", "clean_targets"):
        changes.append(lambda t: t.to("meta"))  # for another device than this machine's
    if name in ("samples", "verified"):
        return _anything | (odd_data() if name == "samples" else _verified)
    if not changes:
        return _anything
    changed = st.sampled_from(changes).map(lambda change: change(right))
    return st.one_of(changed, changed, _anything)


# --- data in memory

_cells = st.sampled_from(
    [0, 1.5, -1, "a", "b", "", None, math.nan, math.inf, True, b"x", pd.NaT, pd.NA, pd.Timestamp("2024-01-31"), [1], {}]
)
_usual = st.sampled_from(
    [
        *([1.0, 2.0, 3.0] * 4, ["red", "blue", None] * 4, [f"some words of the text {i}" for i in range(12)]),
        *([*pd.date_range("2024-01-31", periods=12)], pd.Categorical(["a", "b", None] * 4), [10**20, 1, 2] * 4),
        *(pd.array([1, None, 3] * 4, dtype="Int64"), pd.Series(["x", "y"] * 6, dtype="string"), [True, False] * 6),
        *([1 + 1j] * 12, [math.nan] * 12, pd.to_timedelta(range(12), unit="D"), [b"\xff\xd8"] * 12, [np.eye(2)] * 12),
    ]
)
_column = st.one_of(_usual, _usual, st.lists(_cells, min_size=12, max_size=12), st.lists(_cells, max_size=3))
_labels = st.one_of(
    st.sampled_from([["x", "y"] * 6, [0, 1] * 6, np.arange(12) % 3, torch.arange(12) % 2, pd.Series(["u", "v"] * 6)]),
    st.sampled_from([[0.5, 1.0] * 6, [-1, 0] * 6, [None, "a"] * 6, [[0], [1]] * 6, [10**12, 1] * 6, ["one"] * 12, []]),
    _column,
)
_verified = st.dictionaries(st.sampled_from([0, 1, 5, -1, 99, "a", 2.5, None]), _cells, max_size=4) | st.lists(
    _cells, min_size=12, max_size=12
)


@st.composite
def odd_data(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Any:
    """Tables, pairs of samples and labels, and lists of items, of which something is often wrong."""
    table = draw(st.dictionaries(st.sampled_from(["age", "text", "", 0, "split", "id"]), _column, max_size=3))
    labels = draw(_labels)
    kind = draw(st.sampled_from(["frame", "dict", "pair", "table and labels", "items"]))
    if kind == "frame":
        columns = {**table, draw(st.sampled_from(["label", "target", "y"])): labels}
        return pd.DataFrame({name: pd.Series(list(values)) for name, values in columns.items()})
    if kind == "dict":
        return {**table, "label": labels}
    if kind == "table and labels":
        return pd.DataFrame({name: pd.Series(list(values)) for name, values in table.items()}), labels
    values = next(iter(table.values()), np.zeros((12, 3)))
    odd = st.sampled_from(
        [values, np.zeros((12, 3)), np.zeros((12, 8, 8, 3), np.uint8), torch.zeros(12, 2), [[1], [2, 3]]]
    )
    samples = draw(
        odd | hnp.arrays(hnp.scalar_dtypes(), st.sampled_from([(12, 2), (12,), (12, 0), (11, 2), (12, 2, 2)]))
    )
    return (samples, labels) if kind == "pair" else list(zip(samples, labels, strict=False))


# --- right values, changed


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
        return [*whole, iter, *(lambda v, change=change: kind([change(v[0]), *v[1:]]) for change in within)]
    return []


def _of_array(change: Callable[[Tensor], Any], array: Any) -> Any:
    found = change(torch.tensor(np.ascontiguousarray(array)))
    return found.numpy() if isinstance(found, Tensor) else found


def _with(entry: float, tensor: Tensor) -> Tensor:
    fits = tensor.is_floating_point() or (tensor.dtype == torch.int64 and abs(entry) < 2**63)
    other = (tensor.clone() if fits else tensor.double()).contiguous()
    if other.numel():
        other.view(-1)[other.numel() // 2] = entry
    return other


_DTYPES = ["float64", "float32", "float16", "complex64", "bool", "int64", "int32", "uint8"]
_OF_TENSORS: list[Callable[[Tensor], Any]] = [
    *(lambda t, kind=kind: t.to(getattr(torch, kind)) for kind in _DTYPES),  # type: ignore[misc]
    *(partial(_with, entry) for entry in (math.nan, math.inf, -1, 10**6, -100, 3, 1e30)),
    *(lambda t: t[:0], lambda t: t[:-1], lambda t: t[None], lambda t: t[..., None], lambda t: t.reshape(-1)[0]),
    *(lambda t: t.T if t.ndim == 2 else t.flip(0), Tensor.tolist, Tensor.numpy, lambda t: t[:1].expand(t.shape)),
]
_OF_ARRAYS: list[Callable[[Any], Any]] = [
    *(lambda a, kind=kind: a.astype(kind) for kind in (object, str, "S")),  # type: ignore[misc]
    lambda a: a.astype("datetime64[s]") if a.dtype.kind in "iu" else a.astype(np.complex128),
]


# --- what must be accepted, and what must be rejected


def is_same(right: Any, value: Any) -> bool:
    """Whether a value is the right number as a numpy type."""
    if isinstance(right, bool) or not isinstance(right, (int, float)):
        return False
    numpy = (np.int64,) if isinstance(right, int) else (np.float32, np.float64)
    return type(value) in numpy and math.isclose(right, value, rel_tol=1e-6)


def refused(hint: Any, value: Any, strict: bool) -> bool:
    """Whether a value is of none of the types of an argument, or a number that no such argument can be."""
    hints = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if set(get_args(npt.ArrayLike)) <= {*hints}:
        return False  # too many kinds
    return not any(_fits(value, kind, strict) for kind in hints)


def _fits(value: Any, kind: Any, strict: bool) -> bool:
    base = get_origin(kind) or kind
    if base is Any or (not inspect.isclass(base) and base not in (Literal, Callable)):
        return True
    if base is Literal:
        return isinstance(value, (str, numbers.Real)) and not isinstance(value, bool) and value in get_args(kind)
    if base in (int, float):
        return _is_number(value, base, strict)
    if base in (list, tuple, Sequence):
        return not isinstance(value, (str, bytes, Mapping, set, type(None)))
    if base in (Callable, types.FunctionType):
        return callable(value)
    also: dict[Any, Any] = {bool: np.bool_, dict: Mapping, Tensor: (np.ndarray, list), np.ndarray: Sequence}
    return isinstance(value, (base, also.get(base, base)))


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
    if isinstance(value, pd.DataFrame):
        value = value.to_dict("list")
    try:
        text = f"{kind} {value!r}".replace("\n", "")
    except ValueError:  # too many digits
        return f"{kind} with too many digits to print"
    return text if len(text) < 240 else text[:237] + "..."
