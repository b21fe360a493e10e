"""Which samples might be mislabeled, what their label might be instead, and the loss of that.

The flips are temporary: they shape one gradient and never reach the dataset.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from ncsam._checks import choice
from ncsam.optim import validate
from ncsam.optim.options import Criterion

Selection: TypeAlias = Literal["gap", "uniform", "lowest_gap"]
Target: TypeAlias = Literal["not_observed", "second"]


@dataclass(frozen=True)
class Flips:
    """Positions in the batch whose labels are flipped for one gradient, and the labels they get."""

    index: Tensor
    labels: Tensor


class StepFlips:
    """The flips of one step, drawn micro-batch by micro-batch."""

    def __init__(self) -> None:
        self.samples = 0  # of all micro-batches and ranks so far
        self.flipped = 0
        self._offset = 0  # of the next micro-batch in this rank's batch
        self._flips: list[Flips] = []
        self._mislabeled: list[Tensor] = []

    @torch.no_grad()
    def draw(
        self,
        logits: Tensor,
        targets: Tensor,
        ratio: float,
        selection: Selection,
        target: Target,
        generator: torch.Generator,
        group: dist.ProcessGroup | None,
        clean_targets: Tensor | None = None,
    ) -> tuple[Flips, int] | None:
        """This rank's flips in a micro-batch and their number over all ranks; `None` if there is nothing to flip."""
        logits = logits.detach().float() if logits.dtype.itemsize < 4 else logits.detach()
        observed = observed_labels(targets)
        size = len(logits) if group is None else sum(joined_sizes(len(logits), logits.device, group))
        # rounding down the joined micro-batches, not each of them: m = floor(ratio |B|) over all
        count = flip_count(ratio, self.samples + size) - self.flipped
        index = select(logits, count, selection, generator, group) if count else None
        offset = self._offset
        self.samples += size
        self.flipped += count
        self._offset += len(logits)
        if index is None:
            return None
        if clean_targets is not None:
            self._mislabeled.append((observed != clean_targets)[index])
        flips = Flips(index, flipped_labels(logits[index], observed[index], target))
        self._flips.append(flips if offset == 0 else Flips(index + offset, flips.labels))
        return flips, count

    def joined(self) -> Flips | None:
        """The flips of all micro-batches as one."""
        if len(self._flips) < 2:
            return self._flips[0] if self._flips else None
        return Flips(torch.cat([f.index for f in self._flips]), torch.cat([f.labels for f in self._flips]))

    def mislabeled_share(self) -> float | None:
        """Share of this rank's flipped samples that are truly mislabeled, if clean labels were given."""
        flips = torch.cat(self._mislabeled) if self._mislabeled else None
        return None if flips is None or not len(flips) else float(flips.float().mean())


def logit_gap(logits: Tensor) -> Tensor:
    """delta_i: the largest logit minus the second largest [eq:delta_i]."""
    top = logits.topk(2, dim=1).values
    return top[:, 0] - top[:, 1]


def selection_probabilities(logits: Tensor) -> Tensor:
    """p_i = q_i / sum q, q_i = 1 / (1 + delta_i) [eq:pi]."""
    q = 1.0 / (1.0 + logit_gap(logits))
    return q / q.sum()


def observed_labels(targets: Tensor) -> Tensor:
    """Class indices of the observed labels; of probabilities, the most probable class."""
    return targets.argmax(dim=1) if targets.is_floating_point() else targets.long()


def flip_count(ratio: float, size: int) -> int:
    """m = floor(ratio * size); a product that is whole but for rounding (0.29 * 100) counts as whole."""
    return int(ratio * size + 1e-9)


def race_keys(logits: Tensor, rule: Selection, draws: Tensor) -> Tensor:
    """Keys whose m largest are the selected samples.

    q_i / E_i with E_i exponential is a race that draws without replacement with probabilities p_i, one draw after
    another, as `torch.multinomial` does; `lowest_gap` takes the least certain samples without drawing.
    """
    if rule == "lowest_gap":
        return -logit_gap(logits)
    if rule == "uniform":
        return 1.0 / draws.to(logits)
    return 1.0 / ((1.0 + logit_gap(logits)) * draws.to(logits))


def exponential(size: int, generator: torch.Generator) -> Tensor:
    """`size` standard exponential draws in double precision, on the generator's device."""
    return torch.empty(size, dtype=torch.float64, device=generator.device).exponential_(generator=generator)


def select(
    logits: Tensor,
    count: int,
    rule: Selection,
    generator: torch.Generator,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Positions in this process's batch of the samples to flip.

    With a process group, `count` samples are chosen from the joined batch of all ranks, as one process would choose
    them from it: the logits' gaps are gathered, and the draws are those of the first rank.
    """
    if group is None:
        keys = race_keys(logits, rule, exponential(len(logits), generator))
        return keys.topk(count).indices.sort().values
    return _select_from_joined_batch(logits, count, rule, generator, group)


def _select_from_joined_batch(
    logits: Tensor, count: int, rule: Selection, generator: torch.Generator, group: dist.ProcessGroup
) -> Tensor:
    sizes = joined_sizes(len(logits), logits.device, group)
    draws = exponential(sum(sizes), generator).to(logits.device)
    dist.broadcast(draws, group=group, group_src=0)
    start = sum(sizes[: dist.get_rank(group)])
    keys = race_keys(logits, rule, draws[start : start + len(logits)]).double()
    padded = torch.full((dist.get_world_size(group), max(sizes)), -torch.inf, dtype=keys.dtype, device=keys.device)
    own = padded.new_full((max(sizes),), -torch.inf)
    own[: len(keys)] = keys
    dist.all_gather(list(padded.unbind()), own, group=group)
    chosen = padded.flatten().topk(count).indices
    chosen = chosen[chosen // max(sizes) == dist.get_rank(group)] % max(sizes)
    return chosen.sort().values


def joined_sizes(size: int, device: torch.device, group: dist.ProcessGroup) -> list[int]:
    """Batch sizes of all ranks, in rank order."""
    sizes = torch.zeros(dist.get_world_size(group), 1, dtype=torch.int64, device=device)
    dist.all_gather(list(sizes.unbind()), torch.tensor([size], device=device), group=group)
    return [int(s) for s in sizes]


def flipped_labels(logits: Tensor, observed: Tensor, rule: Target) -> Tensor:
    """The label each sample might have instead.

    `not_observed`: argmax over c != y_i of z_i[c] [flip-2]. `second`: the second-highest logit, as the paper's
    ablation words it; the two differ where the observed label is not the predicted one.
    """
    if rule == "second":
        return logits.topk(2, dim=1).indices[:, 1]
    return logits.scatter(1, observed.unsqueeze(1), -torch.inf).argmax(dim=1)


def criterion_by_name(criterion: str | Criterion | None) -> Criterion | None:
    """The criterion of flipped labels: by name, the caller's own, or `None` for that of training."""
    if criterion is None or callable(criterion):
        return criterion
    choice("flip_criterion", criterion, ("ce", "smoothed_ce"))
    return F.cross_entropy if criterion == "ce" else partial(F.cross_entropy, label_smoothing=0.1)


def flipped_loss(criterion: Criterion, logits: Tensor, flips: Flips, targets: Tensor) -> Tensor:
    """Mean loss of the flipped labels, given the logits of the flipped samples and the batch's observed targets."""
    if not len(flips.index):  # all flips fell to other ranks; this one still takes part in their backward
        return logits.sum() * 0.0
    logits = logits.float() if logits.dtype.itemsize < 4 else logits
    labels = F.one_hot(flips.labels, logits.shape[1]).to(targets) if targets.is_floating_point() else flips.labels
    return validate.scalar_loss(criterion(logits, labels))
