"""The leaderboard of an `ncsam auto` run, as a report shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ncsam._files import read_json
from ncsam.issues.noise_rate import noise_rate_words
from ncsam.runs import layout
from ncsam.runs.reader import RunFolder

_COLUMNS = {
    "status": "status",
    "noisy_accuracy": "accuracy, given labels, %",
    "standard_error": "±",
    "noisy_balanced_accuracy": "balanced accuracy, %",
    "noisy_f1": "F1, %",
    "noisy_auc": "AUC, %",
    "seconds": "seconds",
}


@dataclass(frozen=True)
class Row:
    """A candidate and its cells; chosen ones are marked with an asterisk."""

    name: str
    cells: Sequence[str]


@dataclass(frozen=True)
class Leaderboard:
    """The candidates of a run, the best first, and what was estimated."""

    run: str
    summary: str
    columns: Sequence[str]
    rows: Sequence[Row]


def leaderboard(run: RunFolder) -> Leaderboard | None:
    """The leaderboard of a run; `None` for a run that was not made by `ncsam auto`."""
    path = run.folder / layout.LEADERBOARD
    if not path.is_file():
        return None
    board = read_json(path)
    candidates = board.get("candidates")
    if not isinstance(candidates, list) or not all(isinstance(row, dict) for row in candidates):
        raise ValueError(f"{path} does not hold a list of candidates")
    names = [name for name in _COLUMNS if any(row.get(name) is not None for row in candidates)]
    rows = [
        Row(("* " if row.get("chosen") else "") + str(row.get("name")), [_text(row.get(name)) for name in names])
        for row in candidates
    ]
    return Leaderboard(run.folder.name, _summary(board), [_COLUMNS[name] for name in names], rows)


def _summary(board: Mapping[str, Any]) -> str:
    """The result of the selection and the estimates, with their intervals, in sentences."""
    chosen = board.get("chosen")
    chosen = chosen if isinstance(chosen, dict) else {}
    names = chosen.get("candidates") or []
    what = f"An ensemble of {len(names)}" if len(names) > 1 else f"The candidate {', '.join(map(str, names))}"
    accuracy = _text(chosen.get("noisy_accuracy"))
    said = [f"{what} was selected (*): it predicts {accuracy} % of the held-out given labels."]
    said.append(f"Noise rate: {noise_rate_words(board.get('noise_rate') if _known(board, 'noise_rate') else None)}.")
    if _known(board, "clean_accuracy"):
        middle, low, high = (board["clean_accuracy"][name] for name in ("estimate", "low", "high"))
        said.append(f"Accuracy on true labels: {middle:.0f} % (95 % interval {low:.0f} to {high:.0f} %).")
    else:
        said.append("The accuracy on true labels cannot be estimated without verified labels.")
    return " ".join(said)


def _known(board: Mapping[str, Any], key: str) -> bool:
    """Whether an estimate with an interval is there."""
    found = board.get(key)
    names = ("estimate", "low", "high")
    return isinstance(found, dict) and all(isinstance(found.get(name), (int, float)) for name in names)


def _text(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else "" if value is None else str(value)
