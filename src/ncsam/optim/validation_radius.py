"""Radii guided by the loss of validation samples: they shrink where the perturbation does not help."""

from __future__ import annotations

import math
from typing import Any

import torch

from ncsam._checks import positive, ratio
from ncsam.optim.radius import BOUND, START, AutoRadius, BoundedRadius

BEGIN = 1 / 3  # of training: sooner, the validation loss falls whatever the radius, and memorization starts unopposed
NUM_CHECKS = 25
FALL, RISE = 0.8, 2.0  # of the target, where the validation loss fell since the last check, and where it did not
_LEAST = 0.01  # of the full target: from there, seven checks bring it back


class FollowsValidation(BoundedRadius):
    """A radius with a `target` that follows the validation loss; `follow_validation` says from where and how often."""

    def follow_validation(self, full: float, begin: float, num_checks: int) -> None:
        """Begin with the full target.

        Args:
            full: The largest target.
            begin: The share of training after which the target follows the validation loss.
            num_checks: The number of checks from then on, if losses are reported often enough.
        """
        self.target = self.full = full
        self.begin_at = ratio("begin", begin)
        self.num_checks = positive("num_checks", num_checks)
        self._reported: list[float] = []
        self._before: float | None = None  # mean loss between the last two checks
        self._checked_at = 0.0

    def report_val_loss(self, loss: float, progress: float | None) -> None:
        if progress is None:
            raise RuntimeError(
                "rho='validation' must know how far training is: give the optimizer total_steps=, or set its progress"
            )
        if not math.isfinite(loss):
            return
        self._reported.append(loss)
        if progress - self._checked_at < (1.0 - self.begin_at) / self.num_checks - 1e-9:
            return
        now = math.fsum(self._reported) / len(self._reported)
        if self._before is not None and progress >= self.begin_at:
            self.target *= FALL if now < self._before else RISE
            self.target = min(self.full, max(self.target, _LEAST * self.full))
        self._before, self._reported, self._checked_at = now, [], progress

    def state_dict(self) -> dict[str, Any]:
        own = {"target": self.target, "reported": self._reported}
        return {**super().state_dict(), **own, "before": self._before, "checked_at": self._checked_at}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        super().load_state_dict(state, device)
        self.target = float(state["target"])
        self._reported = [float(loss) for loss in state["reported"]]
        self._before = None if state["before"] is None else float(state["before"])
        self._checked_at = float(state["checked_at"])


class ValidationRadius(FollowsValidation, AutoRadius):
    r"""An adaptive radius whose target follows the loss of validation samples, with their labels as they are.

    While that loss falls, nothing is being memorized and the perturbation is only a cost; where it rises, wrong labels
    are being memorized. So at each of some 25 checks in the last two thirds of training

    .. math::
        target \leftarrow \begin{cases} 0.8\, target & \text{the validation loss fell since the last check} \\
        \min(full,\, 2\, target) & \text{else} \end{cases}

    but never below a hundredth of the full target; the radius follows as in `AutoRadius`. A check compares the mean of
    the losses since the last one with the mean of those before: `optimizer.report_val_loss(loss)`, for instance after
    every epoch. That costs a forward pass over the validation samples, which most loops make anyway. If no loss is
    reported, it is an `AutoRadius`.

    Args:
        target: The full target, with which it begins.
        begin: The share of training after which the target follows the validation loss.
        num_checks: The number of checks from then on, if losses are reported often enough.
        bound: The longest perturbation as a share of the norm of the weights; `None` for no bound.
        start: The radius of the first step.
        chance_loss: L_0 of `AutoRadius`, where it is known.

    Examples:
        >>> import torch
        >>> from ncsam import SAM
        >>> model = torch.nn.Linear(4, 3)
        >>> optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho="validation", total_steps=100)
        >>> optimizer.report_val_loss(1.1)
    """

    def __init__(
        self,
        target: float = 0.5,
        *,
        begin: float = BEGIN,
        num_checks: int = NUM_CHECKS,
        bound: float | None = BOUND,
        start: float = START,
        chance_loss: float | None = None,
    ) -> None:
        super().__init__(target, bound=bound, start=start, chance_loss=chance_loss)
        self.follow_validation(self.target, begin, num_checks)

    def __repr__(self) -> str:
        return f"'validation', now {self.rho:.3g}"
