"""Hostile data: arrays, tables, folders of images, files of labels and of weights."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from stress.values import anything, features


class Attack:
    """Makes a file where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["STRESS_TRAP"],)


def spoiled(chance: random.Random, raw: bytes) -> bytes:
    """The bytes cut, flipped, repeated or replaced."""
    kind = chance.randrange(5)
    if kind == 0:
        return raw[: chance.randrange(len(raw) + 1)]
    if kind == 1:
        changed = bytearray(raw or b"\0")
        for _ in range(chance.choice([1, 1, 10])):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        return bytes(changed)
    if kind == 2:
        return raw + raw
    if kind == 3:
        return chance.randbytes(chance.randrange(2000))
    return chance.choice(
        [b"", b"\0" * 300, b"PK\x03\x04", b"\x93NUMPY", b"\x80\x04.", b"{}", b"[", pickle.dumps(Attack())]
    )


def array(chance: random.Random, count: int, labels: bool) -> Any:
    """An array that is not what is wanted, often enough."""
    rng = np.random.default_rng(chance.randrange(2**32))
    if labels:
        kind = chance.randrange(12)
        plain: list[Any] = [int(i % 3) for i in range(count)]
        if kind == 0:
            plain[0] = chance.choice([4006381333931, 2**63, 10**40, -1, -(10**15)])
        elif kind == 1:
            return np.array(
                plain, dtype=chance.choice(["complex128", "float16", "uint64", "bool", "S3", "datetime64[s]"])
            )
        elif kind == 2:
            return np.array([chance.choice(["a", "b", "", " a", "=1", "\udcff"]) for _ in plain])
        elif kind == 3:
            return np.array(plain, dtype=float) + chance.choice([0.0, 0.5, np.nan, np.inf, 1e300])
        elif kind == 4:
            return np.array(plain)[:, None]
        elif kind == 5:
            return np.array([Attack()] * count, dtype=object)
        elif kind == 6:
            return np.array(plain[: chance.randrange(count)])
        elif kind == 7:
            return np.array(5)
        return np.array(plain)
    kind = chance.randrange(10)
    x: Any = rng.normal(size=(count, 3))
    if kind == 0:
        x = x * chance.choice([1e300, np.nan, np.inf, 1e38, 0.0])
    elif kind == 1:
        x = x.astype(chance.choice(["int64", "uint16", "complex128", "float16", "bool", "S2"]))
    elif kind == 2:
        x = rng.integers(
            0, 255, chance.choice([(count, 8, 8, 3), (count, 3, 8, 8), (count, 0, 8, 3), (count, 8, 8)]), np.uint8
        )
    elif kind == 3:
        x = x.reshape(chance.choice([(count, 3, 1), (count * 3,), (3, count)]))
    elif kind == 4:
        x = np.array([Attack()] * count, dtype=object)
    elif kind == 5:
        x = x[:0]
    return x


def npz(chance: random.Random, top: Path) -> tuple[list[Any], str]:
    path = top / chance.choice(["f.npz", "Ü \udcff.npz", "=1.npz"])
    stored = {"x": array(chance, 24, False), "y": array(chance, 24, True)}
    if chance.random() < 0.4:
        name = chance.choice(["x_test", "y_test", "y_clean", "classes", "x_val", "paths", "y_val"])
        stored[name] = array(chance, 24, chance.random() < 0.7)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        np.savez(path, **stored)
    what = {name: (str(value.dtype), value.shape) for name, value in stored.items()}
    if chance.random() < 0.3:
        path.write_bytes(spoiled(chance, path.read_bytes()))
        what["spoiled"] = ("", ())
    more = ["--epochs", 1, "--quiet", "--model", "mlp", "--out", top / "run"]
    return (["train", path, *more] if chance.random() < 0.5 else ["data", "check", path]), f"{path.name!r} {what}"


def image(path: Path, chance: random.Random) -> None:
    size = chance.choice([(8, 8, 3)] * 6 + [(1, 1, 3), (1, 300, 3), (8, 8)])
    pixels = np.random.default_rng(chance.randrange(2**32)).integers(0, 255, size, np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format=chance.choice(["png", "jpeg", "gif", "bmp"]))
    raw = buffer.getvalue()
    path.write_bytes(spoiled(chance, raw) if chance.random() < 0.15 else raw)


_NAMES = ["cat", "dog", "Ü", "=cmd", "<script>", "a b", ".hidden", "x" * 200, b"\xff\xfe", b"new\nline", b"\x1b[31m"]


def images(chance: random.Random, top: Path) -> tuple[list[Any], str]:
    folder = top / "photos"
    names = [os.fsdecode(name) for name in chance.sample(_NAMES, chance.choice([1, 2, 3]))]
    for name in names:
        (folder / name).mkdir(parents=True)
        for i in range(chance.choice([0, 4, 6])):
            prefix = chance.choice(["", os.fsdecode(b"\xe9"), "="])
            image(folder / name / f"{prefix}{i}.png", chance)
    folder.mkdir(exist_ok=True)
    odd = chance.choice(["none", "none", "loop", "pipe", "broken link", "folder.png", "device"])
    place = folder / names[0]
    if odd == "loop":
        (place / "loop").symlink_to(chance.choice([".", "..", str(folder)]))
    elif odd == "pipe":
        os.mkfifo(place / "x.png")
    elif odd == "broken link":
        (place / "y.png").symlink_to("nowhere")
    elif odd == "folder.png":
        (place / "z.png").mkdir()
    elif odd == "device":
        (place / "w.png").symlink_to("/dev/zero")
    more = ["--epochs", 1, "--quiet", "--model", "mlp", "--optimizer", "sgd", "--out", top / "run"]
    command = ["train", folder, *more] if chance.random() < 0.5 else ["data", "check", folder]
    return command, f"{command[0]}, {names}, {odd}"


def table(chance: random.Random, top: Path) -> tuple[list[Any], str]:
    (top / "a").mkdir()
    for i in range(6):
        image(top / f"a/{i}.png", random.Random(1))
    head = chance.choice(["path,label"] * 4 + ["file,class", "a,b", "path,label,split", "path", "", '"path,label'])
    rows = []
    for i in range(6):
        label = chance.choice(["x", "y"]) if chance.random() < 0.8 else anything(chance)
        name = f"a/{i}.png" if chance.random() < 0.95 else anything(chance)
        rows.append(",".join([name, label, "train"][: max(1, head.count(",") + 1)]))
    text = "\n".join([head, *rows]) + "\n"
    encoding = chance.choice(["utf-8"] * 4 + ["utf-16", "utf-8-sig", "latin-1", "utf-16-le", "utf-7"])
    raw = text.encode(encoding, errors="replace")
    if chance.random() < 0.2:
        raw = spoiled(chance, raw)
    path = top / chance.choice(["t.csv", "t.csv", "t.tsv", "t.parquet"])
    path.write_bytes(raw)
    return ["data", "check", path], f"{path.name}, {encoding}, {text!r}"


def labels(chance: random.Random, top: Path) -> tuple[list[Any], str]:
    suffix = chance.choice([".pt", ".npy", ".json", ".csv", ".npz"])
    path = top / f"labels{suffix}"
    values = array(chance, 24, True)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if suffix == ".pt":
            content = chance.choice(
                [{"clean_label": values, "worst": values}, values, Attack(), [1, 2], {"a": Attack()}]
            )
            torch.save(content, path)
        elif suffix == ".npy":
            np.save(path, values, allow_pickle=True)
        elif suffix == ".npz":
            np.savez(path, clean=values, noisy=values)
            about = {"format": chance.choice(["x", 1]), "sha256": "0"}
            (top / "labels.json").write_text(json.dumps(about) if chance.random() < 0.5 else "{")
        elif suffix == ".json":
            path.write_text(
                chance.choice(["[0, 1, 2]", "{}", "[" * 3000, "[NaN]", '["a"]', "[1e400]", "[[1]]", "null"])
            )
        else:
            path.write_text("label_noisy\n" + "\n".join(anything(chance) for _ in range(5)), errors="surrogateescape")
    if chance.random() < 0.4:
        path.write_bytes(spoiled(chance, path.read_bytes()))
    if chance.random() < 0.5:
        return ["noise", "inspect", path], f"inspect {path.name}"
    more = ["--label-file", path, "--epochs", 1, "--quiet", "--out", top / "run"]
    return ["train", features(top), *more], f"train on {path.name}"


def weights(chance: random.Random, top: Path) -> tuple[list[Any], str]:
    path = top / f"w{chance.choice(['.pt', '.pth', '.safetensors'])}"
    tensors: Any = chance.choice([{"fc.weight": torch.zeros(3)}, {}, [1], Attack(), {"state_dict": Attack()}, {"a": 1}])
    torch.save(tensors, path)
    if chance.random() < 0.6:
        path.write_bytes(spoiled(chance, path.read_bytes()))
    more = ["--pretrained", path, "--model", "mlp", "--epochs", 1, "--quiet", "--out", top / "run"]
    return ["train", features(top), *more], path.name
