"""The radius of the perturbation: a number, or one that follows its own effect."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from ncsam._checks import non_negative, number
from ncsam.vectors.arithmetic import global_norm

START = 0.05
SMALLEST, LARGEST = 0.01, 5.0
BOUND = (
    0.1  # of the norm of the weights: about where a longer perturbation raises the loss no more, and finds only junk
)
RATE = 0.1  # of the adaptation: exp(RATE * (target - share)) per step
LEAST_LEARNED = 0.05  # nats: below this much over guessing, the share would be a ratio of noise
_LARGEST_SHARE = 5.0  # a step shrinks the radius by no more than exp(RATE * (target - 5)), 0.64 at target 0.5
_MEMORY = 0.5  # of the smoothed share; more would make the loop swing
_GUESSED_FROM = 5  # first steps, whose mean loss stands for guessing where labels cannot tell
_WEIGHED_EVERY = 20  # steps between two looks at the norm of the weights, which waits for the device


class Radius:
    """A constant radius, and what a changing one is told in each step. Subclasses override what they need.

    An object belongs to one optimizer.
    """

    #: What the last perturbations took away of what was learned, where that is measured.
    share: float | None = None
    #: Where only every so many steps have both losses, each moves the radius for all of them.
    steps_per_update = 1

    def __init__(self, rho: float) -> None:
        self._rho = non_negative("rho", rho)

    @property
    def rho(self) -> float:
        """The radius of the coming step."""
        return self._rho

    def begin(self) -> None:
        """Forget what an unfinished step has noted."""

    def note_batch(self, loss: Tensor, logits: Tensor | None, targets: Tensor | None, criterion: Any) -> None:
        """A micro-batch at w; the losses of all together are the mean over the batch."""

    def note_perturbed(self, loss: Tensor) -> None:
        """The loss of a micro-batch at w + eps."""

    def end(self, perturbed: bool, params: Sequence[Tensor], group: dist.ProcessGroup | None) -> None:
        """The step is over; `.grad` holds the gradient at w + eps. Every rank calls it."""

    def report_val_loss(self, loss: float, progress: float | None) -> None:
        """The loss of samples held out, at t in [0, 1] of training where that is known. Every rank is told the same."""

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart: tensors, numbers and text."""
        return {}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Take back what `state_dict` gave."""

    def __repr__(self) -> str:
        return f"{self.rho}"


#: What `rho=` takes: a number, "auto", "validation", or an object.
RadiusLike: TypeAlias = float | Literal["auto", "validation"] | Radius


class AutoRadius(Radius):
    r"""A radius that follows its own effect, from two losses that every step has at hand.

    .. math::
        share = \frac{L_B(w + \epsilon) - L_B(w)}{\max(h,\, L_0 - L_B(w))}, \qquad
        \rho \leftarrow clip(\rho\, e^{\eta (target - share)},\, 0.01,\, largest), \quad \eta = 0.1,\ h = 0.05

    `largest` is 5, or `bound` times the norm of the weights, whichever is smaller.

    L_0 is the loss of guessing the observed label frequencies for every sample: for cross-entropy with class labels
    their entropy, for another criterion of class labels that criterion at their logarithms, on the batch. With other
    targets it is the mean loss of the first five steps, in which the radius does not move: right for an untrained
    network. `guess_loss` gives it instead.

    The share is smoothed over two steps or so and bounded, so that one odd batch moves little. Where only every k-th
    step has both losses, it moves the radius by the k-th power, within a factor of e. A loss at w that is not finite
    changes nothing; one at w + eps counts as the largest share. All ranks have one radius, by their mean losses.

    Args:
        target: the share of what was learned that a perturbation is to take away.
        bound: the longest perturbation as a share of the norm of the weights; `None` for none.
        start: the radius of the first step.
        guess_loss: L_0, where it is known.
    """

    def __init__(
        self,
        target: float = 0.5,
        *,
        bound: float | None = BOUND,
        start: float = START,
        guess_loss: float | None = None,
    ) -> None:
        super().__init__(non_negative("start", start))
        self.target = check_target(target)
        self.bound = None if bound is None else non_negative("bound", bound)
        self.guess_loss = None if guess_loss is None else non_negative("guess_loss", guess_loss)
        self._share: float | None = None
        self._labels: Tensor | None = None  # how often each class was observed, on all ranks
        self._firsts: list[float] = []  # losses of the first steps, where labels cannot tell what guessing costs
        self._weight_norm: float | None = None
        self._age = 0  # steps since the norm was taken
        self._waiting: Tensor | None = None  # losses at w, at w + eps, and of guessing, still on their device
        self.begin()

    @property
    def rho(self) -> float:
        """The radius of the coming step."""
        self._settle()
        return self._rho

    @property
    def share(self) -> float | None:  # type: ignore[override]
        """What the last perturbations took away of what was learned, smoothed."""
        self._settle()
        return self._share

    # --- one step

    def begin(self) -> None:
        #: Per micro-batch: label counts, and what asks the criterion for the loss of guessing by frequencies.
        self._seen: list[tuple[Tensor, Callable[[Tensor], Tensor] | None]] = []
        self._here: Tensor | None = None
        self._there: Tensor | None = None

    def note_batch(self, loss: Tensor, logits: Tensor | None, targets: Tensor | None, criterion: Any) -> None:
        self._here = loss.detach() if self._here is None else self._here + loss.detach()
        if self.guess_loss is None and logits is not None and targets is not None and not self._firsts:
            self._note_labels(logits, targets, criterion)

    def _note_labels(self, logits: Tensor, targets: Tensor, criterion: Any) -> None:
        """Count a micro-batch's labels, of which L_0 is made; nothing if they are not classes."""
        counts = label_counts(logits, targets, first=self._labels is None)
        if counts is None:
            return
        guess = None
        if criterion is not F.cross_entropy:
            if logits.ndim != 2:
                return
            rows, kind = len(logits), logits.dtype

            def guess(frequencies: Tensor) -> Tensor:
                with torch.no_grad():
                    found: Tensor = criterion(frequencies.log().to(kind).expand(rows, -1), targets).detach()
                return found

        self._seen.append((counts, guess))

    def note_perturbed(self, loss: Tensor) -> None:
        self._there = loss.detach() if self._there is None else self._there + loss.detach()

    def end(self, perturbed: bool, params: Sequence[Tensor], group: dist.ProcessGroup | None) -> None:
        if perturbed and self._there is None:
            raise RuntimeError(
                "rho='auto' needs the loss at the perturbed weights: inside `with perturbed:` call "
                "optimizer.backward(loss) in place of loss.backward()"
            )
        assert self._here is not None, "a step begins with a backward at w"
        kind = _dtype(self._here)
        here = self._here.to(kind)
        there = here if self._there is None else self._there.to(kind)
        if self._seen:  # of all micro-batches and ranks, before any is asked what guessing costs
            counts = torch.stack([counts for counts, _ in self._seen]).sum(0)
            if group is not None:
                dist.all_reduce(counts, group=group)
            self._labels = counts if self._labels is None else self._labels + counts
        noted = torch.stack([here, there, self._cost_of_guessing().to(here)])
        if group is not None:
            dist.all_reduce(noted, group=group)
            noted /= dist.get_world_size(group)
        if not self._seen and self.guess_loss is None:
            noted[2] = math.nan
            if len(self._firsts) < _GUESSED_FROM and math.isfinite(first := float(noted[0])):
                self._firsts.append(first)
        self._weigh(params)
        if perturbed:
            self._settle()
            self._waiting = noted[:3]
        self.begin()

    def _cost_of_guessing(self) -> Tensor:
        """By the frequencies of the labels so far: their entropy, or what another criterion says, on this rank."""
        if self._labels is None:
            return torch.zeros(())
        asked = [ask for _, ask in self._seen if ask is not None]
        if not asked:
            return _entropy(self._labels)
        frequencies = (self._labels + 1.0) / (self._labels.sum() + len(self._labels))  # a class not seen is possible
        return torch.stack([ask(frequencies) for ask in asked]).mean()

    def _weigh(self, params: Sequence[Tensor]) -> None:
        if self.bound is not None and params:
            if self._weight_norm is None or self._age >= _WEIGHED_EVERY:
                self._weight_norm, self._age = global_norm([p.detach() for p in params]), 0
            self._age += 1

    def _settle(self) -> None:
        """Move the radius by the losses that wait; read only now, when the device has long been through with them."""
        if self._waiting is None:
            return
        here, there, guess = self._waiting.tolist()
        self._waiting = None
        if self.guess_loss is not None:
            guess = self.guess_loss
        elif len(self._firsts) == _GUESSED_FROM and math.isnan(guess):
            guess = math.fsum(self._firsts) / _GUESSED_FROM
        if not (math.isfinite(here) and math.isfinite(guess)):
            return
        share = (there - here) / max(LEAST_LEARNED, guess - here)
        share = max(-_LARGEST_SHARE, min(share, _LARGEST_SHARE)) if math.isfinite(share) else _LARGEST_SHARE
        self._share = share if self._share is None else _MEMORY * self._share + (1.0 - _MEMORY) * share
        change = self.steps_per_update * RATE * (self.target - self._share)
        self._rho = min(max(self._rho * math.exp(min(max(change, -1.0), 1.0)), SMALLEST), self._largest())

    def _largest(self) -> float:
        if self.bound is None or self._weight_norm is None:
            return LARGEST
        return min(LARGEST, self.bound * self._weight_norm)

    # --- restarts

    def state_dict(self) -> dict[str, Any]:
        self._settle()
        names = ("rho", "share", "labels", "firsts", "weight_norm", "age")
        return {name: getattr(self, f"_{name}") for name in names}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        self.begin()
        self._waiting = None
        self._rho, self._share = float(state["rho"]), _optional(state["share"])
        self._labels = None if state["labels"] is None else state["labels"].to(device)
        self._firsts = [float(loss) for loss in state.get("firsts", [])]
        self._weight_norm, self._age = _optional(state.get("weight_norm")), int(state.get("age", 0))

    def __repr__(self) -> str:
        return f"'auto', now {self.rho:.3g}"


def _optional(value: float | None) -> float | None:
    return None if value is None else float(value)


def check_target(target: float) -> float:
    """A share that a perturbation can take away."""
    allowed = f"a share above 0 and below {_LARGEST_SHARE:g}"
    return number("rho_target", target, allowed, lambda share: 0 < share < _LARGEST_SHARE)


def label_counts(logits: Tensor, targets: Tensor, *, first: bool) -> Tensor | None:
    """How often each class is observed; of probabilities, their sums. `None` where targets are not of classes.

    Classes are the logits' second dimension, as for torch's cross-entropy; targets below 0 (`ignore_index`) do not
    count. Whether floats are probabilities is looked up in the first batch alone.
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
