"""Methods that know, or find out, the transition matrix T[i, j] = P(observed label j | true class i)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam.losses import estimate_transition
from ncsam.losses.correction import check_quantile
from ncsam.methods.base import Presets, State
from ncsam.methods.loss_method import LossMethod
from ncsam.methods.mixtures import losses_under
from ncsam.methods.spans import Span, check_spans, plain_span


class TransitionMethod(LossMethod):
    """Cross-entropy until T is known, then `corrected(logits, targets, T)`.

    An unknown T is estimated after `warmup_epochs` of cross-entropy: row i is the prediction on the training sample
    with the largest p_i below the `quantile`. As in the authors' code, of all warm-up epochs the one is taken whose
    model has the smallest loss on the noisy samples held out (if none are, on all samples, which is the last epoch).

    Patrini et al. train to the end by cross-entropy, estimate T, and train again from the start; Xia et al. spend 20 of
    220 epochs, and continue from the best of them. Here the same model continues, after a tenth of the run, or 100
    steps if that is less: a model that knows nothing yet gives an uninformative T.

    Args:
        transition: T as rows of P(observed | true); None estimates it.
        warmup_epochs: Length of warm-up: whole epochs, or a share of the run.
        quantile: Predictions above this quantile are outliers and no anchors; None keeps all.
    """

    is_loss = False

    presets: ClassVar[Presets] = {"cifar10": {"quantile": 0.97}, "cifar100": {"quantile": None}}
    corrected: ClassVar[Callable[..., Tensor]]

    def __init__(
        self,
        transition: Sequence[Sequence[float]] | None = None,
        warmup_epochs: Span = 0.1,
        quantile: float | None = 0.97,
    ) -> None:
        check_spans(warmup_epochs=warmup_epochs)
        if quantile is not None:
            check_quantile(quantile)
        self.warmup_epochs = warmup_epochs
        self.quantile = quantile
        self.transition: Tensor | None = None
        self.candidate: Tensor | None = None
        self.smallest = math.inf
        if transition is not None:
            self.transition = _checked(transition)

    def on_train_start(self, state: State) -> None:
        """Check that a given T has one row for each class.

        Args:
            state: The state of training.

        Raises:
            UsageError: T has another size.
        """
        if self.transition is not None and len(self.transition) != state.num_classes:
            size = state.num_classes
            raise bad_value("transition", f"{len(self.transition)} rows", f"{size} rows and columns, one per class")

    def on_epoch_start(self, networks: Sequence[nn.Module], state: State) -> None:
        """Estimate an unknown T from the second epoch on, and fix the best estimate once warm-up is over.

        Args:
            networks: The model, which predicts the training split.
            state: The state of training.
        """
        if self.transition is not None or state.epoch == 1:
            return
        probabilities = state.predict(networks)
        noisy = slice(None) if state.held_out is None else state.held_out
        loss = float(losses_under(probabilities[noisy], state.labels[noisy]).mean())
        if loss < self.smallest:
            self.smallest = loss
            self.candidate = estimate_transition(probabilities[state.trained], quantile=self.quantile)
        if state.epoch > self.plain(state):
            self.transition = self.candidate

    def plain(self, state: State) -> int:
        """Epochs before T is there.

        Args:
            state: The state of training.
        """
        return plain_span(self.warmup_epochs, state)

    def criterion(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean corrected loss, or cross-entropy while T is unknown.

        Args:
            logits: (rows, classes).
            targets: Class numbers (rows,), or probabilities (rows, classes).
        """
        if self.transition is None:
            return F.cross_entropy(logits, targets)
        return type(self).corrected(logits, targets, self.transition)

    def state_dict(self) -> dict[str, Any]:
        return {"transition": self.transition, "candidate": self.candidate, "smallest": self.smallest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore T, or the best estimate so far and its loss.

        Args:
            state: What `state_dict` returned.
        """
        self.transition, self.candidate, self.smallest = state["transition"], state["candidate"], state["smallest"]


def _checked(transition: Any) -> Tensor:
    """The matrix as a tensor, if it is one of probabilities."""
    try:
        found = torch.as_tensor(transition, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # rows of different lengths, or no numbers
        found = torch.empty(0)
    square = found.ndim == 2 and found.shape[0] == found.shape[1] > 0
    if not square or bool((found < 0).any()) or not torch.allclose(found.sum(1), torch.ones(()), atol=1e-3):
        raise bad_value("transition", transition, "a square matrix of probabilities whose rows sum to 1")
    return found
