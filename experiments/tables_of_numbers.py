"""Tables of few columns, with the labels of simulated annotators: where a strong radius holds a network back.

    python experiments/tables_of_numbers.py runs/numbers --mlbench FOLDER

FOLDER is `data` of R's package mlbench (Debian: r-cran-mlbench), whose files the package pyreadr reads; breast cancer
comes with scikit-learn. A third of each table is for testing. Five annotators learn from twelve samples a class and
half of the columns, three by decision trees and two by their three nearest neighbors; each label is the answer of one
of them, drawn at random, or the right one where more than 35 % would be wrong. So errors follow the samples, as those
of people do.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

from common import Table, main
from problems import save
from real_noise import RECOMMENDED, automatic, classical

OPTIMIZERS = {
    "SGD": "sgd",
    "recommended": "sam:rho=validation",
    "target .4": "sam:rho=validation:rho_target=0.4",
    "target .1": "sam:rho=validation:rho_target=0.1",
}
#: Files of mlbench with the column that holds the classes.
FILES = {
    "Vowel": "Class",
    "Vehicle": "Class",
    "Satellite": "classes",
    "LetterRecognition": "lettr",
    "DNA": "Class",
    "PimaIndiansDiabetes": "diabetes",
}
LARGEST_TRAIN, LARGEST_TEST = 4000, 5000
LARGEST_RATE = 0.35


def read(folder: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Name, columns that are numbers, and classes of each table."""
    import pyreadr

    for name, target in FILES.items():
        frame = next(iter(pyreadr.read_r(str(folder / f"{name}.rda")).values()))
        columns = frame.drop(columns=target)
        numbers = columns.select_dtypes("number")
        if numbers.shape[1] < 2:  # of DNA all columns are 0 or 1 as text
            numbers = columns.astype(float)
        yield name, numbers.to_numpy(np.float32), np.unique(frame[target].astype(str), return_inverse=True)[1]
    cancer = load_breast_cancer()
    yield "breast cancer", cancer.data.astype(np.float32), cancer.target


def annotated(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """What annotators who have seen little say of standardized samples."""
    answers = []
    for number in range(5):
        columns = rng.permutation(x.shape[1])[: max(2, x.shape[1] // 2)]
        few = np.concatenate([rng.permutation(np.flatnonzero(y == c))[:12] for c in np.unique(y)])
        learner = KNeighborsClassifier(3) if number % 2 else DecisionTreeClassifier(random_state=number)
        answers.append(learner.fit(x[few][:, columns], y[few]).predict(x[:, columns]))
    said = np.array(answers)[rng.integers(5, size=len(y)), np.arange(len(y))]
    wrong = float(np.mean(said != y))
    return np.where(rng.random(len(y)) < min(1.0, LARGEST_RATE / wrong), said, y)


def archives(folder: Path, out: Path) -> dict[str, str]:
    """A file for each table; made once."""
    found = {}
    for number, (name, x, y) in enumerate(read(folder)):
        file = out / f"{name.replace(' ', '_')}.npz"
        found[name] = str(file)
        if file.is_file():
            continue
        rng = np.random.default_rng(number)
        order = rng.permutation(len(x))
        train, test = np.split(order[: LARGEST_TRAIN + LARGEST_TEST], [min(len(x) * 2 // 3, LARGEST_TRAIN)])
        scaled = (x[train] - x[train].mean(0)) / (x[train].std(0) + 1e-9)
        said = annotated(scaled, y[train], rng)
        arrays = {"x_train": x[train], "y_train": y[train], "y_said": said, "x_test": x[test], "y_test": y[test]}
        save(file, arrays)
    return found


def tables(files: argparse.Namespace) -> Sequence[Table]:
    if files.mlbench is None:
        raise SystemExit("--mlbench: the folder `data` of R's package mlbench is needed")
    problems: dict[str, dict[str, Any]] = {
        name: {"data": data, "label_column": "y_said"} for name, data in archives(files.mlbench, files.out).items()
    }
    against = dict.fromkeys(("recommended", "target .4", "target .1"), "SGD")
    trial = Table("trial", problems, OPTIMIZERS, shared=RECOMMENDED, controls=against, metrics=("last5",))
    rows = {row: row for row in ("logistic regression", "CleanLearning around it")}
    classic = Table("classic", problems, rows, seeds=1, shared=RECOMMENDED, metrics=("accuracy",), measure=classical)
    found = {row: row for row in ("auto", "label issues of auto", "label issues by cleanlab, same predictions")}
    measure = partial(automatic, files.out / "auto")
    raced = Table("auto", problems, found, seeds=1, shared={"val_share": 0.0}, metrics=("accuracy",), measure=measure)
    return [trial, classic, raced]


if __name__ == "__main__":
    main(__doc__, tables, mlbench="folder `data` of R's package mlbench")
