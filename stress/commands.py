"""Wrong options of every command but `train`: from a good call that is quick, and click's own list of options."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import torch
from PIL import Image

from ncsam import methods, models, noise, optim
from ncsam.cli.kinds import Listed, Settings
from ncsam.cli.main import main
from ncsam.jobs.job import Job, Result
from ncsam.jobs.job import do as answer
from ncsam.reproduce.tables import GROUPS, TABLES
from stress import cells, records, runs, values
from stress.values import anything, features

#: Options that start processes or clusters, use the network, open a browser, or rightly take long.
_LEFT_OUT = {*values._LEFT_OUT, "jobs", "on", "mirror", "open_page"} - {"data", "workers"}
#: Numbers of things to do or to start: a large one rightly takes long, so that only wrong ones are given.
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


class Call(NamedTuple):
    """What stands on a command line: arguments, and options by their flags, of which `None` is no value."""

    arguments: list[Any]
    options: dict[str, Any]


class Place:
    """What commands read, made when it is asked for. What lies in `given` none of them may change."""

    def __init__(self, top: Path) -> None:
        self.top, self.given = top, top / "given"
        self.given.mkdir()
        self.out = top / "out"

    @cached_property
    def features(self) -> Path:
        return features(self.given)

    @cached_property
    def run(self) -> Path:
        return runs.theirs(self.top)

    @cached_property
    def unfinished(self) -> Path:
        run = Path(shutil.copytree(runs.finished(), self.top / "begun"))
        (run / "summary.json").unlink()
        shutil.rmtree(run / "checkpoints")
        return run

    @cached_property
    def race(self) -> Path:
        return Path(shutil.copytree(records.raced(), self.top / "race"))

    @cached_property
    def labels(self) -> Path:
        y = np.arange(24) % 3
        made: noise.NoisyLabels = noise.symmetric(y, 0.4, num_classes=3, seed=0)
        return made.save(self.given / "labels.npz")

    @cached_property
    def answers(self) -> Path:
        path = self.given / "answers.csv"
        path.write_text("path,ada,bob,cy\n" + "".join(f"{i}.png,{i % 2},{i % 2},{i % 3 % 2}\n" for i in range(9)))
        return path

    @cached_property
    def images(self) -> Path:
        for i in range(4):
            path = self.given / "photos" / "ab"[i % 2] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 8, 3), 40 * i, np.uint8)).save(path)
        return self.given / "photos"

    @cached_property
    def weights(self) -> Path:
        torch.save(models.create("cnn_small", 2).state_dict(), self.given / "w.pt")
        return self.given / "w.pt"

    @cached_property
    def inputs(self) -> Path:
        np.savez(self.given / "inputs.npz", x=np.zeros((2, 3), np.float32))
        return self.given / "inputs.npz"

    @cached_property
    def predictions(self) -> Path:
        np.save(self.given / "p.npy", np.full((24, 3), 1 / 3, np.float32))
        return self.given / "p.npy"

    def cells(self, name: str) -> Path:
        return Path(shutil.copytree(cells._done(), self.top / name))


_TABLE = {"--scale": "smoke", "--rows": "sgd", "--columns": "cifar10-40", "--dry-run": None}
_RUN = {"--epochs": 1, "--optimizers": "sgd", "--seeds": 1, "--jobs": 1}
_IMAGES = {"--model": "cnn_small", "--size": 8, "--batch-size": 2, "--device": "cpu", "--quiet": None}
#: Good calls of the commands; a table of the paper is called like the others.
_STARTS: dict[str, Callable[[Place], list[Call]]] = {
    "auto": lambda p: [
        Call([p.features], {"--folds": 2, "--budget": "0.001s", "--quiet": None, "--out": p.out}),
        Call([p.features], {"--folds": 2, "--budget": "0.001s", "--quiet": None, "--out": p.race}),
    ],
    "embed": lambda p: [Call([p.images], {**_IMAGES, "--pretrained": p.weights, "--out": p.top / "out.npz"})],
    "compare": lambda p: [
        Call([p.features], {**_RUN, "--out": p.out}),
        Call([p.features], {**_RUN, "--out": p.out, "--dry-run": None}),
    ],
    "report": lambda p: [Call([p.run], {"--out": p.top / "r.html"}), Call([p.given], {"--out": p.top / "r.html"})],
    "issues": lambda p: [Call([p.run], {}), Call([p.race], {"--json": None}), Call([p.unfinished], {})],
    "review": lambda p: [Call([p.run], {"--no-open": None}), Call([p.unfinished], {"--no-open": None})],
    "clean": lambda p: [
        Call([p.run], {"--dry-run": None}),
        Call([p.run], {"--out": p.top / "c.csv"}),
        Call([p.run], {"--out": p.top / "c.npz", "--apply": "all"}),
        Call([p.run], {"--folder": p.out}),
    ],
    "export-predictions": lambda p: [
        Call([p.run], {"--out": p.top / "p.npy", "--table": p.top / "t.csv"}),
        Call([p.run], {"--table": p.top / "t.parquet"}),
        Call([p.run], {"--take": p.predictions}),
        Call([p.unfinished], {"--out": p.top / "p.npy"}),
    ],
    "annotators": lambda p: [Call([p.answers], {"--out": p.top / "c.csv"})],
    "predict": lambda p: [
        Call([p.run, p.inputs], {"--out": p.top / "p.csv"}),
        Call([p.run, p.inputs], {"--json": None}),
        Call([p.unfinished, p.inputs], {}),
    ],
    "export": lambda p: [
        Call([p.run], {"--format": "safetensors", "--out": p.top / "w.safetensors"}),
        Call([p.run], {}),
        Call([p.unfinished], {"--out": p.out}),
    ],
    "bound": lambda p: [Call([p.run], {"--steps": 1, "--restarts": 1}), Call([p.unfinished], {})],
    "align": lambda p: [
        Call([p.run], {"--batches": 1, "--json": None}),
        Call([p.run], {"--batches": 1, "--out": p.top / "a.png"}),
    ],
    "noise make": lambda p: [
        Call([p.features], {"--noise": "symmetric", "--rate": 0.4, "--out": p.top / "n.npz"}),
        Call([p.features], {"--noise": "instance", "--rate": 0.4, "--out": p.top / "n.npz"}),
    ],
    "noise inspect": lambda p: [Call([p.labels], {"--json": None}), Call([p.labels], {"--data": p.features})],
    "noise plot": lambda p: [Call([p.labels], {"--out": p.top / "n.png"})],
    "data list": lambda p: [Call([], {})],
    "data describe": lambda p: [Call([p.features], {}), Call([p.images], {}), Call(["digits"], {})],
    "data check": lambda p: [Call([p.images], {}), Call([p.features], {})],
    "methods show": lambda p: [Call(["ce"], {})],
    "presets": lambda p: [Call(["recommended"], {})],
    "version": lambda p: [Call([], {})],
    "reproduce list": lambda p: [Call([], {})],
    "reproduce show": lambda p: [Call([p.cells("ours"), "curves"], {}), Call([p.run], {})],
    "reproduce": lambda p: [Call([], {**_TABLE, "--out": p.out})],
}
#: Takes half a minute, whatever it is given: its options are those of the tables.
_TOO_SLOW = ("train",)


@cache
def commands() -> dict[str, click.Command]:
    """Every command that is tried, by its words."""

    def below(group: click.Group, words: Sequence[str]) -> Iterator[tuple[str, click.Command]]:
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if isinstance(command, click.Group):
                yield from below(command, [*words, name])
            elif command is not None:
                yield " ".join([*words, name]), command

    return {words: command for words, command in below(main, []) if words not in _TOO_SLOW}


def wrong_options(chance: random.Random, top: Path) -> tuple[list[Any], str]:
    """A command with a wrong option or two, or with too few or too many words."""
    tables = [words for words in commands() if words not in _STARTS]
    words = chance.choice([words for words in commands() if words in _STARTS] + [chance.choice(tables)])
    command = commands()[words]
    place = Place(top)
    start = chance.choice(_STARTS[words if words in _STARTS else words.split()[0]](place))
    arguments, given = list(start.arguments), dict(start.options)
    more: list[Any] = []
    for _ in range(chance.choice([1, 1, 2])):
        kind = chance.choice(["option"] * 6 + ["argument", "argument", "missing", "many", "misspelt"])
        if kind == "option":
            more += _odd_option(chance, command, place, [*arguments, *given.values()])
        elif kind == "argument" and arguments:
            arguments[chance.randrange(len(arguments))] = _odd_argument(chance, command, place, arguments)
        elif kind == "missing" and (arguments or given):
            number = chance.randrange(len(arguments) + len(given))
            _ = arguments.pop(number) if number < len(arguments) else given.pop(list(given)[number - len(arguments)])
        elif kind == "many":
            arguments.append(chance.choice([_path(chance, place, arguments), anything(chance)]))
        else:
            more += chance.choice([[_nearly(chance, chance.choice(_flags(command)))], ["--"], ["-x"], ["--out"]])
    options = [part for flag, value in given.items() for part in (flag, value) if part is not None]
    line = [*words.split(), *arguments, *options, *more]
    if chance.random() < 0.02:
        line[0] = _nearly(chance, line[0])
    return line, " ".join(repr(str(part)).replace(f"{top}/", "") for part in line)


def in_this_process(jobs: Sequence[Job], workers: int, threads: int, ended: Callable[[Result], None]) -> None:
    """In the place of worker processes."""
    for job in jobs:
        ended(Result(job.name, **answer(job.to_dict(), 1)))


def _flags(command: click.Command) -> list[str]:
    return [flag for param in command.params for flag in param.opts if flag.startswith("--")] or ["--help"]


def _odd_option(chance: random.Random, command: click.Command, place: Place, here: Sequence[Any]) -> list[Any]:
    params = [p for p in command.params if isinstance(p, click.Option) and p.name not in _LEFT_OUT]
    if not params:
        return ["--help", anything(chance)]
    param = chance.choice(params)
    flag = chance.choice([*param.opts, *param.secondary_opts])
    return [flag] if param.is_flag else [flag, _value(chance, param, place, here)]


def _odd_argument(chance: random.Random, command: click.Command, place: Place, here: Sequence[Any]) -> Any:
    params = [param for param in command.params if isinstance(param, click.Argument)]
    return _value(chance, chance.choice(params), place, here) if params else anything(chance)


def _value(chance: random.Random, param: click.Parameter, place: Place, here: Sequence[Any]) -> Any:
    """A value that the parameter should not have, or should seldom have."""
    name = str(param.name)
    if name in _COUNTED:
        return chance.choice([*_NO_COUNT, *_NAMES.get(name, [])])
    if chance.random() < 0.15:
        return anything(chance)
    if isinstance(param.type, click.Path) or (name in _PATHS and chance.random() < 0.7):
        return _path(chance, place, here)
    known = list(param.type.choices) if isinstance(param.type, click.Choice) else _NAMES.get(name, [])
    if isinstance(param.type, Settings):
        return f"{chance.choice([*_KEYS, ''])}={anything(chance)}"
    if isinstance(param.type, Listed) and known:
        return ",".join(chance.choice([word, _nearly(chance, word)]) for word in chance.choices(known, k=2))
    if known and chance.random() < 0.7:
        word = str(chance.choice(known))
        return chance.choice([word, _nearly(chance, word), f"{word}:x={anything(chance)}"])
    return anything(chance)


def _nearly(chance: random.Random, word: str) -> str:
    """A word with a letter more or less, or of another case."""
    if not word:
        return "x"
    at = chance.randrange(len(word))
    return chance.choice([word[:at] + word[at + 1 :], word[:at] + word[at] + word[at:], word.swapcase(), f" {word}"])


def _path(chance: random.Random, place: Place, here: Sequence[Any]) -> Any:
    """A path with nothing there, something of another kind, or what the command itself reads."""
    odd = place.top / "odd"
    if not odd.exists():
        odd.mkdir()
        (odd / "folder.npz").mkdir()
        (odd / "empty.csv").touch()
        (odd / "text.npz").write_text("precious\n")
        os.mkfifo(odd / "pipe.npz")
        (odd / "loop.csv").symlink_to("loop.csv")
        (odd / "lost.csv").symlink_to("nowhere")
        (odd / "device.npz").symlink_to("/dev/null")  # itself is not named: it would be lost if it were replaced
        (odd / os.fsdecode(b"\xff.csv")).write_text("a,b\n")
    suffix = chance.choice([".npz", ".csv", ".json", ".npy", ".html", ".png", ".exe", ""])
    own = [path for path in here if isinstance(path, Path)]
    return chance.choice(
        [
            *odd.iterdir(),
            *own,
            *(path.parent for path in own),
            odd / "none" / f"x{suffix}",
            odd / "empty.csv" / f"x{suffix}",
            odd / f"new{suffix}",
            odd / f"{'x' * 300}{suffix}",
            odd / f"a\x1b[31m\n{suffix}",
            f"/proc/none/x{suffix}",  # where nobody may write, root neither
            ".",
            "",
            "-",
            "~",
            f"x{suffix}",
        ]
    )
