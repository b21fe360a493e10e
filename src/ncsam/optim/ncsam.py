"""Noise-Compensated Sharpness-Aware Minimization: the optimizer, and its step as the paper has it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
import torch._functorch.config as compiled_graphs
from torch.optim import Optimizer

from ncsam._checks import choice, flag, instance, non_negative, number, positive, ratio
from ncsam._errors import bad_value
from ncsam.optim.estimators import Compensation, Estimator, FlippedLoss
from ncsam.optim.flipping import Flips, Selection, Target, criterion_by_name, flipped_loss
from ncsam.optim.fused import Fused
from ncsam.optim.looksam import Look
from ncsam.optim.options import Criterion, Options, Unpack, renamed
from ncsam.optim.radius import RadiusLike
from ncsam.optim.ramps import Ramp, ramp_by_name
from ncsam.optim.registry import register
from ncsam.optim.sam import ascent, scaled_gradients
from ncsam.optim.sharpness_aware import SharpnessAware
from ncsam.optim.step import MicroBatch, Move, Step
from ncsam.vectors.arithmetic import add_scaled_, cosine, global_norm, multiply_

_INVISIBLE = 1e-15  # a compensation this much smaller than rho changes no bit of eps that matters


@register
class NCSAM(SharpnessAware):
    r"""SAM whose perturbation is corrected for the bias that mislabeled samples put into it.

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
        ramp: "smooth" (the paper's), "linear", "cosine", "constant", or a function of t in [0, 1].
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
        estimator: how the perturbation is computed, and at what price:
            "exact": g_B and g* from this batch; 2 forwards, 3 backwards.
            "fused": g_B + beta g* by one backward; 2 and 2 (`Fused`).
            "look": most steps reuse what a perturbation adds to the gradient; 1 and 1 (`Look`).
        refresh_every: every so many steps "fused" does an exact one (20), and "look" measures (5).
        generator: source of the draws; one of its own, seeded by `torch.initial_seed()`, if not given.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(4, 3)
        >>> base = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> optimizer = NCSAM(base, rho=0.05, kappa=0.1, flip_ratio=0.5, total_steps=100, warmup_steps=25)
        >>> x, y = torch.ones(2, 4), torch.tensor([0, 2])
        >>> loss = optimizer.step(lambda: model(x), y)  # logits out, observed labels in; the loss at w
        >>> optimizer.steps, optimizer.warming_up
        (1, True)
    """

    flips_labels = True

    def __init__(
        self,
        base_optimizer: Optimizer,
        rho: RadiusLike = 0.05,
        kappa: float = 0.1,
        flip_ratio: float = 0.4,
        *,
        ramp: str | Ramp = "smooth",
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
        estimator: Literal["exact", "fused", "look"] = "exact",
        refresh_every: int | None = None,
        adaptive: bool = False,
        eta: float = 0.0,
        **options: Unpack[Options],
    ) -> None:
        given: Any = options
        renamed(given, "schedule", "ramp")
        self.ramp = ramp_by_name(given.pop("ramp", ramp))
        self.kappa = non_negative("kappa", kappa)
        self.flip_ratio = ratio("flip_ratio", flip_ratio)
        self.ramp_from = choice("ramp_from", ramp_from, ("start", "warmup"))
        number("sign", sign, "1 or -1", lambda v: v in (1, -1))
        self.sign = int(sign)
        self.projection = flag("projection", projection)
        self.compensation = choice("compensation", compensation, ("absolute", "relative"))
        self.noise_mean = choice("noise_mean", noise_mean, ("flipped", "batch"))
        choice("selection", selection, ("gap", "uniform", "lowest_gap"))
        choice("flip_target", flip_target, ("not_observed", "second"))
        self.selection, self.flip_target = selection, flip_target
        self.flip_criterion = criterion_by_name(flip_criterion)
        self.warmup = choice("warmup", warmup, ("base", "sam"))
        self.adaptive = flag("adaptive", adaptive)
        self.eta = non_negative("eta", eta)
        if generator is not None:
            instance("generator", generator, torch.Generator, "a torch.Generator, or None")
        else:  # seeding from the global seed draws no number from the global generator
            generator = torch.Generator().manual_seed(torch.initial_seed())
        self.generator = generator
        #: The flips of the last step: positions in the batch (micro-batches joined) and temporary labels.
        self.last_flips: Flips | None = None
        super().__init__(base_optimizer, rho, **options)
        self.estimator = self._make_estimator(estimator, refresh_every)
        # a compiled backward overwrites by default what it needs no more, and then refuses to run twice
        compiled_graphs.donated_buffer = False

    def _make_estimator(self, name: str, every: int | None) -> Estimator:
        choice("estimator", name, ("exact", "fused", "look"))
        every = None if every is None else positive("refresh_every", every)
        exact = Exact()
        if name == "exact":
            return exact
        if name == "fused":
            return Fused(exact, every or 20)
        if self.perturbation == "local":
            raise bad_value("perturbation", "local", "not with estimator='looksam', whose ranks share one step")
        self.radius.steps_per_update = every or 5
        return Look(exact, self.vectors, every or 5)

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
        return self.kappa * self.ramp(t)

    @property
    def perturbs(self) -> bool:
        return self.rho > 0 and (self.warmup == "sam" or not self.warming_up)

    # --- the step: lines 1 to 3 in `collect`, 4 to 6 in `moves`

    def collect(self, step: Step, batch: MicroBatch) -> None:
        how = self._how()
        flips = None
        if self.perturbs and how.strength > 0 and how.flip_ratio > 0 and self.estimator.flips(how):
            flips = self._draw(step, batch)
        if flips is None:
            super().collect(step, batch)
        else:
            self.estimator.collect(step, how, batch, flips)

    def moves(self, step: Step) -> Iterator[Move]:
        how = self._how()
        step.report.strength = how.strength
        self.last_flips = step.flips.joined()
        yield from self.estimator.moves(step, how)

    def _how(self) -> Compensation:
        relative, over_batch = self.compensation == "relative", self.noise_mean == "batch"
        eta = self.eta if self.adaptive else None
        return Compensation(self.strength, self.flip_ratio, self.sign, relative, over_batch, self.projection, eta)

    def _draw(self, step: Step, batch: MicroBatch) -> FlippedLoss | None:
        """The loss of this micro-batch's flipped samples; `None` if there are none."""
        logits, targets = batch.logits, batch.targets
        if logits is None or targets is None:
            raise TypeError("backward(loss, logits, targets) of NCSAM needs the logits and the targets, to flip labels")
        self._check_batch(logits, targets)
        rule = self.flip_ratio, self.selection, self.flip_target, self.generator
        known = batch.clean_targets if step.measured else None
        drawn = step.flips.draw(logits, targets, *rule, step.synced_group, known)
        if drawn is None:
            return None
        flips, samples = drawn
        criterion = self.flip_criterion or self.criterion
        loss = flipped_loss(criterion, logits.index_select(0, flips.index), flips, targets)
        return FlippedLoss(loss * len(flips.index), samples)

    # --- restarts and copies

    def _own_state(self) -> dict[str, Any]:
        own = {**super()._own_state(), "generator": self.generator.get_state()}
        memory = self.estimator.state_dict()
        return {**own, "estimator": memory} if memory else own

    def _load_own_state(self, own: dict[str, Any]) -> None:
        super()._load_own_state(own)
        if "generator" in own:
            self.generator.set_state(own["generator"].cpu())
        self.estimator.load_state_dict(own.get("estimator", {}))

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
            f"NCSAM(rho={self.radius!r}, kappa={self.kappa}, flip_ratio={self.flip_ratio}, "
            f"total_steps={self.total_steps}, warmup_steps={self.warmup_steps}, base_optimizer={self.base_optimizer!r})"
        )


class Exact(Estimator):
    """g_B and g*, each from this batch: two backwards through one graph."""

    def collect(self, step: Step, how: Compensation, batch: MicroBatch, noise: FlippedLoss) -> None:
        step.collect(batch.loss, batch, keep_graph=True)
        step.add_side_gradient("noise", *noise)

    @torch.no_grad()
    def moves(
        self, step: Step, how: Compensation, note: Callable[[float, float, int], None] | None = None
    ) -> Iterator[Move]:
        """eps = Proj(rho g_B/||g_B|| + s g*), or SAM's if there is no g*; `note` is told both norms."""
        params, gradients = step.gradients()
        taken = step.side_gradient("noise", params)
        if taken is None:
            del gradients
            yield from ascent(step, *step.gradients(), how.eta)
            return
        noise, mean = taken  # g* is mean * noise
        if how.over_batch:
            mean *= step.flips.flipped / step.flips.samples
        scaling = None if how.eta is None else step.magnitudes(params, how.eta)
        if scaling is not None:
            gradients = scaled_gradients(gradients, scaling)
            multiply_(noise, scaling)
        norm = global_norm(gradients)
        noise_norm = 0.0
        if step.measured or note is not None or how.relative:
            noise_norm = global_norm(noise) * mean
        size = how.strength
        if how.relative:
            size *= math.nan if not math.isfinite(noise_norm) else step.rho / noise_norm if noise_norm else 0.0
        weight = how.sign * size * mean
        clean = None
        if step.measured:
            step.report.note_flips(step.flips)
            step.report.grad_norm, step.report.noise_grad_norm = norm / step.loss_scale, noise_norm
            step.report.cos_grad_noise = cosine(gradients, noise)
            step.report.compensation_ratio = how.strength * (1.0 if how.relative else noise_norm / step.rho)
            if (clean := step.side_gradient("clean", params)) is not None:
                sam = gradients if scaling is None else scaled_gradients(gradients, scaling)
                step.report.cos_clean_sam = cosine(sam, clean[0])
                del sam
        if abs(weight) < _INVISIBLE * step.rho or norm == 0.0:
            del taken, gradients, noise
            yield from ascent(step, *step.gradients(), how.eta)
            return
        # v = a g_B + weight noise = weight (noise + a / weight g_B), in one pass over memory: the bracket is written
        # over the noise, which is not needed any more, and its factor is left to the move
        length = math.nan  # ||v||
        if math.isfinite(noise_norm):
            add_scaled_(noise, gradients, step.rho / norm / weight)
            length = abs(weight) * global_norm(noise)
        if not step.may_perturb(norm, length):
            return
        if note is not None:
            note(norm / step.loss_scale, noise_norm, step.flips.samples)
        shrink = min(1.0, step.rho / length) if how.projection else 1.0
        step.report.phase = "ncsam"
        if step.measured:
            step.report.perturbation_norm = length * shrink
            step.report.projected = shrink < 1.0
            along = how.sign * size * noise_norm * (step.report.cos_grad_noise or 0.0)
            step.report.cos_sam = (step.rho + along) / length
        if scaling is not None:
            multiply_(noise, scaling)
        if clean is not None:
            step.report.cos_clean = math.copysign(1.0, weight) * cosine(noise, clean[0])
        move = Move(params, noise, weight * shrink)
        del taken, gradients, noise  # nothing but w need live through the second pass
        yield move
