"""Noise-Compensated Sharpness-Aware Minimization."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from ncsam._errors import bad_value
from ncsam.optim import validate
from ncsam.optim.distributed import is_sharded
from ncsam.optim.estimators import LOOK, REFRESH_EVERY, Estimator, Memory
from ncsam.optim.flipping import Flips, Selection, StepFlips, Target, flip_count, observed_labels
from ncsam.optim.modules import SavedBuffers, data_parallel
from ncsam.optim.sam import SAM, scaled_gradients
from ncsam.optim.schedule import Ramp, ramp
from ncsam.optim.sharpness_aware import Criterion, Move, Radius
from ncsam.optim.telemetry import StepReport
from ncsam.optim.tensors import add_scaled_, cosine, global_dot, global_norm, multiply_, scale_

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

    A step costs two forwards and three backwards, a copy of the weights and one of the gradients (`adaptive`: two);
    `estimator` offers cheaper ones.
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
        estimator: how the perturbation is had, and at what price (see `docs/optimizers.md`):
            "exact": g_B and g* from this batch; 2 forwards, 3 backwards.
            "fused": g_B + beta g* by one backward, beta = s N / rho, N a running mean of ||g_B||; 2 and 2.
            "lazy": g* of the last exact step; 2 and 2.
            "subset": g* by a forward of the flipped samples alone, `forward(rows)`; 2 + flip_ratio of both.
            "look": LookSAM (Liu et al., 2022). An exact step keeps g_v, the part of its final gradient orthogonal to
            g_B; other steps are the base optimizer's, on g_B + .7 (||g_B|| / ||g_v||) g_v; 1 and 1.
        refresh_every: every so many steps "fused", "lazy" and "look" do an exact one; 20, 5 and 10 if not given.
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
        estimator: Estimator = "exact",
        refresh_every: int | None = None,
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
        self.estimator = validate.choice("estimator", estimator, REFRESH_EVERY)
        every = REFRESH_EVERY[estimator] if refresh_every is None else validate.count("refresh_every", refresh_every)
        if every < 1:
            raise bad_value("refresh_every", refresh_every, "a whole number from 1")
        if estimator == "look" and perturbation == "local":
            raise bad_value("perturbation", "local", "not with estimator='look', whose ranks share one step")
        self._memory = Memory(every)
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
        if self._auto_radius is not None and estimator == "look":
            self._auto_radius.steps_per_update = every

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

    @property
    def refresh_every(self) -> int:
        """Steps from one exact measurement to the next."""
        return self._memory.every

    # --- the noise gradient, from the graph of the clean pass

    @property
    def _perturbs(self) -> bool:
        return self.rho > 0 and (self.warmup == "sam" or not self.warming_up)

    def _begin(self) -> None:
        super()._begin()
        self._flips = StepFlips()
        self._micro_batches = 0
        self._mislabelled: list[Tensor] = []

    def _collect(
        self,
        loss: Tensor,
        logits: Tensor | None,
        targets: Tensor | None,
        clean_targets: Tensor | None,
        run: Callable[..., None],
        forward: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._micro_batches += 1
        flips = None
        if self._perturbs and self._compensates and (self._exact or self.estimator == "fused"):
            flips = self._draw(logits, targets, clean_targets)
        if flips is None:
            super()._collect(loss, logits, targets, clean_targets, run)
            return
        assert logits is not None, "checked by _draw"
        assert targets is not None, "checked by _draw"
        flipped, count = flips
        own_pass = self.estimator == "subset" and len(flipped.index) > 1  # BatchNorm cannot do with one sample
        if own_pass:
            super()._collect(loss, logits, targets, clean_targets, run)
            self._add_subset_gradient(flipped, targets, count, run, forward)
        elif self._exact:

            def run_keeping_graph(value: Tensor, retain_graph: bool = False) -> None:
                run(value, retain_graph=True)

            super()._collect(loss, logits, targets, clean_targets, run_keeping_graph)
            self._add_side_gradient("noise", self._summed_loss(logits, flipped, targets), count, run)
        else:
            noise = self._fused_weight(len(logits)) * self._summed_loss(logits, flipped, targets)
            super()._collect(loss + noise, logits, targets, clean_targets, run)

    def _draw(
        self, logits: Tensor | None, targets: Tensor | None, clean_targets: Tensor | None
    ) -> tuple[Flips, int] | None:
        """The flips in this micro-batch, and their number over all ranks."""
        if logits is None or targets is None:
            raise TypeError("backward(loss, logits, targets) of NCSAM needs the logits and the targets, to flip labels")
        self._check_batch(logits, targets)
        with torch.no_grad():
            seen = logits.detach().float() if logits.dtype.itemsize < 4 else logits.detach()
            observed = observed_labels(targets)
            drawn = self._flips.draw(
                seen, observed, self.flip_ratio, self.selection, self.flip_target, self.generator, self._noise_group()
            )
            if drawn is not None:
                self._note_mislabelled(observed, clean_targets, drawn[0].index)
        return drawn

    def _summed_loss(self, logits: Tensor, flips: Flips, targets: Tensor, rows: Tensor | None = None) -> Tensor:
        """Loss of the flipped labels, summed over the samples; the logits are the batch's, or these samples' alone."""
        if not len(flips.index):  # all flips fell to other ranks; this one still takes part in their backward
            return logits.sum() * 0.0
        kept = logits[flips.index] if rows is None else logits
        kept = kept.float() if kept.dtype.itemsize < 4 else kept
        labels = F.one_hot(flips.labels, logits.shape[1]).to(targets) if targets.is_floating_point() else flips.labels
        criterion = self.flip_criterion or self.criterion
        return validate.scalar_loss(criterion(kept, labels)) * len(flips.index)

    def _add_subset_gradient(
        self,
        flips: Flips,
        targets: Tensor,
        count: int,
        run: Callable[..., None],
        forward: Callable[[Tensor], Tensor] | None,
    ) -> None:
        """g* from a forward of the flipped samples alone, which leaves no trace in buffers."""
        if forward is None:
            raise TypeError("estimator='subset' needs backward(..., forward=): forward(rows) gives those rows' logits")
        if is_sharded(self._params()):
            raise bad_value("estimator", "subset", "not with sharded parameters, whose passes all ranks must share")
        modules = self._modules or ()
        buffers = SavedBuffers(modules)
        with ExitStack() as stack:
            for wrapper in data_parallel(modules):
                stack.enter_context(wrapper.no_sync())  # summed over the ranks later, as every g* is
            logits = forward(flips.index)
            self._add_side_gradient("noise", self._summed_loss(logits, flips, targets, flips.index), count, run)
        buffers.restore()

    def _fused_weight(self, size: int) -> float:
        """What the summed loss of flipped samples is multiplied by, so that one backward gives g_B + beta g*.

        v = (rho / ||g_B||) (g_B + beta g*) with beta = s ||g_B|| / rho. The number of micro-batches is taken to be
        the last step's.
        """
        memory, group = self._memory, self._noise_group()
        ranks = 1 if group is None else dist.get_world_size(group)  # gradients are averaged over them
        samples = memory.micro_batches * size * ranks
        number = max(1, samples if self.noise_mean == "batch" else flip_count(self.flip_ratio, samples))
        against = memory.noise_norm if self.compensation == "relative" else self.rho
        return self.sign * self.strength * memory.norm / against * ranks / number

    def _noise_group(self) -> dist.ProcessGroup | None:
        """The ranks whose flipped samples count as one batch's."""
        return self._group() if self.perturbation == "synced" else None

    # --- the perturbation

    @property
    def _compensates(self) -> bool:
        return self.strength > 0 and self.flip_ratio > 0

    @property
    def _exact(self) -> bool:
        """Whether the coming step takes g_B and g* themselves, each from this batch."""
        return self.estimator in ("exact", "subset") or self._memory.due

    @torch.no_grad()
    def _moves(self, report: StepReport) -> Iterator[Move]:
        report.strength = self.strength
        self.last_flips = self._flips.joined()
        self._memory.micro_batches = max(1, self._micro_batches)
        if self.estimator == "look":
            yield from self._look_moves(report)
        elif self.estimator == "fused" and not self._exact and self._flips.flipped:
            yield from self._fused_moves(report)
        else:
            yield from self._compensated_moves(report)

    def _noise(self, params: list[Tensor]) -> tuple[list[Tensor], float] | None:
        """g* as (tensors, factor): this batch's, or the one that is reused; `None` if there is none."""
        if self.estimator == "lazy" and not self._exact:
            return self._memory.kept(params) if self._compensates else None
        taken = self._take_side_gradient("noise", params)
        if taken is not None and self.noise_mean == "batch":
            return taken[0], taken[1] * self._flips.flipped / self._flips.samples
        return taken

    def _compensated_moves(self, report: StepReport) -> Iterator[Move]:
        """eps = Proj(rho g_B/||g_B|| + s g*), or SAM's if there is no g*."""
        params, gradients = self._gradients()
        taken = self._noise(params)
        if taken is None:
            del gradients
            yield from super()._moves(report)
            return
        noise, mean = taken
        raw, keeps_noise = noise, self.estimator == "lazy"
        scaling = self._scaling(params)
        if scaling is not None:
            gradients = scaled_gradients(gradients, scaling)
            if keeps_noise:
                noise = scaled_gradients(noise, scaling)
            else:
                multiply_(noise, scaling)
        norm = global_norm(gradients)
        measured = self._measured()
        remembers = self.estimator in ("fused", "lazy")
        noise_norm = 0.0
        if measured or remembers or self.compensation == "relative":
            noise_norm = global_norm(noise) * mean
        size = self.strength
        if self.compensation == "relative":
            size *= math.nan if not math.isfinite(noise_norm) else self.rho / noise_norm if noise_norm else 0.0
        weight = self.sign * size * mean
        clean = None
        if measured:
            self._report_gradients(report, gradients, noise, norm, noise_norm)
            clean = self._take_side_gradient("clean", params)
            if clean is not None:
                report.cos_clean_sam = cosine(_times(gradients, scaling), clean[0])
        if abs(weight) < _INVISIBLE * self.rho or norm == 0.0:
            yield from super()._moves(report)
            return
        # v = a g_B + weight noise, in one pass over memory: written over the one of the two that is not needed any
        # more, with the factor before the bracket left to the move
        a = self.rho / norm
        if keeps_noise and scaling is None:
            into, other, inner, outer = gradients, noise, weight / a, a
        else:
            into, other, inner, outer = noise, gradients, a / weight, weight
        if math.isfinite(noise_norm):
            add_scaled_(into, other, inner)
        length = abs(outer) * global_norm(into) if math.isfinite(noise_norm) else math.nan  # ||v||
        if not self._may_perturb(norm, length):
            if into is gradients and math.isfinite(noise_norm) and not self._scaled:
                yield Move.nowhere()  # .grad is not g_B any more: take that, at w
            return
        if remembers:
            self._remember(params, raw, mean, norm, noise_norm)
        shrink = min(1.0, self.rho / length) if self.projection else 1.0
        report.phase = "ncsam"
        if measured:
            report.perturbation_norm = length * shrink
            report.projected = shrink < 1.0
            report.cos_sam = (self.rho + self.sign * size * noise_norm * (report.cos_grad_noise or 0.0)) / length
        if scaling is not None:
            multiply_(into, scaling)
        if clean is not None:
            report.cos_clean = math.copysign(1.0, outer) * cosine(into, clean[0])
        move = Move(params, into, outer * shrink)
        del taken, gradients, noise, raw, into, other  # nothing but w need live through the second pass
        yield move

    def _fused_moves(self, report: StepReport) -> Iterator[Move]:
        """The same from one backward: `.grad` is g_B + beta g*, and v is rho / ||g_B|| times it."""
        params, directions = self._gradients()
        scaling = self._scaling(params)
        if scaling is not None:
            directions = scaled_gradients(directions, scaling)
        norm = global_norm(directions)
        if not self._may_perturb(norm):
            if not self._scaled:
                yield Move.nowhere()  # .grad is not g_B: take that, at w
            return
        self._memory.age()
        outer = self.rho / (self._memory.norm * self._loss_scale)
        length = outer * norm  # ||v||
        shrink = min(1.0, self.rho / length) if self.projection else 1.0
        if scaling is not None:
            multiply_(directions, scaling)
        report.phase = "ncsam"
        if self._measured():
            report.perturbation_norm = length * shrink
            report.projected = shrink < 1.0
            report.flipped = self._flips.flipped
            report.flipped_mislabelled = self._mislabelled_share()
            report.cos_clean = self._cosine_with_clean(params, directions)
        yield Move(params, directions, outer * shrink)

    def _look_moves(self, report: StepReport) -> Iterator[Move]:
        """LookSAM: exact steps keep the part g_v of their gradient that is orthogonal to g_B; others add it to g_B."""
        params, gradients = self._gradients()
        norm = global_norm(gradients)
        if not self._exact:
            kept, scale = self._memory.kept(params)
            if self._may_perturb(norm):
                add_scaled_(gradients, kept, scale * norm)
                self._memory.age()
                report.phase = "look"
            return
        for move in self._compensated_moves(report):
            yield move
            there = {p: p.grad for p in params if p.grad is not None}
            kept = [g for p, g in zip(params, gradients, strict=True) if p in there]
            descent = list(there.values())
            along = global_dot(descent, kept) / norm**2
            scale_(kept, -along)
            add_scaled_(kept, descent, 1.0)
            length = global_norm(kept)
            if math.isfinite(length) and length > 0:
                self._memory.keep(list(there), kept, LOOK / length)
                self._memory.refresh(norm / self._loss_scale, 0.0, 0)

    def _remember(self, params: list[Tensor], noise: list[Tensor], mean: float, norm: float, noise_norm: float) -> None:
        """Take in what an exact step measured, or count one that reused it."""
        if not self._exact:
            self._memory.age()
            return
        self._memory.refresh(norm / self._loss_scale, noise_norm, self._flips.samples)
        if self.estimator == "lazy":
            self._memory.keep(params, noise, mean)

    def _report_gradients(
        self, report: StepReport, gradients: list[Tensor], noise: list[Tensor], norm: float, noise_norm: float
    ) -> None:
        if self._flips.flipped:
            report.flipped = self._flips.flipped
            report.flipped_mislabelled = self._mislabelled_share()
        report.grad_norm = norm / self._loss_scale
        report.noise_grad_norm = noise_norm
        report.cos_grad_noise = cosine(gradients, noise)
        share = 1.0 if self.compensation == "relative" else noise_norm / self.rho
        report.compensation_ratio = self.strength * share

    # --- bookkeeping

    def _note_mislabelled(self, observed: Tensor, clean_targets: Tensor | None, index: Tensor) -> None:
        if clean_targets is not None and self._measured():
            self._mislabelled.append((observed != clean_targets)[index])

    def _mislabelled_share(self) -> float | None:
        """Share of this rank's flipped samples that are truly mislabelled, if clean labels were given."""
        flips = torch.cat(self._mislabelled) if self._mislabelled else None
        return None if flips is None or not len(flips) else float(flips.float().mean())

    def _own_state(self) -> dict[str, Any]:
        own = {**super()._own_state(), "generator": self.generator.get_state()}
        return own if self.estimator == "exact" else {**own, "memory": self._memory.state_dict(self._all_params())}

    def _load_own_state(self, own: dict[str, Any]) -> None:
        super()._load_own_state(own)
        if "generator" in own:
            self.generator.set_state(own["generator"].cpu())
        self._memory.forget()
        if "memory" in own:
            self._memory.load_state_dict(own["memory"], self._all_params())

    def _all_params(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

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


def _times(tensors: list[Tensor], factors: list[Tensor] | None) -> list[Tensor]:
    return tensors if factors is None else scaled_gradients(tensors, factors)
