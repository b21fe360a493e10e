"""Any model as a `Backbone`: its last linear layer is the head, and what that layer sees are the features."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ncsam.models.backbone import Backbone
from ncsam.models.external import guess_family


class Tapped(Backbone):
    """A model whose features are read at the input of its last linear layer.

    Args:
        network: Any model with a linear layer.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        linear = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
        if not linear or not linear[-1]:
            raise ValueError(f"{type(network).__name__} has no linear layer inside to take for its head")
        self.network = network
        self.family = guess_family(network)
        self.head_name = f"network.{linear[-1]}"
        self.num_features = self.head.in_features

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, classes).

        Args:
            x: A batch for the model; two dimensions are taken for features, which go to the head alone.
        """
        if x.dim() == 2:  # features, of a model for images whose backbone is frozen
            return super().forward(x)
        logits: Tensor = self.network(x)
        return logits

    def features(self, x: Tensor) -> Tensor:
        """What the head sees when the whole model runs, (N, `num_features`).

        Args:
            x: A batch for the model.

        Raises:
            ValueError: The head did not see exactly one vector for each sample.
        """
        seen: list[Tensor] = []

        def note(module: nn.Module, arguments: tuple[Any, ...]) -> None:
            seen.append(arguments[0])

        hook = self.head.register_forward_pre_hook(note)
        try:
            self.network(x)
        finally:
            hook.remove()
        if len(seen) != 1 or seen[0].dim() != 2:
            shape = tuple(seen[0].shape) if seen else "nothing"
            raise ValueError(f"{self.head_name} of {type(self.network).__name__} sees {shape}, not one vector a sample")
        return seen[0]


def as_backbone(network: nn.Module) -> Backbone:
    """The model itself if it is a `Backbone`, else `Tapped` around it.

    Args:
        network: Any model with a linear layer.
    """
    return network if isinstance(network, Backbone) else Tapped(network)
