"""Every command line in the documentation and in `--help` parses, and the tables name what there is."""

import re
import shlex
from pathlib import Path

import click
import pytest

from ncsam.cli.main import COMMANDS, EPILOG, main

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "command.md").read_text(encoding="utf-8")
TASKS = [page.read_text(encoding="utf-8") for page in sorted((DOCS / "tasks").glob("*.md"))]


def examples():
    """Command lines of the pages and of every command's help."""
    for block in re.findall(r"```sh\n(.*?)```", "\n".join([PAGE, *TASKS]), flags=re.DOTALL):
        yield from re.findall(r"^ncsam .*$", block, flags=re.MULTILINE)
    context = click.Context(main)
    groups = [main.get_command(context, name) for name in COMMANDS]
    nested = [command for group in groups if isinstance(group, click.Group) for command in group.commands.values()]
    for text in [EPILOG, *(command.epilog for command in groups + nested)]:
        yield from re.findall(r"^  (ncsam .*)$", text, flags=re.MULTILINE)


@pytest.mark.parametrize("line", sorted(set(examples())))
def test_every_example_parses(line):
    words = shlex.split(line.partition(" | ")[0].partition(" > ")[0])[1:]
    command, context = main, click.Context(main, info_name="ncsam", **main.context_settings)
    while isinstance(command, click.Group) and (words or not command.invoke_without_command):
        name, found, words = command.resolve_command(context, words)
        command, context = found, click.Context(found, parent=context, info_name=name)
    values, rest, _ = command.make_parser(context).parse_args(list(words))
    assert not rest
    for option in command.params:
        if isinstance(option, click.Option) and option.name in values and not isinstance(option.type, click.Path):
            option.type_cast_value(context, values[option.name])


def test_the_page_lists_every_command():
    assert set(re.findall(r"^\| `ncsam ([\w-]+)", PAGE, flags=re.MULTILINE)) == set(COMMANDS)


def test_presets_that_are_named_exist():
    from ncsam.engine import preset_names

    named = set(re.findall(r"--preset (\S+)", "\n".join(examples()))) | set(re.findall(r"presets (\S+)\b", EPILOG))
    assert named
    assert named <= set(preset_names())
