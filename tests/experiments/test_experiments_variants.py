"""Pages made of result files: what is there, what is marked as missing, and which arm a rule picks."""

from __future__ import annotations

import json
from pathlib import Path


def cell(folder: Path, row: str, column: str, seed: int, **numbers: float) -> None:
    found = {"row": row, "column": column, "seed": seed, "best": 50.0, "last": 40.0, "memorized": 90.0, **numbers}
    (folder / f"{column}_{row}_s{seed}.json").write_text(json.dumps(found))


def test_the_page_has_means_and_marks_what_is_missing(tmp_path: Path) -> None:
    import variants

    folder = tmp_path / "medium"
    folder.mkdir()
    (folder / "about.json").write_text(json.dumps({"scale": "medium", "changes": {"images": 5000}, "versions": []}))
    cell(folder, "sgd", "cifar10-40", 1, last5=40.0)
    cell(folder, "sgd", "cifar10-40", 2, last5=42.0)
    cell(folder, "authors", "cifar10-40", 1, last5=51.0, length=1.25)
    cell(folder, "elr", "human", 1, last5=44.0)
    variants.show(folder)
    lines = (tmp_path / "medium.md").read_text().splitlines()
    assert "| SGD | 41.0 ± 1.0 | not run |" in lines
    assert "| NCSAM as its authors run it | 51.0 | not run |" in lines
    assert "| NCSAM as its authors run it | 1.25 | not run | 3 |" in lines
    assert "| ELR | not run | 44.0 |" in lines
    absent = next(line for line in lines if line.startswith("Rows and columns without a finished run"))
    assert "CIFAR-10, 20 % symmetric" in absent
    assert "NCSAM as printed" in absent
    assert "ELR" not in absent
    assert any("3 of 90 cells have a finished run" in line and "--images 5000" in line for line in lines)
    assert "<svg" in (tmp_path / "medium.svg").read_text()
