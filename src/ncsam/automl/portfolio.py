"""Which candidates to try on which data; `experiments/recommendations.py` measures each of them."""

from __future__ import annotations

from typing import Any

from ncsam.automl.candidates import Candidate, ClosedForm, Network
from ncsam.automl.problem import Problem

#: A gentle step with weight decay. The radius is not guided by validation samples: these are the fold to be predicted.
_SAM: dict[str, Any] = {
    "warmup": 0.0,
    "lr": 0.0125,
    "weight_decay": 0.005,
    "batch_size": 128,
    "method": "ce",
    "optimizer": "sam",
    "rho": "auto",
    "rho_target": 0.5,
}
_STEPS = 1000  # of the network, whatever the number of samples
_CLOSED_FORM: tuple[tuple[str, dict[str, Any]], ...] = (
    ("lda", {"shrinkage": 0.6}),
    ("lda", {"shrinkage": 0.8}),
    ("lda", {"shrinkage": 0.95}),
    ("lda", {"shrinkage": 1.0}),
    ("prototypes", {}),
    ("kernel", {"penalty": 0.1}),
    ("kernel", {"penalty": 1.0}),
    ("knn", {"k": 30}),
    ("logistic", {"penalty": 0.03}),
)
#: Never within .3 points of the best candidate on any of twenty noisy sets of embeddings; on tables they are, at times.
#: Boosting was 1 to 13 points below the best on every table, and is not tried (docs/experiments/recommendations.md).
_TABLES_ONLY = ("lda-0.95", "lda-1", "lda-1-pruned", "logistic-0.03", "logistic-0.03-pruned")
_TREES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("forest", {"leaf": 5}),
    ("forest", {"leaf": 15}),
    ("forest", {"leaf": 5, "extra": True}),
)


def portfolio(problem: Problem) -> list[Candidate]:
    """Return the candidates for a problem.

    Args:
        problem: data and folds.

    Returns:
        Closed-form classifiers and a network for features; networks only for images. Cheapest first.
    """
    return _for_vectors(problem) if problem.is_vectors else _for_images()


def _for_vectors(problem: Problem) -> list[Candidate]:
    """Closed-form classifiers, each also with label issues removed; forests for tables; one network.

    Errors that people and rules make can be learned, and accuracy on noisy labels rewards classifiers that learn them.
    Most candidates are therefore too smooth to do so.
    """
    recommended = "smooth_table" if problem.is_table else "smooth"
    candidates: list[Candidate] = [ClosedForm(recommended, recommended)]
    for model, options in [*_CLOSED_FORM, *(_TREES if problem.is_table else ())]:
        candidates += [_closed_form(model, options), _closed_form(model, {**options, "prune": 1})]
    if not problem.is_table:
        candidates = [each for each in candidates if each.name not in _TABLES_ONLY]
    epochs = min(200, max(10, round(_STEPS / max(1, len(problem.positions) // 128))))
    return [*candidates, Network(f"sam-{epochs}", {**_SAM, "epochs": epochs})]


def _closed_form(model: str, options: dict[str, Any]) -> ClosedForm:
    words = [model]
    for name, value in options.items():
        words += [] if name == "prune" else ["extra"] if name == "extra" else [f"{value:g}"]
    return ClosedForm("-".join([*words, *(["pruned"] if options.get("prune") else [])]), model, options)


def _for_images() -> list[Candidate]:
    plain = {"lr": 0.05, "batch_size": 128, "epochs": 60, "warmup": 0.0}
    return [
        Network("sgd", {**plain, "method": "ce", "optimizer": "sgd"}),
        Network("sam", {**plain, "method": "ce", "optimizer": "sam", "rho": "auto", "rho_target": "auto"}),
        Network("elr", {**plain, "optimizer": "sgd", "method": "elr"}),
        Network("mixup", {**plain, "optimizer": "sgd", "method": "mixup"}),
    ]
