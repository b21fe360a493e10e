"""Standing elsewhere than at w for one pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from ncsam.optim.modules import SavedBuffers
from ncsam.optim.side_gradient import gradients_aside
from ncsam.optim.weights import SavedWeights


@dataclass
class Move:
    """Where the next pass is evaluated: at w + scale * directions."""

    params: list[Tensor]
    directions: list[Tensor]
    scale: float

    @classmethod
    def nowhere(cls) -> Move:
        """Stay at w, for a pass whose gradient is that of w."""
        return cls([], [], 0.0)


@contextmanager
def moved(
    move: Move, weights: SavedWeights, params: Sequence[Tensor], others: Iterable[Tensor], modules: Iterable[nn.Module]
) -> Iterator[None]:
    """Stand at the moved weights; come back to w and to the buffers of the clean pass, whatever happens.

    `params` start without gradients and keep those of this pass; `others`, which the optimizer does not own, keep
    their old ones.
    """
    buffers = SavedBuffers(modules)
    for p in params:
        p.grad = None
    with gradients_aside(others):
        try:
            if move.params:
                weights.move(move.params, move.directions, move.scale)
            move.directions.clear()  # gradients at w need not live through the second pass
            yield
        finally:
            weights.restore()
            buffers.restore()
