"""Another forward of some rows of a batch: what the model was called with is recorded during the first pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ncsam.errors import UsageError
from ncsam.vectors.saved import SavedBuffers


class RowForward:
    """Records the inputs of a model's last call, and runs the model again on some of their rows."""

    def __init__(self) -> None:
        self._modules: Sequence[nn.Module] = ()
        self._call: tuple[nn.Module, tuple[Any, ...], dict[str, Any]] | None = None
        self._autocast: tuple[str, torch.dtype] | None = None
        self._saved: SavedBuffers | None = None
        self._before: SavedBuffers | None = None
        self._running = False

    @contextmanager
    def recording(self, modules: Sequence[nn.Module], statistics: bool = False) -> Iterator[None]:
        """Record what the outermost of these modules that runs is called with, while entered.

        Args:
            modules: The outermost modules of the model, which get a forward hook while recording.
            statistics: Whether to record BatchNorm's statistics before the call, too, which `features` takes.
        """
        self._modules = modules

        def record(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            if self._running:  # a forward of this one's own
                return
            self._call = (module, args, options)
            self._before = SavedBuffers(modules) if statistics else None
            kind = next((p.device.type for p in module.parameters()), "cpu")
            self._autocast = (kind, torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else None

        hooks = [module.register_forward_pre_hook(record, with_kwargs=True) for module in modules]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            self._call = self._before = None
            self.restore()

    def logits(self, rows: Tensor, size: int) -> Tensor | None:
        """Logits of some rows by their own forward, in training mode; `restore` puts BatchNorm's statistics back.

        Args:
            rows: Their positions in the batch.
            size: The number of rows of the batch, by which its tensors are known.

        Returns:
            One row of logits for each; `None` for a single row that BatchNorm cannot normalize, because it is one
            value per channel.
        """
        self._saved = SavedBuffers(self._modules)
        try:
            return self._run(rows, size)
        except ValueError as error:
            if "more than 1 value per channel" in str(error):
                return None
            raise

    def restore(self) -> None:
        """Put the buffers back; only after the backward, which may need them as its forward left them."""
        if self._saved is not None:
            self._saved.restore()
            self._saved = None

    @torch.no_grad()
    def features(self, size: int) -> Tensor:
        """What the last linear layer is given, in evaluation mode, each row divided by its length.

        BatchNorm has the statistics of before the batch, if they were recorded.

        Args:
            size: The number of rows of the batch.

        Returns:
            One row per sample; from the logits where the last linear layer does not see one row per sample.

        Raises:
            RuntimeError: If no call of the model was recorded.
            UsageError: If the model does not return logits for exactly these rows.
        """
        seen: list[Tensor] = []
        modes = [(m, m.training) for root in self._modules for m in root.modules()]
        layers = [m for m, _ in modes if isinstance(m, nn.Linear)]
        hooks = [layer.register_forward_pre_hook(lambda _, args: seen.append(args[0])) for layer in layers]
        try:
            for module, _ in modes:
                module.training = False
            with nullcontext() if self._before is None else self._before.in_place_of_now():
                logits = self._run(None, size)
        finally:
            for module, mode in modes:
                module.training = mode
            for hook in hooks:
                hook.remove()
        found = seen[-1] if seen and len(seen[-1]) == size else logits
        return nn.functional.normalize(found.flatten(1).float(), dim=1)

    def _run(self, rows: Tensor | None, size: int) -> Tensor:
        if self._call is None:
            raise RuntimeError(
                "the model was not called in the first pass: in two phases, put the forwards and backwards at w into "
                "`with optimizer.first_pass():`"
            )
        module, args, options = self._call
        if isinstance(module, nn.parallel.DistributedDataParallel):
            module = module.module  # this backward is not DDP's to average
        if rows is not None:
            args, options = _map(lambda t: t[rows] if t.ndim and len(t) == size else t, (args, options))
        self._running = True
        try:
            with (
                nullcontext() if self._autocast is None else torch.autocast(*self._autocast)
            ):  # as in the recorded call
                output = module(*args, **options)
        finally:
            self._running = False
        logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
        if not isinstance(logits, Tensor) or len(logits) != (size if rows is None else len(rows)):
            raise UsageError(
                "flip_forward='separate' and selection='clusters' of NCSAM need the logits of exactly the rows that "
                "the model was called with: methods that select, mix or join samples need flip_forward='shared' and "
                "another selection, as in optimizer='ncsam'"
            )
        return logits


def _map(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: _map(function, each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_map(function, each) for each in value)
    return value
