"""Help fits on one screen, `--help-all` has every option, and `doctor` tells what is missing."""

from __future__ import annotations

import json
import re
import subprocess
from importlib import metadata
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ncsam.cli import doctor
from ncsam.cli.main import COMMANDS, BriefCommand, brief, main


def help_of(words: list[str], flag: str, columns: int) -> list[str]:
    """The lines of a help text in a terminal of this width."""
    result = CliRunner().invoke(main, [*words, flag], prog_name="ncsam", env={"COLUMNS": str(columns)})
    assert result.exit_code == 0
    return result.output.splitlines()


def every_command():
    """The words of every command, those of groups included."""
    yield []
    for name in COMMANDS:
        yield [name]
        command = main.get_command(click.Context(main), name)
        yield from ([name, each] for each in getattr(command, "commands", ()))


COMMAND_WORDS = list(every_command())


def command_of(words: list[str]) -> click.Command:
    found: click.Command = main
    for word in words:
        assert isinstance(found, click.Group)
        found = found.get_command(click.Context(found), word)
    return found


def rare_of(words: list[str]) -> int:
    """How many options brief help leaves out."""
    command = command_of(words)
    if not isinstance(command, BriefCommand):
        return 0
    options = [param for param in command.params if isinstance(param, click.Option) and param.name != "help_all"]
    return sum(not command.is_shown(click.Context(command), param) for param in options)


@pytest.mark.parametrize("words", COMMAND_WORDS, ids=" ".join)
def test_help_fits_on_one_screen_and_cuts_nothing_off(words):
    lines = help_of(words, "--help", 80)
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    summaries = "\n".join(lines).partition("Commands:")[2].partition("Examples:")[0]
    assert "..." not in summaries


@pytest.mark.parametrize("words", list(filter(rare_of, COMMAND_WORDS)), ids=" ".join)
def test_help_all_has_every_option_and_help_says_how_many_are_left_out(words):
    options = [param.opts[0] for param in command_of(words).params if isinstance(param, click.Option)]
    shown, every = ("\n".join(help_of(words, flag, 100)) + "\n" for flag in ("--help", "--help-all"))
    assert [option for option in options if not re.search(rf"^  {option}\b", every, flags=re.M)] == []
    left_out = [option for option in options if not re.search(rf"^  {option}\b", shown, flags=re.M)]
    left_out.remove("--help-all")
    assert re.search(rf"\b{len(left_out)} more options?: ncsam {' '.join(words)} --help-all\n", shown)


@pytest.mark.parametrize(
    ("text", "shortened"),
    [
        ("rank of updates; of a transformer [4]", "rank of updates [4]"),
        ("a table (.csv; .npz for arrays) to write", "a table (.csv; .npz for arrays) to write"),
        ("steps, milestones, gamma", "steps, milestones, gamma"),
        ("hold out this part of the split: 2/5 is the second of five", "hold out this part of the split"),
    ],
)
def test_brief_help_ends_at_a_semicolon_outside_of_parentheses(text, shortened):
    assert brief(text) == shortened


def test_completion_is_installed_once_and_works(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/usr/bin/bash")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (tmp_path / ".bashrc").write_text("# mine", encoding="utf-8")
    for _ in range(2):
        result = CliRunner().invoke(main, ["--install-completion"])
        assert result.exit_code == 0
    script = tmp_path / ".config" / "ncsam" / "completion.bash"
    lines = (tmp_path / ".bashrc").read_text(encoding="utf-8").splitlines()
    assert lines == ["# mine", f'source "{script}"  # tab completion of ncsam']
    subprocess.run(["bash", "-c", f'source "{script}" && complete -p ncsam'], check=True, capture_output=True)


def test_completion_for_an_unknown_shell_names_the_known_ones(monkeypatch):
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    result = CliRunner().invoke(main, ["--install-completion"])
    assert result.exit_code == 2
    assert "'tcsh'" in result.output
    assert "bash, zsh, fish" in result.output


@pytest.mark.parametrize("words", COMMAND_WORDS, ids=" ".join)
def test_every_command_accepts_help_all(words):
    shown, every = (CliRunner().invoke(main, [*words, flag], prog_name="ncsam") for flag in ("--help", "--help-all"))
    assert (shown.exit_code, every.exit_code) == (0, 0)
    assert every.output.startswith(f"Usage: {' '.join(['ncsam', *words])} ")
    assert (every.output == shown.output) == (rare_of(words) == 0)


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
