"""What the variants share: a wrapper around any optimizer that steps on gradients taken at perturbed weights."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from ncsam._errors import bad_value
from ncsam._loops import accumulates_in_lightning, right_lines
from ncsam.optim import validate
from ncsam.optim.registry import complete_documentation
from ncsam.optim.step import MicroBatch
from ncsam.optim.two_phase import Backward, TwoPhase
from ncsam.optim.wrapper import uncompiled
from ncsam.vectors.arithmetic import is_sharded, without_sync
from ncsam.vectors.saved import RandomState, keeps_grad_mode

#: Runs the model on a (micro-)batch and returns its loss, alone or with logits, targets and clean targets.
Evaluate: TypeAlias = Callable[[], "Tensor | tuple[Tensor | None, ...]"]


class SharpnessAware(TwoPhase):
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
    #: The share of training that is warm-up, where the user does not say.
    default_warmup: ClassVar[float] = 0.0

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        complete_documentation(cls)

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
        if accumulates_in_lightning():
            raise TypeError(f"step(closure) would drop the gradients of earlier micro-batches. {right_lines()}")
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
            if ran and not isinstance(first, Tensor):
                return params[0].new_tensor(float(first))
            if not isinstance(first, Tensor) or first.numel() != 1 or not (ran or first.requires_grad):
                found = f"shape {tuple(first.shape)}" if isinstance(first, Tensor) else type(first).__name__
                raise TypeError(
                    f"step(closure): the closure returned {found}, expected the loss, one number with a gradient. "
                    f"If it returns logits, pass targets as well. {right_lines()}"
                )
            return result

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
            for perturbed in self.perturbations():
                with perturbed:
                    for number, part in enumerate(parts):
                        if masks:
                            masks[number].restore()
                        self.backward(*micro_batch(part())[:3], **how)
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _without_sync(self) -> AbstractContextManager[object]:
        """DDP's `no_sync` over forward and backward of the clean pass, where each rank perturbs on its own."""
        if self.perturbation == "synced" or not self.perturbs:
            return nullcontext()
        if is_sharded(self._params()):
            raise bad_value("perturbation", "local", "'synced' with sharded parameters, whose ranks hold parts")
        return without_sync(self._modules or ())

    def _descend(self, closure: Callable[[], Any] | None) -> Any:
        self._ready = False
        return self.base_optimizer.step() if closure is None else self.base_optimizer.step(closure)


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
    """What an `evaluate` returned: a loss, or (loss, logits, targets[, clean targets]).

    Args:
        outcome: A tensor, or a tuple in this order.
    """
    return MicroBatch(outcome) if isinstance(outcome, Tensor) else MicroBatch(*outcome)
