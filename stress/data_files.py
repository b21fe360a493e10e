"""Damaged data of every reader: each kind writes files below a folder and returns a command line that reads them."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st

from ncsam import embed, models
from ncsam.data import load
from ncsam.data.readers import folder_index
from ncsam.data.readers import shards as shard_reader
from stress.harness import Draw, one_in, pick
from stress.places import PLACES, QUICK, features, line
from stress.run_folders import Case
from stress.strategies import changed, damage, images, nested, replace_by_special_file, texts
from stress.tasks import tiny_backbones

_FILE_NAMES = ["0001", "../../0002", "/etc/0003", "a/b/0004", "Ü", "", ".", "x" * 300, "new\nline", "=1", "\udcff"]
_CLASSES = ["dog", "Ü", "=cmd", "<script>", "a b", ".hidden", "x" * 200, "\udcff\udcfe", "new\nline", "\x1b[31m"]
_PREFIXES = ["", "\udce9", "="]
_DATES = ["2024-01-31", "31.01.2024", "2024-01-31T12:00:00Z", "99999-01-01", "0001-01-01", "1706659200", "NaT"]
#: Commands that read data of any kind; `train` also with the recommended classifier on features or a backbone.
_READ = [
    *("data check {data}", "data describe {data}", f"train {{data}} --model mlp {QUICK}"),
    *("train {data} --quiet --out {top}/out", "embed {data} --quiet --out {top}/out.npz"),
    *("predict {run} {data}", "predict {photos_run} {data}", "predict {photos_run} {data}/cat/0.png --top 99 --json"),
]


class Data(NamedTuple):
    """What writes valid data into a folder and returns its path, which files are damaged, and the commands."""

    write: Callable[[Draw, Path], Path]
    files: str
    commands: list[str] = _READ

    def __call__(self, draw: Draw, top: Path) -> Case:
        (top / "d").mkdir()
        path = self.write(draw, top / "d")
        files = [file for file in sorted(top.rglob(self.files)) if file.is_file() and not file.is_symlink()]
        what = damage(draw, pick(draw, *files)) if files and not one_in(draw, 4) else "strange"
        command = line(pick(draw, *self.commands).replace("ANY", pick(draw, "=1", "x", "label")), top, data=path)
        return command, f"{' '.join(map(str, command))!r}, {what}"


def _arrays(draw: Draw, top: Path) -> Path:
    return features(top).rename(top / pick(draw, "f.npz", "Ü \udcff.npz", "=1.npz"))


def _folder(draw: Draw, top: Path, side: int = 8) -> Path:
    """A folder of images with strange names, damaged images, links, pipes and devices."""
    for name in ("cat", *draw(st.lists(st.sampled_from(_CLASSES), max_size=2, unique=True))):
        (top / name).mkdir()
        for i in range(pick(draw, 3, 4, 0)):
            (top / name / f"{pick(draw, *_PREFIXES)}{i}.png").write_bytes(draw(images(side)))
    odd = pick(draw, "none", "none", "loop", "special")
    if odd == "loop":
        (top / "cat/loop").symlink_to(pick(draw, ".", "..", str(top)))
    elif odd == "special":
        replace_by_special_file(draw, top / "cat/x.png")
    return top


def _photos(draw: Draw, top: Path) -> Path:
    """Images that are large enough for the default backbone."""
    return _folder(draw, top, 32)


def _cached(draw: Draw, top: Path) -> Path:
    """Images whose features are in the cache already."""
    for i in range(6):
        path = top / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"P6 32 32 255\n" + bytes([40 * i]) * 3072)
    with tiny_backbones():
        encoder, _ = embed.choose_encoder(dataset := load(str(top)))
        assert encoder is not None
        embed.features_of(dataset, encoder, cache=embed.FeatureCache(top.parent / "cache"), say=lambda text: None)
    return top


def _table(head: str, row: Callable[[int], str]) -> Callable[[Draw, Path], Path]:
    def write(draw: Draw, top: Path) -> Path:
        path = top / pick(draw, "t.csv", "t.csv", "t.tsv")
        path.write_text("\n".join([head, *map(row, range(24))]) + "\n")
        return path

    return write


def _mixed(draw: Draw, top: Path) -> Path:
    """A table of numbers, categories, dates, texts, identifiers and empty cells, some of which change their kind."""
    kinds: dict[str, Callable[[int], str]] = {
        "age": lambda i: str(20 + i % 30),
        "fare": lambda i: f"{i * 1.5:.2f}",
        "city": lambda i: ("Rome", "Oslo", "São Paulo")[i % 3],
        "member": lambda i: ("yes", "no")[i % 2],
        "joined": lambda i: f"2024-{1 + i % 12:02d}-{1 + i % 28:02d}",
        "note": lambda i: f'"the order number {i} arrived late, again"',
        "id": lambda i: f"A{i:05d}",
    }
    chosen = draw(st.lists(st.sampled_from(sorted(kinds)), min_size=1, max_size=5, unique=True))
    odd = st.sampled_from(["", "NA", "?", "inf", "1e400", "-", *_DATES, "Rome", '"a\nb"']) | texts.map(json.dumps)
    rows = [[kinds[name](i) for name in chosen] for i in range(24)]
    for _ in range(draw(st.integers(0, 8))):
        rows[draw(st.integers(0, 23))][draw(st.integers(0, len(chosen) - 1))] = draw(odd)
    if one_in(draw, 4):  # a whole column
        at, value = draw(st.integers(0, len(chosen) - 1)), draw(odd)
        rows = [[*row[:at], value, *row[at + 1 :]] for row in rows]
    lines = [",".join([*chosen, "label"]), *(",".join([*row, "xy"[i % 2]]) for i, row in enumerate(rows))]
    (top / "t.csv").write_text("\n".join(lines) + "\n", errors="surrogatepass")
    return top / "t.csv"


def _paths(draw: Draw, top: Path) -> Path:
    """A table of image paths and labels."""
    for i in range(6):
        (top / f"{i}.png").write_bytes(draw(images()))
    return _table("path,label", lambda i: f"{i % 6}.png,{'xy'[i % 2]}")(draw, top)


def _labels(draw: Draw, top: Path) -> Path:
    """A published file of labels."""
    path, values = top / pick(draw, "l.pt", "l.npy", "l.json", "l.csv", "l.npz"), np.arange(24) % 3
    if path.suffix == ".pt":
        torch.save({"clean_label": torch.tensor(values), "worst": torch.tensor(values)}, path)
    elif path.suffix == ".npy":
        np.save(path, values)
    elif path.suffix == ".npz":
        np.savez(path, clean=values, noisy=values)
        (top / "l.json").write_text(json.dumps(draw(changed({"format": "x", "sha256": "0"}))))
    elif path.suffix == ".json":
        path.write_text(json.dumps(values.tolist()))
    else:
        path.write_text("\n".join(["label_noisy", *map(str, values)]))
    return path


def _weights(draw: Draw, top: Path) -> Path:
    torch.save(models.create("cnn_small", 2).state_dict(), top / "w.pt")
    return (top / "w.pt").rename(top / pick(draw, "w.pt", "w.pth", "w.safetensors"))


def _shards(draw: Draw, top: Path) -> Path:
    """Archives with names that lead elsewhere, links, devices, wrong sizes, labels of all kinds, forged index files."""
    for number in range(pick(draw, 1, 1, 2)):
        path = top / f"{pick(draw, 'train', 'val', 'x')}-{number}.tar"
        with tarfile.open(path, "w", format=pick(draw, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)) as tar:
            for i in range(6):
                _add_sample(draw, tar, i)
        if one_in(draw, 8):  # a negative size, as base 256 can represent it
            raw = bytearray(path.read_bytes())
            raw[124:136] = b"\xff" * 12
            raw[148:156] = b"%06o\0 " % (sum(raw[:148]) + 8 * 32 + sum(raw[156:512]))
            path.write_bytes(raw)
    if one_in(draw, 3):
        states = [(path.name, path.stat()) for path in sorted(top.glob("*.tar"))]
        state = np.array([f"{name} {status.st_size} {status.st_mtime_ns}" for name, status in states])
        rows = [[0, 512, 10**13], [99, 0, 5], [-1, 0, 5], [0, -512, 5], [0, 0, -1], ["a", "b", "c"], [0.5] * 3]
        places = np.array([pick(draw, *rows)])
        np.savez(top / shard_reader.INDEX, state=state, places=places, labels=np.array(["0"] * pick(draw, 1, 5)))
    return top


def _add_sample(draw: Draw, tar: tarfile.TarFile, i: int) -> None:
    stem = pick(draw, *_FILE_NAMES) if one_in(draw, 7) else f"{i:04d}"
    suffix, label = "cls", str(i % 3).encode()
    if one_in(draw, 5):
        odd = [("cls", draw(texts).encode("utf-8", "surrogateescape")), ("json", json.dumps(draw(nested)).encode())]
        suffix, label = pick(draw, *odd, ("json", b"[" * 100_000))
    for name, content in ((f"{stem}.png", draw(images())), (f"{stem}.{suffix}", label)):
        member = tarfile.TarInfo(name)
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    if one_in(draw, 10):
        link = tarfile.TarInfo(f"{i:04d}-link.png")
        link.type = pick(draw, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE)
        link.linkname = pick(draw, "/etc/passwd", "../../x", link.name)
        tar.addfile(link)


def _indexed(draw: Draw, top: Path) -> Path:
    """A folder of images with a forged index file."""
    for name in ("cat", "dog"):
        (top / name).mkdir()
        (top / name / "0.png").write_bytes(draw(images()))
    os.mkfifo(top.parent / "pipe.png")
    odd = pick(draw, b"/dev/zero", b"../pipe.png", b"cat/none.png", b"", b"\xff", b"cat", b"dog/0.png")
    forged = {
        "names": np.array([b"cat/0.png"] * 3 + [odd]),
        "labels": np.array(pick(draw, [0, 0, 1, 1], [0, 0, 1, 99], [-1, 0, 1, 1], [0], [0.5] * 4, ["a"] * 4)),
        "classes": np.array(["cat", "dog"]),
        "folders": np.array([b"cat", b"dog"]),
        "times": np.array([(top / name).stat().st_mtime_ns for name in ("cat", "dog")]),
    }
    np.savez(top / folder_index.INDEX, **forged)
    return top


def _parquet(draw: Draw, top: Path) -> Path:
    """Parquet and Arrow tables with columns of every type, encoded images among them."""
    import pyarrow
    from pyarrow import parquet

    raw = [draw(images()) for _ in range(6)]
    values: list[Any] = pick(
        draw,
        raw,
        [{"bytes": each, "path": pick(draw, None, "/etc/passwd")} for each in raw],
        [None, *raw[1:]],
        [1.5, float("nan"), float("inf"), None, 0.0, -1.0],
        [[1, 2], [], None, [3], [4], [5]],
        [pyarrow.scalar(10**15, pyarrow.timestamp("us"))] * 6,
        ["", "a", "=b", "\x00", "Ü" * 5000, "c"],
    )
    labels = pick(draw, [0, 1] * 3, [0, 1] * 3, ["a", None] * 3, [1.5, 10**12] * 3, [True] * 6)
    head = pick(draw, "image", "image", "path", "x", "text", "label")
    table = pyarrow.table({head: values, pick(draw, "label", "label", "y", "class"): labels})
    where = pick(draw, "t.parquet", "t.parquet", "data/train-0.parquet", "data-0.arrow")
    (top / "data").mkdir()
    if where == "data-0.arrow":
        (top / "state.json").write_text(json.dumps(draw(nested)))
        with pyarrow.OSFile(str(top / where), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
    else:
        parquet.write_table(table, top / where)
    return top / where if where == "t.parquet" else top


_CLEANNET = f"train {{data}} --model mlp --method cleannet {QUICK} "
_JOINED = f"train {{data}} {QUICK} --data-options join="
_EMBED = "embed {data} --model cnn_small --pretrained {weights} --size 8 --batch-size 2 --out {top}/f.npz --quiet"
_AUTO = "auto {features} --folds 2 --budget 0.001s --quiet --out {top}/out --verified {data}"
#: Kinds of damaged data.
DATA = {
    "npz": Data(_arrays, "*.npz"),
    "images": Data(_folder, "*.png"),
    "photos": Data(_photos, "*.png"),
    "cache": Data(_cached, "features/*/*.npy", _READ[3:5]),
    "image table": Data(_paths, "t.*"),
    "mixed table": Data(_mixed, "t.*"),
    "texts": Data(_table("text,label", lambda i: f"word{i} other{i % 5},{'xy'[i % 2]}"), "t.*"),
    "shards": Data(_shards, "*.*"),
    "index": Data(_indexed, "*.npz"),
    "parquet": Data(_parquet, "*.*"),
    "config": Data(lambda draw, top: PLACES["config"](top), "*.yaml", ["train --config {data} --out {top}/out"]),
    "verified column": Data(
        _table("age,hours,label,verified", lambda i: f"{20 + i},{i % 3},{'ab'[i % 2]},{['1', '0', ''][i % 3]}"),
        "t.*",
        [
            *(_CLEANNET, _CLEANNET + "--method-options verified_share=0.001", _CLEANNET.replace("cleannet", "elr")),
            *(_CLEANNET + f"--data-options verified_column={name}" for name in ("hours", "none", "ANY")),
        ],
    ),
    "verified labels": Data(_table("index,label,probability", lambda i: f"{i},{i % 3},0.05"), "t.*", [_AUTO]),
    "joined": Data(
        _table("text,ada,bob", lambda i: f"word{i} other{i % 5},{'xy'[i % 2]},{'xyx'[i % 3]}"),
        "t.*",
        [
            *(_JOINED + how for how in ("majority", "dawid_skene", "ANY")),
            *(_JOINED + f"majority --data-options annotators={who}" for who in ("ada", "[ada,none]", "ANY")),
        ],
    ),
    "annotators": Data(
        _table("path,ada,bob", lambda i: f"a/{i}.png,{i % 3},{i % 2}"),
        "t.*",
        [f"annotators {{data}} {more} --out {{top}}/labels.csv" for more in ("", "--soft", "--method dawid_skene")],
    ),
    "labels": Data(_labels, "l.*", ["noise inspect {data}", "train {features} --label-file {data} " + QUICK]),
    "weights": Data(_weights, "w.*", ["train {features} --model mlp --pretrained {data} " + QUICK]),
    "embedding": Data(_folder, "*.png", [_EMBED]),
}
