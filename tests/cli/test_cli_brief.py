"""Help fits on one screen, `--help-all` has every option, and `doctor` tells what is missing."""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ncsam.cli import doctor
from ncsam.cli.main import COMMANDS, main


def help_of(name: str, flag: str, width: int) -> list[str]:
    result = CliRunner().invoke(main, [name, flag], terminal_width=width, prog_name="ncsam")
    assert result.exit_code == 0
    return result.output.splitlines()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_on_one_screen(name):
    assert len(help_of(name, "--help", 100)) <= 40
    assert len(help_of(name, "--help", 80)) <= 50


@pytest.mark.parametrize("name", ["train", "compare", "auto"])
def test_help_all_has_every_option_and_help_says_how_many_are_left_out(name):
    command = main.get_command(click.Context(main), name)
    options = [param.opts[0] for param in command.params if isinstance(param, click.Option)]
    shown, every = ("\n".join(help_of(name, flag, 100)) for flag in ("--help", "--help-all"))
    assert [option for option in options if f"  {option} " not in every.replace(",", " ")] == []
    left_out = [option for option in options if f"  {option} " not in shown.replace(",", " ")]
    assert left_out
    assert f"{len(left_out)} more options: ncsam {name} --help-all" in shown


def every_command():
    """The words of every command, those of groups included."""
    yield []
    for name in COMMANDS:
        yield [name]
        command = main.get_command(click.Context(main), name)
        yield from ([name, each] for each in getattr(command, "commands", ()))


@pytest.mark.parametrize("words", every_command(), ids=" ".join)
def test_every_command_accepts_help_all(words):
    shown, every = (CliRunner().invoke(main, [*words, flag], prog_name="ncsam") for flag in ("--help", "--help-all"))
    assert (shown.exit_code, every.exit_code) == (0, 0)
    assert every.output.startswith(f"Usage: {' '.join(['ncsam', *words])} ")
    hides = words[:1] in (["train"], ["auto"], ["compare"], ["audit"])
    assert (every.output == shown.output) == (not hides)


REQUIRES = [
    "torch>=2.6",
    'click>=8.1; extra == "train"',
    'ncsam[tables]; extra == "train"',
    'pandas>=2.2; extra == "tables"',
    'nowhere>=1; extra == "images"',
]
VERSIONS = {"torch": "2.6.0", "click": "8.0", "pandas": "2.2"}


@pytest.fixture
def installed(monkeypatch):
    def version(name):
        if name not in VERSIONS:
            raise metadata.PackageNotFoundError(name)
        return VERSIONS[name]

    monkeypatch.setattr(doctor.metadata, "requires", lambda name: REQUIRES)
    monkeypatch.setattr(doctor.metadata, "version", version)


def test_doctor_finds_what_is_installed_outdated_and_missing(installed):
    assert doctor.required("train") == [("click", ">=8.1"), ("pandas", ">=2.2")]
    result = CliRunner().invoke(main, ["doctor", "--json"])
    extras = json.loads(result.output)["extras"]
    assert result.exit_code == 0
    assert {name: extras[name]["status"] for name in ("core", "train", "images")} == {
        "core": "ok",
        "train": "outdated",
        "images": "missing",
    }
    assert extras["train"]["install"] == 'pip install --upgrade "ncsam[train]"'
    assert extras["images"]["install"] == 'pip install "ncsam[images]"'
    text = CliRunner().invoke(main, ["doctor"]).output
    assert "needs click>=8.1 (installed: 8.0)" in text
    assert "needs nowhere>=1\n" in text


def test_doctor_fails_without_what_the_package_itself_needs(installed, monkeypatch):
    monkeypatch.delitem(VERSIONS, "torch")
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 1
    assert "pip install ncsam\n" in result.output


def test_every_extra_of_users_is_examined():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    section = text.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    provided = set(re.findall(r"^(\w+) = \[", section, flags=re.M))
    inside = {"all", "bench", "data", "dev", "docs", "plot", "tables"}  # parts of others, and those of developers
    assert provided - inside == set(doctor.PURPOSES) - {""}
