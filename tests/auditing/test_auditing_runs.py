"""From data to findings, to the report, the review page and clean labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import ncsam
from ncsam.cli.main import main
from ncsam.errors import UsageError
from ncsam.review.queue import Queue, View
from ncsam.runs.decisions import Decisions


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ncsam.Audit]:
    """A table with a wrong label, a copy, an outlier, an ID, a leak, and a test split that differs."""
    folder = tmp_path_factory.mktemp("audit")
    rng = np.random.default_rng(0)
    label = np.arange(90) % 2
    a, b = rng.normal(size=(2, 90)) + 6 * label
    a[89], b[89] = a[87], b[87]
    a[40] = 60.0
    lines = ["user,a,b,leak,label,split"]
    for i in range(90):
        said = "no" if label[i] == 0 else "yes"
        if i == 5:
            said = "no"
        lines.append(f"u{87 if i == 89 else i},{a[i]:.6f},{b[i]:.6f},{said}!,{said},train")
    lines += [f"t{i},{rng.normal() + 30:.6f},{rng.normal():.6f},no!,{('no', 'yes')[i % 2]},test" for i in range(40)]
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    return folder, ncsam.audit(folder / "table.csv", folder / "run")


def test_an_audit_finds_what_was_planted(audited: tuple[Path, ncsam.Audit]) -> None:
    _, found = audited
    assert [each.index for each in found.of("exact_duplicate")] == [89]
    assert 40 in [each.index for each in found.of("outlier")]
    assert [each.name for each in found.of("leaking_column")] == ["leak"]
    assert [each.name for each in found.of("id_column")] == ["user"]
    assert "a" in [each.name for each in found.of("shifted_column")]
    assert found.of("distribution_shift")[0].score > 0.95
    assert len(found.table) == len(found) == sum(found.summary.values())
    assert "Exact duplicates" in repr(found)
    assert "<table>" in found._repr_html_()


def test_clean_applies_the_decisions_that_are_named(audited: tuple[Path, ncsam.Audit]) -> None:
    folder, found = audited
    table = found.cleaned(["exact_duplicate", "leaking_column", "id_column"])
    assert list(table)[:2] == ["a", "b"]
    assert len(table) == 89 + 40
    with pytest.raises(UsageError, match="findings"):
        found.cleaned(["distribution_shift"])
    out = folder / "cleaned.csv"
    line = ["clean", str(folder / "run"), "--findings", "exact_duplicate,leaking_column", "--out", str(out)]
    answer = CliRunner().invoke(main, line)
    assert answer.exit_code == 0, answer.output
    assert "1 samples were left out" in answer.output
    assert out.read_text().splitlines()[0].startswith("user,a,b,split,label")


def test_the_report_has_a_section_and_the_page_a_filter(audited: tuple[Path, ncsam.Audit]) -> None:
    folder, found = audited
    page = found.report(folder / "report.html").read_text(encoding="utf-8")
    assert "Dataset audit" in page
    assert "identical to training sample 87" in page
    queue = Queue(found.run.folder)
    assert queue.checks()["exact_duplicate"] == 1
    rows = queue.rows(View.of({"finding": "exact_duplicate", "status": "all"}), Decisions(found.run.path))
    assert queue.index[rows].tolist() == [89]
    with pytest.raises(UsageError, match="finding"):
        View.of({"finding": "copies"})


def test_the_command_audits_a_run_again(audited: tuple[Path, ncsam.Audit], tmp_path: Path) -> None:
    folder, _ = audited
    answer = CliRunner().invoke(main, ["audit", str(folder / "run"), "--checks", "id_column", "--quiet"])
    assert answer.exit_code == 0, answer.output
    assert "1 findings of 1 checks" in answer.output
    content = json.loads((folder / "run" / "audit.json").read_text())
    assert [each["check"] for each in content["findings"]] == ["id_column"]
    wrong = CliRunner().invoke(main, ["audit", str(folder / "run"), "--checks", "ids"])
    assert wrong.exit_code == 2


def test_the_round_trip_of_the_command(audited: tuple[Path, ncsam.Audit], tmp_path: Path) -> None:
    folder, _ = audited
    run = str(folder / "run")
    for tool, out in (("label-studio", "t.json"), ("huggingface", "hf"), ("csv", "i.csv"), ("datalab", "d.npz")):
        answer = CliRunner().invoke(main, ["issues", run, "--to", tool, "--out", str(tmp_path / out), "--top", "5"])
        assert answer.exit_code == 0, answer.output
        assert (tmp_path / out).exists()
    with np.load(tmp_path / "d.npz") as file:
        assert file["pred_probs"].shape == (90, 2)
        assert file["labels"][:2].tolist() == ["no", "yes"]
    tasks: list[dict[str, Any]] = json.loads((tmp_path / "t.json").read_text())
    assert tasks[0]["data"]["row"]["user"].startswith("u")
    index, given = tasks[0]["data"]["ncsam_index"], tasks[0]["data"]["given_label"]
    other = "yes" if given == "no" else "no"
    result = [{"from_name": "label", "value": {"choices": [other]}}]
    tasks[0]["annotations"] = [{"completed_by": 1, "result": result}]
    (tmp_path / "export.json").write_text(json.dumps(tasks))
    line = ["clean", run, "--from", "label-studio", str(tmp_path / "export.json")]
    dry = CliRunner().invoke(main, [*line, "--dry-run"])
    assert "1 of 90 labels would change" in dry.output
    assert not (folder / "run" / "review.jsonl").exists() or not Decisions(folder / "run").decided()
    done = CliRunner().invoke(main, [*line, "--out", str(tmp_path / "c.csv")])
    assert done.exit_code == 0, done.output
    assert Decisions(folder / "run").verdict(index).label == ["no", "yes"].index(other)  # type: ignore[union-attr]
