"""A method that uses all that the interface offers, for tests of the engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam.data.loading.loader import Batch
from ncsam.methods import LossOutput, Method, Plan, Stage, State, register
from ncsam.methods.heads import WithHeads
from ncsam.methods.steps import adam, part


class Staged(Method):
    """Two stages, the second fresh or with frozen norms; a head trained apart, by inner batches and after each step."""

    name = "staged"
    verified_share = 0.25

    def __init__(self, fresh: bool = True, frozen: bool = False) -> None:
        self.fresh = fresh
        self.frozen = frozen
        self.side: Any = None
        self.saved: dict[str, Any] | None = None
        self.means: list[float] = []

    def stages(self, epochs: int) -> tuple[Stage, ...]:
        return Stage(1), Stage(epochs - 1, fresh=self.fresh, lr=0.5, frozen_norms=self.frozen)

    def build(self, create: Callable[[], nn.Module]) -> list[nn.Module]:
        backbone: Any = create()
        norm = nn.BatchNorm1d(backbone.num_features)
        return [WithHeads(backbone, {"side": nn.Sequential(norm, nn.Linear(backbone.num_features, 2))})]

    def on_epoch_start(self, networks: Sequence[nn.Module], state: State) -> None:
        assert state.verified is not None
        features = state.predict(networks, output="features")
        self.means.append(float(features[state.verified == 1].mean()))
        self._side(networks)
        for batch in state.batches(state.trained, ("train", "plain"), batch_size=32, stream=3):
            self.side.step(self._apart(networks[0], batch.views[1], batch.labels), state)

    def _side(self, networks: Sequence[nn.Module]) -> None:
        if self.side is None:
            self.side = adam(part(networks, "heads"), lr=0.01)
            if self.saved is not None:
                self.side.load_state_dict(self.saved)

    def _apart(self, network: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        with torch.enable_grad():
            answer = network(inputs, "side")
            return F.cross_entropy(answer["side"], labels % 2) + 0.0 * answer["logits"].sum()

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        self.batch = batch
        noise = torch.from_numpy(state.random(stream=1).normal(size=len(batch))).to(batch.views[0])
        return (
            Plan(batch.views[0] + 0.01 * noise.view(-1, *[1] * (batch.views[0].ndim - 1)), batch.labels, batch.index),
        )

    def loss(self, network: nn.Module, plan: Plan) -> LossOutput:
        logits = network(plan.inputs)
        return LossOutput(F.cross_entropy(logits, plan.targets), logits, plan.targets)

    def on_step_end(self, networks: Sequence[nn.Module], state: State) -> None:
        self._side(networks)
        self.side.step(self._apart(networks[0], self.batch.views[0], self.batch.labels), state, lr=0.1 * state.lr)

    def state_dict(self) -> dict[str, Any]:
        return {"means": self.means, "side": None if self.side is None else self.side.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.means, self.saved = state["means"], state["side"]


if "TORCHELASTIC_RUN_ID" in os.environ:  # a process of its own, where no other test sees it
    register(Staged)
