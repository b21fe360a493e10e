"""Which candidates to try on which data: few, different, each good somewhere."""

from __future__ import annotations

from typing import Any

from ncsam.auto.candidates import Candidate, Linear, Network
from ncsam.auto.problem import Problem

#: A gentle step, which SAM with an automatic radius wants; see docs/experiments.
_SAM: dict[str, Any] = {"optimizer": "sam", "rho": "auto", "warmup": 0.0, "lr": 0.0125, "batch_size": 128}


def portfolio(problem: Problem) -> list[Candidate]:
    """The candidates for a problem, in the order in which they run."""
    return _for_vectors(problem) if problem.is_vectors else _for_pictures(problem)


def _for_vectors(problem: Problem) -> list[Candidate]:
    linear: list[Candidate] = [
        Linear("discriminant-0.6", "discriminant", 0.6),
        Linear("discriminant-0.6-pruned", "discriminant", 0.6, rounds=1),
        Linear("discriminant-0.8", "discriminant", 0.8),
        Linear("discriminant-0.8-pruned", "discriminant", 0.8, rounds=1),
        Linear("discriminant-0.3", "discriminant", 0.3),
        Linear("discriminant-0.3-pruned", "discriminant", 0.3, rounds=1),
        Linear("random-0.3-pruned", "discriminant", 0.3, rounds=1, width=1024),
        Linear("random-0.6-pruned", "discriminant", 0.6, rounds=1, width=1024),
        Linear("logistic-300", "logistic", 300.0),
        Linear("logistic-30", "logistic", 30.0),
    ]
    # about as many steps whatever the number of samples: 200 to 800 are where SAM was best on all that was tried
    per_epoch = max(1, len(problem.positions) // 128)
    lengths = sorted({min(200, max(10, round(steps / per_epoch))) for steps in (400, 1000)})
    networks: list[Candidate] = [Network(f"sam-{epochs}", {**_SAM, "epochs": epochs}) for epochs in lengths]
    return linear + networks


def _for_pictures(problem: Problem) -> list[Candidate]:
    plain = {"lr": 0.05, "batch_size": 128, "epochs": 60, "warmup": 0.0}
    return [
        Network("sgd", {**plain, "optimizer": "sgd"}),
        Network("sam", {**plain, "optimizer": "sam", "rho": "auto", "target": "auto"}),
        Network("elr", {**plain, "optimizer": "sgd", "method": "elr"}),
        Network("mixup", {**plain, "optimizer": "sgd", "method": "mixup"}),
    ]
