"""What a method gets from a run: predictions of the training split, its own batches, gradients, verified labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam.data.labels import stratified
from ncsam.data.loading.loader import Batch, Loader
from ncsam.data.modalities import Modality
from ncsam.engine.config import ResolvedConfig
from ncsam.engine.evaluate import Evaluator
from ncsam.engine.learner import Learner
from ncsam.engine.task import Task, view_names
from ncsam.errors import UsageError
from ncsam.methods import Method, State
from ncsam.methods.heads import output_of
from ncsam.vectors.saved import evaluation_mode

if TYPE_CHECKING:
    from ncsam.engine.device import Device

Verdicts = npt.NDArray[np.int8]


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
        with evaluation_mode([bare]):
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


def verdicts(method: Method, task: Task, seed: int) -> tuple[Verdicts | None, dict[str, Any] | None]:
    """1 (right), 0 (wrong) or -1 (not looked at) for each training sample, and where this comes from.

    A method without `verified_share` gets nothing. Else they are those of the dataset; where it brings none but the
    clean labels are known, a share of the samples trained on, drawn by the run's seed and balanced over classes, is
    compared with the clean labels.
    """
    if not method.verified_share:
        return None, None
    split = task.dataset.train
    if split.verified is not None:
        found = split.verified.copy()
        if task.val is not None:
            found[task.val] = -1
        source = "the dataset's own"
    elif split.clean is not None:
        found = np.full(len(split), -1, dtype=np.int8)
        _, drawn = stratified(split.labels[task.train], method.verified_share, seed=seed)
        rows = task.train[drawn]
        found[rows] = split.labels[rows] == split.clean[rows]
        source = f"clean labels of {method.verified_share:.4g} of the training samples, drawn by seed {seed}"
    else:
        raise bad_value(
            "method",
            method.name,
            "another one, or verified labels: a column `verified` (1 right, 0 wrong, empty unknown) in your table, "
            "Food-101N, or data whose clean labels are known",
        )
    if not (found == 1).any():
        raise UsageError(
            f"method {method.name!r} needs at least one label that was verified and found right, and there is none: "
            f"{source}. Verify more labels, or use another seed or a larger verified_share"
        )
    count = int((found >= 0).sum())
    return found, {"source": source, "samples": count, "right": int((found == 1).sum())}
