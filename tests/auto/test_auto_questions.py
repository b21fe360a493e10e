"""A review for model selection: questions with known probabilities, crash-safe, and what the answers are used for."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from auto_cases import clouds, config

from ncsam.automl import auto, portfolio
from ncsam.automl import questions as asking
from ncsam.automl import run as auto_run
from ncsam.automl.candidates import ClosedForm
from ncsam.automl.problem import Problem
from ncsam.automl.questions import CandidatePredictions, Questions, candidate_predictions, read_rounds
from ncsam.automl.verified import Verified, held_out_predictions
from ncsam.automl.verified_source import read_verified, without_column
from ncsam.engine import RunConfig, train
from ncsam.engine.task import load_task, task_of
from ncsam.errors import RunError, UsageError
from ncsam.issues.posterior import recalibrated
from ncsam.review.server import Review
from ncsam.run import Run
from ncsam.runs.decisions import Decisions

FEW = [
    ClosedForm("smooth", "smooth"),
    ClosedForm("prototypes-pruned", "prototypes", {"prune": 1}),
    ClosedForm("knn-30", "knn", {"k": 30}),
]
DATASET = clouds()
TRUE: Any = DATASET.train.clean


@pytest.fixture(scope="module")
def auto_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `auto` with three candidates."""
    folder = tmp_path_factory.mktemp("questions") / "run"
    with pytest.MonkeyPatch.context() as patch:
        for module in (auto_run, portfolio):
            patch.setattr(module, "portfolio", lambda problem: FEW)
        auto(config(), folder, folds=4, dataset=DATASET, say=str)
    return folder


@pytest.fixture
def folder(auto_folder: Path) -> Path:
    for name in ("review.jsonl", "questions.jsonl"):
        (auto_folder / name).unlink(missing_ok=True)
    return auto_folder


def a_review(folder: Path) -> Review:
    return Review(folder, dataset=DATASET, purpose="model-selection")


def answer(review: Review, index: int) -> dict[str, Any]:
    """What a person who knows the truth does."""
    given, true = int(DATASET.train.labels[index]), int(TRUE[index])
    suggested = int(review.queue.suggested_label[review.queue.row_of[index]])
    choice = "keep" if true == given else "accept" if true == suggested else "other"
    return review.decide({"index": index, "choice": choice, "reviewer": "Ada", "label": true})


def shown(review: Review) -> list[int]:
    return [item["index"] for item in review.items({"status": "undecided", "reviewer": "Ada"}, 24, False)["items"]]


def test_a_review_asks_in_rounds_and_says_what_is_known(folder: Path) -> None:
    review = a_review(folder)
    before = review.state()["progress"]
    assert before["total"] == before["decided"] == 0
    for number in range(1, 7):
        asked = shown(review)
        assert 1 <= len(asked) <= 10
        assert len(list(read_rounds(folder / "questions.jsonl"))) >= number
        for index in asked:
            said = answer(review, index)["progress"]
    assert said["answers"] >= 60
    assert said["noise_rate"]["low"] < (DATASET.train.labels != TRUE).mean() < said["noise_rate"]["high"]
    assert said["best"] in ("smooth", "prototypes-pruned", "knn-30")
    assert f"After {said['answers']} answers" in said["sentence"]
    assert "Ten more answers" in said["expected"]
    review.close()
    # a killed page resumes with the same question, and a cut-off line is no round
    asked = shown(again := a_review(folder))
    again.close()
    with (folder / "questions.jsonl").open("ab") as file:
        file.write(b'{"index": [1, 2], "proba')
    third = a_review(folder)
    assert shown(third) == asked
    third.close()


def test_probabilities_are_those_of_the_draws(folder: Path) -> None:
    review = a_review(folder)
    questions = review.questions
    assert questions is not None
    first = questions._probabilities(None)
    for index in shown(review):
        answer(review, index)
    (asked, chances), *_ = questions.rounds
    np.testing.assert_allclose(chances, first[questions._rows[asked]])
    assert first.min() >= 0.3 / len(first)
    found = questions.verified(review.decisions)
    assert found is not None
    np.testing.assert_array_equal(found.labels, TRUE[questions.known.index[found.rows]])
    review.close()


def test_decisions_of_a_review_of_label_issues_give_no_unbiased_estimate(folder: Path, tmp_path: Path) -> None:
    decisions = Decisions(folder, write=True)
    for index in range(20):
        decisions.add(index, "other", int(TRUE[index]), int(DATASET.train.labels[index]), 0, "Ada")
    decisions.add(20, "unsure", None, int(DATASET.train.labels[20]), 0, "Ada")
    decisions.close()
    found = read_verified(folder / "review.jsonl", DATASET)
    assert found.rows.tolist() == list(range(20))
    assert found.probabilities is not None
    assert np.isnan(found.probabilities).all()
    assert found.drawn() is None
    problem = Problem(config(), load_task(config(), DATASET), 4, found)
    np.testing.assert_array_equal(problem.training_labels[:20], TRUE[:20])
    with pytest.raises(UsageError, match="verified"):
        read_verified(tmp_path, DATASET)


def test_verified_labels_are_trained_on_and_decide_label_issues(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    review = a_review(folder)
    for _ in range(3):
        for index in shown(review):
            answer(review, index)
    review.close()
    for module in (auto_run, portfolio):
        monkeypatch.setattr(module, "portfolio", lambda problem: FEW)
    seen: list[Any] = []
    fit = FEW[0].cross_fit
    monkeypatch.setattr(
        ClosedForm, "cross_fit", lambda self, problem: (seen.append(problem.training_labels), fit(problem))[1]
    )
    board = auto(config(), tmp_path / "out", folds=4, dataset=DATASET, verified=str(folder), say=str)
    known = read_verified(folder, DATASET)
    np.testing.assert_array_equal(seen[0][known.rows], known.labels)
    others = np.setdiff1d(np.arange(240), known.rows)
    np.testing.assert_array_equal(seen[0][others], DATASET.train.labels[others])
    assert board["noise_rate"]["source"] == "verified labels"
    issues = Run(tmp_path / "out", dataset=DATASET).find_label_issues()
    place = {int(index): row for row, index in enumerate(issues.numbers("index"))}
    wrong = known.labels != DATASET.train.labels[known.rows]
    assert wrong.any()
    for index, label, differs in zip(known.rows.tolist(), known.labels.tolist(), wrong.tolist(), strict=True):
        row = place[index]
        assert issues.numbers("p_wrong")[row] == issues.numbers("is_label_issue")[row] == differs
        if differs:
            assert issues.numbers("suggested_label")[row] == label
    with (tmp_path / "out" / "verified.csv").open() as file:
        stored = list(csv.DictReader(file))
    assert [int(row["index"]) for row in stored] == known.rows.tolist()
    again = read_verified(tmp_path / "out" / "verified.csv", DATASET)
    np.testing.assert_allclose(again.probabilities, known.probabilities)


def test_trusted_rows_are_never_pruned(folder: Path) -> None:
    x = np.repeat(np.eye(2, 4, dtype=np.float32), 40, axis=0) + 0.01 * np.random.default_rng(0).normal(size=(80, 4))
    y = np.repeat([0, 1], 40)
    y[0] = 1  # wrong by all that the features tell
    import torch

    from ncsam import classifiers

    rows, labels = torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y)
    trusted = np.zeros(80, dtype=bool)
    trusted[0] = True

    def prototypes(**options: Any) -> Any:
        return classifiers.cross_fit("prototypes", rows, labels, 2, prune=1, **options).member.state["prototypes"]

    kept, pruned = prototypes(trusted=trusted), prototypes()
    plain = classifiers.fit("prototypes", rows, labels, 2).state["prototypes"]
    torch.testing.assert_close(kept, plain)
    assert not torch.allclose(pruned, plain)


def test_a_run_on_features_gets_its_candidates_when_it_is_asked(tmp_path: Path) -> None:
    x, y = DATASET.train.inputs, DATASET.train.labels
    np.savez(tmp_path / "data.npz", x=x, y=y)
    settings = RunConfig(data=str(tmp_path / "data.npz"), model="lda", val_share=0.0, epochs=1)
    train(settings, tmp_path / "run", console=False)
    found = candidate_predictions(tmp_path / "run", task_of(tmp_path / "run"))
    assert "smooth" in found.names
    assert len(found.groups) == 3
    np.testing.assert_array_equal(y[found.index], found.given)
    stored = CandidatePredictions.load(tmp_path / "run")
    assert stored is not None
    np.testing.assert_array_equal(stored.predicted, found.predicted)
    (tmp_path / "run" / "candidates.npz").write_bytes(b"")
    with pytest.raises((RunError, ValueError)):
        CandidatePredictions.load(tmp_path / "run")


def test_a_column_of_the_data_holds_verified_labels(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    rows = [("a", "b", "label", "checked", "split")]
    rows += [(str(i), str(2 * i), "dog" if i % 2 else "cat", "cat" if i == 3 else "", "train") for i in range(8)]
    rows += [("1", "2", "cat", "", "test"), ("2", "2", "dog", "", "test")]
    file.write_text("\n".join(map(",".join, rows)))
    values, settings = without_column("checked", RunConfig(data=str(file), val_share=0.0))
    assert values == ["", "", "", "cat", "", "", "", ""]
    task = load_task(settings)
    assert task.dataset.columns == ("a", "b")
    found = read_verified(values, task.dataset)
    assert (found.rows.tolist(), found.labels.tolist()) == ([3], [0])
    with pytest.raises(UsageError, match="verified"):
        without_column("nothing", RunConfig(data=str(file), val_share=0.0))


def test_the_stack_is_judged_on_answers_it_was_not_fitted_to() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=400)
    p = rng.dirichlet(np.ones(3), size=400)  # knows nothing
    answers = Verified(np.arange(60), truth[:60])
    held = held_out_predictions([p], answers)
    assert held.shape == (400,)
    assert (held[:60] == truth[:60]).mean() < 0.5


def test_p_wrong_is_calibrated_by_answers() -> None:
    p = np.linspace(0.05, 0.95, 200)
    rows = np.arange(0, 200, 2)
    right = recalibrated(p, rows, np.zeros(100, dtype=bool))
    assert right.mean() < 0.1
    rng = np.random.default_rng(0)
    same = recalibrated(p, rows, rng.random(100) < p[rows])
    assert np.abs(same - p).max() < 0.15
    assert (np.diff(same) > 0).all()
    np.testing.assert_allclose(recalibrated(p, rows[:0], np.zeros(0, dtype=bool)), p, atol=1e-9)


@pytest.mark.parametrize(
    "line", ['{"index": [1]}', '{"index": [-1], "probability": [0.5]}', "[]", '{"index": [1], "probability": [2.0]}']
)
def test_a_forged_round_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "questions.jsonl").write_text(json.dumps({"index": [0], "probability": [0.5]}) + "\n" + line + "\n")
    with pytest.raises(ValueError, match="not a round of questions"):
        list(read_rounds(tmp_path / "questions.jsonl"))


def test_no_question_is_left_when_all_samples_are_decided(folder: Path) -> None:
    known = CandidatePredictions.load(folder)
    assert known is not None
    few = np.arange(5)
    small = CandidatePredictions(
        known.index[few], known.given[few], known.names, known.predicted[few], [p[few] for p in known.groups]
    )
    questions, decisions = Questions(folder, small), Decisions(folder, write=True)
    for _ in range(20):
        left = questions.draw(decisions)
        for index in left:
            decisions.add(index, "keep", None, int(DATASET.train.labels[index]), 0, "Ada")
    assert left == []
    assert decisions.decided() == sorted(small.index.tolist())
    decisions.close()
    assert asking.ROUND == 10
