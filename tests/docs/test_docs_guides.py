"""The guides on texts, tables, crowd labels, comparisons and Trainer: every line runs and prints what is shown."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from jobs_here import run_here
from ncsam.cli.main import main
from ncsam.jobs import local
from tiny_transformer import save_texts, save_tiny_bert

GUIDES = Path(__file__).parents[2] / "docs" / "tasks"


def blocks(guide: str) -> list[tuple[str, str]]:
    """Language and content of the page's code, in order."""
    text = (GUIDES / f"{guide}.md").read_text(encoding="utf-8")
    return re.findall(r"^```(\w+)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def shape(line: str) -> str:
    """A line without its numbers, classes and the widths of its columns."""
    if re.search(r" \d+ +0\.\d{3} +\d\.\d\d +\d\.\d\d$", line):
        return "a label issue"
    line = re.sub(r"\b(parsing|logging|statistics|Barolo|Barbera|Grignolino)\b", "CLASS", line)
    return " ".join(re.sub(r"\d[\d,.]*", "0", line).split())


def run_guide(guide: str, options: dict[str, str]) -> tuple[dict[str, object], str]:
    """Run a page.

    Args:
        guide: Name of the page.
        options: Options to add to commands that begin like this, which make them quicker.

    Returns:
        The names of its Python code, and all that its commands print.
    """
    names: dict[str, object] = {"__name__": "guide"}
    printed, shown = "", ""
    for language, content in blocks(guide):
        if language == "python":
            exec(content, names)
        if language == "text" and not content.startswith("ncsam "):
            shown += content
        for line in content.splitlines() if language == "sh" else ():
            command, _, file = line.partition(" > ")
            command += "".join(more for start, more in options.items() if command.startswith(start))
            answer = CliRunner().invoke(main, shlex.split(command)[1:])
            assert answer.exit_code == 0, f"{line}\n{answer.output}"
            if file:
                Path(file).write_text(answer.stdout, encoding="utf-8")
            else:
                printed += answer.output
    lines = {shape(line) for line in printed.splitlines()}
    for line in shown.splitlines():
        assert shape(line) in lines, line
    return names, printed


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NCSAM_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.slow
def test_crowd_labels(here: Path) -> None:
    names, _ = run_guide("crowd-labels", {"ncsam train": " --backbone wordllama"})
    majority, weighted = (names["share_right"](path) for path in ("majority.csv", "labels.csv"))  # type: ignore[operator]
    assert weighted > majority + 0.03
    assert (here / "runs/crowd/report.html").exists()


@pytest.mark.slow
def test_texts(here: Path) -> None:
    _, printed = run_guide("my-texts", {"ncsam train": " --backbone wordllama"})
    assert float(re.findall(r"label_issues_auroc +([\d.]+)", printed)[0]) > 0.9
    assert "text" in (here / "issues.csv").read_text(encoding="utf-8").splitlines()[0].split(",")
    assert (here / "predictions.csv").exists()


@pytest.mark.slow
def test_a_table(here: Path) -> None:
    _, printed = run_guide("tabular", {"ncsam train": " --model smooth_table --model-options trees=20"})
    assert float(re.findall(r"label_issues_auroc +([\d.]+)", printed)[0]) > 0.95
    assert (here / "predictions.csv").exists()


@pytest.mark.slow
def test_trainer(here: Path) -> None:
    pytest.importorskip("transformers")
    model = save_tiny_bert(here / "model")
    save_texts(here / "texts.csv")
    names: dict[str, object] = {"__name__": "guide"}
    for language, content in blocks("my-trainer"):
        if language == "python":
            changed = re.sub(r'^MODEL = ".*"', f'MODEL = r"{model}"', content, flags=re.M)
            exec(changed.replace("max_length=128", "max_length=32").replace("epochs=4", "epochs=1"), names)
    probabilities = names["pred_probs"]
    assert probabilities.sum(axis=1) == pytest.approx(1, abs=1e-5)  # type: ignore[attr-defined]
    assert len(names["issues"]) == len(names["rows"])  # type: ignore[arg-type]
    assert (here / "runs/trainer/final/model.safetensors").exists()


@pytest.mark.slow
def test_a_table_for_a_paper(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "run_all", run_here)
    quick = {"ncsam compare": " --epochs 1 --seeds 1", "ncsam report": " --metrics last,val_chosen"}  # no five epochs
    run_guide("my-table", quick)
    assert r"\toprule" in (here / "table.tex").read_text(encoding="utf-8")
