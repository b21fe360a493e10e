"""Tables of `outside_estimate.py` and `outside_estimate_images.py`: gains over SAM, and what rules would have gained.

    PYTHONPATH=experiments python experiments/outside_estimate_tables.py FILE.json [--images]

A rule takes an arm if the facts of a dataset, for which no true label is needed, allow it, and SAM elsewhere. Rules are
chosen on all families but one, and applied to that one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ncsam._statistics import Spread
from ncsam.report.markdown import table as markdown_table

Seed = Mapping[str, Any]  # facts, runs, classifier
Rule = Callable[[Seed], float]
BASELINE, ORACLE = "SAM", "oracle, s 1"
MOST_LOST = 1.0  # points on any dataset
#: Facts by which a rule may decide, each with thresholds; all are known without true labels.
GATES: dict[str, tuple[float, ...]] = {
    "agreement": (0.5, 0.6, 0.7),
    "expected": (0.05, 0.1, 0.15),
    "expected_other": (0.05, 0.1, 0.15),
    "certain_share": (0.05, 0.1, 0.15),
    "certain_precision": (0.3, 0.5, 0.7, 0.8),
    "certain_precision_other": (0.7, 0.8, 0.9),
}
_FAMILIES = {"lite0": "cifar", "dino": "cifar", "yoruba_minilm": "yoruba", "youtube_minilm": "youtube"}


def family(dataset: str) -> str:
    """Datasets that share inputs, or come from the same kind of table, are of one family."""
    first, _, kind = dataset.partition("/")
    return "defects" if kind == "HeuBug" else _FAMILIES.get(first, first)


def arm(name: str) -> Rule:
    """Always this arm; "classifier" is the smooth classifier that p comes from."""
    return lambda seed: float(seed["classifier"] if name == "classifier" else seed["runs"][name]["last5"])


def better(name: str, by: str = "held_out") -> Rule:
    """SAM or an arm, whichever is better by a criterion; SAM in a tie. Two runs."""

    def rule(seed: Seed) -> float:
        runs = seed["runs"]
        return float(runs[name if runs[name][by] > runs[BASELINE][by] else BASELINE]["last5"])

    return rule


def gated(name: str, fact: str, least: float) -> Rule:
    """An arm where a fact reaches a threshold, else SAM."""
    return lambda seed: float(seed["runs"][name if seed["facts"].get(fact, 0.0) >= least else BASELINE]["last5"])


class Results:
    """What is finished: datasets, each with seeds that have every arm."""

    def __init__(self, found: Mapping[str, Mapping[str, Seed]], arms: Iterable[str]) -> None:
        needed = set(arms)
        finished = {n: [s for s in seeds.values() if needed <= set(s.get("runs", {}))] for n, seeds in found.items()}
        self.seeds = {name: seeds for name, seeds in finished.items() if seeds}
        self.oracle = {name: float(np.mean(self.differences(arm(ORACLE), name))) for name in self.seeds}

    def differences(self, rule: Rule, name: str) -> list[float]:
        """To SAM, for each seed of a dataset."""
        return [rule(seed) - arm(BASELINE)(seed) for seed in self.seeds[name]]

    def row(self, rule: Rule, names: Iterable[str]) -> list[str]:
        """Mean gain with its standard error over datasets, the worst, datasets that lose, share of the oracle's."""
        gains = {name: float(np.mean(self.differences(rule, name))) for name in names}
        worst = min(gains, key=lambda name: gains[name])
        total = sum(self.oracle[name] for name in gains)
        return [
            signed(gains.values()),
            f"{signed(self.differences(rule, worst))} ({worst})",
            f"{sum(gain < -MOST_LOST for gain in gains.values())} of {len(gains)}",
            f"{sum(gains.values()) / total:.0%}" if total > 0 else "-",
        ]

    def chosen_without(self, rules: Mapping[str, Rule]) -> dict[str, str]:
        """For each family, the rule with the largest mean gain on the others among those that are safe there."""
        gains = {
            text: {name: float(np.mean(self.differences(rule, name))) for name in self.seeds}
            for text, rule in rules.items()
        }
        chosen = {}
        for left_out in sorted({family(name) for name in self.seeds}):
            others = [name for name in self.seeds if family(name) != left_out]
            safe = [text for text in rules if min(gains[text][name] for name in others) >= -MOST_LOST]
            chosen[left_out] = max(safe, key=lambda text: sum(gains[text][name] for name in others), default=BASELINE)
        return chosen

    def applied(self, rules: Mapping[str, Rule], chosen: Mapping[str, str]) -> Rule:
        """Each family by the rule that was chosen without it."""
        families = {id(seed): family(name) for name, seeds in self.seeds.items() for seed in seeds}
        known = {**rules, BASELINE: arm(BASELINE)}
        return lambda seed: known[chosen[families[id(seed)]]](seed)


def signed(values: Iterable[float]) -> str:
    """Mean and standard error."""
    spread = Spread.of(values)
    return "-" if spread is None else spread.text(1, error=True, sign=True)


def by_dataset(results: Results, arms: Iterable[str]) -> str:
    """For each dataset its noise, SAM's accuracy, and the differences to it."""
    columns = list(arms)
    rows = []
    for name, seeds in results.seeds.items():
        noise, auroc = (np.mean([seed["facts"][f"true_{key}"] for seed in seeds]) for key in ("noise", "auroc"))
        sam = Spread.of(arm(BASELINE)(seed) for seed in seeds)
        rows.append(
            [f"{name} ({len(seeds)})", f"{100 * noise:.0f} %", "-" if np.isnan(auroc) else f"{auroc:.3f}"]
            + ["-" if sam is None else sam.text(1, error=True)]
            + [signed(results.differences(arm(each), name)) for each in columns]
        )
    return markdown_table(["dataset (seeds)", "labels wrong", "AUROC of p", BASELINE, *columns], rows)


def of_features(found: Mapping[str, Mapping[str, Seed]], arms: list[str], screened: list[str]) -> str:
    """Every arm on every dataset, and arms and rules over all of them."""
    results = Results(found, arms)
    noisy = [name for name in results.seeds if not name.endswith("/clean")]
    followed = [name for name in arms if name not in (BASELINE, ORACLE)]
    rules = {name: arm(name) for name in followed}
    rules |= {
        f"{name}, if {fact} >= {least}": gated(name, fact, least)
        for name in followed
        for fact, thresholds in GATES.items()
        for least in thresholds
    }
    chosen = results.chosen_without(rules)
    summary: dict[str, Rule] = {name: arm(name) for name in (ORACLE, *followed, "classifier")}
    summary |= {f"two runs: SAM or {name}": better(name) for name in followed}
    summary["chosen without the family"] = results.applied(rules, chosen)
    head = ["", "gain over SAM", "worst dataset", "lose more than a point", "of the oracle's gain"]
    first = Results({name: {"1": seeds["1"]} for name, seeds in found.items() if "1" in seeds}, [*arms, *screened])
    parts = [
        by_dataset(results, [ORACLE, *followed, "classifier"]),
        f"Noisy labels, {len(noisy)} datasets:",
        markdown_table(head, [[text, *results.row(rule, noisy)] for text, rule in summary.items()]),
        "Clean labels:",
        markdown_table(
            head[:4],
            [
                [text, *results.row(rule, [name for name in results.seeds if name not in noisy])[:3]]
                for text, rule in summary.items()
            ],
        ),
        "Chosen for each family on the others:",
        markdown_table(["family", "rule"], [[name, text] for name, text in chosen.items()]),
        "The first seed alone, noisy labels:",
        markdown_table(
            head,
            [
                [name, *first.row(arm(name), [n for n in first.seeds if not n.endswith("/clean")])]
                for name in (*followed, *screened)
            ],
        ),
    ]
    return "\n\n".join(parts)


def of_images(found: Mapping[str, Mapping[str, Seed]], arms: list[str]) -> str:
    """Accuracies of every arm under every noise, and the AUROC of each source's p; "-" where nothing is finished."""

    def row(name: str) -> list[str]:
        spreads = [Spread.of(arm(name)(s) for s in each.values() if name in s["runs"]) for each in found.values()]
        return ["-" if spread is None else spread.text(1, error=True) for spread in spreads]

    def facts(source: str) -> list[str]:
        spreads = [
            Spread.of(s["facts"][source]["true_auroc"] for s in each.values() if source in s["facts"])
            for each in found.values()
        ]
        return ["-" if spread is None else spread.text(3, error=True) for spread in spreads]

    sources = sorted({source for each in found.values() for s in each.values() for source in s["facts"]})
    rows = [[f"AUROC of p, {source}", *facts(source)] for source in sources]
    return markdown_table(["", *found], [*rows, *([name, *row(name)] for name in arms)])


def main() -> None:
    import outside_estimate
    import outside_estimate_images

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--images", action="store_true", help="of outside_estimate_images.py")
    asked = parser.parse_args()
    found = json.loads(asked.file.read_text())
    if asked.images:
        print(of_images(found, list(outside_estimate_images.ARMS)))
        return
    arms = outside_estimate.ARMS
    screened = [name for name, each in arms.items() if each.screened]
    print(of_features(found, [name for name in arms if name not in screened], screened))


if __name__ == "__main__":
    main()
