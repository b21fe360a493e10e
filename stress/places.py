"""What commands read and write, and a valid, quick call of every command, with the names of places in braces."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image

from ncsam import api, models, noise
from ncsam.automl import auto
from ncsam.engine import RunConfig, train
from ncsam.reproduce.record import Record
from ncsam.reproduce.run import Plan
from ncsam.reproduce.scales import Setting
from ncsam.reproduce.tables import TABLES
from stress.tasks import few_candidates, small_data, tiny_backbones

_kept = tempfile.TemporaryDirectory()
_DECISIONS = [
    {"index": 3, "choice": "accept", "label": 1, "observed": 0, "suggested": 1, "reviewer": "Ada", "time": 1.0},
    {"index": 5, "choice": "keep", "label": None, "observed": 2, "suggested": 1, "reviewer": "Bob", "time": 2.0},
    {"choice": "undo", "reviewer": "Ada", "time": 3.0},
]
QUICK = "--epochs 1 --batch-size 8 --quiet --optimizer sgd --out {top}/out"

#: Valid calls. What stands below `{top}` or is a run folder may be changed by a command, all other places may not.
CALLS = f"""
train {{features}} --model mlp {QUICK}
train --config {{config}} --epochs 1 --quiet --out {{top}}/out
train --config {{run}}/config.yaml --quiet --out {{run}}
auto {{features}} --folds 2 --budget 0.001s --quiet --out {{top}}/out
auto {{features}} --folds 2 --budget 0.001s --quiet --out {{selected}}
audit {{features}} --checks outlier,exact_duplicate --quiet --out {{top}}/out
audit {{selected}} --quiet
embed {{photos}} --model cnn_small --size 8 --batch-size 2 --quiet --pretrained {{weights}} --out {{top}}/out.npz
compare {{features}} --epochs 1 --optimizers sgd --seeds 1 --jobs 1 --out {{top}}/out
compare {{features}} --epochs 1 --optimizers sgd --seeds 1 --jobs 1 --out {{top}}/out --dry-run
compare --config {{run}}/config.yaml --dry-run --out {{top}}/out
report {{run}} --markdown --out {{top}}/r.html
report {{selected}} --out {{top}}/r.html
report {{compared}} --out {{top}}/r.html
issues {{run}} --csv
issues {{selected}} --json
issues {{selected}} --to csv --out {{top}}/i.csv
issues {{selected}} --to datalab --out {{top}}/d.npz
issues {{selected}} --folds 2
review {{run}} --no-open
clean {{run}} --dry-run --apply confident
clean {{run}} --out {{top}}/c.csv
clean {{run}} --out {{top}}/c.npz --apply all
clean {{run}} --folder {{top}}/out
export-predictions {{run}} --out {{top}}/p.npy --table {{top}}/t.csv
export-predictions {{selected}} --table {{top}}/t.parquet
export-predictions {{run}} --take {{predictions}}
annotators {{answers}} --out {{top}}/c.csv
predict {{run}} {{inputs}} --out {{top}}/p.csv
predict {{selected}} {{inputs}} --json
predict {{photos_run}} {{photos}}
export {{run}} --format safetensors --out {{top}}/w.safetensors
export {{selected}}
bound {{run}} --steps 1 --restarts 1
align {{run}} --batches 1 --json
align {{run}} --batches 1 --out {{top}}/a.png
noise make {{features}} --noise symmetric --rate 0.4 --out {{top}}/n.npz
noise make {{features}} --noise instance --rate 0.4 --out {{top}}/n.npz
noise inspect {{labels}} --json
noise inspect {{labels}} --data {{features}}
noise plot {{labels}} --out {{top}}/n.png
data list
data describe {{features}}
data describe digits
data check {{photos}}
methods show ce
presets show recommended
version
doctor --json
reproduce list
reproduce show {{cells}} curves
reproduce curves --scale smoke --rows sgd --columns cifar10-40 --out {{cells}}
reproduce curves --scale smoke --rows sgd --columns cifar10-40 --dry-run --out {{top}}/out
""".strip().splitlines()


def features(folder: Path) -> Path:
    """A few samples to train on."""
    x = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
    np.savez(folder / "f.npz", x=x, y=np.arange(24) % 3)
    return folder / "f.npz"


@cache
def finished() -> Path:
    """A finished run with review decisions."""
    run = Path(_kept.name) / "run"
    config = RunConfig(data=str(features(run.parent)), noise="symmetric", rate=0.3, epochs=2, batch_size=8, rho=0.1)
    train(config, run, console=False)
    (run / "annotators.csv").write_text("annotator,answers,accuracy\nada,12,0.9\nbob,12,0.5\n")
    (run / "review.jsonl").write_text("".join(json.dumps(each) + "\n" for each in _DECISIONS))
    (run / "review_view.json").write_text("{}")
    return run


@cache
def on_backbone() -> Path:
    """A finished run of the recommended classifier on features of images."""
    run = Path(_kept.name) / "photos"
    with tiny_backbones():
        api.train(small_data(32, images=True, side=32), run)
    return run


@cache
def selected() -> Path:
    """A finished `ncsam auto`."""
    run = Path(_kept.name) / "auto"
    with few_candidates():
        auto(RunConfig(data=str(features(run.parent))), run, folds=2, budget=1.0, say=lambda text: None)
    np.save(run / "given.npy", np.full((24, 3), 1 / 3, np.float32))
    return run


@cache
def begun_selection() -> Path:
    """One that was interrupted after its folds."""
    run = Path(shutil.copytree(selected(), Path(_kept.name) / "begun"))
    (run / "summary.json").unlink()
    return run


@cache
def cells() -> Path:
    """A finished cell of the paper's tables."""
    top = Path(_kept.name) / "cells"
    plan = Plan([TABLES["curves"].part(["sgd"], ["cifar10-40"])], Setting("smoke"), [1], top)
    for job in plan.jobs:
        train(job.config, job.out, console=False)
    Record.claim(top, plan.setting, ["cifar10"])
    return top


@cache
def compared() -> Path:
    """Two runs with the files that a comparison writes beside them."""
    top = Path(_kept.name) / "compared"
    for name in ("ce-sgd-s1", "ce-sam-s1"):
        shutil.copytree(finished(), top / name)
    rows = [{"method": "ce", "optimizer": name, "runs": [f"ce-{name}-s1"]} for name in ("sgd", "sam")]
    (top / "comparison.json").write_text(json.dumps(rows))
    (top / "command.txt").write_text("ncsam compare f.npz")
    return top


def _photos(folder: Path) -> Path:
    for i in range(4):
        path = folder / "photos" / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((32, 32, 3), 40 * i, np.uint8)).save(path)
    return folder / "photos"


def _config(folder: Path) -> dict[str, Any]:
    return RunConfig(data=str(features(folder)), model="mlp", batch_size=8).to_dict()


def _copied(make: Callable[[], Path]) -> Callable[[Path], Path]:
    return lambda folder: Path(shutil.copytree(make(), folder / make().name))


def _saved(name: str, save: Callable[[Path], object]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        save(folder / name)
        return folder / name

    return write


_ANSWERS = "path,ada,bob,cy\n" + "".join(f"{i}.png,{i % 2},{i % 2},{i % 3 % 2}\n" for i in range(9))
#: Writes each place into a folder.
PLACES: dict[str, Callable[[Path], Path]] = {
    "top": lambda folder: folder,
    "run": _copied(finished),
    "selected": _copied(selected),
    "photos_run": _copied(on_backbone),
    "cells": _copied(cells),
    "compared": _copied(compared),
    "features": features,
    "photos": _photos,
    "config": _saved("c.yaml", lambda path: path.write_text(yaml.safe_dump(_config(path.parent)))),
    "labels": lambda folder: noise.symmetric(np.arange(24) % 3, 0.4, num_classes=3, seed=0).save(folder / "labels.npz"),
    "answers": _saved("answers.csv", lambda path: path.write_text(_ANSWERS)),
    "weights": _saved("w.pt", lambda path: torch.save(models.create("cnn_small", 2).state_dict(), path)),
    "inputs": _saved("inputs.npz", lambda path: np.savez(path, x=np.zeros((2, 3), np.float32))),
    "predictions": _saved("p.npy", lambda path: np.save(path, np.full((24, 3), 1 / 3, np.float32))),
}
_CHANGED = ("top", "run", "selected", "photos_run", "cells", "compared")


def line(call: str, top: Path, **own: Path) -> list[Any]:
    """The words of a call; `{place}` is replaced by its path, which is written below `top` unless it is one's `own`."""
    (top / "given").mkdir(exist_ok=True)
    return [_resolved(word, top, own) for word in call.split()]


def _resolved(word: str, top: Path, own: dict[str, Path]) -> Any:
    name, found, below = word.removeprefix("{").partition("}")
    if not found:
        return word
    if name not in own:
        own[name] = PLACES[name](top if name in _CHANGED else top / "given")
    return own[name] / below.lstrip("/")


def calls_with(place: str) -> list[str]:
    """The calls that read a place."""
    return [call for call in CALLS if f"{{{place}}}" in call]
