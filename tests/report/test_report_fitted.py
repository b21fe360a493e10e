"""The report of a model that was fitted at once: no epochs, and neither method nor optimizer."""

import warnings

import numpy as np
import pytest

import ncsam
from ncsam.report.content import gather


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    draws = np.random.default_rng(0)
    labels = np.arange(120) % 3
    images = (draws.integers(0, 80, (120, 8, 8)) + 60 * labels[:, None, None]).astype(np.uint8)
    images.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # torch's, of an array that may not be written to
        return ncsam.train((images, labels), tmp_path_factory.mktemp("runs") / "shapes", model="smooth")


def test_a_fitted_run_is_told_by_its_model(run):
    report = gather([run.path])
    assert report.title == "shapes"
    assert [group.label for group in report.groups] == ["smooth"]
    assert report.facts["model"] == "smooth"
    assert not {"epochs", "batch size"} & set(report.facts)
    assert not {"best", "val_chosen"} & set(report.columns)
    assert "epoch" not in " ".join(report.explained)


def test_beside_a_trained_run_both_are_told_apart(run, tmp_path):
    trained = ncsam.train("digits", tmp_path / "trained", epochs=1, optimizer="sgd", model_options={"hidden": [4]})
    labels = [group.label for group in gather([run.path, trained.path]).groups]
    assert labels[0].split(", ")[-1] == "smooth"
    assert "sgd" in labels[1]
