"""Wrong options of every command but `train`: from a valid, quick call and click's own list of options."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from hypothesis import strategies as st
from PIL import Image

from ncsam import methods, models, noise, optim
from ncsam.cli.kinds import Listed, Settings
from ncsam.cli.main import main
from ncsam.jobs.job import Job, Result, do
from ncsam.reproduce.tables import GROUPS, TABLES
from stress import datasets, folders
from stress.examples import Draw, one_in, pick
from stress.folders import Case
from stress.strategies import texts

#: Options that start processes or clusters, use the network, open a browser, or legitimately take long.
_LEFT_OUT = {*datasets.LEFT_OUT, "jobs", "on", "mirror", "open_page"} - {"data", "workers"}
#: Amounts of work: a large one legitimately takes long, so only wrong ones are given.
_COUNTED = ("workers", "steps", "restarts", "batches", "folds", "budget", "seeds", "images")
_NO_COUNT = ["0", "-1", "-7", "0.5", "-0.5", "nan", "inf", "-inf", "1e300", "", " ", "abc", "1,", "1,1", "[1]", "²"]
#: Options that are paths, though click takes them for text.
_PATHS = ("data", "data_root", "label_file", "pretrained", "stand_in", "mirror", "name")
_NAMES = {
    "method": methods.names(),
    "methods": methods.names(),
    "optimizers": optim.names(),
    "noise": sorted(noise.GENERATORS),
    "model": ["mlp", "cnn_small", "timm:x", "torchvision:x", "transformers:none", "no.such:thing", "os:", ":", "mean"],
    "rows": ["sgd", "ncsam", "kappa0"],
    "columns": ["cifar10-40", "cifar100-20"],
    "tables": [*TABLES, *GROUPS],
    "device": ["cuda", "cuda:99", "meta", "cpu:1", "xla"],
    "resources": ["gpu=1", "cpu=-1", "cpu", "=", "gpu=nan"],
    "budget": ["0s", "-1m", "1d", "1e3s", "nan", "s", "²s", "9" * 400 + "h"],
    "text_column": ["label", "text"],
    "port": ["65536", "1"],
}
_KEYS = ["x", "size", "gamma", "hidden", "join", "class_map", "of", "classes", "cifar10", "download", "root", "data"]


def _photos(folder: Path) -> Path:
    for i in range(4):
        path = folder / "photos" / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), 40 * i, np.uint8)).save(path)
    return folder / "photos"


def _begun(folder: Path) -> Path:
    run = folders.copy(folders.finished(), folder / "begun")
    (run / "summary.json").unlink()
    shutil.rmtree(run / "checkpoints")
    return run


def _saved(path: Path, save: Callable[[Path], object]) -> Path:
    save(path)
    return path


_ANSWERS = "path,ada,bob,cy\n" + "".join(f"{i}.png,{i % 2},{i % 2},{i % 3 % 2}\n" for i in range(9))
#: What commands may change, each written below a folder.
_CHANGING: dict[str, Callable[[Path], Path]] = {
    "top": lambda folder: folder,
    "run": lambda folder: folders.copy(folders.finished(), folder / "run"),
    "begun": _begun,
    "selected": lambda folder: folders.copy(folders.selected(), folder / "auto"),
    "cell": lambda folder: folders.copy(folders.cell(), folder / "cells"),
}
#: What commands only read.
_GIVEN: dict[str, Callable[[Path], Path]] = {
    "given": lambda folder: folder,
    "features": folders.features,
    "photos": _photos,
    "labels": lambda folder: noise.symmetric(np.arange(24) % 3, 0.4, num_classes=3, seed=0).save(folder / "labels.npz"),
    "answers": lambda folder: _saved(folder / "answers.csv", lambda path: path.write_text(_ANSWERS)),
    "weights": lambda folder: _saved(
        folder / "w.pt", lambda path: torch.save(models.create("cnn_small", 2).state_dict(), path)
    ),
    "inputs": lambda folder: _saved(folder / "inputs.npz", lambda path: np.savez(path, x=np.zeros((2, 3), np.float32))),
    "predictions": lambda folder: _saved(
        folder / "p.npy", lambda path: np.save(path, np.full((24, 3), 1 / 3, np.float32))
    ),
}


def place(word: str, top: Path) -> Any:
    """The path that a word like `{run}/config.yaml` stands for, written; other words stay."""
    name, found, below = word.removeprefix("{").partition("}")
    if not found:
        return word
    path = _CHANGING[name](top) if name in _CHANGING else _GIVEN[name](top / "given")
    return path / below.lstrip("/")


#: Valid calls of every command, with the names of places in braces.
_CALLS = """
auto {features} --folds 2 --budget 0.001s --quiet --out {top}/out
auto {features} --folds 2 --budget 0.001s --quiet --out {selected}
embed {photos} --model cnn_small --size 8 --batch-size 2 --device cpu --quiet --pretrained {weights} --out {top}/out.npz
compare {features} --epochs 1 --optimizers sgd --seeds 1 --jobs 1 --out {top}/out
compare {features} --epochs 1 --optimizers sgd --seeds 1 --jobs 1 --out {top}/out --dry-run
report {run} --out {top}/r.html
report {given} --out {top}/r.html
issues {run}
issues {selected} --json
issues {begun}
review {run} --no-open
review {begun} --no-open
clean {run} --dry-run
clean {run} --out {top}/c.csv
clean {run} --out {top}/c.npz --apply all
clean {run} --folder {top}/out
export-predictions {run} --out {top}/p.npy --table {top}/t.csv
export-predictions {run} --table {top}/t.parquet
export-predictions {run} --take {predictions}
export-predictions {begun} --out {top}/p.npy
annotators {answers} --out {top}/c.csv
predict {run} {inputs} --out {top}/p.csv
predict {run} {inputs} --json
predict {begun} {inputs}
export {run} --format safetensors --out {top}/w.safetensors
export {run}
export {begun} --out {top}/out
bound {run} --steps 1 --restarts 1
bound {begun}
align {run} --batches 1 --json
align {run} --batches 1 --out {top}/a.png
noise make {features} --noise symmetric --rate 0.4 --out {top}/n.npz
noise make {features} --noise instance --rate 0.4 --out {top}/n.npz
noise inspect {labels} --json
noise inspect {labels} --data {features}
noise plot {labels} --out {top}/n.png
data list
data describe {features}
data describe {photos}
data describe digits
data check {photos}
data check {features}
methods show ce
presets show recommended
version
reproduce list
reproduce show {cell} curves
reproduce show {run}
reproduce curves --scale smoke --rows sgd --columns cifar10-40 --dry-run --out {top}/out
"""
#: Takes half a minute, whatever its options; these are those of the tables.
_TOO_SLOW = ("train",)


@cache
def commands() -> dict[str, click.Command]:
    """Every tested command, by its words."""

    def below(group: click.Group, words: Sequence[str]) -> Iterator[tuple[str, click.Command]]:
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if isinstance(command, click.Group):
                yield from below(command, [*words, name])
            elif command is not None:
                yield " ".join([*words, name]), command

    return {words: command for words, command in below(main, []) if words not in _TOO_SLOW}


def calls_of(words: str) -> list[list[str]]:
    """The valid calls of a command, without its own words; tables of the paper share one."""
    here = "reproduce curves" if words.partition(" ")[2] in (*TABLES, *GROUPS) else words
    return [call[len(here) :].split() for call in _CALLS.strip().splitlines() if f"{call} ".startswith(f"{here} ")]


def wrong_options(draw: Draw, top: Path) -> Case:
    """A command with a wrong option or two, or with too few or too many arguments."""
    tables = [f"reproduce {name}" for name in (*TABLES, *GROUPS)]
    words = pick(draw, *(words for words in commands() if words not in tables), pick(draw, *tables))
    command = commands()[words]
    (top / "given").mkdir()
    line = [place(word, top) for word in pick(draw, *calls_of(words))]
    more: list[Any] = []
    for _ in range(pick(draw, 1, 1, 2)):
        change = pick(draw, *["option"] * 6, "argument", "argument", "missing", "many", "misspelled")
        if change == "option":
            more += _wrong_option(draw, command, top, line)
        elif change == "argument" and line:
            line[draw(st.integers(0, len(line) - 1))] = _wrong_argument(draw, command, top, line)
        elif change == "missing" and (words_left := [word for word in line if word != "--dry-run"]):
            line.remove(pick(draw, *words_left))
        elif change == "many":
            line.append(pick(draw, _path(draw, top, line), draw(texts)))
        else:
            flags = [flag for param in command.params for flag in param.opts if flag.startswith("--")]
            more += pick(draw, [_misspelled(draw, pick(draw, "--help", *flags))], ["--"], ["-x"], ["--out"])
    names = [_misspelled(draw, words)] if one_in(draw, 50) else words.split()
    found = [str(part) for part in (*names, *line, *more)]
    return found, " ".join(repr(part).replace(f"{top}/", "") for part in found)


def in_this_process(jobs: Sequence[Job], workers: int, threads: int, ended: Callable[[Result], None]) -> None:
    """In place of worker processes."""
    for job in jobs:
        ended(Result(job.name, **do(job.to_dict(), 1)))


def _wrong_option(draw: Draw, command: click.Command, top: Path, here: Sequence[Any]) -> list[Any]:
    params = [p for p in command.params if isinstance(p, click.Option) and p.name not in _LEFT_OUT]
    if not params:
        return ["--help", draw(texts)]
    param = pick(draw, *params)
    flag = pick(draw, *param.opts, *param.secondary_opts)
    return [flag] if param.is_flag else [flag, _value(draw, param, top, here)]


def _wrong_argument(draw: Draw, command: click.Command, top: Path, here: Sequence[Any]) -> Any:
    params = [param for param in command.params if isinstance(param, click.Argument)]
    return _value(draw, pick(draw, *params), top, here) if params else draw(texts)


def _value(draw: Draw, param: click.Parameter, top: Path, here: Sequence[Any]) -> Any:
    """A value that the parameter should not have, or should rarely have."""
    name = str(param.name)
    known = list(param.type.choices) if isinstance(param.type, click.Choice) else _NAMES.get(name, [])
    if name in _COUNTED:
        return pick(draw, *_NO_COUNT, *known)
    if one_in(draw, 6):
        return draw(texts)
    if isinstance(param.type, click.Path) or (name in _PATHS and not one_in(draw, 3)):
        return _path(draw, top, here)
    if isinstance(param.type, Settings):
        return f"{pick(draw, *_KEYS, '')}={draw(texts)}"
    if isinstance(param.type, Listed) and known:
        return ",".join(pick(draw, word, _misspelled(draw, word)) for word in (pick(draw, *known), pick(draw, *known)))
    if known and not one_in(draw, 3):
        word = str(pick(draw, *known))
        return pick(draw, word, _misspelled(draw, word), f"{word}:x={draw(texts)}")
    return draw(texts)


def _misspelled(draw: Draw, word: str) -> str:
    """A word with one letter more or less, or in another case."""
    at = draw(st.integers(0, max(0, len(word) - 1)))
    return pick(draw, word[:at] + word[at + 1 :], word[:at] + "x" + word[at:], word.swapcase(), f" {word}")


def _path(draw: Draw, top: Path, here: Sequence[Any]) -> Any:
    """A path to nothing, to something of another kind, or to what the command itself reads."""
    odd = top / "odd"
    if not odd.exists():
        odd.mkdir()
        (odd / "folder.npz").mkdir()
        (odd / "empty.csv").touch()
        (odd / "text.npz").write_text("precious\n")
        os.mkfifo(odd / "pipe.npz")
        (odd / "loop.csv").symlink_to("loop.csv")
        (odd / "lost.csv").symlink_to("nowhere")
        (odd / "device.npz").symlink_to("/dev/null")  # not named directly: it would be lost if it were replaced
        (odd / os.fsdecode(b"\xff.csv")).write_text("a,b\n")
    suffix = pick(draw, ".npz", ".csv", ".json", ".npy", ".html", ".png", ".exe", "")
    own = [path for path in here if isinstance(path, Path)]
    missing = [odd / f"{name}{suffix}" for name in ("none/x", "empty.csv/x", "new", "x" * 300, "a\x1b[31m\n")]
    elsewhere = [f"/proc/none/x{suffix}", ".", "", "-", "~", f"x{suffix}"]  # in /proc not even root may write
    return pick(draw, *sorted(odd.iterdir()), *own, *(path.parent for path in own), *missing, *elsewhere)
