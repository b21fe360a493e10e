"""A backbone with further heads, and what a model's last layer sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ncsam._errors import bad_value, unknown_name
from ncsam.models.backbone import Backbone


class WithHeads(nn.Module):
    """A backbone and further heads on its features, all of them inside `forward`, where DDP and FSDP can see them.

    `network(inputs)` returns logits, as any model does. `network(inputs, "projector")` returns a dictionary: "logits",
    "features", and the output of each named head; "detached:projector" keeps its gradient from the backbone. Heads that
    are not named still get a gradient, of zero: DDP waits for one from every parameter.

    Args:
        backbone: A `Backbone`.
        heads: Modules by name.
    """

    def __init__(self, backbone: nn.Module, heads: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.backbone = check_backbone(backbone)
        self.heads = nn.ModuleDict(heads)

    def forward(self, inputs: Tensor, *names: str) -> Tensor | dict[str, Tensor]:
        """Logits, or a dictionary if heads are named.

        Args:
            inputs: A batch of inputs.
            *names: Heads to ask; "detached:name" passes them features without a gradient.

        Returns:
            Logits (rows, classes), or {"logits", "features", and the output of each named head}.
        """
        features = self.backbone.features(inputs)
        logits: Tensor = self.backbone.head(features)
        if torch.is_grad_enabled():
            asked = {name.removeprefix("detached:") for name in names}
            idle = [p.sum() for name, head in self.heads.items() if name not in asked for p in head.parameters()]
            if idle:
                logits = logits + 0.0 * torch.stack(idle).sum().to(logits.dtype)
        if not names:
            return logits
        answer = {"logits": logits, "features": features}
        for name in names:
            head = name.removeprefix("detached:")
            answer[head] = self.heads[head](features if head == name else features.detach())
        return answer


def check_backbone(network: nn.Module) -> Backbone:
    """The model, if it is a `Backbone`; else an error that says what is.

    Args:
        network: The model.
    """
    if not isinstance(network, Backbone):
        kind = type(network).__name__
        raise bad_value(
            "model", kind, "a Backbone, such as all models of ncsam.models, because this method needs its features"
        )
    return network


def projector(width: int, hidden: int, out: int, *, norm: bool = False, bias: bool = True) -> nn.Sequential:
    """Two linear layers with ReLU between them.

    Args:
        width: Number of input features.
        hidden: Width between the layers.
        out: Number of outputs.
        norm: Whether BatchNorm comes before ReLU.
        bias: Whether the first layer has a bias.
    """
    between: Sequence[nn.Module] = (nn.BatchNorm1d(hidden), nn.ReLU()) if norm else (nn.ReLU(),)
    return nn.Sequential(nn.Linear(width, hidden, bias=bias), *between, nn.Linear(hidden, out))


def output_of(network: nn.Module, inputs: Tensor, name: str) -> Tensor:
    """The output of a model's head of that name, or its features.

    Args:
        network: The model.
        inputs: A batch of inputs.
        name: Name of the head, or "features".
    """
    if name == "features":
        return features_of(network, inputs)
    found = next((module for module in network.modules() if isinstance(module, WithHeads)), None)
    if found is None or name not in found.heads:
        raise unknown_name("output", name, ["probabilities", "features", *(found.heads if found else ())])
    answer: Tensor = network(inputs, name)[name]
    return answer


def features_of(network: nn.Module, inputs: Tensor) -> Tensor:
    """The input of the head of a model's first backbone.

    Args:
        network: The model.
        inputs: A batch of inputs.
    """
    backbone = next((module for module in network.modules() if isinstance(module, Backbone)), None)
    head = check_backbone(network if backbone is None else backbone).head
    seen: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    try:
        network(inputs)
    finally:
        hook.remove()
    return seen[0]
