"""Runs that differ in their seed alone, gathered in a `Group` under a label that tells the groups apart."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ncsam._statistics import Spread
from ncsam.engine.config import NEUTRAL
from ncsam.engine.optimizers import unused_options
from ncsam.runs.reader import RunFolder

#: Fields in which runs of one group may differ: the seeds, the machine, and what is said about the file itself.
_NOT_IDENTITY = NEUTRAL | {
    "version",
    "command",
    "seed",
    "noise_seed",
    "devices",
    "accelerator",
    "strategy",
    "num_nodes",
}
#: Fields that a label names first when they differ, most of them by their value alone.
_NAMED_FIRST = ("data", "noise", "rate", "label_file", "model", "method", "optimizer")


class Point(NamedTuple):
    """An epoch of a curve: mean over seeds, and the standard deviation where there are several."""

    epoch: int
    mean: float
    std: float | None


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone, under a label that tells the groups of one report apart."""

    label: str
    runs: Sequence[RunFolder]

    def spread(self, metric: str) -> Spread | None:
        return Spread.of(run.summary.get(metric) for run in self.runs)

    def values(self, metric: str) -> dict[int, float]:
        """The metric of each finished run, by its seed."""
        found = {run.seed: run.summary.get(metric) for run in self.runs}
        return {seed: float(value) for seed, value in found.items() if seed is not None and value is not None}

    def curve(self, name: str) -> list[Point]:
        """Mean and standard deviation over the runs, at the epochs that every run with the curve has reached."""
        curves = [curve for curve in (run.curve(name) for run in self.runs) if curve]
        if not curves:
            return []
        epochs = sorted(set.intersection(*(set(curve) for curve in curves)))
        spreads = [Spread.of(curve[epoch] for curve in curves) for epoch in epochs]
        return [Point(e, s.mean, s.std) for e, s in zip(epochs, spreads, strict=True) if s is not None]


def group_runs(runs: Iterable[RunFolder]) -> list[Group]:
    """Runs by configuration, in the order in which each was first seen; the seed and the machine do not count."""
    by_identity: dict[str, list[RunFolder]] = {}
    for run in runs:
        identity = {key: value for key, value in run.config.items() if key not in _NOT_IDENTITY}
        by_identity.setdefault(json.dumps(identity, sort_keys=True, default=str), []).append(run)
    members = list(by_identity.values())
    labels = _labels([group[0].config for group in members])
    return [Group(label, group) for label, group in zip(labels, members, strict=True)]


def varying(configs: Sequence[dict[str, Any]]) -> list[str]:
    """The fields, seeds and machine aside, in which the configurations differ."""
    fields = dict.fromkeys(key for config in configs for key in config if key not in _NOT_IDENTITY)
    return [key for key in fields if len({repr(config.get(key)) for config in configs}) > 1]


def _labels(configs: Sequence[dict[str, Any]]) -> list[str]:
    """Every setting that was given more than one value, and those that are needed to tell the groups apart.

    A setting that an optimizer does not use is not said of it, and a flip ratio that follows from the rate is not said
    unless it must be.
    """
    differing = varying(configs)
    used = [{k: v for k, v in c.items() if k not in unused_options(str(c.get("optimizer")))} for c in configs]
    several = [key for key in differing if len({repr(c[key]) for c in used if c.get(key) is not None}) > 1]
    named = [key for key in _NAMED_FIRST if key in differing] or ["method", "optimizer"]
    named += [key for key in several if key not in named and key != "flip_ratio"]
    for extra in (key for key in differing if key not in named):
        distinct = len({_label(config, named) for config in used})
        if distinct == len(configs):
            break
        if len({_label(config, [*named, extra]) for config in used}) > distinct:
            named.append(extra)
    return [_label(config, named) for config in used]


def _label(config: dict[str, Any], keys: Sequence[str]) -> str:
    said = []
    for key in keys:
        value = config.get(key)
        if isinstance(value, dict):
            said += [f"{name} {setting}" for name, setting in value.items()]
        elif value is not None:
            said.append(str(value) if key in _NAMED_FIRST and key != "rate" else f"{key} {value}")
    return ", ".join(said)
