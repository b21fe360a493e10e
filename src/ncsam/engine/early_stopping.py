"""Early stopping on validation samples with their noisy labels, and the best weights restored.

The labels are noisy, but equally so for every epoch: a model that begins to memorize loses accuracy on them, too.

References:
    D. Zhu et al., Is BERT robust to label noise?, Insights from Negative Results in NLP 2022, arXiv:2204.09371.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from ncsam.engine.learner import Learner
from ncsam.engine.states import full_state, load_network
from ncsam.methods import Method


class EarlyStopping:
    """Keeps the weights of the epoch with the highest validation accuracy, the first of equals.

    Args:
        patience: Epochs without a higher accuracy after which training ends; `None`: train to the end and keep the
            last weights.
        learners: The models and their optimizers.
        method: The learning method, whose state is kept with the weights.
    """

    def __init__(self, patience: int | None, learners: Sequence[Learner], method: Method) -> None:
        self.patience = patience
        self.learners = learners
        self.method = method
        self.best_epoch = 0
        self.best_accuracy = -1.0
        self._kept: dict[str, Any] | None = None

    def update(self, epoch: int, accuracy: float | None) -> None:
        """Take note of a finished epoch. Every rank must call it."""
        if self.patience is None or accuracy is None or accuracy <= self.best_accuracy:
            return
        self.best_epoch, self.best_accuracy = epoch, accuracy
        networks = [copy.deepcopy(full_state(dict(learner.bare.state_dict()))) for learner in self.learners]
        self._kept = {"networks": networks, "method": copy.deepcopy(self.method.state_dict())}

    def is_over(self, epoch: int) -> bool:
        """Whether training ends after this epoch."""
        return self.patience is not None and 0 < self.best_epoch <= epoch - self.patience

    def restore(self) -> bool:
        """Put the kept weights back, if there are any."""
        if self._kept is None:
            return False
        for learner, network in zip(self.learners, self._kept["networks"], strict=True):
            load_network(learner.bare, network)
        self.method.load_state_dict(self._kept["method"])
        return True

    def state_dict(self) -> dict[str, Any]:
        return {"best_epoch": self.best_epoch, "best_accuracy": self.best_accuracy, "kept": self._kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best_epoch, self.best_accuracy = int(state["best_epoch"]), float(state["best_accuracy"])
        self._kept = state["kept"]
