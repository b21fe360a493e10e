"""What a method may ask of a run: predictions and features of the training split, batches of its own, gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam.data.loading.loader import Batch
from ncsam.engine.modes import evaluating
from ncsam.engine.task import view_names
from ncsam.methods.heads import output_of

if TYPE_CHECKING:
    from ncsam.engine.trainer import Trainer


class MethodContext:
    """The engine as `State` passes it on to a method."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def predict(self, networks: Sequence[nn.Module], output: str = "probabilities") -> Tensor:
        """Of the whole un-augmented training split; the same on all ranks."""
        if output != "probabilities":
            if len(networks) != 1:
                raise bad_value("networks", f"{len(networks)} networks", f"{output} are those of one network")
            return self._outputs(networks[0], output)
        evaluator = self.trainer.evaluator
        found = evaluator.predict(networks, evaluator.train, keep_probabilities=True)
        assert found.probabilities is not None
        return torch.from_numpy(found.probabilities).to(self.trainer.fabric.device)

    @torch.no_grad()
    def _outputs(self, network: nn.Module, output: str) -> Tensor:
        trainer = self.trainer
        # the network itself, not its wrapper for ranks: a look inside needs no gradients to be brought together
        bare = next((learner.bare for learner in trainer.learners if learner.network is network), network)
        precision, loader = trainer.fabric.strategy.precision, trainer.evaluator.train
        result: Tensor | None = None
        with evaluating([bare]):
            for batch in loader.iterate(0):
                with precision.forward_context():
                    rows = output_of(bare, precision.convert_input(batch.views[0]), output).flatten(1).float()
                if result is None:
                    result = rows.new_zeros((len(loader.split), rows.shape[1]))
                result[batch.index] = rows
        assert result is not None
        if trainer.fabric.world_size > 1:  # every sample was seen by exactly one rank; the others hold zeros
            dist.all_reduce(result)
        return result

    def batches(
        self, index: Tensor, view: str | Sequence[str] = "plain", *, batch_size: int | None = None, stream: int = 0
    ) -> Iterator[Batch]:
        """Shuffled batches of some samples, this rank's part; none where there are fewer samples than ranks."""
        trainer = self.trainer
        ranks = trainer.fabric.world_size
        if len(index) < ranks:
            return iter(())
        views = (view,) if isinstance(view, str) else tuple(view)
        size = (trainer.config.batch_size or 1) if batch_size is None else batch_size
        seed = np.random.SeedSequence((trainer.config.seed, 1 + stream)).generate_state(1)[0]
        loader = trainer.loader.with_options(
            subset=index.cpu().numpy(),
            views=view_names(trainer.config, views, trainer.task.modality),
            batch_size=max(1, size // ranks),
            seed=int(seed),
        )
        return loader.iterate(trainer.state.epoch)

    def backward(self, loss: Tensor) -> None:
        """Gradients as they are: where the precision scales losses, the scale is taken out."""
        scaler = getattr(self.trainer.fabric.strategy.precision, "scaler", None)
        self.trainer.fabric.backward(loss if scaler is None else loss / scaler.get_scale())
