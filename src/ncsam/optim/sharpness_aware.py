"""What the variants share: a wrapper around any optimizer that steps on gradients taken at perturbed weights."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, ClassVar, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from typing_extensions import Unpack  # comes with torch

from ncsam._checks import non_negative, ratio
from ncsam._errors import bad_value
from ncsam._loops import right_lines
from ncsam.optim import validate
from ncsam.optim.flipping import joined_sizes, observed_labels
from ncsam.optim.modules import ModuleFinder, modules_of
from ncsam.optim.options import Options, complete_documentation, with_defaults
from ncsam.optim.radii import RadiusLike, make_radius
from ncsam.optim.radius import AutoRadius, Radius
from ncsam.optim.step import MicroBatch, Move, Step, gradients_aside
from ncsam.optim.telemetry import StepReport
from ncsam.optim.wrapper import OptimizerWrapper, uncompiled
from ncsam.vectors.ranks import find_group, is_sharded, joining, without_sync
from ncsam.vectors.saved import RandomState, SavedWeights, keeps_grad_mode

Backward: TypeAlias = Callable[..., Any]
#: Runs the model on a (micro-)batch and returns its loss, alone or with logits, targets and clean targets.
Evaluate: TypeAlias = Callable[[], "Tensor | tuple[Tensor | None, ...]"]


class SharpnessAware(OptimizerWrapper):
    """Base of the sharpness-aware optimizers; a variant writes `moves`, and may have its own options.

    A step is one call (`step(forward, targets)` or `step(closure)`), or has two phases for loops that call backward
    themselves: `backward` at w, then each of `perturbations()`, then `step()`. `run_passes` is both phases in one call.

    Args:
        base_optimizer: An instance of any `torch.optim.Optimizer`; its groups and state are shared.
        rho: Radius of the perturbation: a number, "auto", "validation", "budget", or a `Radius`.
    """

    #: Its name on the command line; by default that of the class in lower case.
    name: ClassVar[str]
    #: Gradients that a step computes, its cost in units of the base optimizer's step.
    passes: ClassVar[float] = 2
    #: Whether a step flips labels, and so needs logits (batch, classes) and class targets.
    flips_labels: ClassVar[bool] = False
    #: The share of training that is warm-up, where the user does not say.
    default_warmup: ClassVar[float] = 0.0
    #: Whether the first pass is not at w; such a variant writes `first_move`.
    moves_first: ClassVar[bool] = False
    _step: Step | None  # being collected
    _ready: bool

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        complete_documentation(cls)

    def __init__(self, base_optimizer: Optimizer, rho: RadiusLike = 0.05, **options: Unpack[Options]) -> None:
        super().__init__(base_optimizer)
        given = with_defaults(type(self).__name__, options)
        #: The object behind `rho`.
        self.radius = make_radius(rho, given["rho_target"], given["chance_loss"])
        self._add_group_setting("rho", self.radius.rho, non_negative)
        if self._adapts and any(value != self.radius.rho for value in self._settings("rho")):
            raise bad_value("rho", rho, "a number, because a parameter group has its own rho")
        self.criterion, self.radius_signal = given["criterion"], given["radius_signal"]
        self.total_steps, self.warmup_steps = given["total_steps"], given["warmup_steps"]
        self.perturbation, self.same_dropout = given["perturbation"], given["same_dropout"]
        self.process_group, self.telemetry_every = given["process_group"], given["telemetry_every"]
        #: The number of steps without a perturbation because a norm was zero or not finite.
        self.unperturbed_steps = 0
        #: The last step in numbers.
        self.last_step: StepReport | None = None
        self._model = modules_of(given["model"])
        self._modules: tuple[nn.Module, ...] | None = self._model
        self._find_modules = ModuleFinder()
        self._steps = 0
        self._progress: float | None = None
        self._weights = SavedWeights()
        self._begin()

    # --- where training stands

    @property
    def steps(self) -> int:
        """How many steps have been done."""
        return self._steps

    @property
    def progress(self) -> float | None:
        """t in [0, 1] of the coming step: counted in steps of `total_steps` from 1, or as set by hand (e / T)."""
        if self._progress is not None or self.total_steps is None:
            return self._progress
        return min(1.0, (self._steps + 1) / max(1, self.total_steps))

    @progress.setter
    def progress(self, value: float | None) -> None:
        self._progress = None if value is None else ratio("progress", value)

    @property
    def warming_up(self) -> bool:
        """Whether the coming step is one of warm-up."""
        return self._steps < self.warmup_steps

    @property
    def rho(self) -> float:
        """The radius of the coming step, with several groups the largest. Setting it gives all groups a fixed one."""
        return self.radius.rho if self._adapts else max(self._settings("rho"))

    @rho.setter
    def rho(self, value: float) -> None:
        self.radius = Radius(value)
        self._set_in_groups("rho", self.radius.rho)

    @property
    def adaptive(self) -> bool:
        """Whether any group is scaled by ASAM's T. Setting it sets all groups."""
        return "adaptive" in self._group_defaults and any(self._settings("adaptive"))

    @adaptive.setter
    def adaptive(self, value: bool) -> None:
        self._set_in_groups("adaptive", value)

    @property
    def scaling_offset(self) -> float | None:
        """ASAM's eta, or `None` where no group is scaled."""
        return float(vars(self)["eta"]) if self.adaptive else None

    @property
    def rho_target(self) -> float | None:
        """The relative loss increase that an adaptive radius aims at; `None` with a fixed radius."""
        return self.radius.target if isinstance(self.radius, AutoRadius) else None

    @property
    def _adapts(self) -> bool:
        """Whether the radius changes by itself; a fixed one is read from `param_groups`."""
        return type(self.radius) is not Radius

    def report_val_loss(self, loss: float) -> None:
        """Report the loss of validation samples, with their labels as they are; used by rho="validation".

        Args:
            loss: Their mean loss. Report it at regular intervals, such as after every epoch, the same on every rank.
        """
        self.radius.report_val_loss(validate.val_loss(loss), self.progress)

    # --- what a variant writes

    @property
    def perturbs(self) -> bool:
        """Whether the coming step perturbs at all."""
        return self.rho > 0 and not self.warming_up

    def collect(self, step: Step, batch: MicroBatch) -> None:
        """Run backward of a micro-batch's loss at w, and of what else a variant needs from the same graph."""
        step.collect(batch.loss, batch)

    def moves(self, step: Step) -> Iterator[Move]:
        """Where to evaluate, from the gradients at w in `.grad`.

        What follows a yield runs when that pass is over; what `.grad` holds in the end is what the base optimizer steps
        on.

        Args:
            step: The gradients at w, the radius, the parameters.

        Yields:
            One move for each pass.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement `moves`")  # abstract

    def first_move(self, step: Step) -> Move | None:
        """Where the first pass of a variant that `moves_first` is evaluated; `None` for w."""
        raise NotImplementedError(f"{type(self).__name__} must implement `first_move`")  # abstract

    # --- one step in one call

    @uncompiled  # a compiled training loop runs the step as it is, and the models in it as they were compiled
    @keeps_grad_mode
    def step(  # type: ignore[override]
        self,
        forward: Callable[..., Tensor] | None = None,
        targets: Any = None,
        *,
        scaler: GradScaler | None = None,
        clean_targets: Tensor | None = None,
        closure: Callable[[], Any] | None = None,
    ) -> Any:
        """Do one step.

        Three forms:

        - `step(forward, targets)`: `forward()` returns logits, `criterion(logits, targets)` is the loss.
        - `step(closure)`: as in torch, `closure()` returns the loss. It is evaluated once per pass, and may call
          `zero_grad()` and `backward()` itself. For optimizers that flip labels it returns (loss, logits, targets)
          and leaves backward to the step.
        - `step()` ends a two-phase step: the base optimizer steps on the gradient that the last of `perturbations()`
          left. That is what `GradScaler.step` calls.

        Gradients of earlier backwards are dropped; to accumulate, use the two phases.

        Args:
            forward: The forward pass, or a closure.
            targets: The observed labels, for `forward`.
            scaler: Scales the loss of all passes, and makes the step; call `scaler.update()` afterwards.
            clean_targets: The true labels where they are known, for telemetry alone.
            closure: The same as a closure in the first place.

        Returns:
            The loss of the first pass, at w.

        Raises:
            TypeError: If nothing was given and no two-phase step is open.
        """
        self._refuse_inside("step()")
        if self._ready and targets is None:
            return self._descend(forward if closure is None else closure)
        forward = closure if forward is None else forward
        if not callable(forward):
            if forward is None and targets is None:
                raise TypeError(f"step() without arguments ends a two-phase step, and none is open. {right_lines()}")
            raise TypeError(
                "step(forward, targets) needs a function that returns logits and the observed labels; got "
                f"forward={type(forward).__name__}, targets={type(targets).__name__}. {right_lines()}"
            )
        self._modules = self._model if self._model is not None else self._find_modules(forward)
        if targets is None:
            loss = self._run_closure(forward, scaler)
        else:
            loss = self._run_forward(forward, targets, clean_targets, scaler)
        self._ready = False
        if scaler is None:
            self.base_optimizer.step()
        else:
            scaler.step(self.base_optimizer)
        return loss

    def _run_forward(
        self, forward: Callable[..., Tensor], targets: Any, clean_targets: Tensor | None, scaler: GradScaler | None
    ) -> Tensor:
        def evaluate() -> tuple[Tensor | None, ...]:
            logits = forward()
            return self._loss(logits, targets), logits, targets, clean_targets

        return self.run_passes(evaluate, scaler=scaler)

    def _run_closure(self, closure: Callable[[], Any], scaler: GradScaler | None) -> Tensor:
        """The passes of a step whose closure returns the loss, and has run backward or has not."""
        if _called_by_grad_scaler():
            raise TypeError(f"GradScaler.step(optimizer, closure) does not scale the closure's passes. {right_lines()}")
        params, ran = self._params(), False

        def evaluate() -> Any:
            nonlocal ran
            result = closure()
            ran = any(p.grad is not None for p in params)
            first = result[0] if isinstance(result, tuple) and result else result
            if first is None or (self.flips_labels and (ran or not isinstance(result, tuple)) and self.perturbs):
                raise TypeError(
                    f"step(closure) of {type(self).__name__}: the closure must return "
                    + ("(loss, logits, targets) and call no backward()" if self.flips_labels else "the loss")
                    + f". {right_lines()}"
                )
            return result if isinstance(first, Tensor) else params[0].new_tensor(float(first))

        def backward(loss: Tensor, retain_graph: bool = False) -> None:
            if not ran:
                torch.autograd.backward(loss if scaler is None else scaler.scale(loss), retain_graph=retain_graph)

        return self.run_passes(evaluate, scaler=scaler, backward=backward)

    @uncompiled
    @keeps_grad_mode
    def run_passes(
        self,
        evaluate: Evaluate | Sequence[Evaluate],
        *,
        scaler: GradScaler | None = None,
        backward: Backward | None = None,
        loss_scale: float | None = None,
    ) -> Tensor:
        """Run all passes of one step: `.grad` then holds the gradient to step on; clip it, and call `step()`.

        Earlier gradients are dropped.

        Args:
            evaluate: Runs the model and returns the loss, or (loss, logits, targets), which NCSAM and rho="auto" need,
                or those and clean targets. Several are micro-batches, whose losses add up to the mean over the batch.
            scaler: As for `backward`.
            backward: As for `backward`.
            loss_scale: As for `backward`.

        Returns:
            The loss at w.
        """
        self._refuse_inside("run_passes()")
        params = self._params()
        validate.no_outer_autocast(params, "step()")
        self.zero_grad()
        parts = [evaluate] if callable(evaluate) else list(evaluate)
        how: dict[str, Any] = {"scaler": scaler, "backward": backward, "loss_scale": loss_scale}
        masks: list[RandomState] = []

        def clean_pass(part: Evaluate) -> Tensor:  # a function, so that nothing of its graph outlives it
            if self.same_dropout:
                masks.append(RandomState(p.device for p in params))
            batch = micro_batch(part())
            self.backward(batch.loss, batch.logits, batch.targets, clean_targets=batch.clean_targets, **how)
            return batch.loss.detach()

        with torch.enable_grad():
            with self._without_sync(), self.first_pass():
                losses = [clean_pass(part) for part in parts]
            self.after_first_pass(parts)
            for perturbed in self.perturbations():
                with perturbed:
                    for number, part in enumerate(parts):
                        if masks:
                            masks[number].restore()
                        self.backward(*micro_batch(part())[:3], **how)
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    # --- the same in two phases

    @contextmanager
    def first_pass(self) -> Iterator[None]:
        """Around the forwards and backwards of the first phase, where a variant must prepare them.

        Needed in two phases by one-pass variants (`MSAM`), which move the weights for it, by
        `NCSAM(flip_forward="separate")` and by NCSAM with a compiled model; `step` and `run_passes` enter it by
        themselves.
        """
        self._refuse_inside("first_pass()")
        move = self.first_move(self._new_step()) if self.moves_first and self.perturbs else None
        self._in_first_pass = True
        try:
            if move is not None:
                validate.no_outer_autocast(self._params(), "first_pass()")
                self._weights.move(move.params, move.directions, move.scale)
            yield
        finally:
            self._in_first_pass = False
            self._recover()

    def after_first_pass(self, parts: Sequence[Evaluate]) -> None:
        """What a variant evaluates at w after its first pass, from `run_passes` alone."""

    @keeps_grad_mode
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
    ) -> None:
        """First phase: gradients at w. Call it once per micro-batch, in place of `loss.backward()`.

        In the second phase it may be called in the same way, and must be if the radius is adaptive, which follows the
        losses of both phases. There, `loss` is enough, unless `radius_signal` is "criterion".

        Args:
            loss: Of a micro-batch; those of all micro-batches add up to the mean over the batch.
            logits: For optimizers that flip labels, and adaptive radii.
            targets: The observed labels, for the same.
            scaler: Scales the loss.
            backward: Called instead of `Tensor.backward`, with the loss and `retain_graph` (Fabric's `backward`,
                Lightning's `manual_backward`).
            loss_scale: The factor by which `backward` multiplies the loss, where `scaler` does not know it.
            clean_targets: The true labels where they are known, for telemetry alone.
        """
        loss = validate.scalar_loss(loss)

        def run(value: Tensor, retain_graph: bool = False) -> None:
            if backward is not None:
                backward(value, retain_graph=retain_graph)
            else:
                torch.autograd.backward(value if scaler is None else scaler.scale(value), retain_graph=retain_graph)

        if self._pass:
            if self._pass == 1:
                self.radius.note_perturbed(self._signal(loss, logits, targets))
            run(loss)
            return
        if self._ready:
            raise RuntimeError(
                "backward() was called after perturbations() and before step(): all micro-batches of a step go through "
                "backward() at w first, and all again inside each `with perturbed:`; then step(), or zero_grad() to "
                f"drop the step. {right_lines(backward)}"
            )
        if self.moves_first and not self._in_first_pass:
            raise RuntimeError(
                f"backward() of {type(self).__name__} was called outside of its first pass: put forward and backward "
                "into `with optimizer.first_pass():`, or use step(forward, targets)"
            )
        if self._step is None:
            self._step = self._new_step()
        if loss_scale is None:
            loss_scale = 1.0 if scaler is None else scaler.get_scale()
        self._step.begin_micro_batch(run, loss_scale, scaled=scaler is not None and scaler.is_enabled())
        self.note_first_pass(loss, logits, targets)
        batch = MicroBatch(loss, logits, targets, clean_targets)
        if self._step.measured and self.perturbs:
            batch = batch._replace(clean=self._clean_part(self._step, batch))
        self.collect(self._step, batch)

    def note_first_pass(self, loss: Tensor, logits: Tensor | None, targets: Tensor | None) -> None:
        """Tell the radius of the first pass."""
        self.radius.note_batch(self._signal(loss, logits, targets), logits, targets, self.criterion)

    def perturbations(self) -> Iterator[AbstractContextManager[None]]:
        """Second phase: for each of these, enter it and run backward at the perturbed weights.

        On leaving one, also by an exception, weights and buffers are as before, bit for bit. After the last one `.grad`
        holds the gradient to step on: clip it, then call `step()`.

        Yields:
            Context managers: one for SAM and NCSAM, two for BSAM, none during warm-up.
        """
        step = self._step
        if step is None:
            raise RuntimeError("perturbations() needs the gradients at w: call backward(loss, logits, targets) first")
        if self._modules is None:
            raise RuntimeError(
                "perturbations() must know the model, whose BatchNorm statistics it restores: "
                f"pass model= to {type(self).__name__}"
            )
        validate.gradients(step.params)
        self.last_step = step.report
        moves = 0
        try:
            if self.perturbs:
                following = keeps_grad_mode(partial(next, self.moves(step), None))
                for moves, move in enumerate(iter(following, None), 1):
                    yield self._at(step, move, moves)
            self._end(step, moved=moves > 0)
        finally:  # also when the loop is left early: then there is no gradient to step on
            self._step = None
            self._recover()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, and what an unfinished step has collected."""
        super().zero_grad(set_to_none)
        if self._in_first_pass:  # by a closure, for its own backward
            self._step = None
            self.radius.begin()
        elif not self._pass or self._step is None:
            self._recover()
            self._begin()

    # --- inside

    def _begin(self) -> None:
        """Forget what a step has collected so far."""
        self._pass = 0  # 0 at w, 1 at the first perturbed weights, 2 at the second
        self._in_first_pass = False
        self._ready = False  # .grad holds the gradient to step on
        self._step = None
        self._checked: Any = None  # this step's targets, once their values were read
        self.radius.begin()

    @keeps_grad_mode
    def _end(self, step: Step, moved: bool) -> None:
        """All passes are over: `.grad` holds the gradient to step on."""
        self._end_radius(step, moved)
        self.unperturbed_steps += step.refused
        self._steps += 1
        self._ready = True

    def _end_radius(self, step: Step, moved: bool) -> None:
        self.radius.end(moved, step.params, step.synced_group or step.local_group)

    def _recover(self) -> None:
        """Restore the weights if an interrupt kept a perturbed pass from doing so."""
        self._weights.restore()
        self._pass = 0

    def _new_step(self) -> Step:
        params = self._params()
        validate.full_precision(params)
        self.radius.begin()
        group = self.process_group or find_group(self._modules or (), params)
        plain = self.perturbation == "synced" and not self.flips_labels and not self._adapts
        if group is not None and not plain and joining(self._modules or ()):  # they exchange more than DDP knows of
            raise RuntimeError(
                "uneven inputs under torch's Join need perturbation='synced', a fixed radius and no flipped labels: "
                "give every rank the same number of batches"
            )
        rho = self._radius_of_step()
        own = set(map(id, params))
        others = [p for m in self._modules or () for p in m.parameters() if p.requires_grad and id(p) not in own]
        report = StepReport(self._steps + 1, "base", rho, self.progress, self.radius.relative_loss_increase)
        measured = self.telemetry_every > 0 and self._steps % self.telemetry_every == 0
        synced = self.perturbation == "synced"
        ranks = (group if synced else None, None if synced else group)
        return Step(params, others, self._weights, report, measured, *ranks, self.radius, self.param_groups)

    def _radius_of_step(self) -> float:
        """The radius of this step, with several groups the largest; an adaptive one is written to the groups."""
        self._fill_groups()
        if self._adapts:
            rho = self.radius.rho
            for group in self.param_groups:
                group["rho"] = rho
            return rho
        for value in (radii := self._settings("rho")):
            if not (isinstance(value, float | int) and 0 <= value < math.inf):
                raise bad_value("rho", value, "a number, 0 or larger, in every parameter group")
        return float(max(radii))

    def _loss(self, logits: Any, targets: Any) -> Tensor:
        if isinstance(logits, Tensor) and logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()  # as autocast itself treats losses
        self._check_batch(logits, targets)
        if self.criterion is F.cross_entropy and targets.dtype in (torch.int8, torch.int16, torch.int32, torch.uint8):
            targets = targets.long()  # torch takes 64-bit classes alone
        return validate.scalar_loss(self.criterion(logits, targets))

    def _signal(self, loss: Tensor, logits: Tensor | None, targets: Tensor | None) -> Tensor:
        """The loss of a pass that the radius follows."""
        if self.radius_signal == "loss" or logits is None or targets is None:
            return loss
        with torch.no_grad():
            return self.criterion(logits.detach(), targets)

    def _check_batch(self, logits: Any, targets: Any) -> None:
        """Clear errors for classification, before the loss raises an unclear one."""
        if targets is self._checked:
            return
        if self.flips_labels:
            validate.class_targets(targets, validate.class_logits(logits), first=self._steps == 0)
        elif self.criterion is F.cross_entropy:
            validate.dense_targets(targets, validate.dense_logits(logits), first=self._steps == 0)
        self._checked = targets  # the other passes of this step need no check

    def _clean_part(self, step: Step, batch: MicroBatch) -> tuple[Tensor, int] | None:
        """Summed loss and number of the samples whose observed label is right, where that is known."""
        logits, targets = batch.logits, batch.targets
        if batch.clean_targets is None or logits is None or targets is None:
            return None
        self._check_batch(logits, targets)
        observed = observed_labels(targets)
        right = observed == validate.clean_targets(batch.clean_targets, observed)
        samples = int(right.sum())
        loss = self._loss(logits[right], targets[right]) * samples if samples else logits.sum() * 0.0
        group = step.synced_group
        return loss, samples if group is None else sum(joined_sizes(samples, logits.device, group))

    @contextmanager
    def _at(self, step: Step, move: Move, number: int) -> Iterator[None]:
        """Move the weights for a pass of this number, and restore them whatever happens.

        Own parameters start without gradients and keep those of this pass; the others keep their old ones.
        """
        validate.no_outer_autocast(step.params, "perturbations()")
        for p in step.params:
            p.grad = None
        with gradients_aside(step.others):
            try:
                self._weights.move(move.params, move.directions, move.scale, self._modules or ())
                move.directions.clear()  # gradients at w need not live through the second pass
                self._pass = number
                yield
            finally:
                self._recover()

    def _without_sync(self) -> AbstractContextManager[object]:
        """DDP's `no_sync` over forward and backward of the clean pass, where each rank perturbs on its own."""
        if self.perturbation == "synced" or not self.perturbs:
            return nullcontext()
        if is_sharded(self._params()):
            raise bad_value("perturbation", "local", "'synced' with sharded parameters, whose ranks hold parts")
        return without_sync(self._modules or ())

    def _refuse_inside(self, what: str) -> None:
        if self._pass and self._step is not None:
            raise RuntimeError(
                f"{what} was called inside `with perturbed:`, where the weights are perturbed: call it after the loop "
                "over perturbations()"
            )

    def _descend(self, closure: Callable[[], Any] | None) -> Any:
        self._ready = False
        return self.base_optimizer.step() if closure is None else self.base_optimizer.step(closure)

    # --- restarts and copies

    def _own_state(self) -> dict[str, Any]:
        own = {**super()._own_state(), "steps": self._steps, "progress": self._progress}
        own["unperturbed_steps"] = self.unperturbed_steps
        radius = self.radius.state_dict()
        return {**own, "radius": radius} if radius else own

    def _load_own_state(self, own: dict[str, Any]) -> None:
        super()._load_own_state(own)
        self._steps = int(own["steps"])
        self.progress = own["progress"]
        self.unperturbed_steps = int(own["unperturbed_steps"])
        if "radius" in own:
            self.radius.load_state_dict(own["radius"], self._params()[0].device)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._recover()
        super().load_state_dict(state_dict)
        self._begin()

    def __getstate__(self) -> dict[str, Any]:
        scratch = {"_weights", "_step", "_checked", "_find_modules", "last_step"}  # and half-done steps do not travel
        state = {name: value for name, value in super().__getstate__().items() if name not in scratch}
        return {**state, "_modules": self._model}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._weights = SavedWeights()
        self._find_modules = ModuleFinder()
        self.last_step = None
        self._begin()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rho={self._shown_radius()}, base_optimizer={self.base_optimizer!r})"

    def _shown_radius(self) -> str:
        return repr(self.radius) if self._adapts else ", ".join(map(repr, dict.fromkeys(self._settings("rho"))))


complete_documentation(SharpnessAware)


def _called_by_grad_scaler() -> bool:
    frame = sys._getframe(1)
    for _ in range(12):
        if frame.f_back is None:
            break
        frame = frame.f_back
        if frame.f_globals.get("__name__") == "torch.amp.grad_scaler":
            return True
    return False


def micro_batch(outcome: Any) -> MicroBatch:
    """What an `evaluate` returned: a loss, or (loss, logits, targets[, clean targets])."""
    return MicroBatch(outcome) if isinstance(outcome, Tensor) else MicroBatch(*outcome)
