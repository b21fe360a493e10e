"""docs/python.md: every shell step and its Python twin run on digits, and give the same numbers."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from click.testing import CliRunner

import ncsam
from jobs_here import run_here
from ncsam import data
from ncsam.automl import run as auto_run
from ncsam.automl.candidates import ClosedForm
from ncsam.cli.main import main
from ncsam.jobs import local
from ncsam.runs.reader import RunFolder

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
SKIPPED = ("pip ", "ncsam review")  # an install, and a page that is served until it is stopped


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    """All steps of the page, the shell's in one folder and Python's in another; what Python's names stand for."""
    folders = [tmp_path_factory.mktemp(name) for name in ("shell", "python")]
    digits = data.load("digits")
    generator = np.random.default_rng(0)
    truth = np.arange(150) % 3
    x = generator.normal(size=(150, 6)) + 3 * np.eye(3, 6)[truth]
    for folder in folders:
        np.savez(folder / "new.npz", x=digits.test.inputs[:20])
        np.savez(
            folder / "features.npz", x=x.astype(np.float32), y=np.where(np.arange(150) % 10, truth, (truth + 1) % 3)
        )
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "run_all", run_here)
        few = [
            ClosedForm(f"lda {shrinkage}", "lda", {"shrinkage": shrinkage, "unit": False}) for shrinkage in (0.1, 0.5)
        ]
        patch.setattr(auto_run, "portfolio", lambda problem: few)
        patch.chdir(folders[0])
        for line in "".join(blocks("sh")).splitlines():
            if line and not line.startswith(SKIPPED):
                answer = CliRunner().invoke(main, shlex.split(line)[1:])
                assert answer.exit_code == 0, f"{line}\n{answer.output}"
        patch.chdir(folders[1])
        for block in blocks("python"):
            exec(block, names)
    return folders[0], folders[1], names


def results(folder: Path) -> dict[str, Any]:
    """The summary of a run, without what differs between machines and moments."""
    return {name: value for name, value in RunFolder.read(folder).summary.items() if name != "seconds"}


@pytest.mark.slow
def test_training_and_label_issues_agree(done: tuple[Path, Path, dict[str, Any]]) -> None:
    shell, python, _ = done
    assert results(shell / "runs/first") == results(python / "runs/first")
    name = "runs/first/label_issues.csv"
    assert (shell / name).read_bytes() == (python / name).read_bytes()


@pytest.mark.slow
def test_cleaned_labels_and_the_second_run_agree(done: tuple[Path, Path, dict[str, Any]]) -> None:
    shell, python, _ = done
    one, two = pandas.read_csv(shell / "cleaned.csv"), pandas.read_csv(python / "cleaned-python.csv")
    pandas.testing.assert_frame_equal(one, two)
    assert (one["label"] != one["given_label"]).sum() > 100
    first, second = results(shell / "runs/second"), results(python / "runs/second-python")
    assert first == second


@pytest.mark.slow
def test_predictions_and_reports_agree(done: tuple[Path, Path, dict[str, Any]]) -> None:
    shell, python, names = done
    table = pandas.read_csv(shell / "predictions.csv", dtype={"label": str})
    found = names["predictions"].to_frame()
    assert table["label"].tolist() == found["label"].tolist()
    np.testing.assert_allclose(table["probability"], found["probability"], atol=1e-6)
    pages = [(folder / "runs/first/report.html").read_text(encoding="utf-8") for folder in (shell, python)]
    tables = [re.findall(r"<td>.*?</td>", page.partition("Configuration")[0]) for page in pages]
    assert [cell for cell in tables[0] if "<" in cell][:5] == [cell for cell in tables[1] if "<" in cell][:5]


@pytest.mark.slow
def test_comparisons_and_model_selection_agree(done: tuple[Path, Path, dict[str, Any]]) -> None:
    shell, python, names = done
    for name in ("ce-sgd-s1", "ce-sam-s2"):
        assert results(shell / "runs/compared" / name) == results(python / "runs/compared-python" / name)
    last = [results(shell / "runs/compared" / f"ce-sgd-s{seed}")["last"] for seed in (1, 2)]
    assert names["compared"].table["last"][0] == pytest.approx(np.mean(last))
    assert results(shell / "runs/auto") == results(python / "runs/auto-python")
    assert len(ncsam.load_run(python / "runs/auto-python").leaderboard) >= 2


@pytest.mark.slow
def test_the_pure_function_finds_the_wrong_label(done: tuple[Path, Path, dict[str, Any]]) -> None:
    assert done[2]["issues"].numbers("index")[0] == 3


def test_every_function_of_the_api_is_on_the_page() -> None:
    for name in ("train", "auto", "audit", "compare", "load_run", "find_label_issues"):
        assert f"ncsam.{name}(" in PAGE
        assert callable(getattr(ncsam, name))
