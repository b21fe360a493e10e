"""The page on theory: its code runs, prints what it says, and its figures follow from the formulas."""

import re
from pathlib import Path

import pytest

from ncsam.theory import amplification_factor, noisy_label_bound

PAGE = (Path(__file__).parents[2] / "docs" / "theory.md").read_text(encoding="utf-8")


def test_the_code_of_the_page_runs_and_prints_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    first, *others = re.findall(r"```python\n(.+?)```", PAGE, flags=re.DOTALL)
    exec(first, names)
    assert capsys.readouterr().out == re.search(r"```text\n(.+?)```", PAGE, flags=re.DOTALL)[1]
    for code in others:
        exec(code, names)
    assert (tmp_path / "plane.png").is_file()
    assert set(names["by_labels"]) == {"observed", "clean", "right", "wrong"}


@pytest.mark.parametrize("alpha", [0.2, 0.4, 0.5, 0.6])
def test_the_bound_does_not_favor_a_perfect_classifier(alpha):
    perfect = noisy_label_bound(alpha, 10**9, alpha, 1, 1.0, 1.0)
    assert perfect.empirical == pytest.approx(alpha * amplification_factor(alpha))
    assert (perfect.empirical >= 1) == (alpha >= 0.5)
    assert noisy_label_bound(0.0, 10**9, alpha, 1, 1.0, 1.0).total < perfect.total
