"""What SAM, NCSAM and BSAM share: a wrapper around any optimizer that steps on gradients taken elsewhere than at w."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch._compile import _disable_dynamo  # `torch.compiler.disable` would import the compiler along with us
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from ncsam.optim import validate
from ncsam.optim.distributed import all_agree, average_over_ranks, find_group, is_sharded, without_sync
from ncsam.optim.flipping import joined_sizes, observed_labels
from ncsam.optim.modules import modules_behind
from ncsam.optim.move import Move, moved
from ncsam.optim.position import PositionedOptimizer, Radius
from ncsam.optim.rng import RandomState
from ncsam.optim.side_gradient import SideGradient
from ncsam.optim.telemetry import StepReport
from ncsam.optim.tensors import cosine, scale_
from ncsam.optim.weights import SavedWeights

Criterion: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Backward: TypeAlias = Callable[..., Any]


class SharpnessAware(PositionedOptimizer):
    """Base of the sharpness-aware optimizers; use `SAM`, `NCSAM` or `BSAM`.

    A step is whole (`step(forward, targets)`), or in two phases for loops that own their backward: `backward` at w,
    then each of `perturbations()`, then `step()`.
    """

    _flips_labels = False  # whether the step needs classes, whatever the criterion
    _open: bool  # gradients at w are being collected
    _pass: int  # 0 at w, 1 at the first perturbed weights, 2 at the second
    _ready: bool  # .grad holds the gradient to step on
    _loss_scale: float
    _scaled: bool  # by a GradScaler
    _side_gradients: dict[str, SideGradient]
    _checked: Tensor | None = None  # this step's targets, once their values were read

    def __init__(
        self,
        base_optimizer: Optimizer,
        *,
        rho: Radius,
        target: float,
        guess_loss: float | None,
        criterion: Criterion,
        total_steps: int | None,
        warmup_steps: int,
        adaptive: bool,
        eta: float,
        perturbation: Literal["synced", "local"],
        same_dropout: bool,
        model: nn.Module | Iterable[nn.Module] | None,
        process_group: dist.ProcessGroup | None,
        telemetry_every: int,
    ) -> None:
        super().__init__(base_optimizer, rho, target, guess_loss, total_steps, warmup_steps)
        self.criterion = criterion
        self.adaptive = adaptive
        self.eta = validate.non_negative("eta", eta)
        self.perturbation = validate.choice("perturbation", perturbation, ("synced", "local"))
        self.same_dropout = same_dropout
        self.telemetry_every = validate.count("telemetry_every", telemetry_every)
        self.process_group = process_group
        self.last_step: StepReport | None = None
        self._model = (model,) if isinstance(model, nn.Module) else None if model is None else tuple(model)
        self._modules: tuple[nn.Module, ...] | None = self._model
        self._weights = SavedWeights()
        self._pass = 0
        self._begin()

    # --- one whole step

    @_disable_dynamo  # a compiled training loop runs the step as it is, and the networks in it as they were compiled
    def step(  # type: ignore[override]
        self,
        forward: Callable[..., Tensor] | None = None,
        targets: Tensor | None = None,
        *,
        scaler: GradScaler | None = None,
        clean_targets: Tensor | None = None,
        closure: Callable[[], Any] | None = None,
    ) -> Any:
        """Do one step on a batch: `forward()` returns logits, `criterion(logits, targets)` the loss.

        Returns the loss of the clean pass, at w. Gradients of earlier backwards are dropped; to accumulate, use the
        two phases. With `scaler` the passes are scaled and the step is the scaler's (call `scaler.update()` after).
        `clean_targets`, where known, serve telemetry alone.

        Without `forward` it ends a two-phase step: the base optimizer steps on the gradient that the last of
        `perturbations()` left. That is what `GradScaler.step` and Lightning call; `closure` goes to the base.
        """
        if forward is None:
            return self._descend(closure)
        if not callable(forward) or targets is None:
            raise TypeError(
                "step(forward, targets) needs both: forward() returns logits, targets are the observed labels; "
                f"it got forward={type(forward).__name__}, targets={type(targets).__name__}"
            )
        self._modules = self._model if self._model is not None else modules_behind(forward)
        params = self._params()
        validate.no_outer_autocast(params, "step()")
        self.zero_grad()
        mask = RandomState(p.device for p in params) if self.same_dropout else None
        with torch.enable_grad():
            with self._without_sync():
                logits = forward()
                loss = self._loss(logits, targets)
                self.backward(loss, logits, targets, scaler=scaler, clean_targets=clean_targets, forward=forward)
            clean_loss = loss.detach()
            del loss, logits  # nothing of the first graph may outlive it
            for perturbed in self.perturbations():
                with perturbed:
                    if mask is not None:
                        mask.restore()
                    self.backward(self._loss(forward(), targets), scaler=scaler)
        self._ready = False
        if scaler is None:
            self.base_optimizer.step()
        else:
            scaler.step(self.base_optimizer)
        return clean_loss

    # --- the same in two phases

    def backward(
        self,
        loss: Tensor,
        logits: Tensor | None = None,
        targets: Tensor | None = None,
        *,
        scaler: GradScaler | None = None,
        backward: Backward | None = None,
        loss_scale: float | None = None,
        clean_targets: Tensor | None = None,
        forward: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """First phase: gradients at w. Call it once per micro-batch, in place of `loss.backward()`.

        In the second phase it may be called in the same way, and must be if the radius is automatic, which follows the
        losses of both: those of the micro-batches together make the mean over the batch. There, `loss` is enough.

        `scaler` scales the loss. `backward` is called instead of `Tensor.backward`, with the loss and `retain_graph`
        (Fabric's `backward`, Lightning's `manual_backward`); if it multiplies the loss by a factor that `scaler` does
        not know, say so by `loss_scale`. `forward(rows)`, the logits of some rows of the micro-batch, is for
        `NCSAM(estimator="subset")`.
        """
        loss = validate.scalar_loss(loss)
        if not self._open:
            self._begin()
            self._open = True

        def run(value: Tensor, retain_graph: bool = False) -> None:
            if backward is not None:
                backward(value, retain_graph=retain_graph)
            else:
                torch.autograd.backward(value if scaler is None else scaler.scale(value), retain_graph=retain_graph)

        if self._auto_radius is not None and self._pass < 2:
            self._auto_radius.note_loss(loss, perturbed=self._pass == 1)
        if self._pass:
            run(loss)
            return
        self._scaled = scaler is not None and scaler.is_enabled()
        self._loss_scale = loss_scale if loss_scale is not None else 1.0 if scaler is None else scaler.get_scale()
        if self._auto_radius is not None:
            self._auto_radius.note_labels(logits, targets, self.criterion)
        self._collect(loss, logits, targets, clean_targets, run, forward)

    def perturbations(self) -> Iterator[AbstractContextManager[None]]:
        """Second phase: for each of these, enter it and run backward at the perturbed weights.

        SAM and NCSAM yield one, BSAM two, warm-up none. On leaving, also by an exception, weights and buffers are as
        before, bit for bit. After the last one `.grad` holds the gradient to step on: clip it, then call `step()`.
        """
        if not self._open:
            raise RuntimeError("perturbations() needs the gradients at w: call backward(loss, logits, targets) first")
        if self._modules is None:
            raise RuntimeError(
                "perturbations() must know the network, whose BatchNorm statistics it restores: "
                f"pass model= to {type(self).__name__}"
            )
        self.last_step = report = StepReport(self._steps + 1, "base", self.rho, self.progress)
        report.rho_share = None if self._auto_radius is None else self._auto_radius.share
        validate.gradients(self._params())
        moves = 0
        if self._perturbs:
            for moves, move in enumerate(self._moves(report), 1):
                yield self._at(move, moves)
        if self._auto_radius is not None:
            self._auto_radius.end(perturbed=moves > 0, group=self._group())
        self._open = False
        self._ready = True
        self._checked = None
        self._steps += 1

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, and what an unfinished step has collected."""
        super().zero_grad(set_to_none)
        self._checked = None
        self._begin()

    # --- for the subclasses

    @property
    def _perturbs(self) -> bool:
        """Whether the coming step perturbs at all."""
        return self.rho > 0 and not self.warming_up

    def _moves(self, report: StepReport) -> Iterator[Move]:
        """Where to evaluate, from the gradients at w in `.grad`. What follows a yield runs when that pass is over."""
        raise NotImplementedError  # each optimizer's own

    def _collect(
        self,
        loss: Tensor,
        logits: Tensor | None,
        targets: Tensor | None,
        clean_targets: Tensor | None,
        run: Callable[..., None],
        forward: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Run backward of the loss, and of what else is wanted from the same graph."""
        wanted = self._clean_part(logits, targets, clean_targets) if self._perturbs else None
        run(loss, retain_graph=wanted is not None)
        if wanted is not None:
            self._add_side_gradient("clean", *wanted, run)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._begin()

    def __getstate__(self) -> dict[str, Any]:
        scratch = {"_weights", "_side_gradients", "_checked", "last_step"}  # scratch and half-done steps do not travel
        state = {name: value for name, value in super().__getstate__().items() if name not in scratch}
        return {**state, "_modules": self._model}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._weights = SavedWeights()
        self._pass = 0
        self.last_step = None
        self._begin()

    def _begin(self) -> None:
        """Forget what a step has collected so far."""
        self._open = False
        self._ready = False
        self._loss_scale = 1.0
        self._scaled = False
        self._side_gradients = {}
        if self._auto_radius is not None:
            self._auto_radius.begin()

    def _foreign_params(self) -> list[Tensor]:
        """Parameters that the network has and this optimizer does not own."""
        own = set(map(id, self._params()))
        modules = self._modules or ()
        return [p for m in modules for p in m.parameters() if p.requires_grad and id(p) not in own]

    def _gradients(self) -> tuple[list[Tensor], list[Tensor]]:
        """The parameters that have a gradient, and their gradients."""
        params = [p for p in self._params() if p.grad is not None]
        return params, [p.grad for p in params if p.grad is not None]

    def _group(self) -> dist.ProcessGroup | None:
        return self.process_group or find_group(self._modules or (), self._params())

    def _local_group(self) -> dist.ProcessGroup | None:
        """The group whose ranks perturb each on its own and must agree before they do."""
        return self._group() if self.perturbation == "local" else None

    def _synced_group(self) -> dist.ProcessGroup | None:
        """The group whose samples count as one batch's."""
        return self._group() if self.perturbation == "synced" else None

    def _measured(self) -> bool:
        """Whether this step's telemetry is due."""
        return self.telemetry_every > 0 and self._steps % self.telemetry_every == 0

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        if isinstance(logits, Tensor) and logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()  # as autocast itself treats losses
        self._check_batch(logits, targets)
        return validate.scalar_loss(self.criterion(logits, targets))

    def _check_batch(self, logits: Tensor, targets: Tensor) -> None:
        """Clear errors for classification, before the loss gives an unclear one."""
        if targets is not self._checked and (self.criterion is F.cross_entropy or self._flips_labels):
            validate.class_targets(targets, validate.class_logits(logits), first=self._steps == 0)
            self._checked = targets  # the other passes of this step need not look again

    def _scaling(self, params: list[Tensor]) -> list[Tensor] | None:
        """ASAM's T = |w| + eta of each parameter; `None` without `adaptive`."""
        return self._weights.magnitudes(params, self.eta) if self.adaptive else None

    def _may_perturb(self, *norms: float) -> bool:
        """Whether all norms, on all ranks that perturb on their own, allow a perturbation; counted if not."""
        usable = all(math.isfinite(norm) and norm > 0 for norm in norms)
        group = self._local_group()
        if all_agree(usable, self._params()[0].device, group):
            return True
        self.unperturbed_steps += 1
        if self._scaled and not all(map(math.isfinite, norms)):
            scale_(self._gradients()[1], math.inf)  # the scaler must see the overflow, to skip the step and back off
        if group is not None:  # these gradients were meant for the perturbation alone, and are not averaged yet
            average_over_ranks(self._gradients()[1], group)
        return False

    def _add_side_gradient(self, name: str, loss: Tensor, samples: int, run: Callable[..., None]) -> None:
        side = self._side_gradients.setdefault(name, SideGradient())
        side.add(loss, samples, self._params(), self._foreign_params(), run)

    def _take_side_gradient(self, name: str, params: list[Tensor]) -> tuple[list[Tensor], float] | None:
        """The mean gradient as (sum, factor), or `None` if no sample was added."""
        side = self._side_gradients.pop(name, None)
        if side is None or side.samples == 0:
            return None
        sums, factor = side.take(params, self._synced_group())
        return sums, factor / (side.samples * self._loss_scale)

    def _clean_part(
        self, logits: Tensor | None, targets: Tensor | None, clean_targets: Tensor | None
    ) -> tuple[Tensor, int] | None:
        """Summed loss and number of the samples whose observed label is right, if telemetry asks for them."""
        if clean_targets is None or logits is None or targets is None or not self._measured():
            return None
        group = self._synced_group()
        right = observed_labels(targets) == clean_targets
        samples = int(right.sum())
        loss = self._loss(logits[right], targets[right]) * samples if samples else logits.sum() * 0.0
        return loss, samples if group is None else sum(joined_sizes(samples, logits.device, group))

    def _cosine_with_clean(self, params: list[Tensor], directions: list[Tensor]) -> float | None:
        """cos(directions, g_clean), from the gradient that `_clean_part` asked for."""
        clean = self._take_side_gradient("clean", params)
        return None if clean is None else cosine(directions, clean[0])

    # --- inside

    @contextmanager
    def _at(self, move: Move, number: int) -> Iterator[None]:
        """Stand at the moved weights for a pass of this number."""
        params = self._params()
        validate.no_outer_autocast(params, "perturbations()")
        with moved(move, self._weights, params, self._foreign_params(), self._modules or ()):
            self._pass = number
            try:
                yield
            finally:
                self._pass = 0

    def _without_sync(self) -> AbstractContextManager[object]:
        """DDP's `no_sync` over forward and backward of the clean pass, where each rank perturbs on its own."""
        if self.perturbation == "synced" or not self._perturbs:
            return nullcontext()
        if is_sharded(self._params()):
            raise ValueError(
                "perturbation='local' is not allowed with sharded parameters: only DDP holds whole weights"
            )
        return without_sync(self._modules or ())

    def _descend(self, closure: Callable[[], Any] | None) -> Any:
        if not self._ready:
            raise TypeError(
                "step() without arguments only ends a two-phase step, and none is open: call step(forward, targets), "
                "or backward(loss, logits, targets) and then perturbations()"
            )
        self._ready = False
        return self.base_optimizer.step() if closure is None else self.base_optimizer.step(closure)
