"""The rules and estimates of the experiment on probabilities of wrong labels from outside the batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch


def seed(sam: float, arm: float, held: float = 0.0, share: float = 0.0, oracle: float = 0.0) -> dict[str, Any]:
    runs = {
        "SAM": {"last5": sam, "held_out": 50.0},
        "a": {"last5": arm, "held_out": 50.0 + held},
        "oracle, s 1": {"last5": sam + oracle, "held_out": 0.0},
    }
    return {"runs": runs, "facts": {"share": share}, "classifier": 99.0}


def test_rules_take_an_arm_or_sam() -> None:
    import outside_estimate_tables as tables

    assert tables.arm("a")(seed(1, 2)) == 2
    assert tables.arm("classifier")(seed(1, 2)) == 99
    assert [tables.better("a")(seed(1, 2, held)) for held in (-1.0, 0.0, 1.0)] == [1, 1, 2]
    assert [tables.gated("a", "share", 0.5)(seed(1, 2, share=s)) for s in (0.4, 0.5)] == [1, 2]
    assert tables.gated("a", "unknown", 0.5)(seed(1, 2)) == 1
    families = [tables.family(name) for name in ("lite0/worst", "dino/clean", "camel-1.4.0/HeuBug", "digits/pairflip")]
    assert families == ["cifar", "cifar", "defects", "digits"]


def test_a_family_is_judged_by_the_rule_chosen_on_the_others() -> None:
    import outside_estimate_tables as tables

    found = {
        "x/1": {"1": seed(50, 60, share=0.9, oracle=10)},
        "y/1": {"1": seed(50, 54, share=0.9, oracle=10), "2": seed(50, 56, share=0.9, oracle=10)},
        "z/1": {"1": seed(50, 40, share=0.1, oracle=10), "2": {"runs": {}}},
    }
    results = tables.Results(found, ["SAM", "a", "oracle, s 1"])
    rules = {"always": tables.arm("a"), "gated": tables.gated("a", "share", 0.5)}
    chosen = results.chosen_without(rules)
    assert chosen == {"x": "gated", "y": "gated", "z": "always"}  # without z nothing says that "always" may lose
    assert results.differences(results.applied(rules, chosen), "z/1") == [-10]
    gain, worst, losing, share = results.row(rules["always"], found)
    assert gain == "+1.7 ± 6.0"  # +10, +5 and -10
    assert (worst, losing) == ("-10.0 (z/1)", "1 of 3")
    assert share == "17%"  # 5 of 30


def test_the_largest_pure_set_and_places_of_the_samples_trained_on() -> None:
    from outside_estimate_data import largest_pure_set, spread

    p = np.array([0.5, 1.0, 0.8, 0.9, 0.85])
    assert largest_pure_set(p, 0.9).tolist() == [False, True, False, True, True]  # means 1, .95, .917, .8875
    assert not largest_pure_set(np.array([0.5, 0.8]), 0.9).any()
    assert spread(np.array([0.25, True]), np.array([True, False, False])).tolist() == [0, 0.25, 1]


def test_the_strength_follows_the_validation_loss_after_a_third_of_training() -> None:
    from outside_estimate import EPOCHS, follow

    early, late = [1.0] * (EPOCHS // 3 - 2), [1.0] * (EPOCHS // 3)
    assert follow(0.5, [*early, 2.0]) == 0.5
    assert follow(0.5, [*late, 2.0]) == pytest.approx(0.4)
    assert follow(0.3, [*late, 0.5]) == pytest.approx(0.6)
    assert follow(0.8, [*late, 0.5]) == 1.0


def test_dropping_nothing_is_sam_and_an_arm_without_p_as_well() -> None:
    from outside_estimate import Arm, train

    torch.manual_seed(0)
    x, y = torch.randn(200, 5), torch.randint(3, (200,))
    problem = SimpleNamespace(x=x, y=y, x_test=x, y_test=y, noisy=y.numpy(), clean=y.numpy(), classes=3)
    problem.held = np.arange(200) < 20
    problem.p = {"none": torch.zeros(200), "oracle": torch.zeros(200)}
    runs = [train(problem, arm, 1, epochs=6) for arm in (Arm(strength=0.0), Arm("none", drop=True), Arm("none"))]
    assert runs[0] == {**runs[1], "strength": 0.0}
    assert runs[2]["last5"] == pytest.approx(runs[0]["last5"], abs=1.0)
    problem.p["some"] = (torch.arange(200) % 2).float()
    assert train(problem, Arm("some", drop=True), 1, epochs=6)["last5"] < runs[0]["last5"]
