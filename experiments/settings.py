"""Which settings need no tuning: every optimizer setting on three data sets with seven kinds of noise.

    python experiments/settings.py runs/settings --fashion FOLDER --cifar cifar10_subset.npz --markdown settings.md

Digits come with scikit-learn. `--fashion` is a folder with Fashion-MNIST's four files, `--cifar` an archive with
`x_train`, `y_train`, `x_test`, `y_test` and human labels in `y_worst`; what is not given is left out. An interrupted
command goes on where it stopped, and prints the tables of what is finished with `--tables`.

A radius is chosen on the noisy validation split (a tenth of the training samples), never on test data. The accuracy is
the mean of the last five epochs'. Each NCSAM is compared, seed by seed, with SAM at the same radius and warm-up: its
kappa = 0 control.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from ncsam._files import atomic_path
from ncsam.compare import compare
from ncsam.compare.specs import folder_name
from ncsam.data import load
from ncsam.engine import RunConfig
from reduce_cifar import halved

WARM = ":warmup=0.25"
RADII = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
AUTO = f"sam:rho=auto{WARM}"
RELATIVE = ":compensation=relative:kappa=0.5"
SIGNS = {"+": "", "-": ":sign=-1"}

#: What a table calls a setting, and its spec.
SETTINGS = {
    "SGD": "sgd",
    "AdamW": "sgd:base=adamw:lr=0.001:weight_decay=0.01",
    **{f"SAM {rho}": f"sam:rho={rho}" for rho in RADII[:4]},
    **{f"warm-up, SAM {rho}": f"sam:rho={rho}{WARM}" for rho in RADII},
    "SAM auto": "sam:rho=auto",
    "SAM auto, target .25": "sam:rho=auto:target=0.25",
    "SAM auto, target .1": "sam:rho=auto:target=0.1",
    "warm-up, SAM auto": AUTO,
    "automatic warm-up, SAM auto": "sam:rho=auto:warmup=auto",
    "warm-up, ASAM 1.0": f"sam:rho=1.0:adaptive=true:eta=0.01{WARM}",
    "warm-up, ASAM auto": f"{AUTO}:adaptive=true:eta=0.01",
    "NCSAM, the paper's": f"ncsam:rho=0.05:kappa=0.1{WARM}",
    "NCSAM, not projected": f"ncsam:rho=0.05:kappa=0.1:projection=false{WARM}",
    **{f"NCSAM relative {s}, auto": f"ncsam:rho=auto{RELATIVE}{o}{WARM}" for s, o in SIGNS.items()},
}
#: Settings at the radius that noisy validation chose among SAM's with warm-up.
AT_CHOSEN_RADIUS = {
    **{f"NCSAM relative {s}, chosen rho": f"ncsam:rho={{rho}}{RELATIVE}{o}{WARM}" for s, o in SIGNS.items()},
}
CHOSEN = "warm-up, SAM, rho chosen on validation"
#: The kappa = 0 control of each NCSAM.
CONTROLS = {
    "NCSAM, the paper's": "warm-up, SAM 0.05",
    "NCSAM, not projected": "warm-up, SAM 0.05",
    "NCSAM relative +, auto": "warm-up, SAM auto",
    "NCSAM relative -, auto": "warm-up, SAM auto",
    **dict.fromkeys(AT_CHOSEN_RADIUS, CHOSEN),
}
#: Not repeated on Fashion-MNIST: what digits had already shown to be too small or too large.
LEFT_OUT = ("SAM 0.05", "SAM 0.1", "SAM auto, target .1", "warm-up, SAM 0.1", "warm-up, SAM 2.0", "warm-up, ASAM 1.0")
#: For the costly grounds: what their question needs, and no more.
CORE = (
    "SGD",
    "AdamW",
    "SAM 0.2",
    "SAM 0.5",
    "warm-up, SAM 0.05",
    "warm-up, SAM 0.5",
    "SAM auto",
    "SAM auto, target .25",
    "warm-up, SAM auto",
    "warm-up, ASAM auto",
    "NCSAM, the paper's",
    "NCSAM relative +, auto",
    "NCSAM relative -, auto",
    "NCSAM, not projected",
)
#: Where augmentation leaves little memorised, the question is what a radius costs.
AUGMENTED = ("SGD", "SAM auto", "SAM auto, target .25", "SAM auto, target .1")

NOISES: dict[str, dict[str, Any]] = {
    **{f"symmetric {r}": {"noise": "symmetric", "rate": r / 100} for r in (20, 40, 60, 80)},
    "pair flip 40": {"noise": "pairflip", "rate": 0.4},
    "instance 40": {"noise": "instance", "rate": 0.4},
}
HUMAN = {"human": {"label_column": "y_worst", "rate": 0.4}}


@dataclass(frozen=True)
class Ground:
    """A data set with its network and protocol."""

    name: str
    seeds: int
    options: dict[str, Any]
    noises: dict[str, dict[str, Any]] = field(default_factory=lambda: NOISES)
    settings: tuple[str, ...] = tuple(SETTINGS)
    at_chosen_radius: bool = True

    def config(self, noise: str) -> RunConfig:
        # labels, too, differ from seed to seed; the training split is looked at once, at the end
        shared = {"method": "ce", "batch_size": 128, "noise_seed": None, "telemetry_every": 1000}
        return RunConfig.from_dict({**shared, **self.options, **self.noises[noise]})


def grounds(out: Path, fashion: Path | None, cifar: Path | None) -> list[Ground]:
    """The data sets that are there, the large ones cut to what two cores can do."""
    length = {"epochs": 60, "evaluate_train_every": 60}
    found = [Ground("digits", 5, {"data": "digits", **length})]
    # crops and mirroring, and so many epochs that labels are memorised all the same
    longer = {"data": "digits", "augment": "standard", "epochs": 300, "evaluate_train_every": 300}
    some = {name: NOISES[name] for name in ("symmetric 40", "instance 40")}
    found.append(Ground("digits-longer", 3, longer, some, AUGMENTED, at_chosen_radius=False))
    if fashion is not None:
        file = out / "fashion.npz"
        if not file.is_file():
            whole = load("fashion_mnist", root=fashion)
            assert whole.test is not None
            parts = {"train": (whole.train, 2000), "test": (whole.test, 5000)}
            arrays = {
                f"{k}_{p}": getattr(s, a)[:n]
                for p, (s, n) in parts.items()
                for k, a in (("x", "images"), ("y", "labels"))
            }
            _save(file, arrays)
        options = {"data": str(file), "model": "mlp", "augment": "none", **length}
        found.append(Ground("fashion", 3, options, settings=tuple(name for name in SETTINGS if name not in LEFT_OUT)))
        augmented = {**options, "augment": "standard"}
        found.append(Ground("fashion-augmented", 3, augmented, settings=AUGMENTED, at_chosen_radius=False))
    if cifar is not None:
        file = out / "cifar.npz"
        if not file.is_file():
            with np.load(cifar) as whole:
                arrays = {name: whole[name][:2500] for name in ("x_train", "y_train", "x_test", "y_test", "y_worst")}
            _save(file, {n: halved(a) if n.startswith("x") else a for n, a in arrays.items()})
        options = {"data": str(file), "model": "resnet8", "lr": 0.1, "epochs": 32, "evaluate_train_every": 32}
        noises = {**HUMAN, **NOISES}
        found.append(Ground("cifar-plain", 3, {**options, "augment": "none"}, noises, CORE, at_chosen_radius=False))
        augmented = {**options, "augment": "standard"}
        found.append(Ground("cifar", 3, augmented, noises, AUGMENTED, at_chosen_radius=False))
        # the same with the length, rate and small batches of the preset `recommended`: seven times the steps
        longer = {**augmented, "epochs": 60, "evaluate_train_every": 60, "batch_size": 32, "lr": 0.05}
        found.append(Ground("cifar-longer", 3, longer, HUMAN, AUGMENTED, at_chosen_radius=False))
    return found


def _save(file: Path, arrays: dict[str, Any]) -> None:
    with atomic_path(file) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, **arrays)


# --- one kind of noise on one data set


@dataclass
class Trial:
    """Its runs, and the numbers in them, by setting and in the order of seeds."""

    ground: Ground
    noise: str
    out: Path

    @property
    def folder(self) -> Path:
        return self.out / self.ground.name / self.noise.replace(" ", "")

    def run(self, workers: int, settings: list[str]) -> None:
        """Do what is not done yet: first what needs no choice, then what is tried at the chosen radius."""
        wanted = [name for name in self.ground.settings if name in settings]
        if wanted:
            self._compare([SETTINGS[name] for name in wanted], workers)
        rho = self.chosen_radius()
        if rho is not None and self.ground.at_chosen_radius and CHOSEN in settings:
            self._compare([spec.format(rho=rho) for spec in AT_CHOSEN_RADIUS.values()], workers)

    def _compare(self, specs: list[str], workers: int) -> None:
        print(f"# {self.ground.name}, {self.noise}", flush=True)
        config = self.ground.config(self.noise)
        compare(config, self.folder, optimizers=specs, seeds=self.ground.seeds, workers=workers)

    def chosen_radius(self) -> float | None:
        """The radius whose noisy-validation accuracy is best, in the mean of seeds and the last five epochs."""
        scores = {rho: self._values(f"sam:rho={rho}{WARM}", "val_accuracy") for rho in RADII}
        known = {rho: statistics.mean(values) for rho, values in scores.items() if values}
        return max(known, key=lambda rho: known[rho]) if known else None

    def spec(self, name: str) -> str | None:
        if name == CHOSEN:
            rho = self.chosen_radius()
            return None if rho is None else f"sam:rho={rho}{WARM}"
        if name in AT_CHOSEN_RADIUS:
            rho = self.chosen_radius()
            return None if rho is None else AT_CHOSEN_RADIUS[name].format(rho=rho)
        return SETTINGS[name]

    def values(self, name: str, metric: str = "test_accuracy") -> list[float]:
        """One number for each seed; none unless all of them are finished."""
        spec = self.spec(name)
        return [] if spec is None else self._values(spec, metric)

    def _values(self, spec: str, metric: str) -> list[float]:
        values = []
        for seed in range(1, self.ground.seeds + 1):
            file = self.folder / folder_name("ce", spec, seed) / "metrics.jsonl"
            lines = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
            if len(lines) < self.ground.options["epochs"]:
                return []
            last = lines[-5:] if metric.endswith("accuracy") else lines[-1:]
            values.append(statistics.mean(line[metric] for line in last))
        return values


# --- tables


def spread(values: list[float]) -> str:
    if not values:
        return "-"
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.1f} ± {error:.1f}"


def accuracies(trials: list[Trial], metric: str) -> list[str]:
    """Settings by noise: mean and standard error over seeds; of other metrics the mean alone."""
    chooses = trials[0].ground.at_chosen_radius
    names = [*trials[0].ground.settings, *((CHOSEN, *AT_CHOSEN_RADIUS) if chooses else ())]
    lines = _head("setting", trials)
    for name in names:
        cells = [trial.values(name, metric) for trial in trials]
        if any(cells):
            digits = {"memorised": 0, "val_accuracy": 1}.get(metric)
            shown = [spread(v) if digits is None else f"{statistics.mean(v):.{digits}f}" if v else "-" for v in cells]
            lines.append(f"| {name} | " + " | ".join(shown) + " |")
    if chooses and metric == "test_accuracy":
        chosen = [trial.chosen_radius() for trial in trials]
        lines.append("| *the radius chosen* | " + " | ".join("-" if rho is None else f"{rho}" for rho in chosen) + " |")
    return lines


def paired(trials: list[Trial]) -> list[str]:
    """Each NCSAM against its control: mean difference, its standard error, and p of the paired t-test.

    The last column takes all noises of the ground together.
    """
    lines = _head("NCSAM minus its control", trials, "all")
    for name, control in CONTROLS.items():
        differences = []
        for trial in trials:
            ours, theirs = trial.values(name), trial.values(control)
            differences.append([a - b for a, b in zip(ours, theirs, strict=True)] if ours and theirs else [])
        if any(differences):
            together = [value for values in differences for value in values]
            lines.append(f"| {name} | " + " | ".join(map(_difference, [*differences, together])) + " |")
    return lines


def _difference(values: list[float]) -> str:
    if not values:
        return "-"
    p = stats.ttest_1samp(values, 0.0).pvalue if len(set(values)) > 1 else 1.0
    return f"{statistics.mean(values):+.1f} ± {statistics.stdev(values) / len(values) ** 0.5:.1f} (p {p:.2f})"


def _head(first: str, trials: list[Trial], *more: str) -> list[str]:
    names = [trial.noise for trial in trials] + list(more)
    return [f"| {first} | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]


def tables(trials: list[Trial]) -> str:
    parts = []
    for name in dict.fromkeys(trial.ground.name for trial in trials):
        own = [trial for trial in trials if trial.ground.name == name and any(trial.values("SGD"))]
        if not own:
            continue
        seeds = own[0].ground.seeds
        parts += [f"## {name}, {seeds} seeds", "Test accuracy, mean of the last five epochs, ± standard error:"]
        parts += ["\n".join(accuracies(own, "test_accuracy")), "Difference from the control, seed by seed:"]
        parts += ["\n".join(paired(own)), "Share of the wrong labels that were memorised, %:"]
        parts += ["\n".join(accuracies(own, "memorised")), "Accuracy on the noisy labels held out, last five epochs:"]
        parts += ["\n".join(accuracies(own, "val_accuracy"))]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="folder of the runs")
    parser.add_argument("--fashion", type=Path, help="folder with Fashion-MNIST's files")
    parser.add_argument("--cifar", type=Path, help="archive of CIFAR-10 pictures with human labels")
    parser.add_argument("--only", nargs="+", help="these data sets and noises alone, such as: digits human")
    names = [*SETTINGS, CHOSEN]
    parser.add_argument("--settings", nargs="+", choices=names, default=names, metavar="NAME", help="these rows alone")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--tables", action="store_true", help="only tabulate what is finished")
    parser.add_argument("--markdown", type=Path, help="write the tables there instead of printing them")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    available = grounds(arguments.out, arguments.fashion, arguments.cifar)
    trials = [Trial(ground, noise, arguments.out) for ground in available for noise in ground.noises]
    if not arguments.tables:
        wanted = set(arguments.only or ())
        for trial in trials:
            kinds = {"ground": trial.ground.name, "noise": trial.noise}
            asked = [
                names & wanted for names in ({g.name for g in available}, {n for t in trials for n in t.ground.noises})
            ]
            if all(not some or value in some for some, value in zip(asked, kinds.values(), strict=True)):
                trial.run(arguments.jobs, arguments.settings)
    text = tables(trials)
    if arguments.markdown is None:
        print(text, end="")
        return
    with atomic_path(arguments.markdown) as temporary:
        temporary.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
