"""The radius that `rho=` names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from ncsam._arguments import above_zero, non_negative, positive, ratio
from ncsam._errors import bad_value, did_you_mean
from ncsam.optim.radius import BOUND, LARGEST, START, AutoRadius, BoundedRadius, Radius

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


class LossBudgetRadius(BoundedRadius):
    r"""The radius at which the loss rises by `budget` to first order.

    .. math:: \epsilon = \tau\, g / \|g\|^2, \qquad \rho = \min(\tau / \|g\|,\ bound\, \|w\|,\ 5), \qquad
        L(w + \epsilon) - L(w) \approx g^\top \epsilon = \tau

    With `adaptive`, the norm is that of T g, which gives the same first-order increase. Where a step does not have the
    norm of its own gradient beforehand (`estimator="fused"`), that of the last step stands in.

    Args:
        budget: tau, in nats.
        bound: The longest perturbation as a share of the norm of the weights; `None` for no bound.
        start: The radius that is reported before the first step.

    Examples:
        >>> import torch
        >>> from ncsam import SAM
        >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        >>> optimizer = SAM(torch.optim.SGD([w], lr=0.1), rho=LossBudgetRadius(0.2))
        >>> loss = optimizer.step(lambda: w.square().sum() / 2)
        >>> optimizer.last_step.rho  # 0.2 / ||(3, 4)||
        0.04

    References:
        LE-SAM, ICML 2026, in its first-order reading.
    """

    def __init__(self, budget: float = 0.5, *, bound: float | None = BOUND, start: float = START) -> None:
        super().__init__(non_negative("start", start), bound)
        self.budget = above_zero("budget", budget)

    def at_norm(self, norm: float) -> float:
        self._rho = min(self.budget / norm, self._largest())
        return self._rho

    def end(self, perturbed: bool, params: Sequence[Tensor], group: dist.ProcessGroup | None) -> None:
        self._refresh_weight_norm(params)

    def __repr__(self) -> str:
        return f"LossBudgetRadius({self.budget}), now {self.rho:.3g}"


class RisingRadius(FollowsValidation):
    r"""A radius that rises linearly from one share of the norm of the weights to another, and stays there.

    .. math::
        \rho = \min(5,\ c\, s(t)\, \|w\|), \qquad s(t) = first + (last - first) \min(1,\ t / until)

    t in [0, 1] is the progress of training. With moves along the momentum, a long perturbation early in training keeps
    the model from learning, and a short one later does not keep it from memorizing. c is 1 and follows the validation
    loss, as the target of `ValidationRadius` does: it falls to .8 of itself where that loss fell since the last check,
    and doubles, up to 1, where it did not. If no loss is reported, it stays 1.

    It needs no pass. The norm is measured every 20 steps; before the first one, the radius is 0.

    Args:
        first: The share with which training begins.
        last: The share from `until` on.
        until: The progress until which the share rises, above 0.
        begin: The share of training after which c follows the validation loss; 1 for never.
        num_checks: The number of checks from then on, if losses are reported often enough.

    Examples:
        >>> import torch
        >>> from ncsam.optim import MSAM
        >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        >>> base = torch.optim.SGD([w], lr=0.0, momentum=0.9)
        >>> optimizer = MSAM(base, rho=RisingRadius(0.02, 0.1, until=0.5), total_steps=8)
        >>> for _ in range(4):
        ...     loss = optimizer.step(lambda: w.square().sum() / 2)
        >>> round(optimizer.last_step.rho, 9)  # a tenth of ||(3, 4)||
        0.5
    """

    def __init__(
        self,
        first: float = 0.01,
        last: float = 0.1,
        *,
        until: float = 0.6,
        begin: float = BEGIN,
        num_checks: int = NUM_CHECKS,
    ) -> None:
        self.first, self.last = non_negative("first", first), non_negative("last", last)
        self.until = above_zero("until", ratio("until", until))
        super().__init__(0.0, bound=max(self.first, self.last))
        self.follow_validation(1.0, begin, num_checks)
        self._share = self.first

    @property
    def rho(self) -> float:
        """The radius of the coming step."""
        return min(self.target * self._share * (self._weight_norm or 0.0), LARGEST)

    def at_progress(self, progress: float | None) -> None:
        if progress is None:
            raise RuntimeError(
                "a rising radius must know how far training is: give the optimizer total_steps=, or set its progress"
            )
        self._share = self.first + (self.last - self.first) * min(1.0, progress / self.until)

    def end(self, perturbed: bool, params: Sequence[Tensor], group: dist.ProcessGroup | None) -> None:
        self._refresh_weight_norm(params)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "share": self._share}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        super().load_state_dict(state, device)
        self._share = float(state.get("share", self._share))

    def __repr__(self) -> str:
        return f"RisingRadius({self.first}, {self.last}), now {self.rho:.3g}"


#: What `rho=` takes: a number, the name of an adaptive radius, or an object.
RadiusLike: TypeAlias = float | Literal["auto", "validation", "budget"] | Radius
_NAMES = ("auto", "validation", "budget")


def make_radius(rho: RadiusLike, target: float, chance_loss: float | None) -> Radius:
    """Make the radius of an optimizer.

    Args:
        rho: A number, a name, or an object, which is returned as it is.
        target: The `rho_target` of "auto" and "validation".
        chance_loss: Of "auto" and "validation".

    Raises:
        UsageError: For anything else.
    """
    if isinstance(rho, Radius):
        return rho
    if not isinstance(rho, str):
        return Radius(rho)
    if rho == "budget":
        return LossBudgetRadius()
    if rho == "auto":
        return AutoRadius(target, chance_loss=chance_loss)
    if rho == "validation":
        return ValidationRadius(target, chance_loss=chance_loss)
    expected = "a number, 0 or larger, 'auto', 'validation', 'budget', or a Radius"
    raise bad_value("rho", rho, expected + did_you_mean(rho, _NAMES, ". "))
