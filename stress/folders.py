"""Damaged folders of runs, comparisons, `auto` and the paper's tables, and the commands that read them."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml

from ncsam.automl import auto
from ncsam.engine import RunConfig, train
from ncsam.reproduce.record import Record
from ncsam.reproduce.run import Plan
from ncsam.reproduce.scales import Setting
from ncsam.reproduce.tables import TABLES
from stress.examples import Draw, one_in, pick
from stress.small import few_candidates
from stress.strategies import damage, nested, write_checkpoint

#: A command line, and a description of what is wrong with it.
Case = tuple[list[str], str]
_kept = tempfile.TemporaryDirectory()
_CHECKPOINT = "checkpoints/last.ckpt"
_NAMES = ["ce-sgd-s1", "=1-s1", "<b>", "new\nline-s1", "\x1b[31m-s1", "\udcff-s1", "ce-sgd-s²", "ce-sgd-s" + "9" * 200]
_DECISIONS = [
    {"index": 3, "choice": "accept", "label": 1, "observed": 0, "suggested": 1, "reviewer": "Ada", "time": 1.0},
    {"index": 5, "choice": "keep", "label": None, "observed": 2, "suggested": 1, "reviewer": "Bob", "time": 2.0},
    {"choice": "undo", "reviewer": "Ada", "time": 3.0},
]


def features(top: Path) -> Path:
    """A few samples to train on."""
    x = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
    np.savez(top / "f.npz", x=x, y=np.arange(24) % 3)
    return top / "f.npz"


@cache
def finished() -> Path:
    """A finished run with review decisions, made once."""
    top = Path(_kept.name)
    config = RunConfig(data=str(features(top)), noise="symmetric", rate=0.3, epochs=2, batch_size=8, rho=0.1)
    train(config, top / "run", console=False)
    (top / "run/annotators.csv").write_text("annotator,answers,accuracy\nada,12,0.9\nbob,12,0.5\n")
    (top / "run/review.jsonl").write_text("".join(json.dumps(each) + "\n" for each in _DECISIONS))
    (top / "run/review_view.json").write_text("{}")
    return top / "run"


@cache
def selected() -> Path:
    """A finished `ncsam auto`, made once."""
    top = Path(_kept.name) / "auto"
    top.mkdir()
    with few_candidates():
        auto(RunConfig(data=str(features(top))), top / "run", folds=2, budget=1.0, say=lambda text: None)
    np.save(top / "run/given.npy", np.full((24, 3), 1 / 3, np.float32))
    return top / "run"


@cache
def unfinished_selection() -> Path:
    run = copy(selected(), Path(_kept.name) / "begun")
    (run / "summary.json").unlink()
    return run


@cache
def cell() -> Path:
    """A finished cell of the paper's tables, made once."""
    top = Path(_kept.name) / "cells"
    plan = Plan([TABLES["curves"].part(["sgd"], ["cifar10-40"])], Setting("smoke"), [1], top)
    for job in plan.jobs:
        train(job.config, job.out, console=False)
    Record.claim(top, plan.setting, ["cifar10"])
    return top


@cache
def compared() -> Path:
    """Two runs with the files that a comparison writes beside them, made once."""
    top = Path(_kept.name) / "compared"
    for name in ("ce-sgd-s1", "ce-sam-s1"):
        copy(finished(), top / name)
    rows = [{"method": "ce", "optimizer": name, "runs": [f"ce-{name}-s1"]} for name in ("sgd", "sam")]
    (top / "comparison.json").write_text(json.dumps(rows))
    (top / "command.txt").write_text("ncsam compare f.npz")
    return top


def copy(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to))


def line(words: str, **places: Any) -> list[str]:
    """A command line from words with names of places in braces."""
    return [word.format(**places) for word in words.split()]


_REPORT = "report {run} --markdown --out {top}/r.html"
_SHOW = [_REPORT, _REPORT, "issues {run}", "issues {run} --csv", "issues {run} --json"]
_MODEL = [
    "predict {run} {inputs}",
    "export {run} --format safetensors --out {top}/w.safetensors",
    "bound {run} --steps 1 --restarts 1",
    "align {run} --batches 1 --json",
    "train --config {run}/config.yaml --quiet --out {run}",
]
_CLEAN = [
    *(f"clean {{run}} --dry-run --apply {what}" for what in ("reviewed", "all", "confident")),
    *("clean {run} --out {top}/c.csv", "clean {run} --out {top}/c.npz", "clean {run} --folder {top}/cleaned"),
    *("review {run} --no-open", "review {run} --no-open --reviewer \x1b", "report {run} --out {top}/r.html"),
]
_OOF = [
    "export-predictions {run} --out {top}/p.npy --table {top}/t.csv",
    "export-predictions {run} --take {run}/given.npy",
    *("issues {run} --folds 2", "issues {run}", _REPORT),
]
_AUTO = "auto {features} --folds 2 --budget 1s --quiet --out {run}"
_CELL = "reproduce curves --scale smoke --rows sgd --columns cifar10-40 --out {run}"


class Folder(NamedTuple):
    """A valid folder, patterns of the files that are damaged, and the commands that read it."""

    make: Callable[[], Path]
    files: str
    commands: list[str]

    def __call__(self, draw: Draw, top: Path) -> Case:
        run = copy(self.make(), top / "theirs")
        pattern = pick(draw, *self.files.split())
        what = damage(draw, pick(draw, *sorted(run.glob(pattern))))
        if pattern == _CHECKPOINT:
            what += _stopped(draw, run)
        return command(draw, self.commands, run, top), what


def command(draw: Draw, commands: list[str], run: Path, top: Path) -> list[str]:
    np.savez(top / "inputs.npz", x=np.zeros((2, 3), np.float32))
    return line(
        pick(draw, *commands), run=run, top=top, inputs=top / "inputs.npz", features=selected().parent / "f.npz"
    )


def _stopped(draw: Draw, run: Path) -> str:
    """Remove what else a run can resume from."""
    (run / "checkpoints/previous.ckpt").unlink(missing_ok=True)
    gone = [name for name in ("summary.json", "config.yaml") if one_in(draw, 2)]
    for name in gone:
        (run / name).unlink()
    return f", without {gone}"


#: Kinds of damaged folders.
FOLDERS = {
    "checkpoint": Folder(finished, _CHECKPOINT, _MODEL),
    "run folder": Folder(finished, "*.* *.* checkpoints/last.json", [*_SHOW, *_MODEL]),
    "decisions": Folder(finished, "review.jsonl review.jsonl review_view.json", _CLEAN),
    "auto": Folder(
        selected, "auto.json leaderboard.json checkpoints/last.json " + _CHECKPOINT, [_AUTO, *_SHOW, *_MODEL]
    ),
    "folds": Folder(unfinished_selection, "candidates/*/*.pt candidates/*/summary.json", [_AUTO]),
    "predictions": Folder(selected, "oof_probs.npz oof_probs.npz given.npy", _OOF),
    "cells": Folder(cell, "reproduce.json */*/*.json */*/*.yaml */*/*.jsonl", [_CELL, "reproduce show {run}"]),
    "comparison": Folder(compared, "comparison.json comparison.json command.txt ce-sam-s1/config.yaml", [_REPORT]),
}


def strange_names(draw: Draw, top: Path) -> Case:
    """Runs under strange names, and links in their places, in a comparison or a table of the paper."""
    make, pattern, words = pick(draw, (compared, "*-s1", _REPORT), (cell, "*/*-s*", "reproduce show {run}"))
    folder = copy(make(), top / "theirs")
    run = pick(draw, *sorted(folder.glob(pattern)))
    name = pick(draw, *_NAMES)
    if one_in(draw, 3):
        shutil.rmtree(run)
        name = pick(draw, "/etc", ".", "..", "nowhere", str(finished()))
        run.symlink_to(name)
    elif not (run.parent / name).exists():
        run.rename(run.parent / name)
    return line(words, run=folder, top=top), f"{words.split()[0]}, {name!r:.80}"


def named_code(draw: Draw, top: Path) -> Case:
    """A run folder that names code instead of one of our components; in its configuration, its checkpoint or both."""
    run, trap, code = copy(finished(), top / "run"), os.environ["STRESS_TRAP"], "stress.trap:build"
    change: dict[str, Any] = pick(
        draw,
        *({option: code} for option in ("data", "method", "optimizer", "base", "model", "noise", "pretrained")),
        *({option: code, "lr": None} for option in ("optimizer", "base")),
        {"data": "os:mkdir", "data_options": {"path": trap}},
        {"data": "reduced", "data_options": {"of": code}},
        {"model": "os:mkdir", "model_options": {"path": trap}},
        {"model": "torch.hub:load", "model_options": {"repo_or_dir": str(top), "source": "local", "model": "x"}},
        *({"model": name, "model_options": {}} for name in ("timm:hf-hub:x/y", f"timm:local-dir:{top}", "mean", ":")),
        {"model": "mean", "model_options": {"members": [{"model": code, "options": {}, "weight": 1.0}]}},
        {"model": draw(nested)},
        {"label_file": code, "noise": None},
    )
    (top / "hubconf.py").write_text("import stress.trap\n")
    where = pick(draw, "both", "config", "checkpoint")
    if where != "checkpoint":
        content = yaml.safe_load((run / "config.yaml").read_text())
        (run / "config.yaml").write_text(yaml.safe_dump({**content, **change}))
    if where != "config":
        state = torch.load(run / _CHECKPOINT, weights_only=True)
        write_checkpoint({**state, "config": {**state["config"], **change}}, run / _CHECKPOINT)
        (run / "checkpoints/previous.ckpt").unlink(missing_ok=True)
    if one_in(draw, 3):
        (run / "summary.json").unlink()
    sys.modules.pop("stress.trap", None)
    again = "train {features} --epochs 2 --batch-size 8 --quiet --out {run}"
    comparing = "compare --config {run}/config.yaml --dry-run --out {top}/compared"
    chosen = command(draw, [*_MODEL, *_CLEAN[:3], *_OOF, "review {run} --no-open", again, comparing], run, top)
    return chosen, f"{chosen[0]}, {where}, {change!r:.300}"
