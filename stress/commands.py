"""Wrong options of every command: from a valid, quick call and click's own list of options."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import click
from hypothesis import strategies as st

from ncsam import methods, noise, optim
from ncsam.cli.main import main
from ncsam.cli.options import Listed, Settings
from ncsam.jobs.job import Job, Result, do
from ncsam.reproduce.tables import GROUPS, TABLES
from stress.harness import Draw, one_in, pick
from stress.places import CALLS, line
from stress.run_folders import Case
from stress.strategies import texts

#: Options that start processes or clusters, use the network, open a browser, or legitimately take long.
_LEFT_OUT = {
    *("devices", "num_nodes", "strategy", "compile", "epochs", "loggers", "download", "fold"),
    *("jobs", "on", "mirror", "open_page"),
}
#: Amounts of work: a large one legitimately takes long, so only wrong ones are given.
_COUNTED = ("workers", "steps", "restarts", "batches", "folds", "budget", "seeds", "images")
_NO_COUNT = ["0", "-1", "-7", "0.5", "-0.5", "nan", "inf", "-inf", "1e300", "", " ", "abc", "1,", "1,1", "[1]", "²"]
#: Options that are paths, though click takes them for text.
_PATHS = ("data", "data_root", "label_file", "pretrained", "stand_in", "mirror", "name")
_NAMES = {
    "method": methods.names(),
    "methods": methods.names(),
    "optimizer": optim.names(),
    "optimizers": optim.names(),
    "noise": sorted(noise.GENERATORS),
    "model": ["mlp", "cnn_small", "timm:x", "torchvision:x", "transformers:none", "no.such:thing", "os:", ":", "mean"],
    "backbone": ["lite0", "minilm", "wordllama", "none", "timm:x", "os:system", ":"],
    "rows": ["sgd", "ncsam", "kappa0"],
    "columns": ["cifar10-40", "cifar100-20"],
    "tables": [*TABLES, *GROUPS],
    "device": ["cuda", "cuda:99", "meta", "cpu:1", "xla"],
    "resources": ["gpu=1", "cpu=-1", "cpu", "=", "gpu=nan"],
    "budget": ["0s", "-1m", "1d", "1e3s", "nan", "s", "²s", "9" * 400 + "h"],
    "text_column": ["label", "text"],
    "port": ["65536", "1"],
}
_KEYS = [
    *("x", "size", "gamma", "hidden", "join", "class_map", "of", "classes", "cifar10", "download", "root", "data"),
    *("alpha", "dropout", "decay", "sigma", "q", "adaptive", "eta", "sign", "schedule"),
]


@cache
def commands() -> dict[str, click.Command]:
    """Every command, by its words."""

    def below(group: click.Group, words: Sequence[str]) -> Iterator[tuple[str, click.Command]]:
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if isinstance(command, click.Group):
                yield from below(command, [*words, name])
            elif command is not None:
                yield " ".join([*words, name]), command

    return dict(below(main, []))


def calls_of(words: str) -> list[str]:
    """The valid calls of a command, without its own words; tables of the paper share one."""
    here = "reproduce curves" if words.partition(" ")[2] in (*TABLES, *GROUPS) else words
    return [call[len(here) :] for call in CALLS if f"{call} ".startswith(f"{here} ")]


def wrong_options(draw: Draw, top: Path) -> Case:
    """A command with a wrong option or two, with too few or too many arguments, or on a run that is not finished."""
    tables = [f"reproduce {name}" for name in (*TABLES, *GROUPS)]
    words = pick(draw, *(words for words in commands() if words not in tables), pick(draw, *tables))
    command = commands()[words]
    here = line(pick(draw, *calls_of(words)), top)
    if (top / "run").exists() and one_in(draw, 4):
        (top / "run/summary.json").unlink()
        shutil.rmtree(top / "run/checkpoints")
    more: list[Any] = []
    for _ in range(pick(draw, 1, 1, 2)):
        change = pick(draw, *["option"] * 6, "argument", "argument", "missing", "many", "misspelled")
        if change == "option":
            more += _wrong_option(draw, command, top, here)
        elif change == "argument" and here:
            arguments = [param for param in command.params if isinstance(param, click.Argument)]
            value = _value(draw, pick(draw, *arguments), top, here) if arguments else draw(texts)
            here[draw(st.integers(0, len(here) - 1))] = value
        elif change == "missing" and (words_left := [word for word in here if word not in ("--dry-run", "--epochs")]):
            here.remove(pick(draw, *words_left))
        elif change == "many":
            here.append(pick(draw, _path(draw, top, here), draw(texts)))
        else:
            flags = [flag for param in command.params for flag in param.opts if flag.startswith("--")]
            more += pick(draw, [_misspelled(draw, pick(draw, "--help", *flags))], ["--"], ["-x"], ["--out"])
    names = [_misspelled(draw, words)] if one_in(draw, 50) else words.split()
    found = [str(part) for part in (*names, *here, *more)]
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
        for name, place in {"loop.csv": "loop.csv", "lost.csv": "nowhere", "device.npz": "/dev/null"}.items():
            (odd / name).symlink_to(place)  # the device is not named directly: it would be lost if it were replaced
        (odd / os.fsdecode(b"\xff.csv")).write_text("a,b\n")
    suffix = pick(draw, ".npz", ".csv", ".json", ".npy", ".html", ".png", ".exe", "")
    own = [path for path in here if isinstance(path, Path)]
    missing = [odd / f"{name}{suffix}" for name in ("none/x", "empty.csv/x", "new", "x" * 300, "a\x1b[31m\n")]
    elsewhere = [f"/proc/none/x{suffix}", ".", "", "-", "~", f"x{suffix}"]  # in /proc not even root may write
    return pick(draw, *sorted(odd.iterdir()), *own, *(path.parent for path in own), *missing, *elsewhere)
