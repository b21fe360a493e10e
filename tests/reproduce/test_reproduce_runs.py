"""Tables at the scale for tests: run once, resumed, estimated; and the ramp, which is not constant."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from ncsam.engine import RunConfig
from ncsam.engine import forecast as times
from ncsam.errors import DamagedFileError
from ncsam.jobs import local, ray_cluster
from ncsam.jobs.executor import ExecutorConfig
from ncsam.jobs.job import Job, Result
from ncsam.jobs.job import do as answer
from ncsam.optim.ramps import constant, smooth
from ncsam.reproduce import TABLES, reproduce
from ncsam.reproduce import estimate as estimates
from ncsam.reproduce.estimate import estimate, shape_of
from ncsam.reproduce.record import Record
from ncsam.reproduce.run import Plan, show
from ncsam.reproduce.scales import Setting
from ncsam.runs.reader import RunFolder

QUIET: Callable[[str], None] = lambda line: None  # noqa: E731


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs are done here, without the start of a worker; the names of those that were."""
    done: list[str] = []

    def run_all(jobs: Sequence[Job], workers: int, threads: int, ended: Callable[[Result], None]) -> None:
        for job in jobs:
            done.append(job.name)
            ended(Result(job.name, **answer({"config": job.config.to_dict(), "out": str(job.out)}, 1)))

    monkeypatch.setattr(local, "run_all", run_all)
    return done


def plan(out: Path, name: str = "schedule", rows: Sequence[str] | None = None, seeds: Sequence[int] = (1,)) -> Plan:
    table = TABLES[name].part(rows, ["cifar10-40" if name == "curves" else "cifar10-20"])
    return Plan([table], Setting("smoke"), seeds, out)


def test_the_ramp_is_in_effect_and_differs_from_a_constant(tmp_path: Path) -> None:
    (found,), done = reproduce(plan(tmp_path), say=QUIET)
    assert not done.errors
    strengths = {}
    for row in ("ncsam", "ncsam_ramp=constant", "ncsam_kappa=0"):
        strengths[row] = RunFolder.read(tmp_path / "cifar10-symmetric-20" / f"ce-{row}-s1").curve("telemetry.strength")
    kappa = RunConfig.from_preset("cifar10-symmetric").kappa
    after = range(3, 9)  # two of eight epochs are warm-up
    assert {e: strengths["ncsam"][e] for e in after} == pytest.approx({e: kappa * smooth(e / 8) for e in after})
    assert {e: strengths["ncsam_ramp=constant"][e] for e in after} == pytest.approx(
        {e: kappa * constant(0) for e in after}
    )
    assert strengths["ncsam"][3] < strengths["ncsam_ramp=constant"][3]
    assert set(strengths["ncsam_kappa=0"].values()) == {0.0}
    assert [cell.published for cell in found.cells.values()] == [94.41, 94.55, None]


def test_finished_cells_are_not_run_again_and_more_can_be_asked_for(tmp_path: Path, in_this_process: list[str]) -> None:
    reproduce(plan(tmp_path, "curves", ["sgd", "sam"]), say=QUIET)
    assert in_this_process == ["cifar10-symmetric-40/ce-sgd-s1", "cifar10-symmetric-40/ce-sam_warmup=0-s1"]
    reproduce(plan(tmp_path, "curves", ["sgd", "sam"]), say=QUIET)
    assert len(in_this_process) == 2
    (found,), _ = reproduce(plan(tmp_path, "curves", ["sgd"], seeds=(1, 2)), metric="best", say=QUIET)
    assert in_this_process[2:] == ["cifar10-symmetric-40/ce-sgd-s2"]
    cell = found.cells["sgd", "cifar10-40"]
    runs = [
        json.loads((tmp_path / name / "summary.json").read_text()) for name in (in_this_process[0], in_this_process[2])
    ]
    assert cell.seeds == 2
    assert cell.ours["best"].mean == pytest.approx((runs[0]["best"] + runs[1]["best"]) / 2)
    assert "![Accuracy over epochs" in (tmp_path / "curves.md").read_text()
    for name in ("curves.png", "curves.tex", "curves.html", "curves.csv"):
        assert (tmp_path / name).stat().st_size > 0
    with pytest.raises(ValueError, match="metric='mean'"):
        reproduce(plan(tmp_path), metric="mean", say=QUIET)


def test_a_folder_shows_all_that_is_finished_in_it(tmp_path: Path, cells: Path, in_this_process: list[str]) -> None:
    shutil.copytree(cells, tmp_path / "ours")
    shutil.copytree(cells / SAM, tmp_path / "ours" / SAM.replace("s1", "s2"))
    edit(tmp_path / "ours" / SAM.replace("s1", "s2") / "config.yaml", lambda c: c.update(seed=2))
    tables = {each.table.name: each for each in show(tmp_path / "ours", ["all"])}
    assert list(tables) == ["table2", "curves"]
    counts = {key: cell.seeds for key, cell in tables["table2"].cells.items()}
    column = "cifar10-40"
    assert counts == {
        ("ce", column): 1,
        ("sgd", column): 1,
        ("sam", column): 2,
    }  # table 2 has SGD's run under two names
    assert "| SGD" in (tmp_path / "ours" / "table2.md").read_text()
    assert (tmp_path / "ours" / "curves.png").is_file()
    assert show(tmp_path / "ours", ["table5"]) == []
    assert in_this_process == []
    with pytest.raises(ValueError, match=r"holds no reproduce.json"):
        show(tmp_path)


def test_runs_go_to_ray_with_what_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def run_on_ray(jobs: Sequence[Job], workers: int, resources: dict[str, float], ended: Callable[..., None]) -> None:
        asked.append(([job.name for job in jobs], workers, resources))
        for job in jobs:
            ended(Result(job.name, None, "its worker was lost 4 times"))

    monkeypatch.setattr(ray_cluster, "run_all", run_on_ray)
    monkeypatch.setattr(ray_cluster, "check_cluster", lambda: None)
    made = plan(tmp_path, "curves", ["sgd"])
    (found,), done = reproduce(made, ExecutorConfig(3, "ray", "gpu=1,cpu=4"), say=QUIET)
    assert asked == [(["cifar10-symmetric-40/ce-sgd-s1"], 3, {"gpu": 1.0, "cpu": 4.0})]
    assert (list(done.errors), found.cells) == (["cifar10-symmetric-40/ce-sgd-s1"], {})


def test_what_cannot_be_run_is_said_before_anything_is(tmp_path: Path) -> None:
    table = TABLES["curves"]
    for seeds in ([], [1, 1], [-1]):
        with pytest.raises(ValueError, match=r"seeds=\[.*\]"):
            Plan([table], Setting("smoke"), seeds, tmp_path)
    for setting, said in (
        (Setting("paper", data_root=str(tmp_path)), "cifar10 was not found"),
        (Setting("small", {"cifar10": "mine.npz"}), "data: cifar10='.*mine.npz'"),
        (Setting("small", None, "mine.npz", str(tmp_path)), "stand_in='.*mine.npz'"),
    ):
        with pytest.raises((FileNotFoundError, ValueError), match=said):
            reproduce(Plan([table], setting, [1], tmp_path / "out"), say=QUIET)
    assert not (tmp_path / "out").exists()


def test_a_folder_is_of_one_scale_and_one_source(tmp_path: Path) -> None:
    Record.claim(tmp_path, Setting("smoke"), ["cifar10"])
    with pytest.raises(ValueError, match=r"this one holds scale smoke$"):
        Record.claim(tmp_path, Setting("smoke", images=100), ["cifar10"])
    with pytest.raises(ValueError, match="holds scale smoke"):
        Record.claim(tmp_path, Setting("paper"), ["cifar10"])
    other = Setting("smoke", {"cifar10": "mnist"})
    with pytest.raises(ValueError, match="these used digits"):
        Record.claim(tmp_path, other, ["cifar10"])


def test_of_a_failed_run_its_table_says_why(tmp_path: Path) -> None:
    made = plan(tmp_path, "curves", ["sgd", "sam"])
    (tmp_path / "cifar10-symmetric-40").mkdir()
    (tmp_path / "cifar10-symmetric-40" / "ce-sgd-s1").write_text("in the way")
    (found,), done = reproduce(made, say=QUIET)
    assert list(done.errors) == ["cifar10-symmetric-40/ce-sgd-s1"]
    assert (list(found.cells), list(found.failed)) == ([("sam", "cifar10-40")], [("sgd", "cifar10-40")])
    lines = (tmp_path / "curves.md").read_text().splitlines()
    assert "| SGD | failed \\[b\\] |" in lines
    assert any(line.startswith("- \\[b\\] 1 of 1 runs failed: ") for line in lines)
    (tmp_path / SAM / "summary.json").write_text("{")  # nor does it keep the image from being drawn
    (again,), _ = reproduce(made, say=QUIET)
    assert list(again.failed) == [("sgd", "cifar10-40"), ("sam", "cifar10-40")]


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished cells."""
    folder = tmp_path_factory.mktemp("cells")
    for job in plan(folder, "curves", ["sgd", "sam"]).jobs:
        assert answer({"config": job.config.to_dict(), "out": str(job.out)}, 1)["summary"]
    Record.claim(folder, Setting("smoke"), ["cifar10"])
    return folder


def edit(path: Path, change: Callable[[Any], None]) -> None:
    content = yaml.safe_load(path.read_text())
    change(content)
    path.write_text(yaml.safe_dump(content) if path.suffix == ".yaml" else json.dumps(content))


SAM = "cifar10-symmetric-40/ce-sam_warmup=0-s1"


def test_a_damaged_run_is_reported_before_any_file_changes(cells: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cells"
    shutil.copytree(cells, folder)
    edit(folder / "reproduce.json", lambda c: c.update(versions=[]))  # a claim would add this version
    (folder / SAM / "metrics.jsonl").write_text("{\n{}\n")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(DamagedFileError, match=r"metrics\.jsonl"):
        reproduce(plan(folder, "curves", ["sgd", "sam"]), say=QUIET)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("damage", [{"best": "x"}, {"last5": [1]}, {"metric_names": 3}])
def test_a_summary_of_other_types_is_a_failed_run(cells: Path, tmp_path: Path, damage: dict[str, Any]) -> None:
    folder = tmp_path / "cells"
    shutil.copytree(cells, folder)
    edit(folder / SAM / "summary.json", lambda c: c.update(damage))
    (found,), done = reproduce(plan(folder, "curves", ["sgd", "sam"]), say=QUIET)
    assert list(done.errors) == [SAM]
    assert "summary.json cannot be read as the summary of a run: remove it" in done.errors[SAM]
    assert (list(found.cells), list(found.failed)) == ([("sgd", "cifar10-40")], [("sam", "cifar10-40")])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.update(sources={"cifar10": "digits"}), "string indices"),
        (lambda c: c["sources"]["cifar10"].pop("identity"), "'identity'"),
        (lambda c: c["sources"]["cifar10"].update(stand_in="no"), "stand_in='no'"),
        (lambda c: c.update(scale=["smoke"]), r"scale=\['smoke'\]"),
        (lambda c: c.update(scale="large"), "scale='large'"),
        (lambda c: c.update(versions=["1.0"]), "versions='1.0'"),
        (lambda c: c.update(versions=[{"ncsam": 1}]), "ncsam=1"),
    ],
)
def test_a_record_of_other_types_is_none(tmp_path: Path, change: Callable[[Any], None], said: str) -> None:
    Record.claim(tmp_path, Setting("smoke"), ["cifar10"])
    edit(tmp_path / "reproduce.json", change)
    with pytest.raises(ValueError, match=f"reproduce.json is not the record of a reproduction: .*{said}"):
        Record.read(tmp_path)


def test_the_estimate_counts_steps_passes_and_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "_step", lambda config, shape, count: 0.01)
    monkeypatch.setattr(times, "passes_of", lambda optimizer: {"sgd": 1.0, "sam": 2.0, "ncsam": 3.0}[optimizer])
    sgd, sam, ncsam = plan(tmp_path, "curves", ["sgd", "sam", "ncsam"]).jobs
    where = ExecutorConfig(workers=1)
    evaluated = (320 + 160) / 32 / 3
    for job, passes in ((sgd, 1), (sam, 2), (ncsam, 3)):
        assert estimate([job], {}, where).seconds == pytest.approx(8 * 0.01 * (10 * passes + evaluated))
    two = Job("x/coteaching-sgd-s1", sgd.config.replace(method="coteaching"), sgd.out)
    assert estimate([two], {}, where).seconds == pytest.approx(2 * 8 * 0.01 * (10 + evaluated))
    known = estimate([sam], {"elsewhere/ce-sam_warmup=0-s7": {"seconds": 1000.0}}, where)
    assert known.seconds == 1000
    assert "17 min" in str(known)
    assert str(estimate([], {}, where)) == "nothing is left to run"
    paper = Setting("paper").config(TABLES["table5"].rows[0], TABLES["table5"].columns[0], 1)
    assert (shape_of(paper).train, shape_of(paper).side) == (310_009, 224)


def test_steps_are_timed_with_the_threads_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    seen: list[int] = []
    monkeypatch.setattr(estimates, "_step", lambda *_: seen.append(torch.get_num_threads()) or 0.01)
    before = torch.get_num_threads()
    estimate(plan(tmp_path, "curves", ["sgd"]).jobs, {}, ExecutorConfig(workers=1))
    assert (seen, torch.get_num_threads()) == ([3], before)


def test_a_timed_step_measures_this_machine(tmp_path: Path) -> None:
    (sam,) = plan(tmp_path, "curves", ["sam"]).jobs
    assert 0 < estimates._step(sam.config, shape_of(sam.config), 4) < 10
