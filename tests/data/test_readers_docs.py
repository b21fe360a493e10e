"""The examples of docs/data.md on readers run, and print what the page says they print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "data.md"
OURS = PAGE.read_text(encoding="utf-8").split("## Loading and augmentation")[0]


def test_examples_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ncsam.data import registry

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    blocks = re.findall(r"```(\w+)\n(.*?)```", OURS, flags=re.DOTALL)
    namespace: dict[str, object] = {}
    printed = 0
    for kind, content in blocks:
        if kind == "python":
            capsys.readouterr()
            exec(compile(content, str(PAGE), "exec"), namespace)
        elif kind == "text":
            assert capsys.readouterr().out.strip() == content.strip()
            printed += 1
    assert printed == 6


def test_the_page_lists_every_data_set() -> None:
    from ncsam import data

    rows = re.findall(r"^\| `(\w+)` \|", OURS, flags=re.MULTILINE)
    assert sorted(rows) == data.names()
