"""The automatic radius: as large as takes away a given share of what the network has learned."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from ncsam._errors import bad_value
from ncsam.optim import validate

START = 0.05
SMALLEST, LARGEST = 0.01, 5.0
RATE = 0.1  # of the adaptation: exp(RATE * (target - share)) per step
LEAST_LEARNED = 0.05  # nats: below this much over guessing, the share would be a ratio of noise
_LARGEST_SHARE = 5.0  # a step shrinks the radius by no more than exp(RATE * (target - 5)), 0.64 at target 0.5
_MEMORY = 0.5  # of the smoothed share; more would make the loop swing


class AutoRadius:
    r"""A radius that follows its own effect, from two losses that every step has at hand.

    .. math::
        share = \frac{L_B(w + \epsilon) - L_B(w)}{\max(h,\, L_0 - L_B(w))}, \qquad
        \rho \leftarrow clip(\rho\, e^{\eta (target - share)},\, 0.01,\, 5), \quad \eta = 0.1,\ h = 0.05

    L_0 is the loss of guessing: of a network that gives every sample the observed label frequencies. For cross-entropy
    it is their entropy; for another criterion it is that criterion at their logarithms, on the batch. `guess_loss`
    gives it instead. The share is smoothed over two steps or so and bounded, so that one odd batch moves little.
    Where only every k-th step has both losses, it moves the radius by the k-th power, within a factor of e.

    A loss at w that is not finite changes nothing; one at w + eps counts as the largest share. All ranks see the mean
    of their losses, and so the same radius.
    """

    def __init__(self, target: float, guess_loss: float | None) -> None:
        if not isinstance(target, int | float) or isinstance(target, bool) or not 0 < target < _LARGEST_SHARE:
            raise bad_value("target", target, f"a share above 0 and below {_LARGEST_SHARE:g}")
        self.target = float(target)
        self.guess_loss = None if guess_loss is None else validate.non_negative("guess_loss", guess_loss)
        self.steps_per_update = 1  # where only some steps have both losses, each moves the radius for all of them
        self._rho = START
        self._share: float | None = None
        self._labels: Tensor | None = None  # how often each class was observed, on all ranks
        self._waiting: Tensor | None = None  # losses at w, at w + eps, and of guessing, still on their device
        self.begin()

    @property
    def rho(self) -> float:
        """The radius of the coming step."""
        self._settle()
        return self._rho

    @property
    def share(self) -> float | None:
        """What the last perturbations took away of what was learned, smoothed."""
        self._settle()
        return self._share

    # --- one step

    def begin(self) -> None:
        """Forget what an unfinished step has noted."""
        self._seen: list[tuple[Tensor, Tensor | None]] = []  # per micro-batch: label counts, loss of guessing
        self._here: Tensor | None = None
        self._there: Tensor | None = None

    def note_labels(self, logits: Tensor | None, targets: Tensor | None, criterion: Any) -> None:
        """Count a micro-batch's labels, of which L_0 is made."""
        if self.guess_loss is not None:
            return
        if logits is None or targets is None:
            raise TypeError(
                "rho='auto' needs the observed labels: call backward(loss, logits, targets), or give guess_loss=, "
                "the loss of a network that only guesses"
            )
        classes = validate.class_logits(logits).shape[1]
        validate.class_targets(targets, logits, first=self._labels is None)
        with torch.no_grad():
            if targets.is_floating_point():
                counts = targets.detach().sum(0).to(_dtype(targets))
            else:
                counts = torch.bincount(targets.reshape(-1), minlength=classes).to(_dtype(targets))
            guess = None
            if criterion is not F.cross_entropy:
                known = counts if self._labels is None else self._labels + counts
                frequencies = (known + 1.0) / (known.sum() + classes)  # a class not seen yet is not impossible
                guess = criterion(frequencies.log().to(logits.dtype).expand(len(logits), -1), targets).detach()
        self._seen.append((counts, guess))

    def note_loss(self, loss: Tensor, perturbed: bool) -> None:
        """Add a micro-batch's loss; together they are the mean over the batch."""
        loss = loss.detach()
        if perturbed:
            self._there = loss if self._there is None else self._there + loss
        else:
            self._here = loss if self._here is None else self._here + loss

    def end(self, perturbed: bool, group: dist.ProcessGroup | None) -> None:
        """Take in what the step has noted. Every rank must call it."""
        if perturbed and self._there is None:
            raise RuntimeError(
                "rho='auto' needs the loss at the perturbed weights: inside `with perturbed:` call "
                "optimizer.backward(loss) in place of loss.backward()"
            )
        assert self._here is not None, "a step begins with a backward at w"
        kind = _dtype(self._here)
        here = self._here.to(kind)
        there = here if self._there is None else self._there.to(kind)
        guesses = [guess.to(kind) for _, guess in self._seen if guess is not None]
        guess = sum(guesses, start=torch.zeros_like(here)) / max(1, len(guesses))
        noted = torch.stack([here, there, guess])
        if self._seen:
            noted = torch.cat([noted, torch.stack([counts for counts, _ in self._seen]).sum(0)])
        if group is not None:
            dist.all_reduce(noted, group=group)
            noted[:3] /= dist.get_world_size(group)
        if self._seen:
            self._labels = noted[3:] if self._labels is None else self._labels + noted[3:]
            if not guesses:
                noted[2] = _entropy(self._labels)
        if perturbed:
            self._settle()
            self._waiting = noted[:3]
        self.begin()

    def _settle(self) -> None:
        """Move the radius by the losses that wait; read only now, when the device has long been through with them."""
        if self._waiting is None:
            return
        here, there, guess = self._waiting.tolist()
        self._waiting = None
        if self.guess_loss is not None:
            guess = self.guess_loss
        if not (math.isfinite(here) and math.isfinite(guess)):
            return
        share = (there - here) / max(LEAST_LEARNED, guess - here)
        share = max(-_LARGEST_SHARE, min(share, _LARGEST_SHARE)) if math.isfinite(share) else _LARGEST_SHARE
        self._share = share if self._share is None else _MEMORY * self._share + (1.0 - _MEMORY) * share
        change = self.steps_per_update * RATE * (self.target - self._share)
        self._rho = min(max(self._rho * math.exp(min(max(change, -1.0), 1.0)), SMALLEST), LARGEST)

    # --- restarts

    def state_dict(self) -> dict[str, Any]:
        self._settle()
        return {"rho": self._rho, "share": self._share, "labels": self._labels}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        self.begin()
        self._waiting = None
        self._rho = float(state["rho"])
        self._share = state["share"]
        self._labels = None if state["labels"] is None else state["labels"].to(device)


def _entropy(counts: Tensor) -> Tensor:
    frequencies = counts / counts.sum().clamp_min(1.0)
    entropy: Tensor = torch.special.entr(frequencies).sum()
    return entropy


def _dtype(tensor: Tensor) -> torch.dtype:
    return torch.float32 if tensor.device.type == "mps" else torch.float64  # MPS has no doubles
