"""Wrong values of options, on the command line and in configuration files."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ncsam import methods, models, optim
from ncsam.engine import RunConfig
from ncsam.noise import GENERATORS

#: Options that would start processes, wait for others, use the network, or rightly take long.
_LEFT_OUT = ("data", "devices", "num_nodes", "strategy", "compile", "epochs", "workers", "loggers", "download", "fold")
_NUMBERS = [
    "0",
    "-1",
    "1",
    "2",
    "7",
    "0.5",
    "-0.5",
    "1e30",
    "1e300",
    "-1e300",
    "nan",
    "inf",
    "-inf",
    "1e-320",
    "10" * 30,
]
_WORDS = [
    "",
    " ",
    "null",
    "true",
    "no",
    "auto",
    "abc",
    "Ünïcode",
    "日本",
    "a\x1b[31mb",
    "\udcff",
    "../../etc",
    "$HOME",
    "%s",
    "=1+1",
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "$\\frac$",
]
_YAML = [
    "[1, 2]",
    "[]",
    "{}",
    "{a: 1}",
    "[[",
    "- - -",
    "!!python/object:os.system x",
    "2020-99-99",
    "0x1F",
    "1_000",
    "~",
]


def anything(chance: random.Random) -> str:
    return chance.choice(chance.choice([_NUMBERS, _WORDS, _YAML]))


def nested(chance: random.Random, depth: int = 2) -> Any:
    """A value as YAML or JSON may hold it."""
    kind = chance.randrange(9 if depth else 6)
    if kind == 0:
        return chance.choice([None, True, False])
    if kind == 1:
        return chance.choice([0, 1, -1, 3, 10**9, 10**30, -(2**63)])
    if kind == 2:
        return chance.choice([0.5, -0.5, 1e300, float("nan"), float("inf"), 1e-320])
    if kind <= 5:
        return chance.choice([*_WORDS, "os:system", "torch.hub:load", "x" * 5000])
    if kind <= 7:
        return [nested(chance, depth - 1) for _ in range(chance.randrange(4))]
    return {chance.choice(["a", "hidden", "alpha", "size", 1, None]): nested(chance, depth - 1) for _ in range(2)}


def features(top: Path) -> Path:
    """A few samples to train on."""
    rng = np.random.default_rng(0)
    np.savez(top / "f.npz", x=rng.normal(size=(24, 3)).astype(np.float32), y=np.arange(24) % 3)
    return top / "f.npz"


def options(chance: random.Random, top: Path) -> tuple[list[Any], str]:
    """`ncsam train` with a wrong value or two."""
    fields = [f for f in dataclasses.fields(RunConfig) if f.name not in _LEFT_OUT]
    arguments: list[Any] = ["train", features(top), "--epochs", 1, "--quiet", "--out", top / "runs" / "run"]
    given = []
    if chance.random() < 0.5:  # an option of a part that has options of its own
        kind, names = chance.choice(
            [
                ("method", methods.names()),
                ("optimizer", optim.names()),
                ("noise", sorted(GENERATORS)),
                ("model", ["mlp"]),
            ]
        )
        name = chance.choice(names)
        option = chance.choice(
            ["alpha", "hidden", "dropout", "decay", "sigma", "q", "adaptive", "eta", "sign", "schedule"]
        )
        given = [f"--{kind}", name, f"--{kind}-options", f"{option}={anything(chance)}"]
    for field in chance.sample(fields, chance.choice([1, 1, 2])):
        flag = "--" + field.name.replace("_", "-")
        if field.type == "bool":
            continue
        given += [
            flag,
            f"{chance.choice(['x', 'size', 'gamma'])}={anything(chance)}"
            if "dict" in str(field.type)
            else anything(chance),
        ]
    return [*arguments, *given], f"train {given}"


def config(chance: random.Random, top: Path) -> tuple[list[Any], str]:
    """`ncsam train --config` with values of wrong types, cut or flipped bytes, other encodings."""
    content = {"data": str(features(top)), "epochs": 1, "batch_size": 8, "model": "mlp"}
    names = [*RunConfig.describe(), "modell", "version", "command", "target"]
    for name in chance.sample([n for n in names if n not in _LEFT_OUT], chance.choice([1, 1, 2, 3])):
        content[name] = nested(chance)
    if chance.random() < 0.2:
        content["model"] = chance.choice(["os:system", "torch.hub:load", "trap:build", *models.names()[:2]])
    text = yaml.safe_dump(content, allow_unicode=True)
    raw = text.encode("utf-8", errors="surrogatepass")
    change = chance.choice(["none", "none", "none", "cut", "flip", "encoding", "structure"])
    if change == "cut":
        raw = raw[: chance.randrange(len(raw))]
    elif change == "flip":
        place = chance.randrange(len(raw))
        raw = raw[:place] + bytes([chance.randrange(256)]) + raw[place + 1 :]
    elif change == "encoding":
        raw = ("# Füchse\n" + text).encode(
            chance.choice(["utf-16", "latin-1", "utf-16-le", "utf-8-sig"]), errors="replace"
        )
    elif change == "structure":
        raw = chance.choice(_YAML).encode() + b"\n"
    (top / "config.yaml").write_bytes(raw)
    return [
        "train",
        "--config",
        top / "config.yaml",
        "--epochs",
        1,
        "--quiet",
        "--out",
        top / "run",
    ], f"{change}, {content}"
