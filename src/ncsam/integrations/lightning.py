"""Sharpness-aware training in Lightning: a mixin for `LightningModule`, for automatic and manual optimization.

It serves `lightning` and `pytorch_lightning` alike, and imports neither.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ncsam.errors import UsageError
from ncsam.integrations.wrapped import join_ranks, sharpness_aware_inside
from ncsam.optim import SharpnessAware
from ncsam.vectors.saved import RandomState

if TYPE_CHECKING:
    from pytorch_lightning import LightningModule as _Module
else:
    _Module = object

_ORDER = "put SharpnessAwareMixin first: `class {name}(SharpnessAwareMixin, LightningModule)`"
_NEEDS_LABELS = (
    '{error}. In Lightning, return them from training_step: `return {{"loss": loss, "logits": logits, "targets": y}}`'
)


@dataclass
class _MicroBatch:
    """A call of `training_step` that has to be made again at the perturbed weights."""

    args: tuple[Any, ...]
    options: dict[str, Any]
    parts: int  # micro-batches in this step: Lightning divides each loss by it
    random: RandomState | None
    first_pass: ExitStack  # entered; closed after backward
    output: Any = None


class SharpnessAwareMixin(_Module):
    """A base class, to be named before `LightningModule`: `configure_optimizers` may then return an optimizer of ours.

    Logits and targets are for `NCSAM` and `rho="auto"`; for others the loss is enough. Accumulation, clipping, mixed
    precision, DDP, `global_step` and checkpoints are Lightning's own. `training_step` is called again at the perturbed
    weights: what it logs then is dropped; what it counts by itself should look at `self.is_perturbed`.

    With `automatic_optimization = False`, `loss = self.manual_step(lambda: self(x), y)` does one whole step.

    Examples:
        >>> class Net(SharpnessAwareMixin, LightningModule):  # doctest: +SKIP
        ...     def training_step(self, batch, batch_idx):
        ...         x, y = batch
        ...         logits = self(x)
        ...         return {"loss": F.cross_entropy(logits, y), "logits": logits, "targets": y}
        ...
        ...     def configure_optimizers(self):
        ...         base = torch.optim.SGD(self.parameters(), lr=0.05)
        ...         steps = self.trainer.estimated_stepping_batches
        ...         return NCSAM(base, total_steps=steps, model=self)
    """

    #: True while `training_step` runs at perturbed weights.
    is_perturbed: bool = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        bases = cls.__mro__
        foreign = next((c for c in bases if c.__name__ == "LightningModule"), None)
        if foreign is not None and bases.index(foreign) < bases.index(SharpnessAwareMixin):
            raise TypeError(_ORDER.format(name=cls.__name__))
        if "training_step" in vars(cls):
            cls.training_step = _remembered(cls.training_step)  # type: ignore[method-assign]

    # --- automatic optimization

    def backward(self, loss: Tensor, *args: Any, **options: Any) -> None:
        """Compute the gradient of one micro-batch at w; at the perturbed weights, run Lightning's own `backward`.

        Args:
            loss: The loss as Lightning passes it, already scaled under 16-bit mixed precision.
            *args: Passed on to `LightningModule.backward`.
            **options: Passed on to `LightningModule.backward`.
        """
        passes = self._passes()
        if not self.automatic_optimization or self.is_perturbed or not passes:
            super().backward(loss, *args, **options)
            return
        optimizer = sharpness_aware_inside(self.optimizers())
        assert optimizer is not None, "remembered for its sake"
        join_ranks(optimizer)
        scaler = self._scaler()
        scale = 1.0 if scaler is None else scaler.get_scale()  # Lightning has scaled the loss already

        def run(value: Tensor, retain_graph: bool = False) -> None:
            super(SharpnessAwareMixin, self).backward(value * scale, retain_graph=retain_graph)

        output, passes[-1].output = passes[-1].output, None
        logits, targets = (output.get(k) if isinstance(output, Mapping) else None for k in ("logits", "targets"))
        try:
            optimizer.backward(loss / scale, logits, targets, backward=run, scaler=scaler)
        except TypeError as error:
            if logits is not None and targets is not None:
                raise
            raise TypeError(_NEEDS_LABELS.format(error=error)) from error
        finally:
            passes[-1].first_pass.close()

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Callable[[], Any] | None = None
    ) -> None:
        """Run the last micro-batch at w, all micro-batches at the perturbed weights, then Lightning's own step.

        Args:
            epoch: Current epoch.
            batch_idx: Index of the batch in the epoch.
            optimizer: The optimizer, as Lightning wraps it.
            optimizer_closure: Runs `training_step` and `backward`; `None` leaves the step to Lightning.
        """
        ours = sharpness_aware_inside(optimizer)
        if ours is None or optimizer_closure is None:
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
            return
        try:
            with self._unsynced(ours.perturbation == "local" and ours.perturbs):
                result = optimizer_closure()
            if self._passes():  # empty where training_step returned None
                self._pass_again(ours)
                super().optimizer_step(epoch, batch_idx, optimizer, lambda: result)
        finally:
            self._forget_passes()

    def _pass_again(self, optimizer: SharpnessAware) -> None:
        strategy, passes = self.trainer.strategy, self._passes()

        def run(value: Tensor, retain_graph: bool = False) -> None:
            strategy.backward(value, optimizer, retain_graph=retain_graph)

        for perturbed in optimizer.perturbations():
            with perturbed, self._perturbed():
                for number, batch in enumerate(passes, 1):
                    if batch.random is not None:
                        batch.random.restore()
                    with self._unsynced(number < len(passes)):
                        output: Any = strategy.training_step(*batch.args, **batch.options)
                        loss = output["loss"] if isinstance(output, Mapping) else output
                        optimizer.backward(loss / batch.parts, backward=run)

    # --- manual optimization

    def manual_step(
        self,
        forward: Callable[[], Tensor],
        targets: Any,
        *,
        optimizer: Any = None,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> Tensor:
        """Run one whole step on a batch, for manual optimization.

        Args:
            forward: Returns the logits; it is called again at the perturbed weights.
            targets: The second argument of the optimizer's `criterion`, which computes the loss.
            optimizer: One of `self.optimizers()`; `None` if there is only one.
            gradient_clip_val: Clip the gradients to this value; `None` does not clip.
            gradient_clip_algorithm: "norm" or "value"; `None` means "norm".

        Returns:
            The loss at the unperturbed weights, detached.

        Raises:
            TypeError: The optimizer is not sharpness-aware.
            UsageError: Clipping was requested together with 16-bit mixed precision.
        """
        wrapped: Any = self.optimizers() if optimizer is None else optimizer
        ours = sharpness_aware_inside(wrapped)
        if ours is None:
            raise TypeError(f"manual_step needs one sharpness-aware optimizer, such as SAM; it got {wrapped!r}")
        join_ranks(ours)
        ours.zero_grad()
        same = RandomState([self.device]) if ours.same_dropout else None
        with self._unsynced(ours.perturbation == "local" and ours.perturbs), ours.first_pass():
            logits = forward()
            loss = ours.criterion(_full(logits), targets)
            ours.backward(loss, logits, targets, backward=self.manual_backward, scaler=self._scaler())
        clean = loss.detach()
        del loss, logits  # nothing of the first graph may outlive it
        for perturbed in ours.perturbations():
            with perturbed, self._perturbed():
                if same is not None:
                    same.restore()
                ours.backward(ours.criterion(_full(forward()), targets), backward=self.manual_backward)
        if gradient_clip_val is not None:
            if self._scaler() is not None:
                raise UsageError(
                    "gradient_clip_val does not work with 16-mixed in manual optimization: its gradients are "
                    "unscaled only inside the step. Use bf16-mixed, or automatic optimization"
                )
            self.clip_gradients(wrapped, gradient_clip_val, gradient_clip_algorithm or "norm")
        wrapped.step()
        return clean

    # --- what is said at perturbed weights is not logged

    def log(self, *args: Any, **options: Any) -> None:
        if not self.is_perturbed:
            super().log(*args, **options)

    def log_dict(self, *args: Any, **options: Any) -> None:
        if not self.is_perturbed:
            super().log_dict(*args, **options)

    # --- inside

    def _passes(self) -> list[_MicroBatch]:
        found: list[_MicroBatch] = self.__dict__.setdefault("_micro_batches", [])
        return found

    def _forget_passes(self) -> None:
        while passes := self._passes():
            passes.pop().first_pass.close()

    def _scaler(self) -> Any:
        return getattr(self.trainer.precision_plugin, "scaler", None)

    def _unsynced(self, wanted: bool) -> AbstractContextManager[Any]:
        """Gradients that are not averaged over ranks."""
        block = getattr(self.trainer.strategy, "block_backward_sync", None)
        return block() if wanted and block is not None else nullcontext()

    @contextmanager
    def _perturbed(self) -> Iterator[None]:
        self.is_perturbed = True
        try:
            yield
        finally:
            self.is_perturbed = False


def _remembered(training_step: Callable[..., Any]) -> Callable[..., Any]:
    """A `training_step` whose calls at w are kept, to be made again at the perturbed weights."""
    if "dataloader_iter" in inspect.signature(training_step).parameters:
        raise TypeError("training_step(dataloader_iter) cannot be repeated at the perturbed weights: take a batch")

    @functools.wraps(training_step)
    def step(self: Any, *args: Any, **options: Any) -> Any:
        calls = self.__dict__.setdefault("_training_steps", 0)  # a subclass may call its parent's
        if calls or self.is_perturbed or not self.automatic_optimization:
            return training_step(self, *args, **options)
        optimizer = sharpness_aware_inside(self.optimizers()) if self._trainer is not None else None
        if optimizer is None:
            return training_step(self, *args, **options)
        random = RandomState([self.device]) if optimizer.same_dropout else None
        self._training_steps = 1
        try:
            with ExitStack() as stack:
                stack.enter_context(optimizer.first_pass())
                output = training_step(self, *args, **options)
                if output is not None:  # then `backward` follows, and ends the first pass
                    parts = self.trainer.accumulate_grad_batches
                    self._passes().append(_MicroBatch(args, options, parts, random, stack.pop_all(), output))
        finally:
            self._training_steps = 0
        return output

    return step


def _full(logits: Tensor) -> Tensor:
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
