"""The stress test of command lines covers every command and notices what a command leaves or loses."""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))  # where the package `stress` is
from stress import commands, inputs


def test_every_command_has_a_valid_call():
    tried = set(commands.commands())
    assert {f"reproduce {name}" for name in (*commands.TABLES, *commands.GROUPS)} < tried
    assert {"train", "auto", "compare", "data check"} < tried
    assert all(commands.calls_of(words) for words in tried)


def test_files_that_are_left_lost_or_replaced_are_noticed(tmp_path):
    (tmp_path / "given").mkdir()
    (tmp_path / "given/f").write_text("mine")
    os.mkfifo(tmp_path / "pipe")
    before = inputs._traces(tmp_path)
    assert inputs._left(before, inputs._traces(tmp_path), refused=True) is None
    (tmp_path / "new").mkdir()
    assert inputs._left(before, inputs._traces(tmp_path), refused=True) == "'new' is new"
    assert inputs._left(before, inputs._traces(tmp_path), refused=False) is None
    (tmp_path / "new/.a.csv.abcd1234.csv").touch()
    assert "'new/.a.csv.abcd1234.csv' is new" in inputs._left(before, inputs._traces(tmp_path), refused=False)
    (tmp_path / "new/.a.csv.abcd1234.csv").unlink()
    (tmp_path / "given/f").write_text("yours")
    assert inputs._left(before, inputs._traces(tmp_path), refused=False) == "'given/f' is changed"
    before = inputs._traces(tmp_path)
    (tmp_path / "pipe").unlink()
    (tmp_path / "pipe").write_text("")
    assert inputs._left(before, inputs._traces(tmp_path), refused=False) == "'pipe' is changed"
