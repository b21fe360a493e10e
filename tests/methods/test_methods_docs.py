"""The page on methods: its tables are the code's, and its examples run."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest

from ncsam import methods
from ncsam.data import from_arrays
from ncsam.engine import RunConfig, train
from ncsam.methods import describe, registry

PAGE = Path(__file__).parents[2] / "docs/methods.md"
OURS = [name for name, kind in registry._METHODS.items() if kind.__module__.startswith("ncsam.")]


@pytest.mark.parametrize("name", OURS)
def test_every_method_has_a_row_with_its_own_words(name):
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|(.*?)\|$", PAGE.read_text(encoding="utf-8"), re.M)
    assert [words for found, words, _ in rows if found == name] == [describe.about(name)]


def test_every_method_is_compared():
    script = ast.parse((PAGE.parents[1] / "experiments" / "methods.py").read_text(encoding="utf-8"))
    compared = {
        node.value.partition(":")[0]
        for node in ast.walk(script)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert set(OURS) <= compared


def test_train_warns_of_the_methods_that_the_table_names():
    page = (PAGE.parent / "experiments" / "methods.md").read_text(encoding="utf-8")
    found: dict[str, list[str]] = {}
    for section in page.split("\n## ")[1:]:
        where = section.partition(", ")[0].replace("All sets", "all sets")
        for line in re.findall(r"^Below SGD by more than a point and a standard error: (.*)\.$", section, re.M):
            for name in re.findall(r"`(\w+)`", line):
                found.setdefault(name, []).append(where)
    assert found
    assert found == {name: [*kind.worse_with_sam] for name, kind in registry._METHODS.items() if kind.worse_with_sam}


@pytest.mark.parametrize("name", OURS)
def test_a_method_tells_all_about_itself(name):
    text = describe.described(name)
    assert describe.source(name) in text.splitlines()[1]
    assert all(f"  {option}=" in text for option in describe.options(name))
    assert all(f"  {preset}: " in text for preset in registry._METHODS[name].presets)
    assert text.splitlines()[-1].startswith("Cost: ")


def test_what_methods_need():
    assert describe.needs("ce") == []
    assert describe.needs("dividemix") == [
        "2 models, each with an optimizer of its own",
        "views: train, train",
        "inputs that can be averaged: images or features, not text",
    ]
    assert describe.needs("mentornet") == ["the noise rate: its own option, else --rate, else an estimate"]
    assert "  uniform: alpha=5, warmup_epochs=0.06667, ramp_epochs=0.9333" in describe.described("peer")


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
