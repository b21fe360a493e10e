"""What a candidate made of the folds: its predictions of samples it never saw, and its networks; kept in files."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ncsam._files import atomic_path
from ncsam.auto.candidates import Candidate
from ncsam.auto.problem import Member, Problem
from ncsam.engine.checkpoint import writing
from ncsam.errors import RunError

Floats = npt.NDArray[np.float32]
_FORMAT = "ncsam fold 1"


@dataclass(frozen=True)
class Fold:
    """One fold of one candidate; `log_probabilities` (networks, samples, classes) are of the samples held out."""

    seconds: float
    log_probabilities: Floats
    members: list[Member]


@dataclass
class Outcome:
    """A candidate's folds so far, from 0 on; `status`: running, finished, stopped, skipped or failed."""

    candidate: Candidate
    folds: list[Fold] = field(default_factory=list)
    status: str = "running"
    reason: str = ""

    @property
    def name(self) -> str:
        return self.candidate.name

    @property
    def seconds(self) -> float:
        return sum(fold.seconds for fold in self.folds)

    def probabilities(self, temperature: float = 1.0) -> npt.NDArray[np.float64]:
        """Mean over networks of softmax(log p / temperature): a row per sample of the folds so far, fold after fold."""
        rows = [softened(fold.log_probabilities, temperature) for fold in self.folds]
        return np.concatenate(rows)


def softened(log_probabilities: Floats, temperature: float) -> npt.NDArray[np.float64]:
    """Mean over the first axis of softmax(log p / temperature)."""
    scaled = log_probabilities.astype(np.float64) / temperature
    scaled -= scaled.max(axis=-1, keepdims=True)
    powers = np.exp(scaled)
    mean: npt.NDArray[np.float64] = (powers / powers.sum(axis=-1, keepdims=True)).mean(axis=0)
    return mean


def held_out_labels(problem: Problem, folds: int) -> npt.NDArray[np.int64]:
    """The observed labels of the samples of the first `folds` folds, in the order of `Outcome.probabilities`."""
    labels: npt.NDArray[np.int64] = problem.labels[np.concatenate(problem.held_out[:folds])]
    return labels


def fold_file(candidate: str, number: int) -> str:
    """ExecutorConfig a fold lies below the folder of all candidates."""
    return f"{candidate}/fold-{number}.pt"


def train_fold(
    problem: Problem, candidate: Candidate, number: int, folder: Path, before_writing: Callable[[], None]
) -> Fold:
    """The fold from its file if it is there; else it is trained, from where a kill left it, and written."""
    path = folder / fold_file(candidate.name, number)
    if path.is_file():
        return _read(path, len(problem.held_out[number]), problem.classes)
    began = time.perf_counter()
    before_writing()
    members = candidate.fit(problem, number, folder / candidate.name / f"fold-{number}")
    networks = [member.network(problem.classes, problem.channels) for member in members]
    held, split = problem.held_out[number], problem.dataset.train
    found = np.stack([problem.log_probabilities(network, split, held) for network in networks])
    fold = Fold(time.perf_counter() - began, found, members)
    before_writing()
    _write(path, fold)
    return fold


def _write(path: Path, fold: Fold) -> None:
    state: dict[str, Any] = {
        "format": _FORMAT,
        "seconds": fold.seconds,
        "log_probabilities": torch.from_numpy(fold.log_probabilities),
        "members": [{"model": m.model, "options": m.options, "state": m.state} for m in fold.members],
    }
    with writing(path), atomic_path(path) as temporary:
        torch.save(state, temporary)


def _read(path: Path, samples: int, classes: int) -> Fold:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        if state["format"] != _FORMAT:
            raise ValueError(f"its format is {state['format']!r}")
        members = [Member(str(m["model"]), dict(m["options"]), dict(m["state"])) for m in state["members"]]
        found = Fold(float(state["seconds"]), state["log_probabilities"].numpy(), members)
        if found.log_probabilities.shape != (len(members), samples, classes) or not members:
            raise ValueError(f"its predictions are of shape {found.log_probabilities.shape}")
    except Exception as error:  # zip and pickle have several of their own; torch's advice is not for a foreign file
        raise RunError(
            f"{path} is damaged, or is no fold of this race: remove it, and the fold is trained again"
        ) from error
    return found
