"""Sharpness-aware training in a loop that Accelerate drives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from ncsam.integrations.wrapped import join_ranks, sharpness_aware_inside
from ncsam.optim import SharpnessAware
from ncsam.vectors.saved import RandomState

#: The micro-batches of a step that has begun: their compute, arguments and random state.
_Begun = list[tuple[Callable[..., Any], tuple[Any, ...], RandomState | None]]
_begun: WeakKeyDictionary[SharpnessAware, _Begun] = WeakKeyDictionary()


def sharpness_step(
    accelerator: Any,
    optimizer: Any,
    compute: Callable[..., Any],
    *batch: Any,
    model: nn.Module | None = None,
    max_norm: float | None = None,
) -> Tensor:
    """Run one sharpness-aware step in a loop that Accelerate drives.

    It replaces `accelerator.backward(loss)`, clipping, `optimizer.step()` and `optimizer.zero_grad()`. Under
    `accelerator.accumulate(model)` each call records its micro-batch, and the last call of a step does the rest.

    Args:
        accelerator: The `accelerate.Accelerator` of the loop.
        optimizer: A sharpness-aware optimizer, as `accelerator.prepare` returned it.
        compute: `compute(*batch)` returns the loss, or (loss, logits, targets), which `NCSAM` and `rho="auto"` need. It
            is called again at the perturbed weights, so pass the batch as arguments rather than by a closure.
        *batch: The arguments of `compute`.
        model: The prepared model. It is needed if several processes accumulate gradients, which are then synchronized
            only on the last micro-batch.
        max_norm: Clip the gradient to this norm; `None` does not clip.

    Returns:
        The loss of this micro-batch at the unperturbed weights, detached.

    Raises:
        TypeError: The optimizer is not sharpness-aware, or `compute` returned something else.

    Examples:
        >>> model, optimizer, loader = accelerator.prepare(model, SAM(base, model=model), loader)  # doctest: +SKIP
        >>> def compute(x, y):  # doctest: +SKIP
        ...     logits = model(x)
        ...     return F.cross_entropy(logits, y), logits, y
        >>> for x, y in loader:  # doctest: +SKIP
        ...     with accelerator.accumulate(model):
        ...         loss = sharpness_step(accelerator, optimizer, compute, x, y)
        ...         scheduler.step()
    """
    ours = sharpness_aware_inside(optimizer)
    if ours is None:
        raise TypeError(f"sharpness_step needs a sharpness-aware optimizer, such as SAM; it got {optimizer!r}")
    join_ranks(ours)
    parts = accelerator.gradient_accumulation_steps
    begun = _begun.setdefault(ours, [])
    last = accelerator.sync_gradients
    begun.append((compute, batch, RandomState([accelerator.device]) if ours.same_dropout else None))

    def run(value: Tensor, retain_graph: bool = False) -> None:
        accelerator.backward(value * parts, retain_graph=retain_graph)  # it divides by as much

    try:
        local = last and ours.perturbation == "local" and ours.perturbs
        with unsynced(accelerator, model, local), ours.first_pass():
            loss, *labels = _results(compute(*batch))
            ours.backward(loss / parts, *labels, backward=run, scaler=accelerator.scaler)
        here: Tensor = loss.detach()
        del loss, labels  # nothing of the first graph may outlive it
        if last:
            for perturbed in ours.perturbations():
                with perturbed:
                    for number, (again, earlier, random) in enumerate(begun, 1):
                        if random is not None:
                            random.restore()
                        with unsynced(accelerator, model, number < len(begun)):
                            ours.backward(_results(again(*earlier))[0] / parts, backward=run)
            if max_norm is not None:
                accelerator.clip_grad_norm_([p for group in ours.param_groups for p in group["params"]], max_norm)
            optimizer.step()
            optimizer.zero_grad()
            begun.clear()
    except BaseException:
        begun.clear()
        raise
    return here


def unsynced(accelerator: Any, model: nn.Module | None, wanted: bool) -> AbstractContextManager[Any]:
    """Keep gradients local to each process while the context is active.

    Args:
        accelerator: The `accelerate.Accelerator` of the loop.
        model: The prepared model; required if there are several processes.
        wanted: False makes the context do nothing.
    """
    if not wanted or accelerator.num_processes == 1:
        return nullcontext()
    if model is None:
        raise TypeError("sharpness_step needs model=, the prepared network, to accumulate in several processes")
    found: AbstractContextManager[Any] = accelerator.no_sync(model)
    return found


@contextmanager
def backward_by(accelerator: Any, backward: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Replace `accelerator.backward` while the context is active; yields the original.

    Args:
        accelerator: The `accelerate.Accelerator` of the loop.
        backward: The function to call instead.
    """
    own = accelerator.backward
    accelerator.backward = backward
    try:
        yield own
    finally:
        del accelerator.backward  # the class's own shows again


def _results(found: Any) -> tuple[Any, ...]:
    """(loss,) or (loss, logits, targets)."""
    if isinstance(found, Tensor):
        return (found,)
    if isinstance(found, tuple) and len(found) == 3 and isinstance(found[0], Tensor):
        return found
    raise TypeError(f"compute(*batch) must return the loss, or (loss, logits, targets); it gave {type(found).__name__}")
