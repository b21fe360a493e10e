"""The page on methods: its tables are the code's, and its examples run."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

from ncsam import methods
from ncsam.data import from_arrays
from ncsam.engine import RunConfig, train
from ncsam.methods import registry

PAGE = Path(__file__).parents[2] / "docs/methods.md"
OURS = [name for name, kind in registry._METHODS.items() if kind.__module__.startswith("ncsam.")]


def shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def options_table() -> list[str]:
    lines = ["| method | options and their defaults |", "|---|---|"]
    for name in sorted(OURS):
        found = inspect.signature(registry._METHODS[name]).parameters.values()
        lines.append(f"| `{name}` | " + ", ".join(f"`{p.name}` {shown(p.default)}" for p in found) + " |")
    return lines


def presets_table() -> list[str]:
    lines = ["| method | preset | options |", "|---|---|---|"]
    for name in sorted(OURS):
        for preset, options in registry._METHODS[name].presets.items():
            settings = ", ".join(f"`{option}` {shown(value)}" for option, value in options.items())
            lines.append(f"| `{name}` | `{preset}` | {settings} |")
    return lines


@pytest.mark.parametrize("table", [options_table, presets_table])
def test_tables_are_the_codes(table):
    assert "\n".join(table()) in PAGE.read_text(encoding="utf-8")


def test_every_method_is_described_and_compared():
    text = PAGE.read_text(encoding="utf-8")
    described = set(re.findall(r"`(\w+)`", text[text.index("## The methods") : text.index("## Their options")]))
    assert set(OURS) <= described
    script = ast.parse((PAGE.parents[1] / "experiments" / "methods.py").read_text(encoding="utf-8"))
    compared = {
        node.value.partition(":")[0]
        for node in ast.walk(script)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert set(OURS) <= compared


def test_examples_run(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))
    losses, own = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    exec(losses, {})
    exec(own, {"__name__": "example"})
    assert "confident" in methods.names()
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = (rng.normal(size=(60, 4)) + 3 * np.eye(4)[y]).astype(np.float32)
    dataset = from_arrays(x[:45], y[:45], x_test=x[45:], y_test=y[45:], name="three")
    config = RunConfig(data="three", method="confident", model="mlp", model_options={"hidden": [8]}, epochs=3)
    summary = train(config, tmp_path / "run", dataset=dataset, console=False)
    assert summary["method"] == "confident"
    assert summary["last"] > 50  # chance is a third
