"""`ncsam auto` from the configuration to the run folder."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._arguments import number
from ncsam._errors import bad_value, known_name
from ncsam._files import read_json
from ncsam.automl import leaderboard
from ncsam.automl.candidates import Network
from ncsam.automl.portfolio import portfolio
from ncsam.automl.problem import Problem
from ncsam.automl.questions import CandidatePredictions
from ncsam.automl.search import run_candidates
from ncsam.automl.selection import METRICS, Chosen, Metric, choose
from ncsam.automl.verified import Verified
from ncsam.automl.verified_source import in_fold_order, read_verified, without_column
from ncsam.classifiers import Fitted, issue_probabilities
from ncsam.data.types import DataSet, Split
from ncsam.engine.backbone import with_backbone
from ncsam.engine.checkpoint import mismatch_as_run_error
from ncsam.engine.config import NEUTRAL, RunConfig
from ncsam.engine.device import check_accelerator
from ncsam.engine.fitted_run import write_fitted
from ncsam.engine.forecast import Approve
from ncsam.engine.learner import check_network, create_network
from ncsam.engine.task import load_task
from ncsam.errors import RunError
from ncsam.jobs import ExecutorConfig
from ncsam.jobs.mirror import Mirror
from ncsam.runs import layout
from ncsam.runs.layout import refuse_other_work
from ncsam.runs.writer import locked, write_json, write_verified

ABOUT = layout.AUTO
CANDIDATES = layout.CANDIDATES


def auto(
    config: RunConfig,
    out: str | os.PathLike[str],
    *,
    folds: int = 5,
    budget: float | None = None,
    dataset: DataSet | None = None,
    verified: Any = None,
    metric: Metric = "auto",
    where: ExecutorConfig | None = None,
    say: Callable[[str], None] = print,
    command: str | None = None,
    approve: Approve | None = None,
) -> dict[str, Any]:
    """Try the portfolio on `config.data`, write the run folder `out`, and return its leaderboard.

    Closed-form candidates come first. Networks are stopped early when they cannot catch up with the best candidate. An
    interrupted command resumes after the last finished fold. If the folder is finished, its leaderboard is returned.

    Args:
        config: the configuration. Data, labels, `val_share`, `seed`, model and hardware options are used; method,
            optimizer and training length are set by the candidates.
        out: the run folder.
        folds: number of folds, at least 2. Each is predicted by candidates trained on the others.
        budget: limit on training time in seconds. Candidates that would exceed it are skipped, except for the
            recommended one and those that verified labels combine with it. `None`: no limit.
        dataset: data in memory, used instead of `config.data`.
        verified: labels that a person has verified. They determine how candidates are combined, replace given labels in
            training and give unbiased estimates. A mapping from sample index to class; a sequence with a class or
            `None` for every sample; a CSV file with columns `index`, `label` and, for samples that were not drawn
            uniformly, `probability`; the name of a column of the data; or a run folder with review decisions.
        metric: what to maximize on true labels: "accuracy", "balanced_accuracy" (the mean recall of the classes), or
            "auto", which is balanced accuracy for tables with a rare class and verified labels and accuracy otherwise.
        where: worker processes or a Ray cluster for the candidates, and a mirror. `None`: the defaults of
            `ExecutorConfig`.
        say: called with lines of progress.
        command: the shell command to record in `config.yaml`.
        approve: called with the expected seconds of "features" and of "training" before they start. Raise from it to
            stop.

    Returns:
        The contents of `leaderboard.json`.

    Raises:
        UsageError: if an option or a verified label is invalid or does not fit the data.
        RunError: if the folder is in use, holds another search, or a candidate failed.
    """
    if budget is not None:
        number("budget", budget, "a number of seconds above 0, or None", lambda seconds: seconds > 0)
    known_name("metric", metric, METRICS)
    where = where or ExecutorConfig()
    if dataset is not None and where.on == "ray":
        raise bad_value("dataset", dataset.name, "the path of data that every node can read, with on='ray'")
    check_accelerator(config.accelerator)
    if dataset is None:
        verified, config = without_column(verified, config)
    folder = Path(out)
    refuse_other_work(folder, ABOUT)
    where.check()
    mirror = Mirror(where.mirror) if where.mirror else None
    if mirror is not None:
        mirror.fetch("", folder)
    with locked(folder) as held:
        config, task = with_backbone(
            config, load_task(config, dataset), say=say, wanted=config.model == "auto", approve=approve
        )
        answers = None if verified is None else read_verified(verified, task.dataset)
        problem = Problem(config, task, folds, answers)
        if ":" in config.model and not problem.is_vectors:
            raise bad_value(
                "model",
                config.model,
                f"a model of ncsam.models; for this one: ncsam embed DATA --model {config.model} --out features.npz, "
                "then ncsam auto features.npz",
            )
        candidates = portfolio(problem)
        for each in candidates:
            if isinstance(each, Network):  # a mistake in its options is found before anything is fitted
                resolved = each.config(problem, problem.fold_task(0))
                check = create_network if ":" in resolved.model else check_network
                check(resolved, problem.classes, problem.channels)
        if not problem.is_vectors and problem.fabric.device.type == "cpu":
            say(
                "training networks on images is slow on a CPU. Embeddings of a pretrained model take minutes: "
                f"ncsam embed {shlex.quote(config.data)} --model NAME --out features.npz; ncsam auto features.npz"
            )
        _claim(folder, problem, {each.name: each.settings() for each in candidates}, answers, metric)
        if mirror is not None:
            _claim_mirror(mirror, folder)
        if (folder / layout.SUMMARY).is_file():
            if mirror is not None and not mirror.is_finished(""):  # the last copy failed, or the mirror is new
                mirror.store("", folder)
            say(f"{folder} is finished; its leaderboard is returned")
            return leaderboard.read(folder)
        with _free_after_a_mistake(folder):
            outcomes = run_candidates(
                problem,
                candidates,
                folder / CANDIDATES,
                where,
                budget=budget,
                say=say,
                before_writing=held.check,
                approve=approve,
            )
        known = None if answers is None else in_fold_order(answers, problem)
        chosen = choose(problem, outcomes, known, metric)
        board = leaderboard.make(problem, outcomes, chosen, known)
        held.check()
        if answers is not None:
            names = [problem.dataset.classes[label] for label in answers.labels]
            write_verified(folder, answers.rows, names, answers.probabilities)
        CandidatePredictions.of(problem, outcomes).save(folder)
        leaderboard.write(folder, board)
        _write_run(folder, problem, chosen, board, command)
        if mirror is not None:
            mirror.store("", folder)
    return board


@contextmanager
def _free_after_a_mistake(folder: Path) -> Iterator[None]:
    """Release the folder if an option turns out to be wrong before anything was trained in it."""
    try:
        yield
    except (ValueError, ImportError):
        if not (folder / CANDIDATES).exists():
            (folder / ABOUT).unlink()
        raise


def _claim_mirror(mirror: Mirror, folder: Path) -> None:
    """Copy the description of the search to the mirror, or refuse a mirror that holds another search."""
    there = mirror.read("", ABOUT)
    if there is None:
        mirror.put("", folder, [ABOUT])
    elif there != (folder / ABOUT).read_bytes():
        raise RunError(f"{mirror.url} holds the copy of another search than {folder}: choose another URL")


def _claim(
    folder: Path, problem: Problem, candidates: dict[str, Any], verified: Verified | None, metric: Metric
) -> None:
    """Record what the folder is for, or refuse a folder that is for something else."""
    config = {name: value for name, value in problem.config.to_dict().items() if name not in NEUTRAL}
    about = {
        "config": config,
        "folds": problem.num_folds,
        "labels_sha256": problem.task.labels_sha256,
        "candidates": candidates,
        "metric": metric,
        "verified": None if verified is None else verified.sha256(),
    }
    about = json.loads(json.dumps(about))
    path = folder / ABOUT
    if path.is_file():
        there = read_json(path)
        differing = [name for name in about if there.get(name) != about[name]]
        if "config" in differing and isinstance(there.get("config"), dict):
            differing += [name for name in config if there["config"].get(name) != about["config"][name]]
        if differing:
            names = ", ".join(n for n in differing if n != "config")
            raise RunError(f"{folder} holds another search ({names} differ): choose another folder")
        return
    write_json(path, about)


def _write_run(folder: Path, problem: Problem, chosen: Chosen, board: dict[str, Any], command: str | None) -> None:
    """Write the files that `predict`, `issues`, `report` and `export` read."""
    member, split = chosen.member, problem.dataset.train
    config = problem.config.replace(
        model=member.model,
        model_options=member.options,
        pretrained=False,
        method="ce",
        optimizer="sgd",
        epochs=1,
        augment="none",
    )
    with mismatch_as_run_error(folder):
        network = member.network(problem.classes, problem.channels)

    def predict(split: Split) -> npt.NDArray[np.float64]:
        return np.asarray(np.exp(problem.log_probabilities(network, split).astype(np.float64)))

    rows = np.empty((len(split), problem.classes))
    rows[np.concatenate(problem.held_out)] = chosen.probabilities
    rest = np.setdiff1d(np.arange(len(split)), problem.positions)  # held out for validation: no model saw them
    if len(rest):
        rows[rest] = np.exp(problem.log_probabilities(network, split, rest).astype(np.float64))
    write_fitted(
        folder,
        config,
        problem.task,
        network,
        rows,
        issues=_issue_probabilities(problem, chosen, rows),
        predict=predict,
        results={
            "method": "auto",
            "optimizer": "+".join(chosen.names),
            "noise_estimate": board["noise_rate"],
        },
        about={"folds": problem.num_folds, "seed": config.seed, "candidates": chosen.names},
        seconds=sum(row["seconds"] for row in board["candidates"]),
        command=command,
    )


def _issue_probabilities(problem: Problem, chosen: Chosen, rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Probabilities for ranking label issues: the recommended classifier's own, if it was chosen."""
    if chosen.for_issues is None:
        return rows
    order = np.concatenate(problem.held_out)
    issues: npt.NDArray[np.float64] = rows.copy()
    if chosen.member.model == "stacked":
        issues[order] = chosen.for_issues
    else:
        found = Fitted(chosen.member, chosen.probabilities, chosen.for_issues)
        issues[order] = issue_probabilities(found, problem.labels[order], table=problem.is_table)
    return issues
