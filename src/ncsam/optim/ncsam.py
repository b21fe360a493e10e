"""Noise-Compensated Sharpness-Aware Minimization."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from ncsam._errors import bad_value
from ncsam.optim import validate
from ncsam.optim.flipping import (
    Flips,
    Selection,
    Target,
    flip_count,
    flipped_labels,
    joined_sizes,
    observed_labels,
    select,
)
from ncsam.optim.sam import SAM, scaled_gradients
from ncsam.optim.schedule import Ramp, ramp
from ncsam.optim.sharpness_aware import Criterion, Move, Radius
from ncsam.optim.telemetry import StepReport
from ncsam.optim.tensors import add_scaled_, cosine, global_norm, multiply_

_INVISIBLE = 1e-15  # a compensation this much smaller than rho changes no bit of eps that matters


class NCSAM(SAM):
    r"""SAM whose perturbation is corrected for the bias that mislabelled samples put into it.

    After warm-up, for a batch B with observed labels y and logits z at w:

    1. :math:`g_B = \nabla L_B(w)`.
    2. m = floor(flip_ratio |B|) samples S are drawn without replacement with :math:`p_i \propto 1/(1+\delta_i)`,
       :math:`\delta_i` the gap between the two largest logits [eq:delta_i, eq:pi]; each gets, for this gradient only,
       the label :math:`\hat y_i = \arg\max_{c \ne y_i} z_i^{(c)}` [flip-2].
    3. :math:`g^* = \nabla \frac1m \sum_{i \in S} \ell(z_i, \hat y_i)` from the same graph.
    4. :math:`s(t) = \kappa \min(1, 2(3-2t)t^2)` [eq:dynamic_schedule].
    5. :math:`v = \rho\, g_B/\|g_B\| + s(t)\, g^*` [eq:dw], and
       :math:`\epsilon = v \min(1, \rho/\|v\|)` [eq:ncsam_perturbation].
    6. The base optimizer steps at w with :math:`\nabla L_B(w + \epsilon)`.

    A step costs two forwards and three backwards, a copy of the weights and one of the gradients (`adaptive`: two).
    With kappa = 0, flip_ratio = 0 or while s(t) = 0 it is a `SAM` step, and with rho = 0 the base optimizer's,
    bit for bit. With `adaptive` the same is done in ASAM's coordinates: g is T g, and eps is T times the result.

    Args beyond those of `SAM`:
        kappa: the largest strength of the compensation.
        flip_ratio: share of a batch to flip; the noise rate if known, at most .4 in the paper.
        schedule: "smooth" (the paper's), "linear", "cosine", "constant", or a function of t in [0, 1].
        ramp_from: t is counted from the start of training ("start", the paper's e / T) or from the end of warm-up
            ("warmup").
        sign: +1 adds s g* (the paper's equations), -1 subtracts it.
        projection: project onto the rho-ball; `False` leaves v as it is.
        compensation: "absolute": s g*. "relative": s rho g*/||g*||, so that kappa is a share of rho.
        noise_mean: g* is a mean over the flipped samples ("flipped") or over the whole batch ("batch").
        selection: "gap" (by p_i), "uniform", or "lowest_gap" (the least certain, no draw).
        flip_target: "not_observed" (the paper's equation), or "second": the second-highest logit.
        flip_criterion: loss of the flipped labels: `None` for `criterion`, "ce", "smoothed_ce" (smoothing .1), or a
            function.
        warmup: warm-up steps are the base optimizer's ("base") or SAM's ("sam").
        generator: source of the draws; one of its own, seeded by `torch.initial_seed()`, if not given.
    """

    _flips_labels = True

    def __init__(
        self,
        base_optimizer: Optimizer,
        rho: Radius = 0.05,
        kappa: float = 0.1,
        flip_ratio: float = 0.4,
        *,
        total_steps: int | None = None,
        warmup_steps: int = 0,
        criterion: Criterion = F.cross_entropy,
        schedule: str | Ramp = "smooth",
        ramp_from: Literal["start", "warmup"] = "start",
        sign: Literal[1, -1] = 1,
        projection: bool = True,
        compensation: Literal["absolute", "relative"] = "absolute",
        noise_mean: Literal["flipped", "batch"] = "flipped",
        selection: Selection = "gap",
        flip_target: Target = "not_observed",
        flip_criterion: Literal["ce", "smoothed_ce"] | Criterion | None = None,
        warmup: Literal["base", "sam"] = "base",
        generator: torch.Generator | None = None,
        target: float = 0.5,
        guess_loss: float | None = None,
        adaptive: bool = False,
        eta: float = 0.0,
        perturbation: Literal["synced", "local"] = "synced",
        same_dropout: bool = False,
        model: nn.Module | Iterable[nn.Module] | None = None,
        process_group: dist.ProcessGroup | None = None,
        telemetry_every: int = 0,
    ) -> None:
        self.kappa = validate.non_negative("kappa", kappa)
        self.flip_ratio = validate.ratio("flip_ratio", flip_ratio)
        self.schedule = ramp(schedule)
        self.ramp_from = validate.choice("ramp_from", ramp_from, ("start", "warmup"))
        if sign not in (1, -1):
            raise bad_value("sign", sign, "1 or -1")
        self.sign = sign
        self.projection = projection
        self.compensation = validate.choice("compensation", compensation, ("absolute", "relative"))
        self.noise_mean = validate.choice("noise_mean", noise_mean, ("flipped", "batch"))
        self.selection: Selection = selection
        validate.choice("selection", selection, ("gap", "uniform", "lowest_gap"))
        self.flip_target: Target = flip_target
        validate.choice("flip_target", flip_target, ("not_observed", "second"))
        self.flip_criterion = _flip_criterion(flip_criterion)
        self.warmup = validate.choice("warmup", warmup, ("base", "sam"))
        if generator is None:  # seeding from the global seed draws no number from the global generator
            generator = torch.Generator().manual_seed(torch.initial_seed())
        self.generator = generator
        #: The flips of the last step: positions in the batch (micro-batches joined) and temporary labels.
        self.last_flips: Flips | None = None
        super().__init__(
            base_optimizer,
            rho,
            target=target,
            guess_loss=guess_loss,
            criterion=criterion,
            total_steps=total_steps,
            warmup_steps=warmup_steps,
            adaptive=adaptive,
            eta=eta,
            perturbation=perturbation,
            same_dropout=same_dropout,
            model=model,
            process_group=process_group,
            telemetry_every=telemetry_every,
        )

    @property
    def strength(self) -> float:
        """s(t) = kappa * ramp(t) of the coming step; 0 during warm-up."""
        if self.kappa == 0 or self.warming_up:
            return 0.0
        t = self.progress
        if t is None:
            raise ValueError(
                "total_steps=None is not allowed with kappa > 0: the strength s(t) follows training. "
                "Pass total_steps=, or set optimizer.progress in [0, 1] before each step"
            )
        if self.ramp_from == "warmup":
            if self.total_steps is None:
                raise ValueError(
                    "total_steps=None is not allowed with ramp_from='warmup': it tells where warm-up ends in t"
                )
            start = min(1.0, self.warmup_steps / max(1, self.total_steps))
            t = max(0.0, (t - start) / (1.0 - start)) if start < 1.0 else 1.0
        return self.kappa * self.schedule(t)

    # --- the noise gradient, from the graph of the clean pass

    @property
    def _perturbs(self) -> bool:
        return self.rho > 0 and (self.warmup == "sam" or not self.warming_up)

    def _begin(self) -> None:
        super()._begin()
        self._samples = 0  # of all micro-batches and ranks so far
        self._flipped = 0
        self._local_samples = 0
        self._all_flips: list[Flips] = []
        self._mislabelled: list[Tensor] = []

    def _collect(
        self,
        loss: Tensor,
        logits: Tensor | None,
        targets: Tensor | None,
        clean_targets: Tensor | None,
        run: Callable[..., None],
    ) -> None:
        if not self._perturbs or self.strength == 0 or self.flip_ratio == 0:
            super()._collect(loss, logits, targets, clean_targets, run)
            return
        if logits is None or targets is None:
            raise TypeError("backward(loss, logits, targets) of NCSAM needs the logits and the targets, to flip labels")
        self._check_batch(logits, targets)
        flipped = self._flipped_loss(logits, targets, clean_targets)
        if flipped is None:
            super()._collect(loss, logits, targets, clean_targets, run)
            return

        def run_keeping_graph(value: Tensor, retain_graph: bool = False) -> None:
            run(value, retain_graph=True)

        super()._collect(loss, logits, targets, clean_targets, run_keeping_graph)
        self._add_side_gradient("noise", *flipped, run)

    def _flipped_loss(self, logits: Tensor, targets: Tensor, clean_targets: Tensor | None) -> tuple[Tensor, int] | None:
        """Summed loss of the flipped samples of this micro-batch, and their number over all ranks."""
        group = self._group() if self.perturbation == "synced" else None
        with torch.no_grad():
            seen = logits.detach().float() if logits.dtype.itemsize < 4 else logits.detach()
            size = len(seen) if group is None else sum(joined_sizes(len(seen), seen.device, group))
            # rounding down the joined micro-batches, not each of them: m = floor(flip_ratio |B|) over all
            count = flip_count(self.flip_ratio, self._samples + size) - self._flipped
            index = select(seen, count, self.selection, self.generator, group) if count else None
            self._samples += size
            self._flipped += count
            self._local_samples += len(seen)
            if index is None:
                return None
            observed = observed_labels(targets)
            labels = flipped_labels(seen[index], observed[index], self.flip_target)
            self._all_flips.append(Flips(index + self._local_samples - len(seen), labels))
            self._note_mislabelled(observed, clean_targets, index)
        if not len(index):  # all flips fell to other ranks; this one still takes part in their backward
            return logits.sum() * 0.0, count
        if targets.is_floating_point():
            labels = F.one_hot(labels, logits.shape[1]).to(targets)
        criterion = self.flip_criterion or self.criterion
        kept = logits[index].float() if logits.dtype.itemsize < 4 else logits[index]
        return validate.scalar_loss(criterion(kept, labels)) * len(index), count

    # --- the perturbation

    @torch.no_grad()
    def _moves(self, report: StepReport) -> Iterator[Move]:
        report.strength = strength = self.strength
        self.last_flips = _joined(self._all_flips)
        params, gradients = self._gradients()
        taken = self._take_side_gradient("noise", params)
        if taken is None:
            yield from super()._moves(report)
            return
        noise, mean = taken
        if self.noise_mean == "batch":
            mean *= self._flipped / self._samples
        scaling = self._scaling(params)
        if scaling is not None:
            gradients = scaled_gradients(gradients, scaling)
            multiply_(noise, scaling)
        norm = global_norm(gradients)
        measured = self._measured()
        noise_norm = global_norm(noise) * mean if measured or self.compensation == "relative" else 0.0
        if measured:
            report.flipped = self._flipped
            report.flipped_mislabelled = self._mislabelled_share()
            report.grad_norm = norm / self._loss_scale
            report.noise_grad_norm = noise_norm
            report.cos_grad_noise = cosine(gradients, noise)
            share = 1.0 if self.compensation == "relative" else noise_norm / self.rho
            report.compensation_ratio = strength * share

        weight = self.sign * strength * mean
        if self.compensation == "relative":
            weight *= math.nan if not math.isfinite(noise_norm) else self.rho / noise_norm if noise_norm else 0.0
        if abs(weight) < _INVISIBLE * self.rho or norm == 0.0:
            yield from super()._moves(report)
            return
        # v = weight * (noise + (rho / ||g_B|| / weight) g_B): one pass over memory; the factor is left to the move
        add_scaled_(noise, gradients, self.rho / norm / weight)
        length = abs(weight) * global_norm(noise)  # ||v||
        if not self._may_perturb(norm, length):
            return
        shrink = min(1.0, self.rho / length) if self.projection else 1.0
        report.phase = "ncsam"
        if measured:
            report.perturbation_norm = length * shrink
            report.projected = shrink < 1.0
            report.cos_sam = math.copysign(1.0, weight) * cosine(gradients, noise)
        if scaling is not None:
            multiply_(noise, scaling)
        if measured:
            if scaling is not None:
                multiply_(gradients, scaling)
            clean = self._take_side_gradient("clean", params)
            if clean is not None:
                report.cos_clean = math.copysign(1.0, weight) * cosine(noise, clean[0])
                report.cos_clean_sam = cosine(gradients, clean[0])
        del gradients
        yield Move(params, noise, weight * shrink)

    # --- bookkeeping

    def _note_mislabelled(self, observed: Tensor, clean_targets: Tensor | None, index: Tensor) -> None:
        if clean_targets is not None and self._measured():
            self._mislabelled.append((observed != clean_targets)[index])

    def _mislabelled_share(self) -> float | None:
        """Share of this rank's flipped samples that are truly mislabelled, if clean labels were given."""
        flips = torch.cat(self._mislabelled) if self._mislabelled else None
        return None if flips is None or not len(flips) else float(flips.float().mean())

    def _own_state(self) -> dict[str, Any]:
        return {**super()._own_state(), "generator": self.generator.get_state()}

    def _load_own_state(self, own: dict[str, Any]) -> None:
        super()._load_own_state(own)
        if "generator" in own:
            self.generator.set_state(own["generator"].cpu())

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        generator = state.pop("generator")
        return {**state, "last_flips": None, "generator_state": (str(generator.device), generator.get_state())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        device, random = state.pop("generator_state")
        self.generator = torch.Generator(device)
        self.generator.set_state(random)
        super().__setstate__(state)

    def __repr__(self) -> str:
        return (
            f"NCSAM(rho={self._shown_radius()}, kappa={self.kappa}, flip_ratio={self.flip_ratio}, "
            f"total_steps={self.total_steps}, warmup_steps={self.warmup_steps}, base_optimizer={self.base_optimizer!r})"
        )


def _flip_criterion(choice: str | Criterion | None) -> Criterion | None:
    if choice is None or callable(choice):
        return choice
    validate.choice("flip_criterion", choice, ("ce", "smoothed_ce"))
    return F.cross_entropy if choice == "ce" else _smoothed_cross_entropy


def _smoothed_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets, label_smoothing=0.1)


def _joined(flips: list[Flips]) -> Flips | None:
    """The flips of all micro-batches as one."""
    if not flips:
        return None
    return Flips(torch.cat([f.index for f in flips]), torch.cat([f.labels for f in flips]))
