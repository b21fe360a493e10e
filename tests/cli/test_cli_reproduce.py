"""`ncsam reproduce`: the list, the plan, a table, the cost."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from cli_cases import call

from ncsam.reproduce import TABLES


def test_list_names_all_tables_and_rows() -> None:
    text = call("reproduce", "list").output
    for name, table in TABLES.items():
        assert f"rows of {name}: {','.join(row.name for row in table.rows)}" in text
    assert "ablations: flip-ratio, schedule, kappa" in text


def test_a_dry_run_prints_the_plan_and_runs_nothing(tmp_path: Path) -> None:
    options = ["--scale", "smoke", "--rows", "sgd,ncsam", "--columns", "cifar10-40", "--seeds", 2, "--out", tmp_path]
    text = call("reproduce", "table2", *options, "--dry-run").output
    assert f"4 runs in {tmp_path}, 0 of them finished" in text
    assert "cifar10: digits (stands in for it)" in text
    assert "4 runs to do: roughly " in text
    assert f"# {tmp_path / 'cifar10-symmetric-40' / 'ce-ncsam-s2'}" in text
    assert not any(tmp_path.iterdir())
    assert "unknown row of table2 'adam'" in call("reproduce", "table2", "--rows", "adam", "--dry-run", code=2).output


@pytest.mark.slow
@pytest.mark.usefixtures("jobs_here")
def test_a_table(tmp_path: Path) -> None:
    options = ["--scale", "smoke", "--rows", "sgd,ncsam", "--columns", "cifar10-40", "--out", tmp_path]
    text = call("reproduce", "table2", *options).output
    with (tmp_path / "table2.csv").open() as file:
        rows = {row["row"]: row for row in csv.DictReader(file)}
    assert set(rows) == {"sgd", "ncsam"}
    ours = float(rows["ncsam"]["last5"])
    assert f"| NCSAM | {ours:.1f} (92.7, {float(rows['ncsam']['difference']):+.1f}) |" in text
    assert float(rows["ncsam"]["difference"]) == pytest.approx(ours - 92.65, abs=0.02)
