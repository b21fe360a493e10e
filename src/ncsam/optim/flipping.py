"""Which samples might be mislabeled, what their label might be instead, and the loss of that.

The flips are temporary: they shape one gradient and never reach the dataset.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from ncsam._arguments import choice
from ncsam.optim import validate
from ncsam.optim.clusters import RESTARTS, kmeans
from ncsam.optim.registry import Criterion

Selection: TypeAlias = Literal["gap", "uniform", "lowest_gap", "clusters"]
Target: TypeAlias = Literal["not_observed", "second", "random"]
_SMOOTHING = 0.1


class FlipRule(NamedTuple):
    """Which samples are flipped, and to which label.

    Attributes:
        ratio: Share of the batch; with "clusters" the largest rate of a cluster.
        selection: How samples are selected.
        target: Which label they get.
        clusters: The number of clusters.
    """

    ratio: float
    selection: Selection = "gap"
    target: Target = "not_observed"
    clusters: int = 3


@dataclass(frozen=True)
class Flips:
    """Positions in the batch whose labels are flipped for one gradient, and the labels they get.

    Attributes:
        index: Positions in this rank's batch, ascending, of shape (flipped,).
        labels: The temporary class of each, of shape (flipped,).
    """

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
        rule: FlipRule,
        generator: torch.Generator,
        group: dist.ProcessGroup | None,
        clean_targets: Tensor | None = None,
        features: Callable[[], Tensor] | None = None,
    ) -> tuple[Flips, int] | None:
        """Draw the flips of a micro-batch.

        Args:
            logits: Of the micro-batch.
            targets: The observed labels.
            rule: Which samples are flipped, and to which label.
            generator: Source of the draws.
            group: The ranks whose samples count as one batch.
            clean_targets: The true labels, for telemetry.
            features: What samples are clustered by.

        Returns:
            This rank's flips and their number over all ranks; `None` if there is nothing to flip.
        """
        logits = logits.detach().float() if logits.dtype.itemsize < 4 else logits.detach()
        observed = observed_labels(targets)
        rows = logits.shape[0]  # `len` of a tensor takes as long as a small operation
        size = rows if group is None else sum(joined_sizes(rows, logits.device, group))
        index: Tensor | None
        if rule.selection == "clusters":
            assert features is not None, "samples are clustered by features"
            index = select_by_cluster(logits, features(), rule, generator)
            count = len(index) if group is None else sum(joined_sizes(len(index), logits.device, group))
            index = index if count else None
        else:  # rounding down the joined micro-batches, not each of them: m = floor(ratio |B|) over all
            count = flip_count(rule.ratio, self.samples + size) - self.flipped
            index = select(logits, count, rule.selection, generator, group) if count else None
        offset = self._offset
        self.samples += size
        self.flipped += count
        self._offset += rows
        if index is None:
            return None
        if clean_targets is not None:
            self._mislabeled.append((observed != clean_targets)[index])
        draws = uniform(rows, generator).to(logits.device)[index] if rule.target == "random" else None
        chosen, labels = logits.index_select(0, index), observed.index_select(0, index)
        flips = Flips(index, flipped_labels(chosen, labels, rule.target, draws))
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
    """delta_i: the largest logit minus the second largest [eq:delta_i].

    Args:
        logits: Of shape (samples, classes), with two classes or more.

    Returns:
        One gap per sample, 0 or larger.
    """
    largest, second = logits.topk(2, dim=1).values.unbind(1)
    return largest - second


def selection_probabilities(logits: Tensor) -> Tensor:
    """p_i = q_i / sum q, q_i = 1 / (1 + delta_i) [eq:pi].

    Args:
        logits: Of shape (samples, classes), with two classes or more.

    Returns:
        One probability per sample; they add up to 1.
    """
    q = 1.0 / (1.0 + logit_gap(logits))
    return q / q.sum()


def observed_labels(targets: Tensor) -> Tensor:
    """Class indices of the observed labels; of probabilities, the most probable class.

    Args:
        targets: Whole numbers of shape (samples,), or probabilities of shape (samples, classes).

    Returns:
        64-bit class indices of shape (samples,).
    """
    return targets.argmax(dim=1) if targets.is_floating_point() else targets.long()


def flip_count(ratio: float, size: int) -> int:
    """m = floor(ratio * size); a product that is whole but for rounding (0.29 * 100) counts as whole.

    Args:
        ratio: Share of the batch to flip, in [0, 1].
        size: Number of samples in the batch.
    """
    return int(ratio * size + 1e-9)


def race_keys(logits: Tensor, rule: Selection, draws: Tensor) -> Tensor:
    """Keys whose m largest are the selected samples.

    q_i / E_i with E_i exponential is a race that draws without replacement with probabilities p_i, one draw after
    another, as `torch.multinomial` does; `lowest_gap` takes the least certain samples without drawing.

    Args:
        logits: Of shape (samples, classes).
        rule: "gap", "uniform" or "lowest_gap".
        draws: One standard exponential draw per sample; "lowest_gap" does not use them.
    """
    if rule == "lowest_gap":
        return -logit_gap(logits)
    if rule == "uniform":
        return draws.to(logits).reciprocal()
    return logit_gap(logits).add_(1.0).mul_(draws.to(logits)).reciprocal_()


def exponential(size: int, generator: torch.Generator) -> Tensor:
    """`size` standard exponential draws in double precision, on the generator's device.

    Args:
        size: Number of draws.
        generator: Source of the draws, whose state advances.
    """
    return torch.empty(size, dtype=torch.float64, device=generator.device).exponential_(generator=generator)


def uniform(size: int, generator: torch.Generator) -> Tensor:
    """`size` uniform draws in double precision, on the generator's device.

    Args:
        size: Number of draws in [0, 1).
        generator: Source of the draws, whose state advances.
    """
    return torch.rand(size, dtype=torch.float64, device=generator.device, generator=generator)


def select_by_cluster(logits: Tensor, features: Tensor, rule: FlipRule, generator: torch.Generator) -> Tensor:
    """Positions of the samples to flip by the rate of their cluster: least where all of them are equally certain.

    Cluster k of the features has the rate r_k = ratio (1 - mean gap / largest gap), in [0, ratio]; each of its samples
    is drawn with that probability. Each rank clusters its own samples.

    Args:
        logits: Of shape (samples, classes).
        features: Of shape (samples, dimensions): what samples are clustered by.
        rule: Gives the largest rate (`ratio`) and the number of clusters, at most one per sample.
        generator: Source of the draws, for the starts of k-means and for the selection.

    Returns:
        Ascending positions, possibly none.
    """
    count = max(1, min(rule.clusters, len(features)))
    cluster = kmeans(features, count, uniform(RESTARTS * count, generator).view(RESTARTS, count)).to(logits.device)
    gap = logit_gap(logits).double()
    rates = gap.new_zeros(count)
    for k in range(count):
        inside = gap[cluster == k]
        if len(inside):
            rates[k] = rule.ratio * (1 - inside.mean() / inside.max().clamp_min(1e-12))
    drawn = uniform(len(logits), generator).to(rates.device) < rates.clamp(0.0, rule.ratio)[cluster]
    return drawn.nonzero().squeeze(1)


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

    Args:
        logits: Of this process's samples, of shape (samples, classes).
        count: Number of samples to select, over all ranks.
        rule: "gap", "uniform" or "lowest_gap".
        generator: Source of the draws; every rank advances its own by the size of the joined batch.
        group: The ranks whose batches are joined; `None` for this process alone.

    Returns:
        Ascending positions; with a group possibly none.
    """
    if group is None:
        keys = race_keys(logits, rule, exponential(logits.shape[0], generator))
        return keys.topk(count, sorted=False).indices.sort().values
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
    """Batch sizes of all ranks, in rank order.

    Args:
        size: This rank's batch size.
        device: Where the sizes are exchanged.
        group: The ranks; every one of them must call this.
    """
    sizes = torch.zeros(dist.get_world_size(group), 1, dtype=torch.int64, device=device)
    dist.all_gather(list(sizes.unbind()), torch.tensor([size], device=device), group=group)
    return [int(s) for s in sizes]


def flipped_labels(logits: Tensor, observed: Tensor, rule: Target, draws: Tensor | None = None) -> Tensor:
    """The label each sample might have instead.

    Args:
        logits: Of the samples.
        observed: Their observed classes.
        rule: "not_observed": argmax over c != y_i of z_i[c] [flip-2]. "second": the second-highest logit, as the
            paper's ablation words it; the two differ where the observed label is not the predicted one. "random": any
            other class, all equally likely.
        draws: Uniform numbers in [0, 1), for "random".
    """
    if rule == "random":
        assert draws is not None, "a random label needs a draw"
        other = (draws * (logits.shape[1] - 1)).long().clamp_max(logits.shape[1] - 2)
        return other + (other >= observed)
    if rule == "second":
        return logits.topk(2, dim=1).indices[:, 1]
    return logits.scatter(1, observed.unsqueeze(1), -torch.inf).argmax(dim=1)


def criterion_by_name(criterion: str | Criterion | None) -> Criterion | None:
    """The criterion of flipped labels: by name, the caller's own, or `None` for that of training.

    Args:
        criterion: "ce", "smoothed_ce", a function of (logits, targets), or `None`.

    Raises:
        UsageError: For another name.
    """
    if criterion is None or callable(criterion):
        return criterion
    choice("flip_criterion", criterion, ("ce", "smoothed_ce"))
    return F.cross_entropy if criterion == "ce" else smoothed_cross_entropy


def smoothed_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy with .9 for the label and .1 shared by the other classes, as in the authors' code.

    torch shares the .1 among all classes, the label's own included; hence the factor.

    Args:
        logits: Of shape (samples, classes).
        targets: Class indices of shape (samples,), or probabilities of shape (samples, classes).

    Returns:
        The mean over the samples.
    """
    classes = logits.shape[1]
    return F.cross_entropy(logits, targets, label_smoothing=_SMOOTHING * classes / (classes - 1))


def flipped_loss(criterion: Criterion, logits: Tensor, flips: Flips, targets: Tensor) -> Tensor:
    """Mean loss of the flipped labels, given the logits of the flipped samples and the batch's observed targets.

    Args:
        criterion: A mean loss of (logits, targets).
        logits: Of the flipped samples alone, of shape (flipped, classes).
        flips: Gives the temporary labels.
        targets: Observed targets of the batch: where they are probabilities, the criterion gets one-hot rows.

    Returns:
        One number; 0, still part of the graph, if this rank has no flipped samples.
    """
    if not flips.index.shape[0]:  # all flips fell to other ranks; this one still takes part in their backward
        return logits.sum() * 0.0
    logits = logits.float() if logits.dtype.itemsize < 4 else logits
    labels = F.one_hot(flips.labels, logits.shape[1]).to(targets) if targets.is_floating_point() else flips.labels
    return validate.scalar_loss(criterion(logits, labels))
