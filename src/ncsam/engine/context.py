"""What a method may ask of a run: predictions and features of the training split, its own batches, gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam.data.loading.loader import Batch, Loader
from ncsam.data.modalities import Modality
from ncsam.engine.config import ResolvedConfig
from ncsam.engine.evaluate import Evaluator
from ncsam.engine.learner import Learner
from ncsam.engine.network import evaluating
from ncsam.engine.task import view_names
from ncsam.methods import State
from ncsam.methods.heads import output_of

if TYPE_CHECKING:
    from ncsam.engine.device import Device


class MethodContext:
    """The engine as `State` passes it to a method.

    Args:
        device: Device and ranks of the run.
        config: The resolved configuration.
        modality: The kind of data.
        loader: Batches of the training samples.
        evaluator: Predicts the training split.
        learners: The models and their optimizers.
        state: Where training stands.
    """

    def __init__(
        self,
        device: Device,
        config: ResolvedConfig,
        modality: Modality,
        loader: Loader,
        evaluator: Evaluator,
        learners: Sequence[Learner],
        state: State,
    ) -> None:
        self.fabric = device
        self.config = config
        self.modality = modality
        self.loader = loader
        self.evaluator = evaluator
        self.learners = learners
        self.state = state

    def predict(self, networks: Sequence[nn.Module], output: str = "probabilities") -> Tensor:
        """Predict the whole un-augmented training split; the result is the same on all ranks."""
        if output != "probabilities":
            if len(networks) != 1:
                raise bad_value("networks", f"{len(networks)} networks", f"one network, whose {output} are wanted")
            return self._outputs(networks[0], output)
        found = self.evaluator.predict(networks, self.evaluator.train, keep_probabilities=True)
        assert found.probabilities is not None
        return torch.from_numpy(found.probabilities).to(self.fabric.device)

    @torch.no_grad()
    def _outputs(self, network: nn.Module, output: str) -> Tensor:
        # the model itself, not its wrapper for ranks, because no gradients are synchronized
        bare = next((learner.bare for learner in self.learners if learner.network is network), network)
        precision, loader = self.fabric.strategy.precision, self.evaluator.train
        result: Tensor | None = None
        with evaluating([bare]):
            for batch in loader.iterate(0):
                with precision.forward_context():
                    rows = output_of(bare, precision.convert_input(batch.views[0]), output).flatten(1).float()
                if result is None:
                    result = rows.new_zeros((len(loader.split), rows.shape[1]))
                result[batch.index] = rows
        assert result is not None
        if self.fabric.world_size > 1:  # every sample was seen by exactly one rank; the others have zeros
            dist.all_reduce(result)
        return result

    def batches(
        self, index: Tensor, view: str | Sequence[str] = "plain", *, batch_size: int | None = None, stream: int = 0
    ) -> Iterator[Batch]:
        """Shuffled batches of some samples, this rank's part; none where there are fewer samples than ranks."""
        ranks = self.fabric.world_size
        if len(index) < ranks:
            return iter(())
        views = (view,) if isinstance(view, str) else tuple(view)
        size = self.config.batch_size if batch_size is None else batch_size
        seed = np.random.SeedSequence((self.config.seed, 1 + stream)).generate_state(1)[0]
        loader = self.loader.with_options(
            subset=index.cpu().numpy(),
            views=view_names(self.config, views, self.modality),
            batch_size=max(1, size // ranks),
            seed=int(seed),
        )
        return loader.iterate(self.state.epoch)

    def backward(self, loss: Tensor) -> None:
        """Unscaled gradients: where the precision scales losses, the scale is taken out."""
        scaler = getattr(self.fabric.strategy.precision, "scaler", None)
        self.fabric.backward(loss if scaler is None else loss / scaler.get_scale())
