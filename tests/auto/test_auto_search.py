"""Folds, out-of-fold predictions, ranking, stopping, the mean; and a search that was killed."""

import json
import shutil
import time
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from auto_cases import clouds, config, problem

from ncsam.automl import auto, leaderboard
from ncsam.automl import run as auto_run
from ncsam.automl.candidates import ClosedForm, Network, equal_batches
from ncsam.automl.outcome import Outcome, Part, correct, held_out_labels, paired_gap
from ncsam.automl.portfolio import portfolio
from ncsam.automl.problem import Problem
from ncsam.automl.search import run_candidates
from ncsam.automl.selection import choose, temperature_of
from ncsam.classifiers import Member
from ncsam.data import from_arrays
from ncsam.engine.predictor import load_predictor
from ncsam.engine.task import load_task
from ncsam.errors import RunError
from ncsam.jobs import ExecutorConfig
from ncsam.models import create
from ncsam.models.mean import Mean
from ncsam.runs.reader import RunFolder, load_oof
from processes import start


def lda(name="lda", **options):
    return ClosedForm(name, "lda", {"shrinkage": 0.5, "unit": False, **options})


def search(small, folder, candidates, **options):
    return run_candidates(small, candidates, folder, ExecutorConfig(), **{"say": str, **options})


@dataclass(frozen=True)
class Spy(Network):
    """Notes what it was shown, and predicts class 0."""

    shown: dict = field(default_factory=dict)

    def fit(self, problem, fold, scratch):
        self.shown[fold] = problem.fold_task(fold).train
        weight = torch.zeros(problem.classes, problem.vectors.shape[1])
        bias = torch.tensor([1.0] + [0.0] * (problem.classes - 1))
        options = {"hidden": [], "in_features": problem.vectors.shape[1]}
        return [Member("mlp", options, {"fc.weight": weight, "fc.bias": bias})]

    def seconds(self, problem):
        return 1.0


def test_a_candidate_never_sees_the_samples_it_is_judged_by(tmp_path):
    small, shown = problem(), {}
    (outcome,) = search(small, tmp_path, [Spy("spy", shown=shown)])
    for fold, held in enumerate(small.held_out):
        assert not set(shown[fold]) & set(held)
        assert set(shown[fold]) | set(held) == set(range(240))
    assert np.concatenate(small.held_out).size == 240
    np.testing.assert_array_equal(correct(small, outcome), held_out_labels(small) == 0)


@pytest.mark.parametrize("candidate", [lda(), Network("n", {"epochs": 8, "optimizer": "sgd", "lr": 0.05})])
def test_labels_of_a_fold_do_not_reach_its_predictions(tmp_path, candidate):
    one, two = problem(), problem()
    two.labels = two.training_labels = two.labels.copy()
    two.labels[two.held_out[0]] = (two.labels[two.held_out[0]] + 1) % 3
    changed = two.dataset.train.with_labels(two.labels, None)
    two.dataset = replace(two.dataset, train=changed)
    two.task = replace(two.task, dataset=two.dataset)
    first = search(one, tmp_path / "one", [candidate])[0].predicted()
    second = search(two, tmp_path / "two", [candidate])[0].predicted()
    count = len(one.held_out[0])
    np.testing.assert_array_equal(first[:count], second[:count])
    assert not np.array_equal(first[count:], second[count:])


def test_the_gap_is_paired():
    best = np.array([True] * 60 + [False] * 40)
    own = best.copy()
    own[:5] = False
    mean, error = paired_gap(own, best)
    assert mean == pytest.approx(0.05)
    assert error == pytest.approx(np.sqrt(0.05 * 0.95 / 100))
    assert paired_gap(best[:50], best) == (0.0, 0.0)


def test_the_search_stops_what_cannot_win_and_ranks_the_rest(tmp_path):
    small = problem()
    candidates = [lda("good"), Spy("bad"), lda("same", shrinkage=0.51)]
    outcomes = search(small, tmp_path, candidates)
    assert [outcome.status for outcome in outcomes] == ["finished", "stopped", "finished"]
    assert len(outcomes[1].parts) == 1
    assert "points behind after 1 of 4 folds" in outcomes[1].reason
    board = leaderboard.make(small, outcomes, choose(small, outcomes))
    assert [row["name"] for row in board["candidates"]][-1] == "bad"
    accuracies = [row["noisy_accuracy"] for row in board["candidates"][:2]]
    assert accuracies == sorted(accuracies, reverse=True)
    row = board["candidates"][0]
    share = row["noisy_accuracy"] / 100
    assert share == correct(small, next(o for o in outcomes if o.name == row["name"])).mean()
    assert row["standard_error"] == pytest.approx(100 * np.sqrt(share * (1 - share) / 240))


def test_the_leaderboard_has_scikit_learns_metrics(tmp_path):
    from sklearn.metrics import balanced_accuracy_score, f1_score, roc_auc_score

    small = problem()
    outcomes = search(small, tmp_path, [lda()])
    row = leaderboard.make(small, outcomes, choose(small, outcomes))["candidates"][0]
    labels, p = held_out_labels(small), outcomes[0].probabilities()
    assert row["noisy_balanced_accuracy"] == pytest.approx(100 * balanced_accuracy_score(labels, p.argmax(axis=1)))
    assert row["noisy_f1"] == pytest.approx(100 * f1_score(labels, p.argmax(axis=1), average="macro"))
    assert row["noisy_auc"] == pytest.approx(100 * roc_auc_score(labels, p, multi_class="ovr"))


def test_a_budget_skips_networks_but_never_the_first_candidate(tmp_path):
    outcomes = search(problem(), tmp_path / "one", [lda(), Spy("network")], budget=1e-9)
    assert [outcome.status for outcome in outcomes] == ["finished", "skipped"]
    closed = [ClosedForm("smooth", "smooth"), ClosedForm("knn-30", "knn", {"k": 30}), ClosedForm("other", "prototypes")]
    found = search(problem(), tmp_path / "three", closed, budget=1e-9)
    assert [outcome.status for outcome in found] == ["finished", "finished", "skipped"]
    again = search(problem(), tmp_path / "three", closed)  # what was skipped is done without the budget
    assert [outcome.status for outcome in again] == ["finished"] * 3
    (only,) = search(problem(), tmp_path / "two", [Spy("network")], budget=1e-9)
    assert only.status == "finished"


def made(small, name, p):
    """An outcome with these probabilities, fold after fold."""
    return Outcome(lda(name), [Part(1.0, np.log(p).astype(np.float32)[None], [])], "finished")


def test_temperature_undoes_overconfidence():
    small = problem()
    labels = held_out_labels(small)
    generator = np.random.default_rng(0)
    p = np.full((240, 3), 0.2)
    believed = np.where(generator.random(240) < 0.6, labels, (labels + 1 + generator.integers(0, 2, 240)) % 3)
    p[np.arange(240), believed] = 0.6
    sharp = p**4 / (p**4).sum(axis=1, keepdims=True)
    # the likelihood is largest where the class believed in gets the share s in which it is right
    right = (believed == labels).mean()
    wanted = np.log(3) / np.log(2 * right / (1 - right))
    assert temperature_of(made(small, "calm", p), labels) == pytest.approx(wanted, rel=0.02)
    assert temperature_of(made(small, "sharp", sharp), labels) == pytest.approx(4 * wanted, rel=0.02)


def test_without_a_recommended_candidate_the_best_on_noisy_labels_is_taken(tmp_path):
    small = problem()
    good, bad = lda("good"), ClosedForm("bad", "knn", {"k": 200})
    outcomes = search(small, tmp_path, [bad, good])
    assert correct(small, outcomes[1]).mean() > correct(small, outcomes[0]).mean()
    chosen = choose(small, outcomes)
    assert (chosen.names, chosen.member.model) == (["good"], "mean")


def test_the_recommended_classifier_is_taken_whatever_noisy_labels_say(tmp_path):
    small = problem()
    outcomes = search(small, tmp_path, [ClosedForm("smooth", "smooth"), lda()])
    chosen = choose(small, outcomes)
    assert (chosen.names, chosen.member.model) == (["smooth"], "smooth")
    np.testing.assert_allclose(chosen.probabilities, outcomes[0].probabilities())


def test_mean_network_is_the_weighted_mean_of_probabilities():
    one, two = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
    x = torch.randn(5, 4)
    network = Mean([one, two], [3.0, 1.0], [1.0, 2.0])
    wanted = 0.75 * one(x).softmax(dim=1) + 0.25 * (two(x) / 2).softmax(dim=1)
    torch.testing.assert_close(network(x).exp(), wanted)


def test_a_mean_takes_no_network_from_elsewhere():
    member = {"model": "os:getcwd", "options": {}}
    with pytest.raises(ValueError, match="members="):
        create("mean", 3, members=[member], weights=[1.0], temperatures=[1.0])
    with pytest.raises(ValueError, match="members="):
        create("mean", 3)


def test_equal_batches():
    assert equal_batches(899, 128) == 113
    assert equal_batches(1024, 128) == 128
    assert equal_batches(50, 128) == 50


QUICK = [
    ClosedForm("smooth", "smooth"),
    lda(),
    lda("pruned", prune=1),
    Network("sgd", {"optimizer": "sgd", "epochs": 3, "batch_size": 32}),
]


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(auto_run, "portfolio", lambda problem: QUICK)


def timeless(board):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in board["candidates"]], board["chosen"]


def test_auto_writes_a_run_that_predicts_as_its_classifier(tmp_path, quick):
    dataset = clouds()
    board = auto(config(), tmp_path / "run", folds=4, dataset=dataset, say=str)
    run = RunFolder.read(tmp_path / "run")
    assert run.finished
    assert json.loads((tmp_path / "run" / "leaderboard.json").read_text()) == board
    trained = load_predictor(tmp_path / "run")
    test = dataset.test
    p = torch.cat(list(trained.probabilities(test.inputs)))
    assert p.shape == (240, 3)
    accuracy = 100 * (p.argmax(dim=1).numpy() == test.labels).mean()
    assert run.summary["last"] == pytest.approx(accuracy)
    assert accuracy > 90
    # by hand, from the file of the chosen candidate
    (name,) = board["chosen"]["candidates"]
    saved = torch.load(tmp_path / "run" / "candidates" / name / "part-0.pt", weights_only=True)
    (each,) = saved["members"]
    x = (torch.from_numpy(test.inputs) - torch.tensor(dataset.mean)) / torch.tensor(dataset.std)
    by_hand = Member(each["model"], each["options"], each["state"]).network(3, 1)(x).softmax(dim=1)
    torch.testing.assert_close(p, by_hand, atol=1e-5, rtol=1e-4)
    assert run.summary["label_issues_auroc"] > 0.9
    assert set(run.label_issues().numbers("held_out")) == {1}


def test_label_issues_come_from_predictions_out_of_fold(tmp_path, quick):
    board = auto(config(), tmp_path / "run", folds=4, dataset=clouds(), say=str)
    issues = RunFolder.read(tmp_path / "run").label_issues()
    order = np.argsort(issues.numbers("index"))
    oof = load_oof(tmp_path / "run")
    assert oof.belong_to(clouds().train.labels)
    predicted = oof.probabilities.argmax(axis=1)
    observed = issues.numbers("given_label")[order]
    assert 100 * np.mean(predicted == observed) == pytest.approx(board["chosen"]["noisy_accuracy"], abs=3)
    suggested = issues.numbers("suggested_label")[order]
    sure = (predicted != observed) & (oof.probabilities.max(axis=1) > 0.6)
    assert sure.sum() > 5
    assert (suggested != observed).all()  # always another label, and the predicted one where that is clear
    np.testing.assert_array_equal(suggested[sure], predicted[sure])


def test_a_finished_folder_is_returned_and_another_search_refused(tmp_path, quick):
    dataset, said = clouds(), []
    board = auto(config(), tmp_path / "run", folds=4, dataset=dataset, say=str)
    assert auto(config(), tmp_path / "run", folds=4, dataset=dataset, say=said.append) == board
    assert "finished" in said[0]
    with pytest.raises(RunError, match="another search"):
        auto(config(seed=2), tmp_path / "run", folds=4, dataset=dataset, say=str)


def test_samples_held_out_for_good_are_in_no_fold(tmp_path, quick):
    auto(config(val_share=0.2), tmp_path / "run", folds=4, dataset=clouds(), say=str)
    issues = RunFolder.read(tmp_path / "run").label_issues()
    assert len(issues) == 240
    assert issues.numbers("held_out").sum() == 240  # every prediction was made without the sample


def search_whole(folder):
    candidates = [
        ClosedForm("lda", "lda"),
        Network("sgd", {"optimizer": "sgd", "epochs": 8, "batch_size": 32}),
        Network("sam", {"optimizer": "sam", "rho": "auto", "epochs": 4, "batch_size": 32}),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ncsam.automl.run.portfolio", lambda problem: candidates)
        auto(config(), folder, folds=3, dataset=clouds(), say=str)


@pytest.mark.slow
def test_a_killed_search_ends_with_the_same_leaderboard(tmp_path):
    undisturbed, killed = tmp_path / "one", tmp_path / "two"
    search_whole(undisturbed)
    process = start(search_whole, killed)
    deadline = time.monotonic() + 120
    while not (killed / "candidates" / "sgd" / "part-0.pt").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.join()
    assert not (killed / "summary.json").exists()
    search_whole(killed)
    assert timeless(leaderboard.read(undisturbed)) == timeless(leaderboard.read(killed))
    one, two = (torch.load(f / "checkpoints" / "last.ckpt", weights_only=True) for f in (undisturbed, killed))
    for name, value in one["learners"][0]["network"].items():
        assert torch.equal(value, two["learners"][0]["network"][name])


def test_a_search_whose_files_are_spoiled_says_so_in_a_sentence(tmp_path, quick):
    dataset = clouds()
    auto(config(), tmp_path, dataset=dataset, folds=3, say=str)
    board = (tmp_path / "leaderboard.json").read_text()
    for spoiled in ("{", "[]", "{}", board.replace('"status": "finished"', '"status": null'), board[:-200]):
        (tmp_path / "leaderboard.json").write_text(spoiled)
        with pytest.raises(RunError, match=r"leaderboard\.json.*summary\.json"):
            auto(config(), tmp_path, dataset=dataset, folds=3, say=str)
    (tmp_path / "summary.json").unlink()
    assert auto(config(), tmp_path, dataset=dataset, folds=3, say=str) == json.loads(board)

    (tmp_path / "summary.json").unlink()
    fold = next((tmp_path / "candidates").rglob("part-0.pt"))
    state = torch.load(fold, weights_only=True)
    for wrong in ([1], {**state, "members": []}, {**state, "log_probabilities": torch.zeros(1, 2, 3)}, {"a": Spy}):
        torch.save(wrong, fold)
        with pytest.raises(RunError, match="damaged, or belongs") as found:
            auto(config(), tmp_path, dataset=dataset, folds=3, say=str)
        assert "weights_only" not in str(found.value)
    fold.unlink()
    about = (tmp_path / "auto.json").read_text()
    (tmp_path / "auto.json").write_text("{")
    with pytest.raises(ValueError, match=r"auto\.json.*readable"):
        auto(config(), tmp_path, dataset=dataset, folds=3, say=str)
    (tmp_path / "auto.json").write_text(json.dumps({**json.loads(about), "config": 5}))
    with pytest.raises(RunError, match="holds another search"):
        auto(config(), tmp_path, dataset=dataset, folds=3, say=str)


def test_the_networks_of_a_fold_are_of_ours_alone(tmp_path, quick):
    """A part from elsewhere names code: it is refused where the models are built."""
    dataset = clouds()
    auto(config(), tmp_path, dataset=dataset, folds=3, say=str)
    (tmp_path / "summary.json").unlink()
    for fold in (tmp_path / "candidates").rglob("part-*.pt"):
        state = torch.load(fold, weights_only=True)
        for member in state["members"]:
            member["model"], member["options"] = "os:mkdir", {"path": str(tmp_path / "trap")}
        torch.save(state, fold)
    with pytest.raises(RunError, match="does not match this model"):
        auto(config(), tmp_path, dataset=dataset, folds=3, say=str)
    assert not (tmp_path / "trap").exists()


def test_images_are_whole_networks_work_and_for_an_mlp_vectors():
    pixels = np.random.default_rng(0).integers(0, 255, (40, 20, 20, 1), dtype=np.uint8)
    dataset = from_arrays(pixels, np.arange(40) % 2)
    found = {}
    for model in ("auto", "mlp"):
        settings = config(model=model, model_options={})
        found[model] = [each.name for each in portfolio(Problem(settings, load_task(settings, dataset), 2))]
    assert found["auto"] == ["sgd", "sam", "elr", "mixup"]
    assert {"smooth", "lda-0.8", "lda-0.8-pruned", "prototypes", "sam-200"} <= set(found["mlp"])


def test_on_a_cpu_images_are_told_the_way_through_features(tmp_path, monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 255, (24, 20, 20, 1), dtype=np.uint8)
    dataset = from_arrays(pixels, np.arange(24) % 2)
    quick = [Network("quick", {"optimizer": "sgd", "epochs": 1, "lr": 0.05, "batch_size": 12, "warmup": 0.0})]
    monkeypatch.setattr(auto_run, "portfolio", lambda problem: quick)
    said = []
    settings = config(data="my photos", model="resnet8", model_options={}, accelerator="cpu")
    auto(settings, tmp_path / "run", folds=2, dataset=dataset, say=said.append)
    assert "ncsam embed 'my photos' --model NAME --out features.npz; ncsam auto features.npz" in said[0]


def test_a_folder_removed_during_a_search_ends_it_and_is_not_created_again(tmp_path, quick):
    folder = tmp_path / "race"

    def say(line):
        if line.startswith("[1/"):  # the first candidate is done
            shutil.rmtree(folder)

    with pytest.raises(RunError, match="removed, moved or replaced"):
        auto(config(), folder, dataset=clouds(), folds=3, say=say)
    assert not folder.exists()


def test_a_network_of_another_library_is_refused_before_anything_is_trained(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (24, 20, 20, 1), dtype=np.uint8)
    dataset = from_arrays(pixels, np.arange(24) % 2)
    with pytest.raises(ValueError, match="timm:resnet18 --out"):
        auto(config(model="timm:resnet18", model_options={}), tmp_path / "race", folds=2, dataset=dataset, say=str)
    assert not (tmp_path / "race").exists()
