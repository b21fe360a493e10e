"""Methods that keep state, on two processes; where samples of a batch do not meet, the result is one process's."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from test_methods_runs import OPTIONS

from ncsam.engine import RunConfig, train
from two_processes import checkpoint, on_features, train_by_two, write_features

pytestmark = pytest.mark.slow

#: These treat each sample for itself: dividing the batch between two processes changes nothing.
SAMPLE_BY_SAMPLE = ("elr", "forward", "gce_truncated", "plc", "regce")
#: These choose or mix among the samples of a process; two networks and an optimizer of its own are among them.
WITHIN_A_BATCH = (
    "cal",
    "cc",
    "cleannet",
    "cores2",
    "coteaching_plus",
    "decoupling",
    "disc",
    "dividemix",
    "jocor",
    "limit",
    "mcorrection",
    "nct",
    "nested_coteaching",
    "selfie",
    "trevision",
)
#: These want images.
OF_IMAGES = ("colearning", "ctrr", "unicon")
METHODS = SAMPLE_BY_SAMPLE + WITHIN_A_BATCH + OF_IMAGES
#: One of each mechanism: samples for themselves, an optimizer of its own, two networks, mixtures, stages, views.
QUICK = ("elr", "forward", "plc", "regce", "cleannet", "coteaching_plus", "dividemix", "trevision", "unicon")
THE_REST = tuple(name for name in METHODS if name not in QUICK)


def options(data: Path, method: str) -> dict[str, object]:
    data = data.with_name("images.npz") if method in OF_IMAGES else data
    return on_features(data, epochs=2, warmup=0.0, method=method, method_options=OPTIONS.get(method, {}))


@pytest.fixture(scope="module")
def data_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (140, 4, 4, 1)).astype(np.uint8)
    y = np.arange(140) % 4
    np.savez(folder / "images.npz", x=x[:100], y=y[:100], x_test=x[100:], y_test=y[100:])
    return write_features(folder / "small.npz")


def trained(names: tuple[str, ...], folder: Path, data_file: Path) -> Path:
    train_by_two([(folder / name, options(data_file, name), None) for name in names])
    return folder


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory, data_file: Path) -> Path:
    return trained(QUICK, tmp_path_factory.mktemp("quick"), data_file)


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory, data_file: Path) -> Path:
    return trained(THE_REST, tmp_path_factory.mktemp("rest"), data_file)


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.stress) for name in THE_REST)])
def test_two_processes(name: str, request: pytest.FixtureRequest, data_file: Path, tmp_path: Path) -> None:
    folder: Path = request.getfixturevalue("quick" if name in QUICK else "rest")
    both = checkpoint(folder / name)
    assert len(both["ranks"]) == 2
    assert all(math.isfinite(record["train_loss"]) for record in both["history"])
    if name not in SAMPLE_BY_SAMPLE:
        return
    train(RunConfig.from_dict(options(data_file, name)), tmp_path, console=False)
    alone = checkpoint(tmp_path)
    for key, value in alone["learners"][0]["network"].items():
        assert torch.allclose(value, both["learners"][0]["network"][key], rtol=0, atol=1e-6), key
    for column, values in alone["samples"].items():
        torch.testing.assert_close(both["samples"][column], values, rtol=1e-4, atol=1e-5)
