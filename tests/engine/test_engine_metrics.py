"""Metrics by hand, against slow references, and in published cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from ncsam.engine.evaluate import _values
from ncsam.engine.label_issues import SampleTable
from ncsam.engine.metrics import EpochSums, accuracy, calibration_error, memorized, summarize
from ncsam.issues.find import auroc


def test_accuracy_and_memorized_share() -> None:
    predicted = np.tile([0, 1, 2, 2, 1, 0], 40)
    observed = np.tile([0, 1, 1, 2, 2, 0], 40)
    clean = np.tile([0, 1, 2, 0, 1, -1], 40)  # the last one is known to be wrong, its true class is not known
    assert accuracy(predicted, observed) == pytest.approx(100 * 4 / 6)
    assert accuracy(predicted, clean) == pytest.approx(80.0)  # of the five known
    assert memorized(predicted, observed, clean) == pytest.approx(50.0)  # of four wrong labels, two are predicted
    assert memorized(predicted, observed, observed) is None
    assert accuracy(predicted, np.full(240, -1)) is None


def test_a_network_at_chance_has_memorized_nothing() -> None:
    observed = np.array([0] * 70 + [1] * 30)
    clean = np.array([1] * 40 + [0] * 30 + [1] * 30)
    assert memorized(np.zeros(100, dtype=int), observed, clean) is None  # one class always: 100 % of the wrong labels
    better = np.where(np.arange(100) < 85, observed, 0)  # agrees with 85 %; chance is 70 + 2 * 4.6
    assert memorized(better, observed, clean) == pytest.approx(100.0)


def test_calibration_error_by_hand() -> None:
    # two bins in use: (.6, .667] holds .65 (right) and .62 (wrong); (.933, 1] holds .95 (right)
    confidence = np.array([0.65, 0.62, 0.95])
    right = np.array([True, False, True])
    expected = (2 * abs(0.5 - 0.635) + 1 * abs(1 - 0.95)) / 3
    assert calibration_error(confidence, right) == pytest.approx(100 * expected)
    assert calibration_error(np.array([1.0, 1.0]), np.array([True, True])) == 0.0


@given(st.lists(st.tuples(st.floats(0.001, 1.0), st.booleans()), min_size=1, max_size=60))
def test_calibration_error_equals_a_loop_over_bins(pairs: list[tuple[float, bool]]) -> None:
    confidence, right = np.array([c for c, _ in pairs]), np.array([r for _, r in pairs])
    total = 0.0
    for b in range(15):
        inside = [i for i, c in enumerate(confidence) if b < c * 15 <= b + 1]
        if inside:
            total += abs(right[inside].mean() - confidence[inside].mean()) * len(inside) / len(pairs)
    assert calibration_error(confidence, right) == pytest.approx(100 * total, abs=1e-9)


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=50))
def test_auroc_equals_scikit_learn_ties_included(pairs: list[tuple[int, bool]]) -> None:
    scores, positive = np.array([float(s) for s, _ in pairs]), np.array([p for _, p in pairs])
    if positive.all() or not positive.any():
        assert auroc(scores, positive) is None
    else:
        assert auroc(scores, positive) == pytest.approx(roc_auc_score(positive, scores))


def test_loss_and_margin_of_the_observed_label() -> None:
    p = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1], [0.1, 0.2, 0.7]])
    predicted, confidence, loss, margin = _values(p.log(), torch.tensor([0, 0, 1]))
    assert predicted.tolist() == [0, 1, 2]
    assert confidence.tolist() == pytest.approx([0.7, 0.6, 0.7])
    assert loss.tolist() == pytest.approx((-np.log([0.7, 0.3, 0.2])).tolist())
    assert margin.tolist() == pytest.approx([0.5, -0.3, -0.5])


def record(test: float | None, val: float | None, memory: float | None = None) -> dict[str, float | None]:
    return {"test_accuracy": test, "val_accuracy": val, "memorized": memory}


def test_summaries() -> None:
    test = [50, 80, 70, 60, 62, 64, 61, 63, 60, 58, 59, 57]
    val = [40, 45, 60, 60, 50, 50, 50, 50, 50, 50, 50, 50]
    found = summarize([record(t, v, float(i)) for i, (t, v) in enumerate(zip(test, val, strict=True))])
    assert (found["best"], found["last"]) == (80, 57)
    assert found["last5"] == pytest.approx(np.mean([63, 60, 58, 59, 57]))
    assert found["last10"] == pytest.approx(np.mean(test[2:]))
    assert found["val_chosen"] == 70  # the first of the two best on validation
    assert found["memorized"] == 11.0
    assert summarize([record(50, 50, 30.0), record(10, 10, None)])["memorized"] is None  # it collapsed to chance
    assert summarize([record(50, None)])["val_chosen"] is None
    few = summarize([record(50.0, 40.0)] * 4)
    assert (few["last"], few["last5"], few["last10"]) == (50.0, None, None)
    assert summarize([record(50.0, 40.0)] * 9)["last5"] == 50.0
    assert summarize([record(50.0, 40.0)] * 9)["last10"] is None
    assert summarize([record(None, None)])["best"] is None
    assert "no test split" in summarize([record(None, 40)])["metric_names"]["best"]


def test_sums_of_an_epoch() -> None:
    sums = EpochSums(torch.device("cpu"))
    sums.add_loss(torch.tensor(2.0), 3)
    sums.add_loss(torch.tensor(6.0), 1)
    sums.add_telemetry({"grad_norm": 1.0, "projected": True, "step": 7, "phase": "ncsam"})
    sums.add_telemetry({"grad_norm": 3.0})
    sums.add_telemetry({"projected": False})
    assert sums.mean_loss() == 3.0
    assert sums.telemetry() == {"grad_norm": 2.0, "projected": 50.0}  # over the steps that measured; shares in percent
    copy = EpochSums(torch.device("cpu"))
    copy.load_state_dict(sums.state_dict())
    copy.add_telemetry({"grad_norm": 8.0})
    copy.add_loss(torch.tensor(8.0), 1)
    assert copy.telemetry()["grad_norm"] == 4.0
    assert copy.mean_loss() == 4.0
    assert sums.mean_loss() == 3.0


def test_a_sample_table_in_one_process() -> None:
    table = SampleTable(4)
    table.column("votes", (2,), fill=-1.0)
    assert table.column("votes", (2,)) is table["votes"]
    table.write("votes", torch.tensor([2, 0]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert table["votes"].tolist() == [[3, 4], [-1, -1], [1, 2], [-1, -1]]
    table.column("count", dtype=torch.int64)
    table.add("count", torch.tensor([1, 3]), 2)
    table.synchronize()
    assert table["count"].tolist() == [0, 2, 0, 2]
    other = SampleTable(4)
    other.load_state_dict(table.state_dict())
    assert torch.equal(other["votes"], table["votes"])
    with pytest.raises(ValueError, match="column='votes'"):
        table.column("votes", (3,))
    with pytest.raises(ValueError, match=r"'vote'.*'votes'"):
        table["vote"]
    with pytest.raises(ValueError, match="samples=5: expected 4"):
        SampleTable(5).load_state_dict(table.state_dict())
