"""The examples of docs/data.md on loading run, and print what the page says they print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def test_examples_on_loading(capsys: pytest.CaptureFixture[str]) -> None:
    section = PAGE.read_text(encoding="utf-8").split("\n## Loading and augmentation\n")[1].split("\n## ")[0]
    namespace: dict[str, object] = {}
    printed = 0
    for kind, content in re.findall(r"```(\w+)\n(.*?)```", section, flags=re.DOTALL):
        if kind == "python":
            exec(compile(content, str(PAGE), "exec"), namespace)
        else:
            assert capsys.readouterr().out == content
            printed += 1
    assert printed == 1
