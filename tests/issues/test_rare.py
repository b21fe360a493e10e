"""Label issues of rare classes where p_wrong cannot be stated."""

from __future__ import annotations

import numpy as np

from ncsam.issues.find import find_label_issues
from ncsam.issues.scores import label_quality, odds, ranks


def test_without_p_wrong_labels_are_ranked_by_the_odds() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(4), size=50)
    labels = rng.integers(4, size=50)
    np.testing.assert_allclose(label_quality(labels, p), (ranks(odds(labels, p)) - 0.5) / 50)


def test_an_estimate_that_is_not_stated_does_not_rank_a_rare_class() -> None:
    rng = np.random.default_rng(0)
    truth = (rng.random(900) < 0.1).astype(np.int64)
    given = np.where(rng.random(900) < np.where(truth == 1, 0.4, 0.12), 1 - truth, truth)
    rare = 1 / (1 + np.exp(-(2.5 * truth - 2.2 + 1.2 * rng.normal(size=900))))
    p = np.stack([1 - rare, rare], axis=1)
    issues = find_label_issues(given, p)
    assert not issues.reliable
    quality = np.empty(900)
    quality[np.asarray(issues["index"])] = np.asarray(issues["label_quality"])
    np.testing.assert_allclose(quality, label_quality(given, p))
    order = np.asarray(issues["index"])
    assert order[0] == np.argmin(odds(given, p))
