"""Each recipe of CONTRIBUTING.md is followed: its code goes into a folder of its own, and is used by its name."""

from __future__ import annotations

import importlib
import re
import runpy
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import ncsam.methods
import ncsam.optim
from ncsam import data, noise
from ncsam.engine import RunConfig, train

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SMALL = {"noise": "symmetric", "rate": 0.4, "epochs": 5, "model": "mlp", "model_options": {"hidden": [16]}}


def recipe(heading: str) -> str:
    """The code of a section."""
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert section is not None
    code = re.search(r"^( *)```python\n(.*?)^ *```", section[1], flags=re.DOTALL | re.MULTILINE)
    assert code is not None
    return textwrap.dedent(code[2])


def followed(heading: str, package: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the code of a section into a folder that belongs to a package, for the length of a test."""
    name = f"recipe_{package.__name__.split('.')[-1]}"
    (tmp_path / f"{name}.py").write_text(recipe(heading))
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    full = f"{package.__name__}.{name}"
    module = importlib.import_module(full)
    del sys.modules[full]
    monkeypatch.setitem(sys.modules, full, module)  # is taken out again at the end


def test_a_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncsam.methods.registry, "_METHODS", dict(ncsam.methods.registry._METHODS))
    followed("A method", ncsam.methods, tmp_path, monkeypatch)
    method = ncsam.methods.create("halfgce", q=1.0)
    logits, labels = torch.zeros(2, 4), torch.tensor([0, 3])
    assert method.criterion(logits, labels).item() == pytest.approx((1 - 0.25) / 2)  # GCE with q = 1 is 1 - p
    summary = train(RunConfig(method="halfgce", optimizer="sgd", **SMALL), tmp_path / "run", console=False)
    assert summary["method"] == "halfgce"


def test_an_optimizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = ncsam.optim.registry
    monkeypatch.setattr(registry, "_OPTIMIZERS", dict(registry._OPTIMIZERS))
    followed("An optimizer", ncsam.optim, tmp_path, monkeypatch)
    model = torch.nn.ParameterList([torch.tensor([3.0, -0.1])])
    (weight,) = model
    optimizer = ncsam.optim.get("signsam")(torch.optim.SGD([weight], lr=1.0), rho=0.2, model=model)
    seen = []

    def loss() -> torch.Tensor:
        seen.append(weight.detach().clone())
        return weight.square().sum() / 2

    optimizer.run_passes(loss)
    optimizer.step()
    eps = 0.2 * torch.tensor([1.0, -1.0]) / 2**0.5
    torch.testing.assert_close(seen[1] - seen[0], eps)
    torch.testing.assert_close(weight.detach(), seen[0] - (seen[0] + eps))  # the gradient of |w|^2 / 2 is w
    summary = train(RunConfig(optimizer="signsam", rho=0.1, **SMALL), tmp_path / "run", console=False)
    assert summary["optimizer"] == "signsam"


def test_a_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "GENERATORS", dict(noise.GENERATORS))
    exec(recipe("A noise"), {"__name__": "recipe"})
    labels = np.arange(5000) % 5
    found = noise.make("to_last", labels, 0.3, num_classes=5, seed=1)
    assert set(np.unique(found.noisy[found.mask])) == {4}
    assert found.rate == pytest.approx(0.3 * 0.8, abs=4 * (0.3 * 0.7 / 5000) ** 0.5)


def test_a_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data.registry, "_entries", dict(data.registry._entries))
    exec(recipe("A dataset"), {"__name__": "recipe"})
    points = data.load("stripes")
    assert len(points.train) == 48
    assert ((points.train.inputs[:, 0] > 0) == points.train.labels).all()
    summary = train(RunConfig(data="stripes", optimizer="sgd", **SMALL), tmp_path / "run", console=False)
    assert summary["data"] == "stripes"


@pytest.mark.slow
@pytest.mark.usefixtures("jobs_here")
def test_an_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code = recipe("An experiment")
    assert len(code.splitlines()) < 40
    (tmp_path / "radii.py").write_text(code)
    monkeypatch.syspath_prepend(ROOT / "experiments")
    monkeypatch.setattr(sys, "argv", ["radii.py", str(tmp_path / "runs"), "--quick", "--jobs", "1"])
    runpy.run_path(str(tmp_path / "radii.py"), run_name="__main__")
    shown = capsys.readouterr().out
    assert "## radii, 1 seed" in shown
    assert re.search(r"\| SAM \.05 less SGD \| [+-]\d+\.\d \|", shown)
