"""docs/audit.md: its checks are those of the code, and its examples run from files to clean labels."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pandas
import pytest
from PIL import Image

from ncsam.auditing.findings import CHECKS

PAGE = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")


def make_files(folder: Path) -> None:
    """Small files with one problem of every kind."""
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 2
    rows = [
        [f"u{i}", *(rng.normal(size=2) + 6 * label).round(4), f"{label}!", label, "train"]
        for i, label in enumerate(labels)
    ]
    rows[58] = [*rows[56]]
    moved = (rng.normal(size=(30, 2)) + 6 * labels[:30, None] + [20, 0]).round(4)
    rows += [[f"t{i}", *moved[i], f"{i % 2}!", i % 2, "test"] for i in range(30)]
    _write(folder / "table.csv", ["user", "a", "b", "leak", "label", "split"], rows)
    for i in range(24):
        path = folder / "photos" / ("one", "two")[i % 2] / f"{i:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 8 if i == 3 else 256, (20, 200 if i == 5 else 20, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    (folder / "photos/one/cut.png").write_bytes((folder / "photos/one/00.png").read_bytes()[:300])
    sentence = "the quick brown fox jumps over one lazy dog while children watch from their garden"
    words = sentence.split(" ")
    texts = [[" ".join(rng.permutation(words)), "ab"[i % 2]] for i in range(40)]
    texts[3][0], texts[4][0] = "...", "zwölf boxkämpfer jagen viktor quer über den großen sylter deich zum hafen"
    _write(folder / "texts.csv", ["text", "label"], texts)
    _write(
        folder / "reviews.csv",
        ["text", "sentiment"],
        [[text, ("good", "bad")[name == "b"]] for text, name in texts[5:]],
    )
    answers = [[f"item {i} {name}", name, name, "ba"[name == "b"]] for i, (_, name) in enumerate(texts)]
    answers[7][1:] = ["a", "b", ""]
    _write(folder / "answers.csv", ["text", "ada", "bob", "eve"], answers)


def _write(path: Path, head: list[str], rows: list[list[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        writer.writerows(rows)


def test_the_table_lists_every_check() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .* \| ([\d.]+) \| (.*) \|$", PAGE, flags=re.MULTILINE)
    assert [name for name, _, _ in rows] == list(CHECKS)
    for name, threshold, decision in rows:
        assert float(threshold) == CHECKS[name].threshold
        assert decision.partition(";")[0] == CHECKS[name].decision


def test_examples_are_short() -> None:
    for block in re.findall(r"^```py(?:thon)?\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE):
        assert block.count("\n") <= 30


@pytest.mark.slow
def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    pytest.importorskip("cleanlab")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NCSAM_CACHE", str(tmp_path / "cache"))
    make_files(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE):
        exec(block, names)
    found = names["audit"]
    assert [each.name for each in found.of("leaking_column")] == ["leak"]  # type: ignore[attr-defined]
    table = pandas.read_csv("table-cleaned.csv")
    assert "leak" not in table
    assert (table["split"] == "train").sum() < 60
    photos = {each.check: Path(each.name).stem for each in names["photos"].findings}  # type: ignore[attr-defined]
    assert photos == {"truncated_image": "cut", "dark_image": "03", "odd_size": "05"}
    texts = {(each.check, each.index) for each in names["texts"].findings}  # type: ignore[attr-defined]
    assert texts == {("empty_text", 3), ("other_language", 4)}
    answers = names["answers"]
    assert [each.name for each in answers.of("annotator") if each.name] == ["eve"]  # type: ignore[attr-defined]
    assert [each.index for each in answers.of("disagreement")] == [7]  # type: ignore[attr-defined]
    assert len(pandas.read_csv("answers-cleaned.csv")) == 39
