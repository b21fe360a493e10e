"""Convert the issues of cleanlab's Datalab to findings that can be reviewed and cleaned like our own."""

from __future__ import annotations

from typing import Any

import numpy as np

from ncsam._errors import bad_value
from ncsam.auditing.findings import Finding

#: Datalab's issue types that concern single samples, and our checks for them.
_CHECKS = {"label": "label_issue", "outlier": "outlier", "near_duplicate": "near_duplicate"}
_DECISIONS = {"label_issue": "review", "outlier": "drop", "near_duplicate": "review"}


def findings_of_datalab(issues: Any) -> list[Finding]:
    """Convert the table of `Datalab.get_issues()` to findings: label issues, outliers and near duplicates.

    Datalab's scores are low for bad samples. The finding's score is 1 minus Datalab's, and its threshold is the score
    of the mildest flagged sample. The table contains neither sets of duplicates nor new labels, so label issues and
    near duplicates are left to review.

    Args:
        issues: the `pandas.DataFrame`, one row per training sample.

    Returns:
        The flagged samples of each issue type, worst first.

    Raises:
        UsageError: if the table has no column `is_label_issue`, `is_outlier_issue` or `is_near_duplicate_issue`.
    """
    columns = list(getattr(issues, "columns", ()))
    known = {name: check for name, check in _CHECKS.items() if f"is_{name}_issue" in columns}
    if not known:
        raise bad_value("issues", columns, "the table of Datalab.get_issues()")
    found = []
    for name, check in known.items():
        flagged = issues[f"is_{name}_issue"].to_numpy(dtype=bool)
        scores = 1 - issues[f"{name}_score"].to_numpy(dtype=np.float64)
        least = float(scores[flagged].min()) if flagged.any() else 0.0
        rows = np.flatnonzero(flagged)
        for i in rows[np.argsort(-scores[rows], kind="stable")].tolist():
            said = f"Datalab: {name} score {1 - scores[i]:.3f}"
            place: dict[str, Any] = {"split": "train", "index": i, "evidence": said}
            found.append(Finding(check, float(scores[i]), least, _DECISIONS[check], **place))
    return found
