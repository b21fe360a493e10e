"""Hypothesis strategies for malicious and damaged input: texts, nested values, arrays, images, bytes and files."""

from __future__ import annotations

import io
import json
import os
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from ncsam.engine import checkpoint
from stress.harness import Draw, one_in, pick

_NUMBERS = ["0", "-1", "1", "7", "0.5", "-0.5", "1e30", "1e300", "-1e300", "nan", "inf", "-inf", "1e-320", "10" * 30]
_WORDS = [
    *("", " ", "null", "true", "no", "auto", "abc", "Ünïcode", "日本", "../../etc", "$HOME", "%s", "$\\frac$"),
    *("²", "9" * 5000, "a\x1b[31mb", "\udcff", "=1+1", "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>'),
]
_YAML = ["[1, 2]", "[]", "{a: 1}", "[[", "- - -", "!!python/object:os.system x", "2020-99-99", "0x1F", "1_000", "~"]
_CODE = ["os:system", "torch.hub:load", "stress.trap:build", "x" * 5000]
_ENCODINGS = ("utf-16", "latin-1", "utf-16-le", "utf-8-sig", "utf-7")
_TEXT_FILES = (".json", ".jsonl", ".yaml", ".csv", ".tsv")
#: Arrays that an `.npz` of samples may contain.
_ARRAYS = ("x_test", "y_test", "y_clean", "classes", "x_val", "paths", "y_val")

#: Text in the place of a word or a number.
texts = st.sampled_from([*_NUMBERS, *_WORDS, *_YAML]) | st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), max_size=8
)
_scalars = st.one_of(
    st.sampled_from([None, True, False, 0, 1, -1, 3, 10**9, 10**30, -(2**63)]),
    st.sampled_from([0.5, -0.5, 1e300, float("nan"), float("inf"), 1e-320]) | st.floats(),
    st.sampled_from([*_WORDS, *_CODE]),
)
_keys = st.sampled_from(["a", "hidden", "alpha", "size", 1, None])
#: A value that YAML and JSON can represent.
nested = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=2), max_leaves=6
)
_shapes = st.sampled_from([(), (0,), (3,), (24,), (2, 2), (24, 3)])
#: A value that a checkpoint can contain.
stored = nested | nested | st.builds(torch.full, _shapes, st.sampled_from([0, 1, -5, 0.5, float("nan"), 1j]))


class Attack:
    """Creates a folder when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["STRESS_TRAP"],)


def damaged(raw: bytes) -> st.SearchStrategy[bytes]:
    """The bytes truncated, flipped, repeated or replaced."""
    raw = raw or b"\0"
    places = st.integers(0, 2**20).map(lambda place: place % len(raw))

    def flip(bits: list[tuple[int, int]]) -> bytes:
        changed = bytearray(raw)
        for place, bit in bits:
            changed[place] ^= 1 << bit
        return bytes(changed)

    return st.one_of(
        places.map(lambda place: raw[:place]),
        st.lists(st.tuples(places, st.integers(0, 7)), min_size=1, max_size=10).map(flip),
        st.just(raw + raw),
        st.binary(max_size=2000),
        st.sampled_from([b"", b"\0" * 300, b"PK\x03\x04", b"\x93NUMPY", b"\x80\x04.", b"{}", b"[", b"[" * 100_000]),
        st.builds(pickle.dumps, st.builds(Attack)),
    )


@st.composite
def changed(draw: Draw, content: Any, values: st.SearchStrategy[Any] = nested) -> Any:
    """A nested value with one place replaced, removed or added."""
    if isinstance(content, dict) and content and not one_in(draw, 8):
        key = pick(draw, *sorted(content, key=str))
        change = pick(draw, *["inside"] * 6, "removed", "added")
        if change == "removed":
            return {each: value for each, value in content.items() if each != key}
        if change == "added":
            return {**content, pick(draw, "extra", "", "choice"): draw(values)}
        return {**content, key: draw(changed(content[key], values))}
    if isinstance(content, list) and content and not one_in(draw, 4):
        place = draw(st.integers(0, len(content) - 1))
        return [*content[:place], draw(changed(content[place], values)), *content[place + 1 :]]
    return draw(values)


_dtypes = hnp.scalar_dtypes() | hnp.byte_string_dtypes(max_len=3) | hnp.unicode_string_dtypes(max_len=3)


def arrays(usual: Any) -> st.SearchStrategy[Any]:
    """An array of another dtype or shape, with a wrong entry, or of objects that are code."""
    attacks = st.builds(lambda: np.array([Attack()] * max(1, usual.size), dtype=object))
    entries = st.sampled_from([4006381333931, 2**63, 10**40, -1, -(10**15), 0.5, np.nan, np.inf, 1e300, "=1", "\udcff"])

    def with_first(entry: Any) -> Any:
        return np.array([entry, *usual.ravel().tolist()[1:]]).reshape(usual.shape) if usual.size else usual

    count = len(usual) if usual.ndim else 1
    shapes = [(count,), (count, 1), (count, 3), (count, 8, 8, 3), (count, 0, 8, 3), (count, 8, 8), (5, 3), (3, count)]
    odd = hnp.arrays(_dtypes, st.sampled_from([usual.shape, usual.shape, (0,), (), *shapes]))
    return st.one_of(entries.map(with_first), odd, odd, attacks)


@st.composite
def images(draw: Draw, side: int = 8) -> bytes:
    """An encoded image, sometimes a damaged one."""
    size = pick(draw, *[(side, side, 3)] * 6, (1, 1, 3), (1, 300, 3), (side, side))
    buffer = io.BytesIO()
    Image.fromarray(np.zeros(size, np.uint8)).save(buffer, format=pick(draw, "png", "jpeg", "gif", "bmp"))
    return draw(damaged(buffer.getvalue())) if one_in(draw, 7) else buffer.getvalue()


def replace_by_special_file(draw: Draw, path: Path) -> str:
    """Put a pipe, a folder, a link or a device in the place of a file."""
    path.unlink(missing_ok=True)
    kind = pick(draw, "pipe", "folder", "link to itself", "link to nothing", "device")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to({"link to itself": path.name, "link to nothing": "nowhere", "device": "/dev/zero"}[kind])
    return kind


def damage(draw: Draw, path: Path) -> str:
    """Write a file again with values of other types, damaged bytes or another encoding; replace or remove it."""
    change = pick(draw, *["value"] * 4, "bytes", "bytes", "encoding", "special", "removed", "header")
    if change == "removed":
        path.unlink()
    elif change == "special":
        change = replace_by_special_file(draw, path)
    elif change == "header" and path.suffix in (".npz", ".npy"):
        _write_header(draw, path)
    elif change == "encoding" and path.suffix in _TEXT_FILES:
        path.write_bytes(("Ü" + path.read_text()).encode(pick(draw, *_ENCODINGS), errors="replace"))
    elif change == "value" and path.suffix in _TEXT_FILES:
        path.write_text(_changed_text(draw, path), encoding="utf-8", errors="surrogatepass")
    elif change == "value" and path.suffix in (".npz", ".npy", ".pt", ".ckpt"):
        _change_arrays(draw, path)
    else:
        path.write_bytes(draw(damaged(path.read_bytes())))
    return f"{path.name}, {change}"


def _changed_text(draw: Draw, path: Path) -> str:
    text = path.read_text()
    if path.suffix == ".json":
        return json.dumps(draw(changed(json.loads(text))))
    if path.suffix == ".yaml":
        return str(yaml.safe_dump(draw(changed(yaml.safe_load(text))), allow_unicode=True))
    lines = text.splitlines() or [""]
    for _ in range(draw(st.integers(1, 4))):
        row = draw(st.integers(0, 2**20)) % len(lines)
        if path.suffix == ".jsonl":
            lines[row] = json.dumps(draw(changed(json.loads(lines[row]))))
        else:
            cells = lines[row].split(",")
            cells[draw(st.integers(0, 2**20)) % len(cells)] = draw(texts)
            lines[row] = ",".join(cells)
    return "\n".join(lines) + "\n"


def _change_arrays(draw: Draw, path: Path) -> None:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if path.suffix == ".npy":
            np.save(path, draw(arrays(np.load(path))), allow_pickle=True)
        elif path.suffix == ".npz":
            with np.load(path) as file:
                content = dict(file)
            for _ in range(draw(st.integers(1, 2))):
                name = pick(draw, *content, *_ARRAYS)
                content[name] = draw(arrays(content.get(name, np.arange(24) % 3)))
            np.savez(path, **content)
        else:
            state = torch.load(path, weights_only=True)
            write_checkpoint(pick(draw, draw(changed(state, stored)), {"config": Attack(), **state}, Attack()), path)


def _write_header(draw: Draw, path: Path) -> None:
    """Arrays whose headers promise far more than the file holds, or entries that decompress to far more."""
    shape = pick(draw, (10**12,), (2**40, 3), (2**31, 2**31), (-1,), (24, 10**9), (0, 10**15), (1,) * 40)
    kind = pick(draw, "<f4", "<i8", "|O", "<U1000000", "|V9", "xx")
    words = repr({"descr": kind, "fortran_order": False, "shape": shape}).encode()
    if one_in(draw, 3):
        words = pick(draw, b"{", b"(" * 9000, b"{'descr': __import__('os').mkdir('trap')}", b"9" * 60_000)
    raw = b"\x93NUMPY\x01\x00" + len(words).to_bytes(2, "little") + words + b"\0" * pick(draw, 0, 96, 10**7)
    if path.suffix == ".npy":
        path.write_bytes(raw)
        return
    with zipfile.ZipFile(path, "w", pick(draw, zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_BZIP2)) as file:
        for name in pick(draw, ("x", "y"), ("x",), ("y", "x", "x"), ("../x", "y")):
            file.writestr(f"{name}.npy", raw)


def write_checkpoint(state: Any, path: Path) -> None:
    """Write a forged checkpoint with a valid checksum."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    checkpoint._seal(buffer)
    path.write_bytes(buffer.getvalue())
