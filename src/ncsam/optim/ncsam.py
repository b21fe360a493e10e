"""Noise-Compensated Sharpness-Aware Minimization."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from ncsam._errors import bad_value
from ncsam.optim import validate
from ncsam.optim.compensated import compensated_moves
from ncsam.optim.distributed import is_sharded, without_sync
from ncsam.optim.estimators import REFRESH_EVERY, Estimator, Memory
from ncsam.optim.flipped_loss import flip_criterion as criterion_by_name
from ncsam.optim.flipped_loss import flipped_loss
from ncsam.optim.flipping import Flips, Selection, StepFlips, Target, observed_labels
from ncsam.optim.fused import fused_moves, fused_weight
from ncsam.optim.look import look_moves
from ncsam.optim.modules import SavedBuffers
from ncsam.optim.move import Move
from ncsam.optim.position import Radius
from ncsam.optim.sam import SAM
from ncsam.optim.schedule import Ramp, ramp
from ncsam.optim.sharpness_aware import Criterion
from ncsam.optim.side_gradient import allow_two_backwards
from ncsam.optim.telemetry import StepReport


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
            "look": LookSAM (Liu et al., 2022). A fused step keeps g_v, the part of its final gradient orthogonal to
            the one at w; other steps are the base optimizer's, on g_B + .85 (||g_B|| / ||g_v||) g_v; 1 and 1.
        refresh_every: every so many steps "fused" and "lazy" do an exact one, and "look" measures; 20, 5 and 5 if not
            given.
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
        self.flip_criterion = criterion_by_name(flip_criterion)
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
        allow_two_backwards()
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
        """Steps from one measurement to the next."""
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
        if self._perturbs and self._compensates and (self._exact or self._mixes):
            flips = self._draw(logits, targets, clean_targets)
        if flips is None:
            super()._collect(loss, logits, targets, clean_targets, run)
            return
        assert logits is not None, "checked by _draw"
        assert targets is not None, "checked by _draw"
        flipped, count = flips
        if self.estimator == "subset" and len(flipped.index) > 1:  # BatchNorm cannot do with one sample
            super()._collect(loss, logits, targets, clean_targets, run)
            self._add_subset_gradient(flipped, targets, count, run, forward)
            return
        noise = self._flipped_loss(logits.index_select(0, flipped.index), flipped, targets)
        if self._exact:

            def run_keeping_graph(value: Tensor, retain_graph: bool = False) -> None:
                run(value, retain_graph=True)

            super()._collect(loss, logits, targets, clean_targets, run_keeping_graph)
            self._add_side_gradient("noise", noise * len(flipped.index), count, run)
        else:
            weight = fused_weight(self, len(logits)) * len(flipped.index)
            super()._collect(torch.add(loss, noise, alpha=weight), logits, targets, clean_targets, run)

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
                seen, observed, self.flip_ratio, self.selection, self.flip_target, self.generator, self._synced_group()
            )
            if drawn is not None:
                self._note_mislabelled(observed, clean_targets, drawn[0].index)
        return drawn

    def _flipped_loss(self, logits: Tensor, flips: Flips, targets: Tensor) -> Tensor:
        return flipped_loss(self.flip_criterion or self.criterion, logits, flips, targets)

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
        with without_sync(modules):  # summed over the ranks later, as every g* is
            noise = self._flipped_loss(forward(flips.index), flips, targets) * len(flips.index)
            self._add_side_gradient("noise", noise, count, run)
        buffers.restore()

    # --- the perturbation

    @property
    def _compensates(self) -> bool:
        return self.strength > 0 and self.flip_ratio > 0

    @property
    def _exact(self) -> bool:
        """Whether the coming step takes g_B and g* themselves, each from this batch."""
        return self.estimator in ("exact", "subset") or (self._memory.due and not self._mixes)

    @property
    def _mixes(self) -> bool:
        """Whether the coming step takes g_B + beta g* by one backward, with the norms that are remembered."""
        memory = self._memory
        if self.estimator == "look":  # which knows ||g_B||, but neither ||g*|| nor ||T g_B||
            return memory.due and memory.norm > 0 and self.compensation == "absolute" and not self.adaptive
        return self.estimator == "fused" and not memory.due

    @torch.no_grad()
    def _moves(self, report: StepReport) -> Iterator[Move]:
        report.strength = self.strength
        self.last_flips = self._flips.joined()
        self._memory.micro_batches = max(1, self._micro_batches)
        if self.estimator == "look":
            yield from look_moves(self, report)
        elif self._mixes and self._flips.flipped:
            for move in fused_moves(self, report):
                if move.params:
                    self._memory.age()
                yield move
        else:
            yield from compensated_moves(self, report)

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
