"""Sharpness-aware training with Hugging Face's `Trainer`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ncsam import methods
from ncsam._errors import bad_value, need
from ncsam.integrations.accelerate import backward_by, unsynced
from ncsam.integrations.wrapped import join_ranks, sharpness_aware_inside
from ncsam.optim import SharpnessAware
from ncsam.vectors.saved import RandomState, SavedBuffers

need("transformers", "transformers", "ncsam.integrations.transformers")

from transformers import Trainer  # noqa: E402

_log = logging.getLogger(__name__)
_NEEDS_LABELS = (
    "{error}. With Trainer they are taken from `compute_loss`: let yours call "
    "super().compute_loss(model, inputs, return_outputs=True, ...), or set trainer.logits_and_targets = (logits, y)"
)


class SharpnessAwareMixin:
    """Lets a `Trainer` use a sharpness-aware optimizer.

    Put it before `Trainer`, or its subclass, in the bases of your class. It tells the optimizer the number of steps.
    Accumulation, clipping, label smoothing, mixed precision, distributed training and checkpoints stay with Trainer,
    which logs the loss at w. Some models, such as BERT's classifier, ignore Trainer's `num_items_in_batch`. Trainer
    alone would then sum the mean losses of the micro-batches; the mixin takes their mean, as in a plain loop.

    Args:
        *args: Arguments of `Trainer`.
        sharpness_aware: Builds the sharpness-aware optimizer from the one that Trainer creates from its arguments,
            including parameter groups and weight decay. Alternatively pass an optimizer that you built yourself as
            `optimizers=(NCSAM(...), None)`.
        method: A learning method to use as the loss, such as "gce"; it must be a loss function
            (`ncsam.methods.get(name).is_loss`). `None` uses the model's own loss, or `compute_loss_func`.
        method_options: Options of the method.
        **options: Keyword arguments of `Trainer`.
    """

    def __init__(
        self,
        *args: Any,
        sharpness_aware: Callable[[Optimizer], SharpnessAware] | None = None,
        method: str | None = None,
        method_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._wrap = sharpness_aware
        self._criterion = None if method is None else loss_of(method, method_options or {})
        self._micro_batches: list[tuple[dict[str, Any], tuple[Any, ...], dict[str, Any], RandomState | None]] = []
        #: Of the micro-batch at hand, for the labels that NCSAM flips and the automatic radius counts.
        self.logits_and_targets: tuple[Tensor, Tensor] | None = None
        self._knows_its_loss = False
        super().__init__(*args, **options)
        if self._criterion is not None:
            if self.args.label_smoothing_factor:  # type: ignore[attr-defined]
                smoothing = self.args.label_smoothing_factor  # type: ignore[attr-defined]
                raise bad_value("label_smoothing_factor", smoothing, f"0 with method={method!r}, which is the loss")
            self.model_accepts_loss_kwargs = False  # the loss is a mean over the micro-batch

    def create_optimizer(self, *args: Any, **options: Any) -> Any:
        fresh = self.optimizer is None  # type: ignore[has-type]
        super().create_optimizer(*args, **options)  # type: ignore[misc]
        if fresh and self._wrap is not None:
            self.optimizer = self._wrap(self.optimizer)  # type: ignore[has-type]
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Tell the optimizer the number of steps, then create Trainer's scheduler.

        Args:
            num_training_steps: Number of optimizer steps of the training.
            optimizer: The optimizer to schedule; `None` means `self.optimizer`.
        """
        ours = sharpness_aware_inside(self.optimizer if optimizer is None else optimizer)
        if ours is not None and ours.total_steps is None:
            ours.total_steps = num_training_steps
        return super().create_scheduler(num_training_steps, optimizer)  # type: ignore[misc]

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, *args: Any, **options: Any) -> Any:
        """Compute the loss as Trainer does, or by `method`, and keep the logits and labels for the optimizer.

        Args:
            model: The model.
            inputs: One micro-batch; its labels are under "labels".
            return_outputs: Whether to return (loss, outputs) rather than the loss.
            *args: Passed on to `Trainer.compute_loss`.
            **options: Passed on to `Trainer.compute_loss`.
        """
        labels = inputs.get("labels")
        loss, outputs = super().compute_loss(model, inputs, True, *args, **options)  # type: ignore[misc]
        logits = outputs.get("logits") if hasattr(outputs, "get") else None
        if isinstance(logits, Tensor) and isinstance(labels, Tensor):
            self.logits_and_targets = (logits, labels)
            if self._criterion is not None:
                loss = self._criterion(logits.float(), labels)
        elif self._criterion is not None:
            raise TypeError("method= needs a model that returns logits, and batches with labels")
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **options: Any) -> Tensor:
        """Compute the gradient at w; on the last micro-batch of a step, also that of all at the perturbed weights.

        Args:
            model: The model.
            inputs: One micro-batch.
            *args: Passed on to `Trainer.training_step`.
            **options: Passed on to `Trainer.training_step`.

        Returns:
            The loss of the micro-batch at w.
        """
        ours = sharpness_aware_inside(self.optimizer)
        step: Callable[..., Tensor] = super().training_step  # type: ignore[misc]
        if ours is None:
            return step(model, inputs, *args, **options)
        join_ranks(ours)
        accelerator: Any = self.accelerator  # type: ignore[attr-defined]
        items = args[0] if args else options.get("num_items_in_batch")
        if not self._knows_its_loss and items is not None:
            self._know_its_loss(model, inputs, items)
        last = accelerator.sync_gradients
        parts = accelerator.gradient_accumulation_steps
        device = next(model.parameters()).device
        random = RandomState([device]) if ours.same_dropout else None
        self._micro_batches.append((dict(inputs), args, options, random))
        try:
            local = last and ours.perturbation == "local" and ours.perturbs
            phase_one = self._phase_one(ours, accelerator)
            with unsynced(accelerator, model, local), backward_by(accelerator, phase_one), ours.first_pass():
                loss = step(model, dict(inputs), *args, **options)
            if last:
                self._pass_again(ours, accelerator, model, step, parts)
                self._micro_batches.clear()
        except BaseException:
            self._micro_batches.clear()
            raise
        return loss

    @torch.no_grad()
    def _know_its_loss(self, model: Any, inputs: dict[str, Any], items: Any) -> None:
        """Find out whether the network's loss is divided by `num_items_in_batch`, as Trainer takes for granted."""
        self._knows_its_loss = True
        if not self.model_accepts_loss_kwargs or self.compute_loss_func is not None:  # type: ignore[attr-defined]
            return
        random = RandomState([next(model.parameters()).device])
        losses = []
        for count in (items, 2 * items):
            random.restore()
            prepared = self._prepare_inputs(dict(inputs))  # type: ignore[attr-defined]
            with look_only(model):
                losses.append(float(self.compute_loss(model, prepared, num_items_in_batch=count)))
        random.restore()
        if losses[0] == losses[1]:
            self.model_accepts_loss_kwargs = False
            _log.info("%s ignores num_items_in_batch: the mean over micro-batches is taken", type(model).__name__)

    def _phase_one(self, optimizer: SharpnessAware, accelerator: Any) -> Callable[..., None]:
        own, scaler = accelerator.backward, accelerator.scaler
        parts = accelerator.gradient_accumulation_steps

        def backward(loss: Tensor, **options: Any) -> None:
            def run(value: Tensor, retain_graph: bool = False) -> None:
                own(value * parts, retain_graph=retain_graph, **options)  # it divides by as much

            logits, targets = self.logits_and_targets or (None, None)
            self.logits_and_targets = None
            try:
                optimizer.backward(loss / parts, logits, targets, backward=run, scaler=scaler)
            except TypeError as error:
                if logits is not None:
                    raise
                raise TypeError(_NEEDS_LABELS.format(error=error)) from error

        return backward

    def _pass_again(
        self, optimizer: SharpnessAware, accelerator: Any, model: Any, step: Callable[..., Tensor], parts: int
    ) -> None:
        own = accelerator.backward

        def backward(loss: Tensor, **options: Any) -> None:
            def run(value: Tensor, retain_graph: bool = False) -> None:
                own(value * parts, retain_graph=retain_graph, **options)

            optimizer.backward(loss / parts, backward=run)

        batches = self._micro_batches
        for perturbed in optimizer.perturbations():
            with perturbed, torch.enable_grad(), backward_by(accelerator, backward):
                for number, (inputs, args, options, random) in enumerate(batches, 1):
                    if random is not None:
                        random.restore()
                    with unsynced(accelerator, model, number < len(batches)):
                        step(model, dict(inputs), *args, **options)
        self.logits_and_targets = None


def loss_of(method: str, options: Mapping[str, Any]) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss function of a learning method.

    Args:
        method: One of `ncsam.methods.names()`.
        options: Options of the method.

    Raises:
        UsageError: The method is unknown, or more than a loss function.
    """
    if not methods.get(method).is_loss:
        known = [name for name in methods.names() if methods.get(name).is_loss]
        raise bad_value("method", method, f"a loss function: {', '.join(known)}; `ncsam train` has all methods")
    return methods.create(method, **options).criterion


@contextmanager
def look_only(model: nn.Module) -> Iterator[None]:
    """Restore the buffers of a model on exit, so that a forward pass has no side effects.

    Args:
        model: The model.
    """
    buffers = SavedBuffers([model])
    try:
        yield
    finally:
        buffers.restore()


class SharpnessAwareTrainer(SharpnessAwareMixin, Trainer):  # type: ignore[misc]
    """`transformers.Trainer` with an optimizer of ours.

    Examples:
        >>> trainer = SharpnessAwareTrainer(  # doctest: +SKIP
        ...     model,
        ...     args,
        ...     train_dataset=data,
        ...     sharpness_aware=lambda base: NCSAM(base, rho=0.05, model=model),
        ... )
    """
