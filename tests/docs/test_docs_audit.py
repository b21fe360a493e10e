"""docs/audit.md: its checks are those of the code, and its examples run from files to clean labels."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from PIL import Image

from ncsam.auditing.findings import CHECKS
from ncsam.report.sections import audit_sections
from ncsam.review.queue import Queue

PAGE = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")
RNG = np.random.default_rng(0)
WHOLE_FITS = True
#: Of each check: the example that shows it, what was planted (training samples, classes, columns or annotators), and
#: what its decision changes: rows or columns that are left out, or new labels.
PLANTED: dict[str, tuple[str, set[object], str]] = {
    "label_issue": ("table", {5}, "label"),
    "exact_duplicate": ("table", {20}, "row"),
    "near_duplicate": ("table", {21}, "row"),
    "conflicting_duplicate": ("table", {12, 72}, "row"),
    "train_test_duplicate": ("table", {13}, "row"),
    "outlier": ("table", {14}, "row"),
    "rare_class": ("table", {"eel"}, "row"),
    "overlapping_classes": ("table", {"cow / cat"}, "label"),
    "heterogeneous_class": ("table", {"dog", *range(210, 230)}, "row"),
    "annotator": ("answers", {"eve", 8}, "row"),
    "disagreement": ("answers", {7}, "row"),
    "dark_image": ("photos", {"03"}, "row"),
    "blurred_image": ("photos", {"04"}, "row"),
    "truncated_image": ("photos", {"cut"}, "file"),
    "odd_size": ("photos", {"05"}, "row"),
    "empty_text": ("texts", {3}, "row"),
    "bad_encoding": ("texts", {6}, "row"),
    "other_language": ("texts", {4}, "row"),
    "id_column": ("columns", {"user"}, "column"),
    "leaking_column": ("columns", {"leak"}, "column"),
    "shifted_column": ("columns", {"age"}, "column"),
    "distribution_shift": ("table", {"samples", "labels", *range(120, 230)}, "row"),
}


def make_files(folder: Path) -> None:
    """Small files with a problem of every kind."""
    _table(folder)
    rows = [[f"u{i}", *RNG.normal(size=2).round(4) + 3 * (i % 2), f"{i % 2}!", i % 2, "train"] for i in range(60)]
    rows += [
        [f"t{i}", round(RNG.normal(), 4) + 9, 3 * (i % 2) + round(RNG.normal(), 4), f"{i % 2}!", i % 2, "test"]
        for i in range(30)
    ]
    _write(folder / "columns.csv", ["user", "age", "b", "leak", "label", "split"], rows)
    for i in range(24):
        path = folder / "photos" / ("one", "two")[i % 2] / f"{i:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = RNG.integers(0, 8 if i == 3 else 256, (20, 200 if i == 5 else 20, 3))
        if i == 4:
            pixels = np.broadcast_to(np.arange(20)[:, None, None] * 12, (20, 20, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    (folder / "photos/one/cut.png").write_bytes((folder / "photos/one/00.png").read_bytes()[:300])
    words = ["the", "quick", "brown", "fox", "jumps", "over", "one", "lazy", "dog", "in", "their", "garden", "today"]
    texts = [[" ".join(RNG.permutation(words)), "ab"[i % 2]] for i in range(40)]
    texts[3][0], texts[4][0] = "...", "zwölf boxkämpfer jagen viktor quer über den großen sylter deich zum hafen"
    texts[6][0] += " caf\u00c3\u00a9"
    _write(folder / "texts.csv", ["text", "label"], texts)
    reviews = [[text, ("good", "bad")[name == "b"]] for text, name in texts[7:]]
    _write(folder / "reviews.csv", ["text", "sentiment"], reviews)
    answers = [[f"item {i} {name}", name, name, "ba"[name == "b"]] for i, (_, name) in enumerate(texts)]
    answers[7][1:], answers[8][1:] = ["a", "b", ""], ["", "", "a"]
    _write(folder / "answers.csv", ["text", "ada", "bob", "eve"], answers)


def _table(folder: Path) -> None:
    """Blobs: ants, bees, cats and cows in one place, dogs in two, three eels; the test split has ants and bees only."""
    centers = {"ant": (0, 0), "bee": (14, 0), "cat": (0, 14), "cow": (0, 14), "dog": (14, 14), "eel": (7, 7)}
    names = np.repeat(list(centers), [60, 60, 30, 30, 50, 3])
    test = np.repeat(["ant", "bee"], 30)
    x, other = (RNG.normal(size=(len(each), 6)) for each in (names, test))
    x[:, :2] += [centers[name] for name in names]
    other[:, :2] += [centers[name] for name in test]
    x[210:230, 0] += 25
    x[20], x[21], x[72], x[14] = x[10], x[11] + 1e-4, x[12], -60
    names[5], other[0] = "bee", x[13]
    rows = [[*place, name, "train"] for place, name in zip(x.round(5).tolist(), names, strict=True)]
    rows += [[*place, name, "test"] for place, name in zip(other.round(5).tolist(), test, strict=True)]
    _write(folder / "table.csv", [*"abcdef", "label", "split"], rows)


def _write(path: Path, head: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        writer.writerows(rows)


def test_the_table_lists_every_check() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .* \| ([\d.]+) \| (.*) \|$", PAGE, flags=re.MULTILINE)
    assert [name for name, _, _ in rows] == list(CHECKS) == list(PLANTED)
    for name, threshold, decision in rows:
        assert float(threshold) == CHECKS[name].threshold
        assert decision.partition(";")[0] == CHECKS[name].decision


def test_examples_are_short() -> None:
    for block in re.findall(r"^```py(?:thon)?\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE):
        assert block.count("\n") <= 30


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the examples of the page leave behind."""
    pytest.importorskip("datasets")
    pytest.importorskip("cleanlab")
    folder = tmp_path_factory.mktemp("page")
    make_files(folder)
    names: dict[str, Any] = {"__name__": "page"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("NCSAM_CACHE", str(folder / "cache"))
        for block in re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE):
            exec(block, names)
        yield names


@pytest.mark.slow
@pytest.mark.parametrize("check", PLANTED)
def test_a_check_from_a_file_to_clean_labels(check: str, page: dict[str, Any]) -> None:
    example, planted, changed = PLANTED[check]
    audit = page[example]
    found = audit.of(check)
    if example == "photos":
        about = {Path(each.name).stem for each in found}
    else:
        about = {each.index if each.split else each.name for each in found}
    assert about >= planted
    assert about == planted or check in ("label_issue", "other_language", "distribution_shift")
    assert all(each.score >= each.threshold == CHECKS[check].threshold and each.evidence for each in found)
    assert CHECKS[check] in [section.check for section in audit_sections(audit.run.folder)]
    assert (check in Queue(audit.run.folder).checks()) == (changed != "file")  # a damaged file is no sample of the run
    before, after = audit.run.cleaned(), audit.cleaned([check])
    fewer = [each.index for each in found if each.decision == "drop" and each.split]
    if changed == "row":
        assert len(after) == len(before) - (len(fewer) or 3)  # three eels
    elif changed == "column":
        assert set(before) - set(after) == planted
    else:
        assert (after["label"] != before["label"]).any() == (changed == "label")


@pytest.mark.slow
def test_the_examples_write_clean_labels(page: dict[str, Any]) -> None:
    table = pandas.read_csv("table-cleaned.csv")
    kept = table[table["split"] == "train"]
    assert "eel" not in set(kept["label"]) | set(kept["given_label"])
    assert set(kept["label"]) == {"ant", "bee", "cat", "dog"}
    assert list(pandas.read_csv("columns-cleaned.csv"))[:1] == ["b"]
    assert len(pandas.read_csv("one-group.csv")) == 233 + 60 - 20
    assert len(pandas.read_csv("photos-cleaned.csv")) == 21
    assert len(pandas.read_csv("texts-cleaned.csv")) == 37
    assert len(pandas.read_csv("answers-cleaned.csv")) == 38
    assert len(pandas.read_csv("cleaned.csv")) > 200
