"""The radius of the perturbation: a fixed number, or one that follows the effect of its own perturbations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from ncsam._arguments import non_negative, number
from ncsam.vectors.arithmetic import global_norm

START = 0.05
SMALLEST, LARGEST = 0.01, 5.0
BOUND = 0.1  # of the norm of the weights: longer perturbations raise the loss no further and only find junk
RATE = 0.1  # of the adaptation: exp(RATE * (target - increase)) per step
LEAST_LEARNED = 0.05  # nats: below this much over guessing, the relative increase would be a ratio of noise
_LARGEST_INCREASE = 5.0  # a step shrinks the radius by no more than exp(RATE * (target - 5)), 0.64 at target 0.5
_MEMORY = 0.5  # of the smoothed increase; more would make the loop oscillate
_FIRST_STEPS = 5  # their mean loss stands for the chance loss where labels cannot tell it
_NORM_EVERY = 20  # steps between two measurements of the norm of the weights, which waits for the device


class Radius:
    """A fixed radius, and the interface of changing ones. Subclasses override what they need.

    An object belongs to one optimizer. The fixed radius itself lives in `param_groups`, where schedulers find it;
    the object behind a changing one writes it there at the start of each step.

    Args:
        rho: The radius.
    """

    #: The relative loss increase caused by the last perturbations, where it is measured.
    relative_loss_increase: float | None = None
    #: Where only every so many steps have both losses, each of these moves the radius for all of them.
    steps_per_update = 1

    def __init__(self, rho: float) -> None:
        self._rho = non_negative("rho", rho)

    @property
    def rho(self) -> float:
        """The radius of the coming step."""
        return self._rho

    def at_norm(self, norm: float) -> float | None:
        """The radius of this step where it depends on the norm of its gradient; `None` where it does not.

        Args:
            norm: ||g|| of the unscaled loss, or ||T g|| with `adaptive`; finite and above 0.
        """
        return None

    def at_progress(self, progress: float | None) -> None:
        """A step begins, at t in [0, 1] of training where that is known.

        Args:
            progress: t, or `None` where the optimizer has neither `total_steps` nor `progress`.
        """

    def begin(self) -> None:
        """Forget what an unfinished step has noted."""

    def note_batch(self, loss: Tensor, logits: Tensor | None, targets: Tensor | None, criterion: Any) -> None:
        """A micro-batch at w; the losses of all micro-batches together are the mean over the batch.

        Args:
            loss: The loss that the radius follows (`radius_signal`), one number.
            logits: Of the micro-batch, where the optimizer was given them.
            targets: The observed labels, where the optimizer was given them.
            criterion: The optimizer's loss of (logits, targets).
        """

    def note_perturbed(self, loss: Tensor) -> None:
        """The loss of a micro-batch at w + eps.

        Args:
            loss: The loss that the radius follows (`radius_signal`), at the first perturbed weights of the step.
        """

    def end(self, perturbed: bool, params: Sequence[Tensor], group: dist.ProcessGroup | None) -> None:
        """The step is over; `.grad` holds the gradient at w + eps. Every rank calls it.

        Args:
            perturbed: Whether the step had a pass at w + eps.
            params: The parameters that the optimizer trains.
            group: The ranks that share one radius; `None` for one process.
        """

    def report_val_loss(self, loss: float, progress: float | None) -> None:
        """The loss of validation samples, at t in [0, 1] of training where that is known; the same on every rank.

        Args:
            loss: The mean loss of the validation samples.
            progress: t, or `None` where the optimizer has neither `total_steps` nor `progress`.
        """

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart: tensors, numbers and text."""
        return {}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Load what `state_dict` returned.

        Args:
            state: Its entries by name.
            device: Where its tensors are put.
        """

    def __repr__(self) -> str:
        return f"{self.rho}"


class BoundedRadius(Radius):
    """A radius of at most `bound` times the norm of the weights.

    Args:
        rho: The radius of the first step.
        bound: The longest perturbation as a share of the norm of the weights; `None` for no bound.
    """

    def __init__(self, rho: float, bound: float | None) -> None:
        super().__init__(rho)
        self.bound = None if bound is None else non_negative("bound", bound)
        self._weight_norm: float | None = None
        self._age = 0  # steps since the norm was measured

    def _refresh_weight_norm(self, params: Sequence[Tensor]) -> None:
        if self.bound is not None and params:
            if self._weight_norm is None or self._age >= _NORM_EVERY:
                self._weight_norm, self._age = global_norm([p.detach() for p in params]), 0
            self._age += 1

    def _largest(self) -> float:
        if self.bound is None or self._weight_norm is None:
            return LARGEST
        return min(LARGEST, self.bound * self._weight_norm)

    def state_dict(self) -> dict[str, Any]:
        return {"rho": self._rho, "weight_norm": self._weight_norm, "age": self._age}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        self._rho = float(state["rho"])
        self._weight_norm, self._age = _optional(state.get("weight_norm")), int(state.get("age", 0))


class AutoRadius(BoundedRadius):
    r"""A radius that follows the effect of its perturbations, from two losses that every step has at hand.

    .. math::
        increase = \frac{L_B(w + \epsilon) - L_B(w)}{\max(h,\, L_0 - L_B(w))}, \qquad
        \rho \leftarrow clip(\rho\, e^{\eta (target - increase)},\, 0.01,\, largest), \quad \eta = 0.1,\ h = 0.05

    `largest` is 5, or `bound` times the norm of the weights, whichever is smaller.

    L_0, the chance loss, is the loss of predicting the observed label frequencies for every sample: for cross-entropy
    with class labels their entropy, for another criterion of class labels that criterion at their logarithms, on the
    batch. With other targets it is the mean loss of the first five steps, in which the radius does not move: right for
    an untrained model. `chance_loss` gives it instead.

    The increase is smoothed over about two steps and bounded, so that one odd batch moves little. Where only every
    k-th step has both losses, it moves the radius by the k-th power, within a factor of e. A loss at w that is not
    finite changes nothing; one at w + eps counts as the largest increase. All ranks share one radius, by their mean
    losses.

    Args:
        target: The relative loss increase that a perturbation should cause.
        bound: The longest perturbation as a share of the norm of the weights; `None` for no bound.
        start: The radius of the first step.
        chance_loss: L_0, where it is known.

    Examples:
        >>> import torch
        >>> from ncsam import SAM
        >>> model = torch.nn.Linear(4, 3)
        >>> optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=AutoRadius(target=0.3, bound=0.05))
        >>> optimizer.rho
        0.05
    """

    def __init__(
        self,
        target: float = 0.5,
        *,
        bound: float | None = BOUND,
        start: float = START,
        chance_loss: float | None = None,
    ) -> None:
        super().__init__(non_negative("start", start), bound)
        self.target = check_target(target)
        self.chance_loss = None if chance_loss is None else non_negative("chance_loss", chance_loss)
        self._increase: float | None = None
        self._labels: Tensor | None = None  # how often each class was observed, on all ranks
        self._first_losses: list[float] = []  # where labels cannot tell the chance loss
        self._pending: Tensor | None = None  # losses at w, at w + eps, and of chance, still on their device
        self.begin()

    @property
    def rho(self) -> float:
        """The radius of the coming step."""
        self._apply_pending()
        return self._rho

    @property
    def relative_loss_increase(self) -> float | None:  # type: ignore[override]
        """The relative loss increase caused by the last perturbations, smoothed."""
        self._apply_pending()
        return self._increase

    # --- one step

    def begin(self) -> None:
        #: Per micro-batch: label counts, and what asks the criterion for the loss of predicting frequencies.
        self._seen: list[tuple[Tensor, Callable[[Tensor], Tensor] | None]] = []
        self._loss_at_w: Tensor | None = None
        self._loss_perturbed: Tensor | None = None

    def note_batch(self, loss: Tensor, logits: Tensor | None, targets: Tensor | None, criterion: Any) -> None:
        self._loss_at_w = loss.detach() if self._loss_at_w is None else self._loss_at_w + loss.detach()
        if self.chance_loss is None and logits is not None and targets is not None and not self._first_losses:
            self._note_labels(logits, targets, criterion)

    def _note_labels(self, logits: Tensor, targets: Tensor, criterion: Any) -> None:
        """Count a micro-batch's labels, which determine L_0; nothing if they are not classes."""
        counts = label_counts(logits, targets, first=self._labels is None)
        if counts is None:
            return
        chance = None
        if criterion is not F.cross_entropy:
            if logits.ndim != 2:
                return
            rows, kind = len(logits), logits.dtype

            def chance(frequencies: Tensor) -> Tensor:
                with torch.no_grad():
                    found: Tensor = criterion(frequencies.log().to(kind).expand(rows, -1), targets).detach()
                return found

        self._seen.append((counts, chance))

    def note_perturbed(self, loss: Tensor) -> None:
        self._loss_perturbed = loss.detach() if self._loss_perturbed is None else self._loss_perturbed + loss.detach()

    def end(self, perturbed: bool, params: Sequence[Tensor], group: dist.ProcessGroup | None) -> None:
        if perturbed and self._loss_perturbed is None:
            raise RuntimeError(
                "rho='auto' needs the loss at the perturbed weights: inside `with perturbed:` call "
                "optimizer.backward(loss) in place of loss.backward()"
            )
        assert self._loss_at_w is not None, "a step begins with a backward at w"
        kind = _dtype(self._loss_at_w)
        at_w = self._loss_at_w.to(kind)
        moved = at_w if self._loss_perturbed is None else self._loss_perturbed.to(kind)
        if self._seen:  # of all micro-batches and ranks, before any is asked for its chance loss
            counts = torch.stack([counts for counts, _ in self._seen]).sum(0)
            if group is not None:
                dist.all_reduce(counts, group=group)
            self._labels = counts if self._labels is None else self._labels + counts
        noted = torch.stack([at_w, moved, self._loss_of_chance().to(at_w)])
        if group is not None:
            dist.all_reduce(noted, group=group)
            noted /= dist.get_world_size(group)
        if not self._seen and self.chance_loss is None:
            noted[2] = math.nan
            if len(self._first_losses) < _FIRST_STEPS and math.isfinite(first := float(noted[0])):
                self._first_losses.append(first)
        self._refresh_weight_norm(params)
        if perturbed:
            self._apply_pending()
            self._pending = noted[:3]
        self.begin()

    def _loss_of_chance(self) -> Tensor:
        """By the frequencies of the labels so far: their entropy, or what another criterion says, on this rank."""
        if self._labels is None:
            return torch.zeros(())
        asked = [ask for _, ask in self._seen if ask is not None]
        if not asked:
            return _entropy(self._labels)
        frequencies = (self._labels + 1.0) / (self._labels.sum() + len(self._labels))  # a class not seen is possible
        return torch.stack([ask(frequencies) for ask in asked]).mean()

    def _apply_pending(self) -> None:
        """Move the radius by the pending losses; read only now, when the device has long computed them."""
        if self._pending is None:
            return
        at_w, moved, chance = self._pending.tolist()
        self._pending = None
        if self.chance_loss is not None:
            chance = self.chance_loss
        elif len(self._first_losses) == _FIRST_STEPS and math.isnan(chance):
            chance = math.fsum(self._first_losses) / _FIRST_STEPS
        if not (math.isfinite(at_w) and math.isfinite(chance)):
            return
        increase = (moved - at_w) / max(LEAST_LEARNED, chance - at_w)
        bounded = max(-_LARGEST_INCREASE, min(increase, _LARGEST_INCREASE))
        increase = bounded if math.isfinite(increase) else _LARGEST_INCREASE
        self._increase = increase if self._increase is None else _MEMORY * self._increase + (1.0 - _MEMORY) * increase
        change = self.steps_per_update * RATE * (self.target - self._increase)
        self._rho = min(max(self._rho * math.exp(min(max(change, -1.0), 1.0)), SMALLEST), self._largest())

    # --- restarts

    def state_dict(self) -> dict[str, Any]:
        self._apply_pending()
        own = {"increase": self._increase, "labels": self._labels, "first_losses": self._first_losses}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        super().load_state_dict(state, device)
        self.begin()
        self._pending = None
        self._increase = _optional(state["increase"])
        self._labels = None if state["labels"] is None else state["labels"].to(device)
        self._first_losses = [float(loss) for loss in state["first_losses"]]

    def __repr__(self) -> str:
        return f"'auto', now {self.rho:.3g}"


def _optional(value: float | None) -> float | None:
    return None if value is None else float(value)


def check_target(target: float) -> float:
    """A relative loss increase that a perturbation can cause.

    Args:
        target: The relative increase, above 0 and below 5.

    Returns:
        The same number.

    Raises:
        UsageError: If it is out of range.
    """
    expected = f"a number above 0 and below {_LARGEST_INCREASE:g}"
    return number("rho_target", target, expected, lambda increase: 0 < increase < _LARGEST_INCREASE)


def label_counts(logits: Tensor, targets: Tensor, *, first: bool) -> Tensor | None:
    """How often each class is observed; for probabilities, their sums.

    Args:
        logits: Classes are the second dimension, as for torch's cross-entropy.
        targets: Class indices, of which those below 0 (`ignore_index`) do not count, or probabilities.
        first: Whether this is the first batch, the only one in which it is checked that floats are probabilities.

    Returns:
        A count per class, or `None` where targets are not classes.
    """
    if not isinstance(logits, Tensor) or not isinstance(targets, Tensor) or logits.ndim < 2 or logits.shape[1] < 2:
        return None
    with torch.no_grad():
        if targets.is_floating_point():
            if targets.shape != logits.shape or targets.ndim != 2:
                return None
            if first and not (bool((targets >= 0).all()) and bool(((targets.sum(1) - 1).abs() < 1e-2).all())):
                return None
            return targets.detach().sum(0).to(_dtype(targets))
        if targets.shape != logits.shape[:1] + logits.shape[2:] or targets.is_complex() or targets.dtype == torch.bool:
            return None
        flat = targets.reshape(-1).long()
        counted = torch.bincount(flat.clamp(-1, logits.shape[1] - 1) + 1, minlength=logits.shape[1] + 1)
        return counted[1:].to(_dtype(targets))


def _entropy(counts: Tensor) -> Tensor:
    frequencies = counts / counts.sum().clamp_min(1.0)
    entropy: Tensor = torch.special.entr(frequencies).sum()
    return entropy


def _dtype(tensor: Tensor) -> torch.dtype:
    return torch.float32 if tensor.device.type == "mps" else torch.float64  # MPS has no doubles
