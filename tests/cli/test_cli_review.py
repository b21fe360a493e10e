"""`label issues --folds`, `clean`, `export-predictions` and `review` as a user calls them."""

import csv
import json

import numpy as np
import pytest
from cli_cases import call

import ncsam
from ncsam.runs.decisions import Decisions
from ncsam.runs.reader import load_oof


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two clouds of points, 80 samples, ten labels wrong; a network that separates them."""
    folder = tmp_path_factory.mktemp("clouds")
    generator = np.random.default_rng(0)
    clean = np.arange(80) % 2
    observed = clean.copy()
    observed[:10] ^= 1
    x = (generator.normal(size=(80, 3)) + 8 * clean[:, None]).astype(np.float32)
    np.savez(folder / "data.npz", x=x, y=observed, y_clean=clean)
    options = ["--optimizer", "sgd", "--epochs", "12", "--model-options", "hidden=[8]", "--lr", "0.1"]
    call("train", folder / "data.npz", *options, "--quiet", "--out", folder / "run")
    return folder / "run"


def test_folds_judge_every_label_by_a_network_that_never_saw_it(run):
    listed = call("issues", run, "--folds", "4", "--top", "10").output
    assert "Of these 10 labels, about 10 are wrong; the suggestion is right for about 10." in listed
    rows = json.loads(call("issues", run, "--top", "10", "--json").output)
    assert sorted(row["index"] for row in rows) == list(range(10))
    assert all(row["suggested_label"] == row["clean_label"] and row["p_wrong"] > 0.8 for row in rows)
    assert json.loads((run / "label_posterior.json").read_text())["source"] == "out-of-fold predictions, 4 folds"
    stamps = {path: path.stat().st_mtime_ns for path in (run / "folds").rglob("last.ckpt")}
    assert len(stamps) == 4
    call("issues", run, "--folds", "4")
    assert stamps == {path: path.stat().st_mtime_ns for path in stamps}


def test_clean_prints_and_writes_what_changes(run, tmp_path):
    call("issues", run, "--folds", "4")
    assert f"next: ncsam review {run}; ncsam clean {run} --apply confident --out" in call("issues", run).output
    unseen = call("clean", run, "--dry-run").output
    assert "0 of 80 labels would change (none)" in unseen
    assert f"no label was reviewed: use `ncsam review {run}`, or accept suggestions with `--apply confident`" in unseen
    said = call("clean", run, "--apply", "confident", "--threshold", "0.5", "--dry-run").output
    assert "no label was reviewed" not in said
    assert "10 of 80 labels would change (10 confident)" in said
    assert "nobody has reviewed 10 of these; about 10 of them are correct" in said
    assert not (tmp_path / "cleaned.npz").exists()
    call("clean", run, "--apply", "confident", "--threshold", "0.5", "--out", tmp_path / "cleaned.npz")
    with np.load(tmp_path / "cleaned.npz") as found:
        assert np.array_equal(found["y"], np.arange(80) % 2)
    call("train", tmp_path / "cleaned.npz", "--epochs", "1", "--quiet", "--out", tmp_path / "again")
    log = Decisions(run, write=True)
    log.add(3, "keep", None, 0, 1, "Ada")
    log.close()
    assert "no label was reviewed" not in call("clean", run, "--dry-run").output
    assert "9 of 80 labels changed" in call("clean", run, "--apply", "all", "--out", tmp_path / "c.csv").output
    with (tmp_path / "c.csv").open() as file:
        assert [row["source"] for row in csv.DictReader(file)][2:5] == ["suggested", "reviewed", "suggested"]
    assert "Missing output" in call("clean", run, code=2).output
    assert "must end in .csv or .npz" in call("clean", run, "--out", "x.txt", code=2).output


def test_predictions_go_to_cleanlab_and_back(run, tmp_path):
    filtering = pytest.importorskip("cleanlab.filter", reason="cleanlab is not installed")
    call("issues", run, "--folds", "4")
    call("export-predictions", run, "--out", tmp_path / "p.npy", "--table", tmp_path / "t.csv")
    probabilities = np.load(tmp_path / "p.npy")
    assert np.array_equal(probabilities, load_oof(run).probabilities)
    with (tmp_path / "t.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["index"]) for row in rows] == list(range(80))
    labels = np.array([int(row["given_label_id"]) for row in rows])
    issues = filtering.find_label_issues(labels, probabilities, n_jobs=1)
    assert np.flatnonzero(issues).tolist() == list(range(10))
    before = (run / "label_issues.csv").read_text()
    call("export-predictions", run, "--take", tmp_path / "p.npy")
    assert (run / "label_issues.csv").read_text() == before
    np.save(tmp_path / "short.npy", probabilities[:5])
    assert "floats (80, 2)" in call("export-predictions", run, "--take", tmp_path / "short.npy", code=2).output


def test_datalab_takes_them_as_they_are(run, tmp_path):
    cleanlab = pytest.importorskip("cleanlab", reason="cleanlab is not installed")
    datasets = pytest.importorskip("datasets", reason="cleanlab's Datalab needs datasets")
    call("issues", run, "--folds", "4")
    call("export-predictions", run, "--out", tmp_path / "p.npy")
    frame = ncsam.load_run(run).find_label_issues().sort_values("index").reset_index(drop=True)
    for table in ({"given_label": frame["given_label"].tolist()}, datasets.Dataset.from_pandas(frame)):
        lab = cleanlab.Datalab(data=table, label_name="given_label", verbosity=0)
        lab.find_issues(pred_probs=np.load(tmp_path / "p.npy"), issue_types={"label": {}})
        assert np.flatnonzero(lab.get_issues("label")["is_label_issue"]).tolist() == list(range(10))


def test_labels_and_label_issues_as_a_parquet_table(run, tmp_path):
    pandas = pytest.importorskip("pandas", reason="ncsam[tables] is not installed")
    pytest.importorskip("pyarrow", reason="ncsam[parquet] is not installed")
    call("export-predictions", run, "--table", tmp_path / "t.parquet")
    found = pandas.read_parquet(tmp_path / "t.parquet")
    expected = ncsam.load_run(run).find_label_issues().sort_values("index").reset_index(drop=True)
    assert found.drop(columns="given_label_id").equals(expected)
    assert found["given_label"].tolist()[:3] == ["1", "0", "1"]
    refused = call("export-predictions", run, "--table", tmp_path / "t.xlsx", code=2).output
    assert "a file that ends in .csv or .parquet" in refused


def test_suggestions_that_cannot_be_trusted_come_with_a_warning(run, tmp_path):
    """After an underfitted run most suggestions are wrong, and whoever takes them all is told so."""
    data = run.parent / "data.npz"
    options = ["--optimizer", "sgd", "--epochs", "1", "--lr", "0.00001", "--quiet", "--folds", "2", "--seed", "3"]
    call("train", data, *options, "--out", tmp_path / "run")
    (tmp_path / "run" / "label_posterior.json").write_text(
        json.dumps({"reliable": False, "reason": "the model has learned little"})
    )
    with (tmp_path / "run" / "label_issues.csv").open(newline="") as file:
        rows = [{**row, "p_wrong": "", "p_suggested": "", "is_label_issue": 1} for row in csv.DictReader(file)]
    with (tmp_path / "run" / "label_issues.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    said = call("clean", tmp_path / "run", "--apply", "all", "--dry-run").output
    assert "warning: nobody has reviewed" in said
    assert "the model has learned little" in said
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    refused = call("clean", tmp_path / "run", "--folder", tmp_path / "full", code=2).output
    assert "--folder=" in refused
    assert "changed" not in refused


def test_in_sample_predictions_come_with_a_warning(run, tmp_path):
    (run / "oof_probs.npz").unlink(missing_ok=True)
    result = call("export-predictions", run, "--out", tmp_path / "p.npy")
    assert "the run has seen the labels of these samples" in result.output
    assert np.load(tmp_path / "p.npy").sum(axis=1) == pytest.approx(np.ones(80), abs=1e-5)


def test_review_needs_a_finished_run(tmp_path):
    (tmp_path / "config.yaml").write_text("epochs: 2\n")
    assert "is not finished" in call("review", tmp_path, "--no-open", code=2).output
