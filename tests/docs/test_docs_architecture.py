"""The page on architecture: its tables list what there is, imports are the real ones, and so is the walk."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import ncsam
from ncsam.engine import RunConfig
from ncsam.engine.device import choose_device
from ncsam.engine.resolve import resolve
from ncsam.engine.task import load_task
from ncsam.engine.trainer import Trainer

ROOT = Path(ncsam.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGES = {
    name: {package for package in allowed.split(", ") if package}
    for name, allowed in re.findall(r"^\| `(\w+)/` \| .* \| *([\w, ]*?) *\|$", PAGE, flags=re.MULTILINE)
}


def imported(file: Path) -> set[str]:
    """The parts of ncsam that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {f"ncsam.{alias.name}" for alias in node.names} if node.module == "ncsam" else {node.module}
    return {name.split(".")[1] for name in found if name.startswith("ncsam.")}


def test_every_package_is_listed_once() -> None:
    there = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
    assert sorted(re.findall(r"^\| `(\w+)/` \|", PAGE, flags=re.MULTILINE)) == there


def test_every_module_beside_them_is_listed_once() -> None:
    there = sorted(path.name for path in ROOT.glob("_*.py") if not path.name.startswith("__"))
    listed = PAGE[PAGE.index("Beside them") : PAGE.index("`import ncsam` brings")]
    assert sorted(re.findall(r"`(_\w+\.py)`", listed)) == there


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_a_package_imports_what_it_may(package: str) -> None:
    for file in (ROOT / package).rglob("*.py"):
        real = {name for name in imported(file) if name != package and (ROOT / name).is_dir()}
        assert real <= PACKAGES[package], f"{file.name} imports {real - PACKAGES[package]}"


def test_no_package_imports_in_a_circle() -> None:
    done: set[str] = set()
    while len(done) < len(PACKAGES):
        ready = {name for name, allowed in PACKAGES.items() if name not in done and allowed <= done}
        assert ready, f"these import each other: {set(PACKAGES) - done}"
        done |= ready


def test_every_file_of_optim_is_listed_once() -> None:
    there = sorted(path.name for path in (ROOT / "optim").glob("*.py") if path.name != "__init__.py")
    table = PAGE[PAGE.index("## Inside `optim/`") :].split("\n\n")[1]
    assert sorted(re.findall(r"`(\w+\.py)`", "".join(row.split("|")[1] for row in table.splitlines()))) == there


def test_the_walk_is_the_order_of_the_calls() -> None:
    walk = re.findall(r"^\d+\. `([\w/]+\.py)`, `([\w.]+)`", PAGE, flags=re.MULTILINE)
    assert 0 < len(walk) <= 9
    assert len({file for file, _ in walk}) == len(walk)
    config = RunConfig(
        noise="symmetric", rate=0.4, optimizer="ncsam", rho=0.05, warmup=0.0, epochs=1, accelerator="cpu"
    )
    task = load_task(config)
    trainer = Trainer(choose_device(config), resolve(config, task), task)
    trainer._begin_epoch(1)
    batch = next(iter(trainer.loader.iterate(1, 0)))
    calls: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and ROOT in file.parents:
            calls.append((file.relative_to(ROOT).as_posix(), frame.f_code.co_name))

    sys.setprofile(note)
    try:
        trainer._step(1, 0, batch)
    finally:
        sys.setprofile(None)
    places = [calls.index((file, name.split(".")[-1])) for file, name in walk]
    assert places == sorted(places)


@pytest.mark.slow
def test_training_and_its_report_go_through_no_more_files_than_the_page_says() -> None:
    found = re.search(r"call functions of at most (\d+) source files", PAGE)
    assert found is not None
    tool = Path(__file__).parents[2] / "tools" / "path_length.py"
    answer = subprocess.run([sys.executable, tool], capture_output=True, text=True, check=True)
    assert int(answer.stdout.splitlines()[-1].removesuffix(" files")) <= int(found[1])
