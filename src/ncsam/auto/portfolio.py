"""Which candidates to try on which data: few, different, each good somewhere."""

from __future__ import annotations

from typing import Any

from ncsam.auto.candidates import Candidate, Linear, Network
from ncsam.auto.problem import Problem

#: A gentle step with weight decay.
_GENTLE: dict[str, Any] = {"warmup": 0.0, "lr": 0.0125, "weight_decay": 0.005, "batch_size": 128}
#: The radius does not listen to held-out samples here: those are the fold, which judges the candidate.
_SAM: dict[str, Any] = {**_GENTLE, "optimizer": "sam", "rho": "auto", "rho_target": 0.5}
_M_CORRECTION: dict[str, Any] = {**_GENTLE, "optimizer": "sgd", "method": "mcorrection"}
_WIDTH = 1024  # of random features

#: Modality, strength and rounds of pruning of linear classifiers, the cheapest first. Pruned twice they differ enough from
#: those pruned once to help a mean; the weakly shrunk ones of random features are for data that is far from linear.
_SMOOTH = (
    *(("discriminant", 0.6, 0), ("discriminant", 0.6, 1), ("discriminant", 0.6, 2)),
    *(("discriminant", 0.8, 0), ("discriminant", 0.8, 1), ("discriminant", 0.3, 1), ("discriminant", 0.3, 2)),
)
_RANDOM = (
    *(("discriminant", 0.6, 1), ("discriminant", 0.3, 1), ("discriminant", 0.3, 2)),
    *(("discriminant", 0.1, 1), ("discriminant", 0.1, 2)),
)
_LOGISTIC = (("logistic", 0.3, 1), ("logistic", 0.03, 1), ("logistic", 1.0, 2))


def portfolio(problem: Problem) -> list[Candidate]:
    """The candidates for a problem, in the order in which they run."""
    return _for_vectors(problem) if problem.is_vectors else _for_images(problem)


def _for_vectors(problem: Problem) -> list[Candidate]:
    """Smooth classifiers first: they take seconds, and set the bar for what takes minutes.

    Wrong labels that people give follow rules of their own, which a flexible classifier learns with the rest, and is
    paid for by accuracy on such labels. So most candidates are ones that cannot: discriminants with a strongly shrunk
    covariance, and fits without label issues.
    """
    smooth = [_linear(*each) for each in _SMOOTH] + [_linear(*each, width=_WIDTH) for each in _RANDOM]
    smooth += [_linear(*each) for each in _LOGISTIC]
    # so many steps, whatever the number of samples
    per_epoch = max(1, len(problem.positions) // 128)
    short, long = (min(200, max(10, round(steps / per_epoch))) for steps in (400, 1000))
    lengths = sorted({short, long})
    networks: list[Candidate] = [Network(f"mcorrection-{long}", {**_M_CORRECTION, "epochs": long})]
    return [*smooth, *networks, *(Network(f"sam-{epochs}", {**_SAM, "epochs": epochs}) for epochs in lengths)]


def _linear(kind: str, strength: float, rounds: int, width: int = 0) -> Linear:
    name = f"{'random' if width else kind}-{strength:g}{('', '-pruned', '-pruned-twice')[rounds]}"
    return Linear(name, kind, strength, rounds, width)


def _for_images(problem: Problem) -> list[Candidate]:
    plain = {"lr": 0.05, "batch_size": 128, "epochs": 60, "warmup": 0.0}
    return [
        Network("sgd", {**plain, "optimizer": "sgd"}),
        Network("sam", {**plain, "optimizer": "sam", "rho": "auto", "rho_target": "auto"}),
        Network("elr", {**plain, "optimizer": "sgd", "method": "elr"}),
        Network("mixup", {**plain, "optimizer": "sgd", "method": "mixup"}),
    ]
