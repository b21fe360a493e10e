"""A declared table: run once, read back, printed; a choice is made on noisy validation."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def test_a_measured_table_is_kept_and_printed(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    from common import Table, main

    asked = []

    def measure(problem: Any, setting: float, seed: int) -> float | None:
        asked.append((problem["base"], setting, seed))
        return problem["base"] + setting * seed

    settings = {"plain": 0.0, "better": 2.0}
    table = Table(
        "sums", {"ten": {"base": 10}}, settings, controls={"better": "plain"}, metrics=("sum",), measure=measure
    )
    monkeypatch.setattr(sys, "argv", ["sums.py", str(tmp_path)])
    main("Sums.", lambda _: [table])
    first = capsys.readouterr().out
    main("Sums.", lambda _: [table])
    assert capsys.readouterr().out == first[first.index("## sums") :]
    assert len(asked) == 6  # two settings, three seeds, once each
    # 10 + (2, 4, 6): mean 14, deviation 2, error 2 / sqrt(3) = 1.15; t = 4 / 1.155 with 2 degrees of freedom: p = .074
    assert "| better | 14.0 ± 1.2 |" in first
    assert "| better less plain | +4.0 ± 1.2 (p 0.07) | +4.0 ± 1.2 (p 0.07) |" in first
    assert json.loads((tmp_path / "sums.json").read_text())["ten | better | seed 3"] == 16


def test_names_that_leave_others_out(tmp_path: Path, monkeypatch: Any) -> None:
    from common import Table, main

    asked = []
    problems = {"one": {"p": 1}, "two": {"p": 2}}
    tables = [
        Table(
            name, problems, {"a": "a", "b": "b"}, seeds=1, metrics=("m",), measure=lambda p, s, _: asked.append((p, s))
        )
        for name in ("left", "right")
    ]
    monkeypatch.setattr(sys, "argv", ["x.py", str(tmp_path), "--only", "right", "two", "--settings", "b"])
    main("X.", lambda _: tables)
    assert asked == [({"p": 2}, "b")]
    monkeypatch.setattr(sys, "argv", ["x.py", str(tmp_path), "--only", "nowhere"])
    with pytest.raises(SystemExit, match="nowhere"):
        main("X.", lambda _: tables)


def made(folder: Path, test: float, val: float) -> None:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("epochs: 1\n")
    (folder / "metrics.jsonl").write_text(json.dumps({"epoch": 1, "val_accuracy": val}) + "\n")
    (folder / "summary.json").write_text(json.dumps({"last5": test, "memorized": None}))


def test_a_choice_is_made_on_validation_and_unfinished_cells_are_dashes(tmp_path: Path) -> None:
    from cells import results
    from common import Chosen, Table, tables

    settings = {
        "small": "sam:rho=0.1",
        "large": "sam:rho=0.5",
        "chosen": Chosen("sam:rho={}", "sam:rho={}", (0.1, 0.5)),
    }
    table = Table("radii", {"here": {}, "there": {}}, settings, seeds=1, controls={"chosen": "small"})
    made(tmp_path / "radii" / "here" / "ce-sam_rho=0.1-s1", test=90.0, val=40.0)
    made(tmp_path / "radii" / "here" / "ce-sam_rho=0.5-s1", test=80.0, val=50.0)  # worse on test, better on validation
    made(tmp_path / "radii" / "there" / "ce-sam_rho=0.1-s1", test=70.0, val=50.0)
    text = "\n".join(tables(table, results(table, tmp_path)))
    assert "| chosen | 80.0 | 70.0 |" in text
    assert "| large | 80.0 | - |" in text
    assert "chosen: 0.5 (here), 0.1 (there)" in text


@pytest.mark.parametrize("script", sorted((ROOT / "experiments").glob("*.py")), ids=lambda path: path.stem)
def test_every_script_says_how_it_is_called(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    if "__main__" in text.split('"""')[2]:
        assert f"python experiments/{script.name}" in text.split('"""')[1]
