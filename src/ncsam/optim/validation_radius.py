"""A radius that listens to samples held out, and goes to nothing where it does not help them."""

from __future__ import annotations

import math
from typing import Any

import torch

from ncsam._checks import positive, ratio
from ncsam._errors import bad_value, did_you_mean
from ncsam.optim.radius import BOUND, START, AutoRadius, Radius, RadiusLike

BEGIN = 1 / 3  # of training: sooner, the held-out loss falls whatever the radius, and memorizing sets in unopposed
LOOKS = 25
FALL, RISE = 0.8, 2.0  # of the target, where the held-out loss fell since the last look, and where it did not
_LEAST = 0.01  # of the full target: from there, seven looks bring it back


class ValidationRadius(AutoRadius):
    r"""An automatic radius whose target follows the loss of held-out samples, with their labels as they are.

    While that loss falls, nothing is being memorized and the perturbation only costs; where it rises, labels are being
    learned by heart. So at each of some 25 looks in the last two thirds of training

    .. math::
        target \leftarrow \begin{cases} 0.8\, target & \text{the held-out loss fell since the last look} \\
        \min(full,\, 2\, target) & \text{else} \end{cases}

    but never below a hundredth of the full target; the radius follows as in `AutoRadius`. A look compares the mean of
    the losses since the last one with the mean of those before: `optimizer.report_val_loss(loss)`, say after every
    epoch. That costs a forward pass over the held-out samples, which most loops make anyway. Never told of a loss, it
    is an `AutoRadius`.

    Args:
        target: the full target, with which it begins.
        begin: the share of training after which it listens.
        looks: how many looks there are from then on, if losses are noted often enough.
        bound, start, guess_loss: as for `AutoRadius`.
    """

    def __init__(
        self,
        target: float = 0.5,
        *,
        begin: float = BEGIN,
        looks: int = LOOKS,
        bound: float | None = BOUND,
        start: float = START,
        guess_loss: float | None = None,
    ) -> None:
        super().__init__(target, bound=bound, start=start, guess_loss=guess_loss)
        self.full = self.target
        self.begin_at = ratio("begin", begin)
        self.looks = positive("looks", looks)
        self._noted: list[float] = []
        self._before: float | None = None  # mean loss between the last two looks
        self._looked_at = 0.0

    def report_val_loss(self, loss: float, progress: float | None) -> None:
        if progress is None:
            raise RuntimeError(
                "rho='validation' must know how far training is: give the optimizer total_steps=, or set its progress"
            )
        if not math.isfinite(loss):
            return
        self._noted.append(loss)
        if progress - self._looked_at < (1.0 - self.begin_at) / self.looks - 1e-9:
            return
        now = math.fsum(self._noted) / len(self._noted)
        if self._before is not None and progress >= self.begin_at:
            self.target *= FALL if now < self._before else RISE
            self.target = min(self.full, max(self.target, _LEAST * self.full))
        self._before, self._noted, self._looked_at = now, [], progress

    def state_dict(self) -> dict[str, Any]:
        own = {"target": self.target, "noted": self._noted, "before": self._before, "looked_at": self._looked_at}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        super().load_state_dict(state, device)
        self.target = float(state["target"])
        self._noted = [float(loss) for loss in state["noted"]]
        self._before = None if state["before"] is None else float(state["before"])
        self._looked_at = float(state["looked_at"])

    def __repr__(self) -> str:
        return f"'validation', now {self.rho:.3g}"


def make_radius(rho: RadiusLike, target: float, guess_loss: float | None) -> Radius:
    """The radius that `rho=` names; `target` and `guess_loss` are those of "auto" and "validation"."""
    if isinstance(rho, Radius):
        return rho
    kinds = {"auto": AutoRadius, "validation": ValidationRadius}
    if not isinstance(rho, str):
        return Radius(rho)
    if rho not in kinds:
        allowed = "a finite number, 0 or larger, 'auto', 'validation', or an AutoRadius"
        raise bad_value("rho", rho, allowed + did_you_mean(rho, kinds, ". "))
    return kinds[rho](target, guess_loss=guess_loss)
