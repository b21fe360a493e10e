"""A sharpness-aware step in two phases: backward at w, then a backward at each of the perturbed weights."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from typing_extensions import Unpack  # comes with torch

from ncsam._loops import right_lines
from ncsam.optim import validate
from ncsam.optim.flipping import joined_sizes, observed_labels
from ncsam.optim.modules import ModuleFinder, modules_of
from ncsam.optim.radii import RadiusLike
from ncsam.optim.registry import Options
from ncsam.optim.step import MicroBatch, Move, Step, StepReport, gradients_aside
from ncsam.optim.wrapper import Settings
from ncsam.vectors.arithmetic import find_group, joining
from ncsam.vectors.saved import SavedWeights, keeps_grad_mode

Backward: TypeAlias = Callable[..., Any]


class TwoPhase(Settings):
    """`backward` at w, then each of `perturbations()`, then the base optimizer's step.

    It moves the weights and puts them back; a variant says where to (`moves`).

    Args:
        base_optimizer: An instance of any `torch.optim.Optimizer`; its groups and state are shared.
        rho: Radius of the perturbation: a number, "auto", "validation", "budget", or a `Radius`.
        **options: The options that all variants share (`Options`).
    """

    #: Whether a step flips labels, and so needs logits (batch, classes) and class targets.
    flips_labels: ClassVar[bool] = False
    #: What runs around the first pass, while it is open.
    _first_pass: weakref.ref[Generator[None, None, None]] | None = None
    #: Whether the first pass is not at w; such a variant writes `first_move`.
    moves_first: ClassVar[bool] = False
    _step: Step | None  # being collected
    _ready: bool

    def __init__(self, base_optimizer: Optimizer, rho: RadiusLike = 0.05, **options: Unpack[Options]) -> None:
        super().__init__(base_optimizer, rho, **options)
        #: The last step in numbers.
        self.last_step: StepReport | None = None
        self._model = modules_of(options.get("model"))
        self._modules: tuple[nn.Module, ...] | None = self._model
        self._find_modules = ModuleFinder()
        self._weights = SavedWeights()
        self._begin()

    # --- what a variant writes

    @property
    def perturbs(self) -> bool:
        """Whether the coming step perturbs at all."""
        return self.rho > 0 and not self.warming_up

    def collect(self, step: Step, batch: MicroBatch) -> None:
        """Run backward of a micro-batch's loss at w, and of what else a variant needs from the same graph.

        Args:
            step: Runs the backward and keeps its gradients.
            batch: The loss of the micro-batch, with logits and targets where they were given.
        """
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
        """Where the first pass of a variant that `moves_first` is evaluated; `None` for w.

        Args:
            step: The radius and the parameters; there are no gradients yet.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement `first_move`")  # abstract

    # --- the phases

    def first_pass(self) -> AbstractContextManager[None]:
        """Around the forwards and backwards of the first phase, where a variant must prepare them.

        Needed in two phases by one-pass variants (`MSAM`), which move the weights for it, by
        `NCSAM(flip_forward="separate")` and by NCSAM with a compiled model; `step` and `run_passes` enter it by
        themselves.
        """
        self._refuse_inside("first_pass()")
        if not self.moves_first:
            return nullcontext()
        context = self._around_first_pass()
        # weak: an interrupt right before `with` exits skips that exit; deleting the generator then restores the weights
        self._first_pass = weakref.ref(context.gen)
        return context

    @contextmanager
    def _around_first_pass(self) -> Generator[None, None, None]:
        move = None
        if self.perturbs:
            self._step = self._step or self._new_step()
            move = self._safe_first_move(self._step)
        try:
            if move is not None:
                validate.no_outer_autocast(self._params(), "first_pass()")
                self._weights.move(move.params, move.directions, move.scale)
            yield
        finally:
            self._recover()

    @keeps_grad_mode
    def _safe_first_move(self, step: Step) -> Move | None:
        return self.first_move(step)

    @property
    def _in_first_pass(self) -> bool:
        """Whether the code within `first_pass` is running. A flag might stay set after an interrupt."""
        running = None if self._first_pass is None else self._first_pass()
        return running is not None and inspect.getgeneratorstate(running) == inspect.GEN_SUSPENDED

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
        self.radius.note_batch(self._signal(loss, logits, targets), logits, targets, self.criterion)
        batch = MicroBatch(loss, logits, targets, clean_targets)
        if self._step.measured and self.perturbs:
            batch = batch._replace(clean=self._clean_part(self._step, batch))
        self.collect(self._step, batch)

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
                found = self.moves(step)
                while (move := _following(found)) is not None:
                    moves += 1
                    yield self._at(step, move, moves)
            self._end(step, moved=moves > 0)
        finally:  # also when the loop is left early: then there is no gradient to step on
            self._step = None
            self._recover()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, and what an unfinished step has collected.

        Args:
            set_to_none: Whether `.grad` becomes `None` rather than zeros.
        """
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
        self._ready = False  # .grad holds the gradient to step on
        self._step = None
        self._checked: Any = None  # this step's targets, once their values were read
        self.radius.begin()

    @keeps_grad_mode
    def _end(self, step: Step, moved: bool) -> None:
        """All passes are over: `.grad` holds the gradient to step on."""
        self.radius.end(moved, step.params, step.synced_group or step.local_group)
        self.unperturbed_steps += step.refused
        self._steps += 1
        self._ready = True

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
        report = StepReport(self._steps + 1, "base", rho, self.progress, self.radius.relative_loss_increase)
        measured = self.telemetry_every > 0 and self._steps % self.telemetry_every == 0
        synced = self.perturbation == "synced"
        ranks = (group if synced else None, None if synced else group)
        return Step(
            params, self._modules or (), self._weights, report, measured, *ranks, self.radius, self.param_groups
        )

    def _loss(self, logits: Any, targets: Any) -> Tensor:
        if isinstance(logits, Tensor) and logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()  # as autocast itself treats losses
        self._check_batch(logits, targets)
        if self.criterion is F.cross_entropy and targets.dtype in (torch.int8, torch.int16, torch.int32, torch.uint8):
            targets = targets.long()  # torch takes 64-bit classes alone
        try:
            loss = self.criterion(logits, targets)
        except (IndexError, RuntimeError):  # of a class out of range, cross-entropy says less
            if self.criterion is F.cross_entropy:
                validate.dense_targets(targets, logits, values=True)
            raise
        return validate.scalar_loss(loss)

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
            validate.dense_targets(targets, validate.dense_logits(logits), values=self._steps == 0)
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

    def _refuse_inside(self, what: str) -> None:
        if self._pass and self._step is not None:
            raise RuntimeError(
                f"{what} was called inside `with perturbed:`, where the weights are perturbed: call it after the loop "
                "over perturbations()"
            )

    # --- restarts and copies

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._recover()
        super().load_state_dict(state_dict)
        self._begin()

    def __getstate__(self) -> dict[str, Any]:
        # half-done steps do not travel
        scratch = {"_weights", "_step", "_checked", "_find_modules", "_first_pass", "last_step"}
        state = {name: value for name, value in super().__getstate__().items() if name not in scratch}
        return {**state, "_modules": self._model}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._weights = SavedWeights()
        self._find_modules = ModuleFinder()
        self.last_step = None
        self._begin()


@keeps_grad_mode
def _following(moves: Iterator[Move]) -> Move | None:
    return next(moves, None)
