"""Damaged folders of runs, comparisons, `auto` and the paper's tables, and the commands that read them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from stress import places
from stress.harness import Draw, one_in, pick
from stress.places import calls_with, line
from stress.strategies import damage, nested, write_checkpoint

#: A command line, and a description of what is wrong with it.
Case = tuple[list[Any], str]
_CHECKPOINT = "checkpoints/last.ckpt"
_NAMES = ["ce-sgd-s1", "=1-s1", "<b>", "new\nline-s1", "\x1b[31m-s1", "\udcff-s1", "ce-sgd-s²", "ce-sgd-s" + "9" * 200]


class Folder(NamedTuple):
    """A valid folder, patterns of the files that are damaged, and the place that it has in the calls."""

    make: Callable[[], Path]
    files: str
    place: str

    def __call__(self, draw: Draw, top: Path) -> Case:
        folder = Path(shutil.copytree(self.make(), top / "theirs"))
        pattern = pick(draw, *self.files.split())
        what = damage(draw, pick(draw, *sorted(folder.glob(pattern))))
        if pattern == _CHECKPOINT:  # remove what else a run can resume from
            (folder / "checkpoints/previous.ckpt").unlink(missing_ok=True)
            gone = [name for name in ("summary.json", "config.yaml") if one_in(draw, 2)]
            for name in gone:
                (folder / name).unlink()
            what += f", without {gone}"
        command = line(pick(draw, *calls_with(self.place)), top, **{self.place: folder})
        return command, f"{command[0]}, {what}"


#: Kinds of damaged folders.
FOLDERS = {
    "checkpoint": Folder(places.finished, _CHECKPOINT, "run"),
    "run folder": Folder(places.finished, "*.* *.* checkpoints/last.json", "run"),
    "run on a backbone": Folder(places.on_backbone, "*.* checkpoints/last.json " + _CHECKPOINT, "photos_run"),
    "decisions": Folder(places.finished, "review.jsonl review.jsonl review_view.json", "run"),
    "auto": Folder(
        places.selected, "auto.json leaderboard.json oof_probs.npz checkpoints/last.json " + _CHECKPOINT, "selected"
    ),
    "folds": Folder(places.begun_selection, "candidates/*/*.pt candidates/*/summary.json", "selected"),
    "cells": Folder(places.cells, "reproduce.json */*/*.json */*/*.yaml */*/*.jsonl", "cells"),
    "comparison": Folder(
        places.compared, "comparison.json comparison.json command.txt ce-sam-s1/config.yaml", "compared"
    ),
}


def strange_names(draw: Draw, top: Path) -> Case:
    """Runs under strange names, and links in their places, in a comparison or a table of the paper."""
    kind, pattern = pick(draw, ("compared", "*-s1"), ("cells", "*/*-s*"))
    folder = places.PLACES[kind](top)
    run = pick(draw, *sorted(folder.glob(pattern)))
    name = pick(draw, *_NAMES)
    if one_in(draw, 3):
        shutil.rmtree(run)
        name = pick(draw, "/etc", ".", "..", "nowhere", str(places.finished()))
        run.symlink_to(name)
    elif not (run.parent / name).exists():
        run.rename(run.parent / name)
    call = calls_with(kind)[0]
    return line(call, top, **{kind: folder}), f"{call}, {name!r:.80}"


def named_code(draw: Draw, top: Path) -> Case:
    """A run folder that names code instead of one of our components; in its configuration, its checkpoint or both."""
    run, trap, code = places.PLACES["run"](top), os.environ["STRESS_TRAP"], "stress.trap:build"
    change: dict[str, Any] = pick(
        draw,
        *({option: code} for option in ("data", "method", "optimizer", "base", "model", "noise", "pretrained")),
        *({option: code, "lr": None} for option in ("optimizer", "base", "backbone")),
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
    command = line(pick(draw, again, *calls_with("run")), top, run=run)
    return command, f"{command[0]}, {where}, {change!r:.300}"
