"""Hostile data of the other kinds: archives of samples, images in Parquet, kept indices, answers of annotators."""

from __future__ import annotations

import io
import json
import os
import random
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from stress.files import Attack, image, spoiled
from stress.values import anything, nested

_NAMES = ["0001", "../../0002", "/etc/0003", "a/b/0004", "Ü", "", ".", "x" * 300, "new\nline", "=1", "\udcff"]


def encoded(chance: random.Random, top: Path) -> bytes:
    """An image as bytes, now and then a spoiled one."""
    path = top / "one.png"
    image(path, chance)
    raw = path.read_bytes()
    path.unlink()
    return raw


def shards(chance: random.Random, top: Path) -> tuple[list[Any], str]:
    """Archives with names that lead elsewhere, links, devices, members that claim to be huge, labels of all sorts."""
    folder = top / "shards"
    folder.mkdir()
    said = []
    for number in range(chance.choice([1, 1, 2])):
        path = folder / chance.choice([f"train-{number}.tar", f"{number}.tar", f"val-{number}.tar"])
        with tarfile.open(path, "w", format=chance.choice([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])) as tar:
            for i in range(6):
                said += _sample(chance, tar, i, top)
        if chance.random() < 0.25:
            raw = bytearray(path.read_bytes())
            if chance.random() < 0.4 and len(raw) > 512:  # a size below zero, as base 256 may write it
                raw[124:136] = b"\xff" * 12
                raw[148:156] = b"%06o\0 " % (sum(raw[:148]) + 8 * 32 + sum(raw[156:512]))
                said.append("negative size")
                path.write_bytes(raw)
            else:
                path.write_bytes(spoiled(chance, bytes(raw)))
                said.append("spoiled")
    if chance.random() < 0.3:
        said.append(_shard_index(chance, folder))
    more = ["--epochs", 1, "--quiet", "--model", "mlp", "--optimizer", "sgd", "--out", top / "run"]
    command = ["train", folder, *more] if chance.random() < 0.5 else ["data", "check", folder]
    return command, f"{command[0]}, {said}"


def _sample(chance: random.Random, tar: tarfile.TarFile, i: int, top: Path) -> list[str]:
    odd = chance.random() < 0.15
    stem = chance.choice(_NAMES) if odd else f"{i:04d}"
    label: bytes = str(i % 3).encode()
    suffix = "cls"
    if chance.random() < 0.15:
        suffix, label = "json", json.dumps(nested(chance)).encode("utf-8", "surrogatepass")
    elif chance.random() < 0.1:
        label = anything(chance).encode("utf-8", "surrogateescape")
    elif chance.random() < 0.05:
        suffix, label = "json", b"[" * 100_000
    _add(tar, f"{stem}.png", encoded(chance, top))
    _add(tar, f"{stem}.{suffix}", label)
    if chance.random() < 0.1:
        link = tarfile.TarInfo(f"{i:04d}-link.png")
        link.type = chance.choice([tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
        link.linkname = chance.choice(["/etc/passwd", "../../x", f"{i:04d}-link.png"])
        tar.addfile(link)
        return [f"{stem!r}.{suffix} {label[:20]!r}", "link"]
    return [f"{stem!r}.{suffix} {label[:20]!r}"] if odd or suffix == "json" else []


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _shard_index(chance: random.Random, folder: Path) -> str:
    """An index that claims to be of these archives, and is not."""
    from ncsam.data.readers.shards import INDEX

    archives = sorted(folder.glob("*.tar"))
    stats = [archive.stat() for archive in archives]
    state = [f"{a.name} {s.st_size} {s.st_mtime_ns}" for a, s in zip(archives, stats, strict=True)]
    places: Any = chance.choice(
        [
            [[0, 512, 10**13]],
            [[99, 0, 5]],
            [[-1, 0, 5]],
            [[0, -512, 5]],
            [[0, 0, -1]],
            [0],
            [["a", "b", "c"]],
            [[0.5] * 3],
        ]
    )
    kind = chance.choice(["forged", "spoiled", "objects"])
    labels: Any = np.array(["0"] * chance.choice([1, 5])) if kind != "objects" else np.array([Attack()], dtype=object)
    np.savez(folder / INDEX, state=np.array(state), places=np.array(places), labels=labels)
    if kind == "spoiled":
        (folder / INDEX).write_bytes(spoiled(chance, (folder / INDEX).read_bytes()))
    return f"index {kind} {places}"


def parquet(chance: random.Random, top: Path) -> tuple[list[Any], str]:
    """Tables with columns of every type, encoded images among them."""
    import pyarrow
    from pyarrow import parquet as writer

    images: list[Any] = [encoded(chance, top) for _ in range(6)]
    kind = chance.choice(["bytes", "dicts", "nulls", "numbers", "nested", "times", "texts"])
    values: list[Any] = {
        "bytes": images,
        "dicts": [{"bytes": raw, "path": chance.choice([None, "/etc/passwd"])} for raw in images],
        "nulls": [None, *images[1:]],
        "numbers": [chance.choice([1.5, float("nan"), float("inf"), None]) for _ in range(6)],
        "nested": [[1, 2], [], None, [3], [4], [5]],
        "times": [pyarrow.scalar(10**15, pyarrow.timestamp("us"))] * 6,
        "texts": ["", "a", "=b", "\x00", "Ü" * 5000, "c"],
    }[kind]
    labels = [chance.choice([0, 1, "a", None, 1.5, 10**12, True]) for _ in range(6)]
    if chance.random() < 0.6:
        labels = [i % 2 for i in range(6)]
    head = chance.choice(["image", "image", "path", "x", "text", "label"])
    try:
        table = pyarrow.table({head: values, chance.choice(["label", "label", "y", "class"]): labels})
    except (pyarrow.ArrowException, TypeError):
        table = pyarrow.table({head: list(map(repr, values)), "label": list(map(str, labels))})
    where = chance.choice(["file", "file", "parts", "arrow"])
    path = file = top / "t.parquet"
    if where != "file":
        path = top / "tables"
        (path / "data").mkdir(parents=True)
        file = path / ("data/train-0.parquet" if where == "parts" else "data-0.arrow")
    if where == "arrow":
        (path / "state.json").write_text(json.dumps(nested(chance)))
        with pyarrow.OSFile(str(file), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
    else:
        writer.write_table(table, file)
    kind += f", {where}"
    if chance.random() < 0.3:
        file.write_bytes(spoiled(chance, file.read_bytes()))
        kind += ", spoiled"
    elif where != "file" and chance.random() < 0.2:
        file.unlink()
        chance.choice([os.mkfifo, os.mkdir, lambda place: os.symlink("/dev/zero", place)])(file)
        kind += ", replaced"
    more = ["--epochs", 1, "--quiet", "--model", "mlp", "--optimizer", "sgd", "--out", top / "run"]
    command = ["train", path, *more] if chance.random() < 0.5 else ["data", "check", path]
    return command, f"{command[0]}, {head}, {kind}, {labels}"


def index(chance: random.Random, top: Path) -> tuple[list[Any], str]:
    """A folder of images with an index of its files that lies."""
    from ncsam.data.readers.folder_index import INDEX

    folder = top / "photos"
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for i in range(3):
            image(folder / name / f"{i}.png", random.Random(1))
    os.mkfifo(top / "pipe.png")
    times = [(folder / name).stat().st_mtime_ns for name in ("cat", "dog")]
    listed = [b"cat/0.png"] * 3 + [
        chance.choice([b"/dev/zero", b"../pipe.png", b"cat/none.png", b"", b"\xff", b"cat", b"dog/0.png"])
    ]
    labels: Any = chance.choice([[0, 0, 1, 1], [0, 0, 1, 99], [-1, 0, 1, 1], [0], [0.5] * 4, ["a"] * 4])
    kind = chance.choice(["forged", "forged", "spoiled", "objects"])
    stored: Any = np.array(listed) if kind != "objects" else np.array([Attack()] * 4, dtype=object)
    arrays = {"names": stored, "labels": np.array(labels), "classes": np.array(["cat", "dog"])}
    np.savez(folder / INDEX, **arrays, folders=np.array([b"cat", b"dog"]), times=np.array(times))
    if kind == "spoiled":
        (folder / INDEX).write_bytes(spoiled(chance, (folder / INDEX).read_bytes()))
    more = ["--epochs", 1, "--quiet", "--model", "mlp", "--optimizer", "sgd", "--out", top / "run"]
    command = ["train", folder, *more] if chance.random() < 0.5 else ["data", "check", folder]
    return command, f"{command[0]}, {kind}, {listed[-1]!r}, {labels}"


def annotators(chance: random.Random, top: Path) -> tuple[list[Any], str]:
    """Tables of answers."""
    head = chance.choice(["path,ada,bob", "item,annotator,label", "index,ada", "path", "", "path,ada,ada"])
    rows = []
    for i in range(6):
        answers = [chance.choice(["0", "1", "2"]) if chance.random() < 0.9 else anything(chance) for _ in range(2)]
        rows.append(",".join([f"a/{i}.png", *answers][: max(1, head.count(",") + 1)]))
    if chance.random() < 0.15:
        rows.append(f"z,{chance.choice(['4006381333931', '9' * 30, '9' * 5000, '²'])},1")
    text = "\n".join([head, *rows]) + "\n"
    encoding = chance.choice(["utf-8"] * 4 + ["utf-16", "latin-1", "utf-16-le"])
    raw = text.encode(encoding, errors="replace")
    path = top / chance.choice(["answers.csv", "answers.tsv"])
    path.write_bytes(spoiled(chance, raw) if chance.random() < 0.2 else raw)
    more = chance.choice([[], ["--soft"], ["--method", "dawid_skene"]])
    return ["annotators", path, *more, "--out", top / "labels.csv"], f"{encoding}, {more}, {text[:300]!r}"
