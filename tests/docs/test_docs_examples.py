"""The examples of the docstrings, which the site shows as reference: each runs and gives what stands below it."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import ncsam

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SOURCE = Path(ncsam.__file__).parent


def modules_with_examples() -> list[str]:
    found = [
        module.name for module in pkgutil.walk_packages([str(SOURCE)], "ncsam.") if module.name != "ncsam.__main__"
    ]
    files = {name: SOURCE.parent / Path(*name.split(".")) for name in found}
    texts = {
        name: (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
        for name, path in files.items()
    }
    return sorted(name for name, text in texts.items() if ">>>" in text)


@pytest.mark.usefixtures("jobs_here")
@pytest.mark.parametrize("name", modules_with_examples())
def test_the_examples_of_a_module(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name.startswith("ncsam.integrations."):
        pytest.importorskip(name.rpartition(".")[2].replace("lightning", "pytorch_lightning"))
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    tests = [test for test in doctest.DocTestFinder(exclude_empty=True).find(module, name) if test.examples]
    assert tests
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    said: list[str] = []
    for test in tests:
        runner.run(test, out=said.append)
    assert "".join(said) == ""


@pytest.mark.parametrize("name", ["SAM", "NCSAM", "ASAM", "BSAM", "FriendlySAM", "SANER", "MSAM"])
def test_every_optimizer_has_an_example(name: str) -> None:
    assert " loss = optimizer.step(lambda: model(x), y)" in (getattr(ncsam, name).__doc__ or "")
