"""Run folders from elsewhere: forged checkpoints, spoiled files, and inputs that a network is asked about."""

from __future__ import annotations

import copy
import io
import json
import os
import random
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from ncsam.engine import RunConfig, train
from ncsam.engine import checkpoint as module
from stress.files import Attack, array, image, spoiled
from stress.values import features, nested

_kept = tempfile.TemporaryDirectory()


@cache
def finished() -> Path:
    """A finished run, made once."""
    top = Path(_kept.name)
    config = RunConfig(data=str(features(top)), noise="symmetric", rate=0.3, epochs=2, batch_size=8, rho=0.1)
    train(config, top / "run", console=False)
    return top / "run"


def theirs(top: Path) -> Path:
    shutil.copytree(finished(), top / "run")
    return top / "run"


def command(chance: random.Random, run: Path, top: Path) -> list[Any]:
    """Something that one does with a run folder."""
    np.savez(top / "inputs.npz", x=np.zeros((2, 3), np.float32))
    return chance.choice(
        [
            ["predict", run, top / "inputs.npz"],
            ["export", run, "--format", "safetensors", "--out", top / "w.safetensors"],
            ["bound", run, "--steps", 1, "--restarts", 1],
            ["align", run, "--batches", 1, "--json"],
            ["train", "--config", run / "config.yaml", "--quiet", "--out", run],
        ]
    )


def checkpoint(chance: random.Random, top: Path) -> tuple[list[Any], str]:
    """A checkpoint with parts of other types, names of other networks, or spoiled bytes; its checksum may fit."""
    run = theirs(top)
    path = run / "checkpoints/last.ckpt"
    state: dict[str, Any] = copy.deepcopy(torch.load(path, weights_only=True))
    (run / "checkpoints/previous.ckpt").unlink(missing_ok=True)
    stopped = chance.random() < 0.5
    if stopped:  # a run that can go on
        state |= {"epoch": 1, "history": state["history"][:1]}
    for name, gone in (("summary.json", 1.0 if stopped else 0.3), ("config.yaml", 0.3)):
        if chance.random() < gone:
            (run / name).unlink(missing_ok=True)
    what = chance.choice(["bytes", "part", "part", "deep", "deep", "model", "attack"])
    if what == "bytes":
        path.write_bytes(spoiled(chance, path.read_bytes()))
        return command(chance, run, top), what
    if what == "part":
        part = chance.choice(sorted(state))
        state[part] = _tensor_or_value(chance)
        what += f" {part} = {state[part]!r:.80}"
    elif what == "deep":
        place, key = _somewhere(chance, state)
        place[key] = _tensor_or_value(chance)
        what += f" {key} = {place[key]!r:.80}"
    elif what == "model":
        state["config"]["model"] = chance.choice(
            ["os:system", "torch.hub:load", "builtins:exec", "timm:x", "torchvision:x", ":"]
        )
        state["config"]["model_options"] = chance.choice([{}, {"repo_or_dir": ".", "source": "local"}])
        what += f" {state['config']['model']}"
    else:
        state[chance.choice(["method", "config", "extra"])] = Attack()
    sealed(state, path)
    return command(chance, run, top), what


def _tensor_or_value(chance: random.Random) -> Any:
    """What a checkpoint may hold."""
    if chance.random() < 0.7:
        return nested(chance)
    shape = chance.choice([(), (0,), (3,), (24,), (2, 2), (24, 3)])
    return torch.full(shape, chance.choice([0, 1, -5, 0.5, float("nan"), 1j]))


def sealed(state: Any, path: Path) -> None:
    """Write a forged checkpoint whose checksum fits."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    module._seal(buffer)
    path.write_bytes(buffer.getvalue())


def _somewhere(chance: random.Random, state: Any) -> tuple[Any, Any]:
    """A container inside, and one of its keys."""
    place, key = state, chance.choice(sorted(state, key=str))
    while isinstance(place[key], (dict, list)) and place[key] and chance.random() < 0.85:
        place = place[key]
        key = chance.choice(sorted(place, key=str)) if isinstance(place, dict) else chance.randrange(len(place))
    return place, key


def folder(chance: random.Random, top: Path) -> tuple[list[Any], str]:
    """A run folder some of whose files are spoiled, or hold values of other types."""
    run = theirs(top)
    names = [
        "config.yaml",
        "summary.json",
        "metrics.jsonl",
        "label_issues.csv",
        "noise.npz",
        "noise.json",
        "checkpoints/last.json",
        "label_posterior.json",
        "annotators.csv",
    ]
    name = chance.choice(names)
    path = run / name
    (run / "annotators.csv").write_text("annotator,answers,accuracy\nada,12,0.9\nbob,12,0.5\n")
    what = chance.choice(["spoiled", "gone", "values", "values", "encoding"])
    if what == "gone":
        path.unlink()
    elif what == "spoiled":
        path.write_bytes(spoiled(chance, path.read_bytes()))
    elif what == "encoding" and path.suffix != ".npz":
        text = path.read_text()
        path.write_bytes(("Ü" + text).encode(chance.choice(["utf-16", "latin-1", "utf-16-le"])))
    elif path.suffix in (".json", ".yaml") and chance.random() < 0.7:
        content = yaml.safe_load(path.read_text())  # JSON is YAML
        place, key = _somewhere(chance, content)
        place[key] = nested(chance)
        path.write_text(yaml.safe_dump(content) if path.suffix == ".yaml" else json.dumps(content))
        what += f" {key} = {place[key]!r:.80}"
    elif path.suffix != ".npz":
        lines = path.read_text().splitlines()
        row = chance.randrange(len(lines))
        words = lines[row].split(": ") if ": " in lines[row] else lines[row].split(",")
        words[chance.randrange(len(words))] = chance.choice([json.dumps, str])(nested(chance))
        lines[row] = (": " if ": " in lines[row] else ",").join(words)
        path.write_text("\n".join(lines) + "\n", errors="surrogatepass")
        what += f" {lines[row]!r:.100}"
    chosen = chance.choice(["report", "report", "issues", "train", "predict"])
    arguments: list[Any] = {
        "report": ["report", run, "--markdown", "--out", top / "r.html"],
        "issues": ["issues", run, *chance.choice([[], ["--csv"], ["--json"]])],
        "train": ["train", "--config", finished() / "config.yaml", "--quiet", "--out", run],
        "predict": command(random.Random(0), run, top),
    }[chosen]
    return arguments, f"{chosen}, {name}, {what}"


def named(chance: random.Random, top: Path) -> tuple[list[Any], str]:
    """A run folder that names code in the place of what is ours; in its configuration, its checkpoint or both."""
    run = theirs(top)
    trap = os.environ["STRESS_TRAP"]
    option, value, more = chance.choice(
        [
            *(
                (option, "stress.trap:build", {})
                for option in ("data", "method", "optimizer", "base", "model", "noise")
            ),
            *((option, "stress.trap:build", {"lr": None}) for option in ("optimizer", "base")),
            ("data", "os:mkdir", {"data_options": {"path": trap}}),
            ("data", "reduced", {"data_options": {"of": "stress.trap:build"}}),
            ("model", "os:mkdir", {"model_options": {"path": trap}}),
            ("model", "torch.hub:load", {"model_options": {"repo_or_dir": str(top), "source": "local", "model": "x"}}),
            ("model", "timm:hf-hub:x/y", {"model_options": {}}),
            ("model", f"timm:local-dir:{top}", {"model_options": {}}),
            ("noise", "stress.trap:build", {}),
            ("label_file", "stress.trap:build", {"noise": None}),
            ("pretrained", "stress.trap:build", {}),
        ]
    )
    (top / "hubconf.py").write_text("import stress.trap\n")
    if chance.random() < 0.7:
        content = yaml.safe_load((run / "config.yaml").read_text())
        (run / "config.yaml").write_text(yaml.safe_dump({**content, option: value, **more}))
    if chance.random() < 0.7:
        path = run / "checkpoints/last.ckpt"
        state = torch.load(path, weights_only=True)
        state["config"] |= {option: value, **more}
        sealed(state, path)
        (run / "checkpoints/previous.ckpt").unlink(missing_ok=True)
    if chance.random() < 0.3:
        (run / "summary.json").unlink()
    sys.modules.pop("stress.trap", None)
    other = [
        ["report", run, "--markdown", "--out", top / "r.html"],
        ["issues", run, "--folds", 2],
        ["clean", run, "--dry-run", "--apply", "all"],
        ["review", run, "--no-open"],
        ["export-predictions", run, "--out", top / "p.npy"],
        ["train", features(top), "--epochs", 2, "--batch-size", 8, "--quiet", "--out", run],
        ["compare", "--config", run / "config.yaml", "--dry-run", "--out", top / "compared"],
    ]
    return chance.choice([command(chance, run, top), *other]), f"{option}={value}, {more}"


def predict(chance: random.Random, top: Path) -> tuple[list[Any], str]:
    """Inputs that are not what the network was trained on."""
    kind = chance.choice(["npz", "image", "folder", "spoiled"])
    path = top / "inputs.npz"
    if kind == "npz":
        with np.errstate(all="ignore"):
            np.savez(path, **{chance.choice(["x", "x", "images", "other"]): array(chance, 6, False)})
    elif kind == "spoiled":
        np.savez(path, x=np.zeros((2, 3), np.float32))
        path.write_bytes(spoiled(chance, path.read_bytes()))
    elif kind == "image":
        path = top / "p.png"
        image(path, chance)
    else:
        path = top / "empty"
        path.mkdir()
    return ["predict", finished(), path, *chance.choice([[], ["--json"], ["--top", 99]])], kind
