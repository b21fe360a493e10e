"""What the later commands keep and read again: decisions of a review, races, out-of-fold predictions, features."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ncsam import models
from ncsam.automl import auto
from ncsam.engine import RunConfig
from stress.files import Attack, image, spoiled
from stress.runs import theirs
from stress.values import anything, features, nested

_kept = tempfile.TemporaryDirectory()


def _forged(chance: random.Random, content: Any) -> Any:
    """A value like the given one, part of which is of another type."""
    if isinstance(content, dict) and content and chance.random() < 0.9:
        key = chance.choice(sorted(content))
        changed = dict(content)
        kind = chance.randrange(4)
        if kind == 0:
            del changed[key]
        elif kind == 1:
            changed[chance.choice(["extra", "", "choice"])] = nested(chance)
        else:
            changed[key] = _forged(chance, content[key])
        return changed
    if isinstance(content, list) and content and chance.random() < 0.7:
        return [_forged(chance, content[0]), *content[1:]]
    return nested(chance)


def spoil_json(chance: random.Random, path: Path) -> str:
    """Write a JSON file anew: bytes spoiled, or a value of another type somewhere in it."""
    if chance.random() < 0.4:
        path.write_bytes(spoiled(chance, path.read_bytes()))
        return "spoiled"
    content = _forged(chance, json.loads(path.read_text()))
    path.write_text(json.dumps(content), encoding="utf-8", errors="surrogatepass")
    return f"forged {json.dumps(content)[:80]}"


def decisions(chance: random.Random, top: Path) -> tuple[list[Any], str]:
    """A run with decisions that no reviewer made; read by `clean`, and by the page of `review`."""
    run = theirs(top)
    lines = []
    for _ in range(chance.randrange(1, 6)):
        line: Any = {
            "index": chance.randrange(24),
            "choice": chance.choice(["accept", "keep", "other", "unsure"]),
            "label": chance.choice([0, 1, 2, None]),
            "observed": 0,
            "suggested": 1,
            "reviewer": chance.choice(["Ada", "Bob"]),
            "time": 1.0,
        }
        if chance.random() < 0.2:
            line = {"choice": "undo", "reviewer": "Ada", "time": 1.0}
        if chance.random() < 0.5:
            line = _forged(chance, line)
        lines.append(json.dumps(line))
    raw = "\n".join(lines).encode("utf-8", "surrogatepass") + b"\n"
    if chance.random() < 0.15:
        raw = chance.choice([b"[" * 100_000 + b"\n", spoiled(chance, raw)])
    path = run / "review.jsonl"
    path.write_bytes(raw)
    odd = chance.choice(["none"] * 6 + ["pipe", "link", "folder"])
    if odd != "none":
        path.unlink()
        {
            "pipe": lambda: os.mkfifo(path),
            "link": lambda: path.symlink_to("/dev/zero"),
            "folder": lambda: path.mkdir(),
        }[odd]()
    if chance.random() < 0.3:
        (run / "review_view.json").write_bytes(spoiled(chance, json.dumps(nested(chance)).encode("utf-8", "replace")))
    command: list[Any] = chance.choice(
        [
            ["clean", run, "--dry-run", "--apply", chance.choice(["reviewed", "all", "confident"])],
            ["clean", run, "--out", top / chance.choice(["c.csv", "c.npz"])],
            ["clean", run, "--folder", top / "cleaned"],
            ["review", run, "--no-open", "--reviewer", chance.choice(["Ada", "", "\x1b", "x" * 99])],
            ["review", run, "--no-open"],
            ["report", run, "--out", top / "r.html"],
        ]
    )
    return command, f"{command[0]} {command[2:]}, {odd}, {raw[:300]!r}"


def visited(server: Any, sockets: Any = None) -> None:
    """In the place of uvicorn's: ask the page's application what a browser would ask it, and end."""
    guard = server.config.app

    async def ask(path: str, body: Any = None) -> int:
        status: list[int] = []
        sent = json.dumps(body).encode()
        host = sorted(guard.hosts)[0].encode()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET" if body is None else "POST",
            "scheme": "http",
            "path": f"/{guard.token}/{path}",
            "raw_path": b"",
            "query_string": b"",
            "headers": [(b"host", host), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 1),
        }

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": sent, "more_body": False}

        async def send(message: Any) -> None:
            status.append(message.get("status", 0))

        await guard(scope, receive, send)
        return status[0]

    async def visit() -> None:
        for path, body in (
            ("", None),
            ("api/start", None),
            ("api/items", {"status": "all"}),
            ("api/items", {"status": "disputed", "order": "pair"}),
            ("api/neighbors/0", None),
            ("api/decide", {"index": 0, "choice": "accept", "reviewer": "Ada"}),
            ("api/undo", {"reviewer": "Ada"}),
        ):
            status = await ask(path, body)
            if status != 200:
                raise AssertionError(f"the page answers {path!r} with {status}")

    asyncio.run(visit())


@cache
def raced() -> Path:
    """A finished race, made once."""
    top = Path(_kept.name)
    auto(_race(features(top)), top / "race", folds=2, budget=1.0, say=lambda text: None)
    return top / "race"


def _race(path: Path) -> RunConfig:
    return RunConfig(data=str(path), val_share=0.0)


def race(chance: random.Random, top: Path) -> tuple[list[Any], str]:
    """The folder of a race, some of whose files are not what they were."""
    run = top / "race"
    shutil.copytree(raced(), run)
    name = chance.choice(["auto.json", "leaderboard.json", "checkpoints/last.json", "fold", "checkpoint"])
    if name == "fold":
        path = chance.choice(sorted((run / "candidates").rglob("fold-*.pt")))
        (run / "summary.json").unlink()
        if chance.random() < 0.5:
            path.write_bytes(spoiled(chance, path.read_bytes()))
            what = "spoiled"
        else:
            state: Any = torch.load(path, weights_only=True)
            state = chance.choice([Attack(), {}, [1], _forged(chance, state)])
            torch.save(state, path)
            what = f"forged {type(state).__name__}"
        command: list[Any] = ["auto", raced().parent / "f.npz", "--folds", 2, "--budget", "1s", "--quiet", "--out", run]
        return command, f"{path.name}, {what}"
    if name == "checkpoint":
        from stress import runs

        path = run / "checkpoints/last.ckpt"
        state = torch.load(path, weights_only=True)
        for member in state["config"]["model_options"]["members"]:
            member["model"] = chance.choice(["os:system", "torch.hub:load", "mean", "timm:x", nested(chance)])
        runs.sealed(state, path)
        (run / "checkpoints/previous.ckpt").unlink(missing_ok=True)
        return runs.command(chance, run, top), f"members {state['config']['model_options']['members']!r:.200}"
    what = spoil_json(chance, run / name)
    command = chance.choice(
        [
            ["auto", raced().parent / "f.npz", "--folds", 2, "--budget", "1s", "--quiet", "--out", run],
            ["report", run, "--out", top / "r.html"],
            ["issues", run],
        ]
    )
    return command, f"{command[0]}, {name}, {what}"


def predictions(chance: random.Random, top: Path) -> tuple[list[Any], str]:
    """Out-of-fold predictions of others, in a run folder and as a file to take."""
    run = top / "race"
    shutil.copytree(raced(), run)
    rng = np.random.default_rng(chance.randrange(2**32))
    rows: Any = rng.dirichlet(np.ones(3), 24).astype(np.float32)
    kind = chance.randrange(8)
    with np.errstate(all="ignore"):
        if kind == 0:
            rows = rows * chance.choice([np.nan, np.inf, -1.0, 1e300])
        elif kind == 1:
            rows = rows[:, : chance.choice([0, 1, 2])]
        elif kind == 2:
            rows = rows[: chance.choice([0, 5])]
        elif kind == 3:
            rows = rows.astype(chance.choice(["complex64", "int8", "S3", "float16"]))
        elif kind == 4:
            rows = np.array([Attack()] * 3, dtype=object)
    path = chance.choice([run / "oof_probs.npz", top / "given.npy"])
    np.save(path, rows, allow_pickle=True)
    what = f"{path.name} {rows.dtype} {rows.shape}"
    if chance.random() < 0.3:
        path.write_bytes(spoiled(chance, path.read_bytes()))
        what += " spoiled"
    if chance.random() < 0.3:
        what += f", about {spoil_json(chance, run / 'oof_probs.json')}"
    if path.name == "given.npy":
        return ["export-predictions", run, "--take", path], what
    command: list[Any] = chance.choice(
        [
            ["export-predictions", run, "--out", top / "p.npy", "--table", top / "t.csv"],
            ["issues", run, "--folds", 2],
            ["issues", run],
            ["report", run, "--out", top / "r.html"],
        ]
    )
    return command, f"{command[0]}, {what}"


def kept_features(chance: random.Random, top: Path) -> tuple[list[Any], str]:
    """Features that were computed in part, or long ago, and are not what they were; names of files of any bytes."""
    photos = top / "photos"
    for name in ("cat", chance.choice(["dog", os.fsdecode(b"\xff\xfe"), "=1", "new\nline"])):
        (photos / name).mkdir(parents=True)
        for i in range(3):
            prefix = chance.choice(["", os.fsdecode(b"\xe9")])
            image(photos / name / f"{prefix}{i}.png", random.Random(i))
    odd = chance.choice(["none", "none", "loop", "pipe"])
    if odd == "loop":
        (photos / "cat/loop").symlink_to(".")
    elif odd == "pipe":
        os.mkfifo(photos / "cat/x.png")
    out = top / "f.npz"
    parts = top / "f.npz.parts"
    kind = chance.choice(["none", "about", "mine", "file", "link", "text"])
    if kind == "about":
        parts.mkdir()
        (parts / "about.json").write_bytes(spoiled(chance, b'{"encoder": "x"}'))
    elif kind == "mine":
        parts.mkdir()
        (parts / "precious.txt").write_text("kept")
    elif kind == "file":
        parts.write_text("")
    elif kind == "link":
        (top / "elsewhere").mkdir()
        parts.symlink_to(top / "elsewhere")
    elif kind == "text":
        table = top / "t.csv"
        table.write_bytes(spoiled(chance, f"text,label\na,0\n{anything(chance)},1\n".encode("utf-8", "replace")))
        return ["embed", table, "--text-column", "text", "--model", "transformers:none", "--out", out, "--quiet"], kind
    torch.save(models.create("cnn_small", 2).state_dict(), top / "w.pt")
    given = ["--model", "cnn_small", "--pretrained", top / "w.pt", "--size", 8, "--batch-size", 2]
    command = ["embed", photos, *given, "--out", out, "--quiet"]
    return command, f"{kind}, {odd}"
