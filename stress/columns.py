"""Tables with columns that mean more than a label: verdicts of people, and answers of several annotators."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from stress.files import spoiled
from stress.values import anything

_TRAINED = ["--epochs", 1, "--batch-size", 8, "--quiet", "--optimizer", "sgd"]


def _written(chance: random.Random, path: Path, text: str) -> str:
    encoding = chance.choice(["utf-8"] * 5 + ["utf-16", "latin-1", "utf-8-sig"])
    raw = text.encode(encoding, errors="replace")
    path.write_bytes(spoiled(chance, raw) if chance.random() < 0.15 else raw)
    return encoding


def verified(chance: random.Random, top: Path) -> tuple[list[Any], str]:
    """Verdicts on labels that are no verdicts, too few, or none; for the method that takes them and for others."""
    usual = ["1", "0", "", "1.0", "true", "right"]
    odd = chance.choice([0.0, 0.0, 0.1, 1.0])
    column = chance.choice(["verified", "verified", "Verified", "verified,verified"])
    rows = [f"age,hours,label,{column}"]
    for i in range(24):
        said = anything(chance) if chance.random() < odd else chance.choice(usual[: chance.choice([1, 2, 3, 6])])
        rows.append(f"{20 + i},{i % 3},{'ab'[i % 2]},{said}{',1' * column.count(',')}")
    encoding = _written(chance, top / "t.csv", "\n".join(rows) + "\n")
    more: list[Any] = chance.choice(
        [
            ["--method", "cleannet"],
            ["--method", "cleannet", "--method-options", "verified_share=0.001"],
            ["--data-options", "verified_column=hours"],
            ["--method", "cleannet", "--data-options", f"verified_column={anything(chance)}"],
            ["--method", "elr"],
        ]
    )
    return ["train", top / "t.csv", *_TRAINED, *more, "--out", top / "run"], f"{encoding}, {more}, {rows[:4]}"


def joined(chance: random.Random, top: Path) -> tuple[list[Any], str]:
    """Training on the answers of several annotators at once."""
    head = chance.choice(["text,ada,bob", "text,annotator,label", "text,=1,<b>", "text,ada", "text,ada,ada", "text,,"])
    rows = [head]
    for i in range(24):
        answers = ["xy"[i % 2] if chance.random() < 0.95 else anything(chance) for _ in range(2)]
        if head == "text,annotator,label":
            answers[0] = chance.choice(["ada", "bob", anything(chance)])
        rows.append(",".join([f"word{i} other{i % 5}", *answers][: head.count(",") + 1]))
    encoding = _written(chance, top / "t.csv", "\n".join(rows) + "\n")
    how = chance.choice(["majority", "dawid_skene", "dawid_skene", anything(chance)])
    who = chance.choice([[], [], [f"annotators=[ada, {anything(chance)}]"], ["annotators=ada"]])
    given = [part for option in (f"join={how}", *who) for part in ("--data-options", option)]
    return ["train", top / "t.csv", *_TRAINED, *given, "--out", top / "run"], f"{encoding}, {given}, {rows[:4]}"
