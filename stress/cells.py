"""Cells of the paper's tables and comparisons that others ran: merged, read again, shown."""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from ncsam.engine import train
from ncsam.reproduce.record import Record
from ncsam.reproduce.run import Plan
from ncsam.reproduce.scales import Setting
from ncsam.reproduce.tables import TABLES
from stress.files import spoiled
from stress.records import spoil_json
from stress.runs import finished
from stress.values import anything, nested

_kept = tempfile.TemporaryDirectory()
_ROWS, _COLUMN = ("sgd", "sam"), "cifar10-40"
_NAMES = ["ce-sgd-s²", "ce-sgd-s" + "9" * 200, "ce-sgd-s-1", "=1-s1", "new\nline-s1", "\x1b[31m-s1", "\udcff-s1", "x"]


@cache
def _done() -> Path:
    """Two finished cells, made once."""
    top = Path(_kept.name) / "cells"
    plan = Plan([TABLES["curves"].part(_ROWS, [_COLUMN])], Setting("smoke"), [1], top)
    for job in plan.jobs:
        train(job.config, job.out, console=False)
    Record.claim(top, plan.setting, ["cifar10"])
    return top


def cells(chance: random.Random, top: Path) -> tuple[list[Any], str]:
    """A folder of cells whose record, runs or names are not what they were: merged into another, or read as its own."""
    ours, theirs = top / "ours", top / "theirs"
    shutil.copytree(_done(), theirs)
    shutil.copytree(_done(), ours)
    shutil.rmtree(ours / _run("sam"))
    run = theirs / _run("sam")
    files = ["summary.json", "config.yaml", "metrics.jsonl", "checkpoints/last.json"]
    name = chance.choice([*["reproduce.json"] * 3, *files, "place"])
    if name == "place":
        what = _odd_place(chance, theirs, run)
    elif name in ("config.yaml", "metrics.jsonl"):
        path = run / name
        path.write_bytes(spoiled(chance, path.read_bytes()) if chance.random() < 0.5 else _changed_line(chance, path))
        what = "changed"
    else:
        what = spoil_json(chance, (theirs if name == "reproduce.json" else run) / name)
    merging = ["reproduce", "merge", ours, theirs, *chance.choice([[], ["--other-versions"]])]
    reading = ["reproduce", "curves", "--scale", "smoke", "--rows", "sgd", "--columns", _COLUMN, "--out", theirs]
    command: list[Any] = chance.choice([merging, merging, reading])
    return command, f"{command[1]}, {name}, {what}"


def _run(row: str) -> str:
    return next(str(path.relative_to(_done())) for path in _done().glob("*/*") if f"-{row}" in path.name)


def _odd_place(chance: random.Random, theirs: Path, run: Path) -> str:
    """Runs under other names, links in their places, and pipes and links among their files."""
    kind = chance.choice(["name", "link", "link of a file", "pipe", "folder", "column"])
    if kind == "name":
        name = chance.choice(_NAMES)
        run.rename(run.parent / name)
        return f"run {name!r:.40}"
    if kind == "link":
        shutil.rmtree(run)
        run.symlink_to(chance.choice(["/etc", ".", "..", "nowhere", str(finished())]))
    elif kind == "column":
        (theirs / chance.choice(["..x", "new\nline", "\udcff"])).symlink_to(run.parent)
    else:
        files = ["summary.json", "metrics.jsonl", "config.yaml", "checkpoints/last.json", "extra.txt"]
        path = run / chance.choice(files)
        path.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            path.symlink_to(chance.choice(["/dev/zero", "/etc/passwd", path.name]))
    return kind


def _changed_line(chance: random.Random, path: Path) -> bytes:
    """A file with another value in one of its lines."""
    lines = path.read_text().splitlines()
    row = chance.randrange(len(lines))
    lines[row] = f"{lines[row].split(': ')[0]}: {json.dumps(nested(chance))}"
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def comparison(chance: random.Random, top: Path) -> tuple[list[Any], str]:
    """A folder of runs with the files that a comparison leaves beside them."""
    folder = top / "runs"
    shutil.copytree(finished(), folder / chance.choice(["ce-sgd-s1", "=1", "<b>", "new\nline", "\udcff"]))
    shutil.copytree(finished(), folder / "ce-sam-s1")
    content: Any = [{"method": "ce", "optimizer": "sgd", "runs": ["ce-sgd-s1"]}, {"runs": nested(chance)}]
    (folder / "comparison.json").write_text(json.dumps(chance.choice([content, nested(chance)])))
    if chance.random() < 0.3:
        (folder / "comparison.json").write_bytes(spoiled(chance, (folder / "comparison.json").read_bytes()))
    said = chance.choice([anything(chance).encode("utf-8", "surrogateescape"), b"\xff\xfe", b"\0", b"```\n<script>"])
    (folder / "command.txt").write_bytes(said)
    if chance.random() < 0.2:
        (folder / "command.txt").unlink()
        (folder / "command.txt").symlink_to(chance.choice(["/dev/zero", "command.txt", "/etc"]))
    config = folder / "ce-sam-s1" / "config.yaml"
    config.write_text("\n".join(line for line in config.read_text().splitlines() if not line.startswith("command")))
    return ["report", folder, "--markdown", "--out", top / "r.html"], f"{said!r}"
