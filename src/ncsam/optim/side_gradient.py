"""A second gradient from the same graph, kept apart from `.grad`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch._functorch.config as compiled_graphs
import torch.distributed as dist
from torch import Tensor

from ncsam.optim.distributed import is_sharded, sum_over_ranks


@contextmanager
def gradients_aside(params: Iterable[Tensor]) -> Iterator[None]:
    """Lay the parameters' gradients aside: the block starts with none, and leaves none behind."""
    held = [(p, p.grad) for p in params]
    for p, _ in held:
        p.grad = None
    try:
        yield
    finally:
        for p, grad in held:
            p.grad = grad


def allow_two_backwards() -> None:
    """Let graphs that are compiled from now on be run backward twice.

    By default a compiled backward overwrites what it needs no more, and then refuses `retain_graph`, which the steps
    after warm-up ask for.
    """
    compiled_graphs.donated_buffer = False


class SideGradient:
    """Sum over some samples of their loss gradient, over micro-batches and ranks.

    The mean is `factor` times the sum: the division by the number of samples, the loss scale and the ranks is left
    to whoever scales the vector anyway, so that it costs no pass over memory.
    """

    def __init__(self) -> None:
        self._sums: dict[Tensor, Tensor] = {}
        self.samples = 0

    def add(
        self,
        loss: Tensor,
        samples: int,
        params: Sequence[Tensor],
        others: Sequence[Tensor],
        backward: Callable[[Tensor], None],
    ) -> None:
        """Add the gradient of `loss`, a sum over `samples` samples of all ranks, with respect to `params`.

        `others` are parameters that the graph reaches but the optimizer does not own; their gradients are kept clean.
        """
        with gradients_aside([*params, *others]):
            for p in params:
                p.grad = self._sums.get(p)
            backward(loss)
            self._sums = {p: p.grad for p in params if p.grad is not None}
        self.samples += samples

    def take(self, params: Sequence[Tensor], group: dist.ProcessGroup | None) -> tuple[list[Tensor], float]:
        """The summed gradient of each of `params`, and the factor that makes it this group's sum.

        Sharded parameters were averaged over the ranks by their own backward; others are summed here.
        """
        sums = [self._sums.get(p) for p in params]
        self._sums = {}
        tensors = [torch.zeros_like(p) if s is None else s for p, s in zip(params, sums, strict=True)]
        if group is None:
            return tensors, 1.0
        if is_sharded(params):
            return tensors, float(dist.get_world_size(group))
        sum_over_ranks(tensors, group)
        return tensors, 1.0
