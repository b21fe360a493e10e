"""The Python API: the same numbers as the engine, in a folder and in memory, on data in memory and on disk."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import ncsam
from ncsam.errors import UsageError
from ncsam.predictions import Predictions
from ncsam.runs.reader import RunFolder

SMALL = {"epochs": 2, "optimizer": "sgd", "accelerator": "cpu"}


@pytest.fixture(scope="module")
def clouds():
    """240 points in three clouds; the labels of 24 are wrong."""
    generator = np.random.default_rng(0)
    truth = np.arange(240) % 3
    x = (generator.normal(size=(240, 5)) + 4 * np.eye(3, 5)[truth]).astype(np.float32)
    given = truth.copy()
    given[::10] = (given[::10] + 1) % 3
    return x, np.array(["ant", "bee", "cat"])[given], truth


@pytest.fixture(scope="module")
def run(tmp_path_factory, clouds):
    x, y, _ = clouds
    out = tmp_path_factory.mktemp("api") / "run"
    return ncsam.train((x, y), out, **{**SMALL, "epochs": 15})


def test_the_folder_is_that_of_the_engine(run) -> None:
    assert repr(run).startswith(f"<Run {run.path}: ")
    assert RunFolder.read(run.path).summary == run.summary
    assert run.metrics.index.tolist() == list(range(1, 16))
    assert run.metrics["val_accuracy"].iloc[-1] == run.summary["last"]
    assert run.classes == ["ant", "bee", "cat"]
    assert "<table>" in run._repr_html_()
    assert run.config.epochs == 15


def test_predictions_are_those_of_the_model(run, clouds) -> None:
    x, _, truth = clouds
    found = run.predict(x)
    split = run.data.train
    prepared = (torch.from_numpy(x) - torch.tensor(run.data.mean)) / torch.tensor(run.data.std)
    with torch.no_grad():
        expected = run.model(prepared).softmax(dim=1).numpy()
    np.testing.assert_allclose(found.probabilities, expected, atol=1e-5)
    assert np.array_equal(found.labels, np.array(run.classes)[expected.argmax(axis=1)])
    assert (expected.argmax(axis=1) == truth).mean() > 0.95
    assert found.to_frame().shape == (240, 3)
    assert found.top(2)[0].keys() == {"input", "label", "probability", "label2", "probability2"}
    assert len(split) == 240
    with pytest.raises(UsageError, match=r"^invalid top="):
        found.top(4)
    with pytest.raises(UsageError, match=r"^invalid inputs="):
        run.predict(x[:, :3])


def test_predictions_for_texts_show_the_texts() -> None:
    p = np.array([[0.75, 0.25], [0.5, 0.5]], dtype=np.float32)
    long = "a long\nreview " * 10
    found = Predictions(["t.csv[0]", "t.csv[1]"], np.array(["bad", "bad"]), p, ["bad", "good"], (), ["dull", long])
    first, second = found.top()
    assert first == {"input": "t.csv[0]", "text": "dull", "label": "bad", "probability": 0.75}
    assert second["text"] == "a long review a long review a long review a long review a long review a long ..."
    assert found.to_frame()["text"].tolist() == ["dull", second["text"]]
    assert list(found.to_frame()) == ["input", "text", "label", "probability"]


def test_damaged_notes_are_an_error_before_folds_are_trained(run, tmp_path) -> None:
    copy = shutil.copytree(run.path, tmp_path / "copy")
    (copy / "checkpoints" / "last.json").write_bytes(b"\xff\xfe{")
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"last\.json"):
        ncsam.load_run(copy).find_label_issues(folds=2)
    assert {path: path.read_bytes() for path in before} == before


def test_folds_find_the_wrong_labels_and_cleaning_fixes_them(run, clouds) -> None:
    _, y, truth = clouds
    issues = run.find_label_issues(folds=3)
    assert len(issues) == 240
    wrong = set(np.flatnonzero(y != np.array(run.classes)[truth]).tolist())
    assert len(wrong & set(issues.numbers("index")[:24].tolist())) >= 22
    table = run.cleaned(apply="all")
    changed = table[table["label"] != table["given_label"]]
    assert len(changed) == issues.num_issues
    np.testing.assert_array_equal(table["given_label"].to_numpy()[:240], y)
    assert run.cleaned()["source"].unique().tolist() == ["given"]


def test_without_a_folder_nothing_is_left_behind(clouds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x, y, _ = clouds
    run = ncsam.train((x, y), **SMALL)
    assert "in memory" in repr(run)
    where = run.path
    assert len(run.find_label_issues()) == 240
    kept = run.save(tmp_path / "kept")
    page = run.report()
    assert page == Path("report.html")
    assert "Label issues" in page.read_text()
    assert kept.summary == run.summary
    del run
    gc.collect()
    assert not where.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "report.html"]


def test_memory_and_folder_and_engine_agree(tmp_path: Path) -> None:
    options = {"noise": "symmetric", "rate": 0.4, **SMALL}
    here = ncsam.train("digits", **options)
    there = ncsam.train("digits", tmp_path / "a", **options)
    again = ncsam.train(config=tmp_path / "a" / "config.yaml", out=tmp_path / "b")
    for run in (there, again):
        assert {**run.summary, "seconds": 0} == {**here.summary, "seconds": 0}
        assert (run.path / "label_issues.csv").read_bytes() == (here.path / "label_issues.csv").read_bytes()
    loaded = ncsam.load_run(tmp_path / "a")
    assert loaded.summary == there.summary
    assert loaded.data.train.labels.tolist() == there.data.train.labels.tolist()


def test_a_report_whose_data_has_changed_shows_no_samples(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (60, 6, 6, 3), dtype=np.uint8), np.arange(60) % 2
    np.savez(tmp_path / "d.npz", x=x, y=y)
    run = ncsam.train(tmp_path / "d.npz", tmp_path / "run", **SMALL)
    assert "<img" in run.report(tmp_path / "r.html").read_text()
    np.savez(tmp_path / "d.npz", x=x, y=1 - y)
    from ncsam.report.sections import _load

    _load.cache_clear()
    text = run.report(tmp_path / "r.html").read_text()
    assert "<img" not in text
    assert "The samples are not shown" in text
    with pytest.raises(ncsam.RunError, match="have changed"):
        ncsam.load_run(tmp_path / "run").data  # noqa: B018


@pytest.mark.usefixtures("jobs_here")
def test_comparisons_are_tables(clouds, tmp_path: Path) -> None:
    x, y, _ = clouds
    found = ncsam.compare((x, y), tmp_path, optimizers=["sgd", "sam"], seeds=2, epochs=2, workers=1)
    assert found.table["optimizer"].tolist() == ["sgd", "sam"]
    runs = found.runs
    assert len(runs) == 4
    first = [run.summary["last"] for run in runs if run.config.optimizer == "sgd"]
    assert found.table["last"][0] == pytest.approx(np.mean(first))
    assert found.table["last_std"][0] == pytest.approx(np.std(first, ddof=1))
    assert found.failed == []
    assert len(found.plot().axes) == 2
    assert found.report() == tmp_path / "report.html"
    assert "sgd" in repr(found)
    assert "<table>" in found._repr_html_()


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: ncsam.train("digits", epochz=3), "epochz"),
        (lambda: ncsam.train("digits", epochs=0), "epochs"),
        (lambda: ncsam.train(ncsam.RunConfig()), "data"),
        (lambda: ncsam.train(3), "data"),
        (lambda: ncsam.load_run("nowhere"), "run"),
        (lambda: ncsam.train("digits", preset="nothing"), "nothing"),
    ],
)
def test_mistakes_name_the_argument(call, name: str) -> None:
    with pytest.raises(UsageError, match=name):
        call()


def test_dir_is_the_public_api_and_every_name_is_there() -> None:
    assert dir(ncsam) == sorted(ncsam.__all__)
    for name in ncsam.__all__:
        assert getattr(ncsam, name) is not None
    assert not {"Any", "TYPE_CHECKING", "annotations"} & set(dir(ncsam))
    assert ncsam.noise.symmetric(np.arange(9000) % 3, 0.4, seed=1).rate == pytest.approx(0.4, abs=0.15)
    with pytest.raises(AttributeError):
        ncsam.nothing  # noqa: B018


def imported(code: str) -> set[str]:
    """The modules that a fresh interpreter has after running some code."""
    script = f"import sys\n{code}\nprint(*sys.modules)"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(answer.stdout.splitlines()[-1].split())


def test_importing_ncsam_imports_next_to_nothing() -> None:
    found = imported("import ncsam")
    assert {name for name in found if name.startswith("ncsam")} == {"ncsam", "ncsam._version"}
    assert not {"torch", "numpy", "pandas"} & found


def test_listing_label_issues_imports_little(run) -> None:
    """At most 60 of our modules, and none of the heavy packages."""
    code = f"from ncsam.cli.main import main\nmain(['issues', {str(run.path)!r}], standalone_mode=False)"
    found = imported(code)
    ours = {name for name in found if name.split(".")[0] == "ncsam"}
    assert len(ours) <= 60
    assert not {"torch", "pandas", "sklearn", "matplotlib", "lightning_fabric"} & found


def test_the_report_never_shows_samples_of_other_data(tmp_path: Path) -> None:
    """Digits in place of the user's own samples was a bug: labels are compared before anything is shown."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (60, 6, 6, 3), dtype=np.uint8)
    run = ncsam.train((x, np.arange(60) % 2), tmp_path / "run", **SMALL)
    assert run.config.data != "digits"
    from ncsam.report.sections import gallery

    found = gallery(RunFolder.read(run.path), "run", 3)
    import base64
    import io

    from PIL import Image

    for tile in found.tiles:
        with Image.open(io.BytesIO(base64.b64decode(tile.image.partition(",")[2]))) as image:
            np.testing.assert_array_equal(np.asarray(image), x[tile.row["index"]])


def test_a_model_of_ones_own(clouds) -> None:
    x, y, _ = clouds

    def build(num_classes: int) -> nn.Module:
        return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, num_classes))

    run = ncsam.train((x, y), model=build, **{**SMALL, "epochs": 10})
    assert sum(p.numel() for p in run.model.parameters()) == 5 * 8 + 8 + 8 * 3 + 3
    assert (run.predict(x).labels == y).mean() > 0.8
    assert run.find_label_issues(folds=2).about["source"] == "out-of-fold predictions, 2 folds"


@pytest.mark.parametrize("call", [ncsam.train, ncsam.auto, ncsam.audit, ncsam.compare])
def test_labels_in_the_place_of_the_folder_are_answered(call, clouds) -> None:
    with pytest.raises(UsageError, match=r"invalid out='ndarray': .*labels go with the samples, as \(X, y\)"):
        call(clouds[0], clouds[1])


def test_rows_without_columns_do_not_fit_a_table() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": np.arange(40) % 2 + 0.1, "c": ["x", "y"] * 20, "label": ["no", "yes"] * 20})
    run = ncsam.train(frame)
    one = frame.drop(columns="label")
    assert run.predict(one.iloc[[1]]).labels.tolist() == ["yes"]
    for rows in (one.iloc[1], one.to_numpy()):
        with pytest.raises(
            UsageError, match=r"invalid inputs=.*expected rows with the columns of the run: a DataFrame"
        ):
            run.predict(rows)
    with pytest.raises(UsageError, match="invalid inputs=5: expected samples"):
        run.predict(5)


def test_an_exported_model_gives_the_same_logits(run, clouds, tmp_path: Path) -> None:
    assert run.export(tmp_path / "m.pt") == ""
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(torch.jit.load(tmp_path / "m.pt")(x), run.model(x))
    for path, format_, said in (("m.pt", "tflite", "unknown format 'tflite'"), ("m.json", "onnx", "invalid out=")):
        with pytest.raises(UsageError, match=said):
            run.export(tmp_path / path, format_)
