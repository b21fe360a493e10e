"""`recommended` and `auto` against logistic regression, CleanLearning, forests and SGD, on data with known true labels.

    python experiments/recommendations.py --data FOLDER --out runs/recommendations --seeds 0 1 2
    python experiments/recommendations.py --data FOLDER --out runs/recommendations --tables docs/experiments

FOLDER holds labelme_features.npz, cifar10_features.npz, dino_cifar10n.npz, defects/*.csv, fashion_mnist.npz (flat x in
0..255, y, x_test, y_test) and, where texts have been
embedded, NAME_ENCODER.npz with arrays x, weak, clean and split (1: training). What is missing is left out. One JSON
file per dataset and seed: interrupted, the same command resumes. At most 2,000 training rows of each dataset.

A reviewer is simulated by the true labels of the questions that `ncsam.automl.verified` asks, ten at a time.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ncsam import noise
from ncsam.automl import verified as verification
from ncsam.automl.outcome import Outcome, held_out_labels
from ncsam.automl.portfolio import portfolio
from ncsam.automl.problem import Problem
from ncsam.automl.search import run_candidates
from ncsam.automl.selection import RECOMMENDED, group_probabilities, groups_of, is_imbalanced_table
from ncsam.automl.verified import Verified, question_probabilities
from ncsam.classifiers import Fitted, issue_probabilities
from ncsam.data import from_arrays
from ncsam.data.types import DataSet
from ncsam.engine import RunConfig, train
from ncsam.engine.metrics import balanced_accuracy, macro_auc
from ncsam.engine.task import load_task
from ncsam.issues.find import auroc, find_label_issues
from ncsam.issues.posterior import HALF_WIDTH, confident_noise_rate
from ncsam.jobs import ExecutorConfig
from ncsam.models.stacked import SMALLEST

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
MOST_ROWS, MOST_TEST = 2000, 2500
ANSWERS, PER_ROUND, REPETITIONS = (50, 100, 200), 10, 10
_STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # C of logistic regression on standardized columns
_NOT_FEATURES = ("File", "HeuBug", "RealBug", "HeuBugCount", "RealBugCount")
BASELINES = ("logistic regression", "CleanLearning")


@dataclasses.dataclass(frozen=True)
class Case:
    """A dataset under one set of labels; datasets that share inputs are of one family."""

    family: str
    name: str
    load: Callable[[int], dict[str, Any]]


def cases(folder: Path) -> Iterator[Case]:
    """All datasets that are there."""
    for family, name, file, kinds in (
        ("labelme", "labelme", "labelme_features.npz", ("one", "majority", "clean")),
        ("cifar", "lite0", "cifar10_features.npz", ("worst", "random1", "aggregate", "clean")),
        ("cifar", "dino", "dino_cifar10n.npz", ("worst", "random1", "aggregate", "clean")),
    ):
        for kind in kinds if (folder / file).is_file() else ():
            yield Case(family, f"{name}/{kind}", partial(_features, folder / file, kind))
    for path in sorted(folder.glob("*_*.npz")):
        family = path.stem.split("_")[0]
        for kind in ("weak", "clean") if family in ("youtube", "yoruba") else ():
            yield Case(family, f"{path.stem}/{kind}", partial(_text, path, kind))
    for kind, rate in (("symmetric", 0.4), ("pairflip", 0.4), ("instance", 0.4), ("clean", 0.0)):
        yield Case("digits", f"digits/{kind}", partial(_digits, kind, rate))
    if (folder / "fashion_mnist.npz").is_file():
        for kind, rate in (("symmetric", 0.4), ("instance", 0.4), ("clean", 0.0)):
            yield Case("fashion", f"fashion/{kind}", partial(_fashion, folder / "fashion_mnist.npz", kind, rate))
    for path in sorted(folder.glob("defects/*.csv")):
        for kind in ("HeuBug", "RealBug"):
            yield Case("defects", f"{path.stem}/{kind}", partial(_defects, path, kind))


def _features(path: Path, kind: str, seed: int) -> dict[str, Any]:
    with np.load(path) as found:
        true, given = found["y_train"], found["y_train" if kind == "clean" else f"y_{kind}"]
        parts = {"x": found["x_train"], "given": given, "true": true}
        return {**parts, "x_test": found["x_test"], "test": found["y_test"]}


def _text(path: Path, kind: str, seed: int) -> dict[str, Any]:
    with np.load(path) as found:
        x, given, true, first = found["x"], found[kind], found["clean"], found["split"].astype(bool)
    return {"x": x[first], "given": given[first], "true": true[first], "x_test": x[~first], "test": true[~first]}


def _digits(kind: str, rate: float, seed: int) -> dict[str, Any]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    x, y = x[order].astype(np.float32), y[order].astype(np.int64)
    train, test = slice(0, 1000), slice(1000, None)
    given = _generated(kind, rate, x[train] / 16, y[train], seed)
    return {"x": x[train], "given": given, "true": y[train], "x_test": x[test], "test": y[test]}


def _fashion(path: Path, kind: str, rate: float, seed: int) -> dict[str, Any]:
    with np.load(path) as found:
        parts = {"x": found["x"] / np.float32(255), "true": found["y"].astype(np.int64)}
        tests = {"x_test": found["x_test"] / np.float32(255), "test": found["y_test"].astype(np.int64)}
    rows = np.random.default_rng(seed).permutation(len(parts["x"]))[:MOST_ROWS]
    parts = {name: values[rows] for name, values in parts.items()}
    return {**parts, **tests, "given": _generated(kind, rate, parts["x"], parts["true"], seed)}


def _generated(kind: str, rate: float, unit: Any, true: Labels, seed: int) -> Labels:
    """Generated noise on inputs in the unit interval."""
    if kind == "clean":
        return true
    if kind == "instance":
        return noise.instance(true, rate, inputs=unit, input="unit", seed=seed).noisy
    return {"symmetric": noise.symmetric, "pairflip": noise.pairflip}[kind](true, rate, seed=seed).noisy


def _defects(path: Path, column: str, seed: int) -> dict[str, Any]:
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    order = np.random.default_rng(seed).permutation(len(rows))
    names = [name for name in rows[0] if name not in _NOT_FEATURES]
    x = np.array([[float(row[name]) for name in names] for row in rows], dtype=np.float32)[order]
    marks = ("True", "TRUE", "1")
    given, true = (np.array([row[c] in marks for row in rows], dtype=np.int64)[order] for c in (column, "RealBug"))
    cut = int(0.6 * len(x))
    parts = {"x": x[:cut], "given": given[:cut], "true": true[:cut], "x_test": x[cut:], "test": true[cut:]}
    return {**parts, "columns": tuple(names)}


def dataset_of(found: dict[str, Any], seed: int) -> DataSet:
    """At most 2,000 training rows, drawn with the seed."""
    rows = np.random.default_rng(seed).permutation(len(found["given"]))[:MOST_ROWS]
    test = slice(0, MOST_TEST)
    count = int(max(found["true"].max(), found["test"].max(), found["given"].max())) + 1
    made = from_arrays(
        np.asarray(found["x"][rows], dtype=np.float32),
        found["given"][rows].astype(np.int64),
        y_clean=found["true"][rows].astype(np.int64),
        x_test=np.asarray(found["x_test"][test], dtype=np.float32),
        y_test=found["test"][test].astype(np.int64),
        classes=[str(number) for number in range(count)],
        allow_empty=True,
    )
    return dataclasses.replace(made, columns=found.get("columns", ()))


def measure(case: Case, seed: int) -> dict[str, Any]:
    """All rows of one dataset and seed."""
    began = time.perf_counter()
    dataset = dataset_of(case.load(seed), seed)
    config = RunConfig(data=case.name, val_share=0.0, seed=seed, accelerator="cpu")
    problem = Problem(config, load_task(config, dataset), 5)
    rows: dict[str, Any] = {}
    own = _baselines(problem, rows)
    _networks(config, dataset, rows)
    with tempfile.TemporaryDirectory() as folder:
        closed_form = [each for each in portfolio(problem) if not each.seconds(problem)]
        outcomes = run_candidates(problem, closed_form, Path(folder), ExecutorConfig(), say=lambda text: None)
    for outcome in outcomes:
        name = "recommended" if outcome.name in RECOMMENDED else f"candidate {outcome.name}"
        rows[name] = _scores(_test(problem, [outcome]), problem)
    answers = _answers(problem, outcomes, np.random.default_rng(seed))
    rows |= answers.pop("rows")
    return {
        "family": case.family,
        "samples": len(problem.labels),
        "noise": float((dataset.train.labels != dataset.train.clean).mean()),
        "rows": rows,
        "issues": _issues(problem, outcomes, own),
        **answers,
        "seconds": time.perf_counter() - began,
    }


def _scores(probabilities: Floats, problem: Problem) -> dict[str, float | None]:
    assert problem.dataset.test is not None
    labels, predicted = problem.dataset.test.labels, probabilities.argmax(axis=1)
    area = macro_auc(probabilities, labels)
    return {
        "accuracy": 100 * float((predicted == labels).mean()),
        "balanced": 100 * balanced_accuracy(predicted, labels),
        "auc": None if area is None else 100 * area,
    }


def _test(problem: Problem, group: Sequence[Outcome]) -> Floats:
    """Mean test probabilities of the models of some candidates."""
    assert problem.dataset.test is not None
    networks = [member.network(problem.classes, problem.channels) for outcome in group for member in outcome.members]
    logs = [problem.log_probabilities(network, problem.dataset.test) for network in networks]
    return np.asarray(np.mean([np.exp(each.astype(np.float64)) for each in logs], axis=0))


def _baselines(problem: Problem, rows: dict[str, Any]) -> Floats:
    """Tuned logistic regression, CleanLearning around it and a forest; out-of-fold probabilities of the first."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict
    from sklearn.preprocessing import StandardScaler

    assert problem.dataset.test is not None
    x, y = problem.vectors.numpy(), problem.labels
    inputs = torch.cat([batch.views[0].flatten(1) for batch in problem.loader(problem.dataset.test).iterate(0)]).numpy()
    scaler = StandardScaler().fit(x)
    x, inputs = scaler.transform(x), scaler.transform(inputs)

    def whole(model: Any, p: Floats) -> Floats:
        every = np.zeros((len(p), problem.classes))
        every[:, model.classes_] = p
        return every

    def logistic(strength: float) -> Any:
        return LogisticRegression(C=strength, max_iter=200, tol=1e-3)

    # Five folds rather than one split: on 1,000 rows a single split chooses a C that costs ten points.
    held_out = {c: cross_val_predict(logistic(c), x, y, cv=5, method="predict_proba") for c in _STRENGTHS}
    present = np.unique(y)
    best = max(_STRENGTHS, key=lambda c: float((present[held_out[c].argmax(axis=1)] == y).mean()))
    fitted = logistic(best).fit(x, y)
    rows["logistic regression"] = _scores(whole(fitted, fitted.predict_proba(inputs)), problem)
    own = whole(fitted, held_out[best])
    try:
        from cleanlab.classification import CleanLearning  # type: ignore[import-untyped]

        clean = CleanLearning(logistic(best), seed=0)
        clean.fit(x, y, pred_probs=own[:, present])
        rows["CleanLearning"] = _scores(whole(clean.clf, clean.predict_proba(inputs)), problem)
    except (ImportError, ValueError) as error:  # not installed; or a class that pruning removed
        print(f"CleanLearning: {error}", flush=True)
    trees = RandomForestClassifier(200, min_samples_leaf=5, random_state=0).fit(x, y)
    rows["random forest"] = _scores(whole(trees, trees.predict_proba(inputs)), problem)
    return own


def _networks(config: RunConfig, dataset: DataSet, rows: dict[str, Any]) -> None:
    """SGD, and what was recommended before: SAM with a validation-guided radius, both on an MLP."""
    shared = {"model": "mlp", "model_options": {"hidden": [256, 256]}, "val_share": 0.1, "batch_size": 128}
    shared |= {"lr": "auto", "weight_decay": "auto", "epochs": "auto"}
    settings = {"SGD": {"optimizer": "sgd"}, "recommended before": {"optimizer": "sam", "rho": "validation"}}
    for name, changes in settings.items():
        with tempfile.TemporaryDirectory() as folder:
            changed = config.replace(**shared, **changes, **({"rho_target": "auto"} if name != "SGD" else {}))
            rows[name] = {"accuracy": train(changed, folder, dataset=dataset, console=False)["last"]}


def _issues(problem: Problem, outcomes: Sequence[Outcome], logistic: Floats) -> dict[str, float | None]:
    """AUROC of label scores: ours, cleanlab's default (self-confidence of logistic regression), and it on ours."""
    clean = problem.dataset.train.clean
    assert clean is not None
    order = np.concatenate(problem.held_out)
    recommended = next(outcome for outcome in outcomes if outcome.name in RECOMMENDED)
    labels, wrong = held_out_labels(problem), (problem.labels != clean)[order]
    fitted = Fitted(recommended.members[0], recommended.probabilities(), recommended.for_issues())
    p = issue_probabilities(fitted, labels, table=problem.is_table)
    table = find_label_issues(labels, p)
    quality = np.empty(len(labels))
    quality[np.asarray(table["index"])] = np.asarray(table["label_quality"])
    every = np.arange(len(labels))
    return {
        "ours": auroc(-quality, wrong),
        "cleanlab default": auroc(-logistic[order][every, labels], wrong),
        "cleanlab score on our probabilities": auroc(-p[every, labels], wrong),
    }


def _answers(problem: Problem, outcomes: Sequence[Outcome], generator: np.random.Generator) -> dict[str, Any]:
    """`auto` with 50, 100 and 200 verified labels, and how often its intervals cover the truth."""
    clean = problem.dataset.train.clean
    assert clean is not None
    order = np.concatenate(problem.held_out)
    given, true = held_out_labels(problem), clean[order]
    members = groups_of(problem, outcomes)
    groups, tests = group_probabilities(members), [_test(problem, group) for group in members]
    predictions = np.stack([outcome.predicted() for outcome in outcomes], axis=1)
    recommended = groups[0].argmax(axis=1)
    rate, accuracy = float((given != true).mean()), float((recommended == true).mean())
    found: dict[int, list[Any]] = {count: [] for count in ANSWERS}
    for _ in range(REPETITIONS):
        rows, chances = np.empty(0, dtype=np.int64), np.empty(0)
        for _ in range(max(ANSWERS) // PER_ROUND):
            so_far = Verified(rows, true[rows], chances) if len(rows) else None
            belief = verification.posterior(groups, given, so_far)
            expected = np.take_along_axis(belief, predictions, axis=1).mean(axis=0)
            weights = np.exp((expected - expected.max()) / 0.01)
            pi = question_probabilities(predictions, belief, weights / weights.sum())
            draws = generator.choice(len(given), PER_ROUND, p=pi / pi.sum())
            rows, chances = np.concatenate([rows, draws]), np.concatenate([chances, pi[draws]])
            if len(rows) in ANSWERS:
                answers = Verified(rows, true[rows], chances)
                theta, bias = verification.stack(groups, answers, balanced=is_imbalanced_table(problem))
                scores = sum(w * np.log(p + SMALLEST) for w, p in zip(theta, tests, strict=True)) + bias
                powers = np.exp(scores - np.max(scores, axis=1, keepdims=True))
                noise_rate = verification.noise_rate(groups, given, answers)
                right = verification.clean_accuracy(recommended, groups, given, answers)
                covers = [noise_rate.low <= rate <= noise_rate.high, right.low <= accuracy <= right.high]
                widths = [(noise_rate.high - noise_rate.low) / 2, (right.high - right.low) / 2]
                found[len(rows)].append((_scores(powers / powers.sum(axis=1, keepdims=True), problem), covers, widths))
    made: dict[str, Any] = {"rows": {}, "coverage": {}, "half_width": {}}
    for count, each in found.items():
        names = [name for name in each[0][0] if each[0][0][name] is not None]
        made["rows"][f"auto, {count} verified"] = {name: float(np.mean([e[0][name] for e in each])) for name in names}
        made["coverage"][count] = np.mean([e[1] for e in each], axis=0).tolist()
        made["half_width"][count] = np.mean([e[2] for e in each], axis=0).tolist()
    return {**made, "noise_without_answers": confident_noise_rate(given, groups[0])}


def tables(out: Path, target: Path) -> None:
    """Write results as CSV, and print the means as Markdown."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(out.glob("*.json"))}
    rows = []
    for name, each in found.items():
        dataset, _, seed = name.rpartition("--")
        each["dataset"] = dataset.replace("--", "/")
        about = {"dataset": each["dataset"], "seed": seed, "family": each["family"]}
        for row, scores in each["rows"].items():
            numbers = {metric: round(value, 2) for metric, value in scores.items() if value is not None}
            rows.append({**about, "noise": round(each["noise"], 4), "row": row, **numbers})
    with (target / "recommendations.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["dataset", "seed", "family", "noise", "row", "accuracy", "balanced", "auc"])
        writer.writeheader()
        writer.writerows(rows)
    names = [name for name in dict.fromkeys(row["row"] for row in rows) if not name.startswith("candidate")]
    features = [each for each in found.values() if each["family"] != "defects"]
    noisy = [each for each in features if each["noise"] > 0]
    _means("features, noisy labels", noisy, names, "accuracy")
    _means("features, clean labels", [each for each in features if each["noise"] == 0], names, "accuracy")
    defects = [each for each in found.values() if each["family"] == "defects" and each["noise"] > 0]
    for metric in ("auc", "balanced", "accuracy"):
        _means("tables, noisy labels", defects, names, metric)
    _left_out(noisy)
    _by_dataset(found)
    print()
    for row in ("recommended", *(f"auto, {count} verified" for count in ANSWERS)):
        regrets = _by_dataset_means(noisy, lambda each, row=row: _regret(each, row))  # type: ignore[misc]
        print(
            f"- {row}: regret {np.mean(regrets):.1f} on average, {max(regrets):.1f} at worst (best of all candidates)"
        )
    for score in (noisy or defects)[0]["issues"]:
        for title, chosen in (("features", noisy), ("tables", defects)):
            if chosen:
                print(f"- {title}, AUROC of {score}: {np.mean([each['issues'][score] for each in chosen]):.3f}")
    for count in map(str, ANSWERS):
        cover, half = (np.mean([each[k][count] for each in found.values()], axis=0) for k in ("coverage", "half_width"))
        print(f"- {count} answers, noise rate: coverage {cover[0]:.2f}, half width {100 * half[0]:.1f} points")
        print(f"- {count} answers, accuracy: coverage {cover[1]:.2f}, half width {100 * half[1]:.1f} points")
    errors = np.array([abs(each["noise_without_answers"] - each["noise"]) for each in found.values()])
    inside = np.mean(errors <= HALF_WIDTH)
    print(
        f"- noise rate without answers: mean error {100 * errors.mean():.1f} points, {inside:.2f} within the interval"
    )


def _means(title: str, chosen: list[dict[str, Any]], names: list[str], metric: str) -> None:
    datasets = len({each["dataset"] for each in chosen})
    print(f"\n## {title}, {metric} ({datasets} datasets, {len(chosen)} runs)\n")
    print("| | mean | against the better baseline | worst |\n|---|---:|---:|---:|")
    for name in names:
        with_row = [each for each in chosen if each["rows"].get(name, {}).get(metric) is not None]
        if with_row:
            gains = _by_dataset_means(with_row, lambda each, name=name: _gain(each, name, metric))  # type: ignore[misc]
            mean = np.mean(
                _by_dataset_means(with_row, lambda each, name=name: each["rows"][name][metric])  # type: ignore[misc]
            )
            print(f"| {name} | {mean:.1f} | {np.mean(gains):+.1f} | {min(gains):+.1f} |")


def _by_dataset_means(chosen: list[dict[str, Any]], value: Callable[[dict[str, Any]], float]) -> list[float]:
    """The mean over the seeds of every dataset."""
    of: dict[str, list[float]] = {}
    for each in chosen:
        of.setdefault(each["dataset"], []).append(value(each))
    return [float(np.mean(values)) for values in of.values()]


def _gain(each: dict[str, Any], name: str, metric: str) -> float:
    best = max(each["rows"][b][metric] for b in BASELINES if b in each["rows"])
    return float(each["rows"][name][metric] - best)


def _regret(each: dict[str, Any], name: str) -> float:
    """How far a row is below the best of the candidates and of the recommended classifier, by accuracy."""
    candidates = [row for row in each["rows"] if row == "recommended" or row.startswith("candidate")]
    best = max(each["rows"][row]["accuracy"] for row in candidates)
    return float(best - each["rows"][name]["accuracy"])


def _by_dataset(found: dict[str, dict[str, Any]]) -> None:
    """Means over the seeds; tables by AUC, which does not depend on a threshold."""
    shown = (*BASELINES, "random forest", "SGD", "recommended", "auto, 100 verified")
    print(f"\n## Every dataset\n\n| dataset | wrong | {' | '.join(shown)} |\n|---|---:|{'---:|' * len(shown)}")
    for name in dict.fromkeys(stem.rpartition("--")[0] for stem in found):
        of_seeds = [each for stem, each in found.items() if stem.rpartition("--")[0] == name]
        metric = "auc" if of_seeds[0]["family"] == "defects" else "accuracy"
        cells = []
        for row in shown:
            values = [each["rows"].get(row, {}).get(metric) for each in of_seeds]
            known = [value for value in values if value is not None]
            cells.append(f"{np.mean(known):.1f}" if known else "")
        noise_share = 100 * np.mean([each["noise"] for each in of_seeds])
        print(f"| {name.replace('--', '/')} ({len(of_seeds)}) | {noise_share:.0f} % | {' | '.join(cells)} |")


def _left_out(found: list[dict[str, Any]]) -> None:
    """For each family: which single classifier the other families choose, and its gain on the one left out."""
    names = [n for n in found[0]["rows"] if n == "recommended" or n.startswith("candidate")]
    print("\n## Chosen without the family\n\n| family | chosen | gain there |\n|---|---|---:|")
    for family in sorted({e["family"] for e in found}):
        others = [e for e in found if e["family"] != family]
        families = sorted({e["family"] for e in others})
        if not families:
            continue

        def mean(name: str, others: Any = others, families: Any = families) -> float:
            return float(
                np.mean([np.mean([_gain(e, name, "accuracy") for e in others if e["family"] == f]) for f in families])
            )

        best = max(names, key=mean)
        gains = [_gain(e, best, "accuracy") for e in found if e["family"] == family]
        print(f"| {family} | {best.removeprefix('candidate ')} | {np.mean(gains):+.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", default="", help="datasets whose name contains this")
    parser.add_argument("--tables", type=Path, help="folder for recommendations.csv; runs nothing")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.tables is not None:
        tables(options.out, options.tables)
        return
    for seed in options.seeds:
        for case in cases(options.data):
            path = options.out / f"{case.name.replace('/', '--')}--{seed}.json"
            if path.exists() or options.only not in case.name:
                continue
            found = measure(case, seed)
            path.write_text(json.dumps(found))
            rows = {name: each["accuracy"] for name, each in found["rows"].items() if not name.startswith("candidate")}
            shown = ", ".join(f"{name} {value:.1f}" for name, value in rows.items())
            print(f"{case.name} {seed}, {found['seconds']:.0f} s: {shown}; {found['issues']}", flush=True)


if __name__ == "__main__":
    main()
