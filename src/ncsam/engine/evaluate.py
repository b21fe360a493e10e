"""Predictions on a whole split, un-augmented, each sample once, over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam.data.loading.loader import Batch, Loader
from ncsam.data.modalities import Modality
from ncsam.data.types import Labels, stratified
from ncsam.engine.config import ResolvedConfig
from ncsam.engine.metrics import EVALUATED, MOST_NUMBERS, accuracy, calibration_error, class_metrics, memorized
from ncsam.engine.task import Task, view_names
from ncsam.errors import DivergedError, UsageError
from ncsam.methods import Method, State
from ncsam.methods.heads import output_of
from ncsam.vectors.saved import evaluation_mode

if TYPE_CHECKING:
    from ncsam.engine.device import Device
    from ncsam.engine.learner import Learner

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Predictions:
    """One entry per sample of the split; meaningless for samples that the loader left out.

    Attributes:
        predicted: The class with the largest logit.
        confidence: Its probability.
        loss: -log p_y of the observed label y.
        margin: p_y minus the largest other probability, in [-1, 1].
        probabilities: Of all classes (samples, classes), where they were kept.
    """

    predicted: npt.NDArray[np.int64]
    confidence: Floats
    loss: Floats
    margin: Floats
    probabilities: Floats | None


@torch.no_grad()
def predict(
    fabric: Device,
    method: Method,
    networks: Sequence[nn.Module],
    loader: Loader,
    *,
    keep_probabilities: bool = False,
) -> Predictions:
    """Evaluate the models, in evaluation mode, on every sample of a loader made by `Loader.evaluation`.

    Args:
        fabric: Device and ranks of the run.
        method: Joins the models' predictions.
        networks: The method's models; every module keeps its mode.
        loader: Batches of the split, without augmentation.
        keep_probabilities: Whether the result includes all class probabilities.

    Returns:
        The predictions, the same on all ranks.
    """
    samples = len(loader.split)
    columns: list[Tensor] | None = None
    with evaluation_mode(networks):
        for batch in loader.iterate(0):
            logits = method.predict(networks, batch.views[0]).float()
            values = _values(logits, batch.labels, keep_probabilities)
            if columns is None:
                columns = [v.new_zeros((samples, *v.shape[1:])) for v in values]
            for column, value in zip(columns, values, strict=True):
                column.index_copy_(0, batch.index, value)
    assert columns is not None
    if fabric.world_size > 1:  # every sample was seen by exactly one rank; the others have zeros
        for column in columns:
            dist.all_reduce(column)
    predicted, confidence, loss, margin, *rest = (column.cpu().numpy() for column in columns)
    return Predictions(predicted, confidence, loss, margin, rest[0] if rest else None)


def _values(logits: Tensor, labels: Tensor, keep_probabilities: bool = False) -> list[Tensor]:
    """The columns of `Predictions`, from one softmax: with few classes, it takes longer than a small model."""
    log_p = F.log_softmax(logits, dim=1)
    observed = labels.unsqueeze(1)
    own = log_p.gather(1, observed).squeeze(1)
    top, classes = log_p.topk(2, dim=1)
    other = torch.where(classes[:, 0] == labels, top[:, 1], top[:, 0])
    values = [classes[:, 0], top[:, 0].exp(), -own, own.exp() - other.exp()]
    return [*values, log_p.exp()] if keep_probabilities else values


class Evaluator:
    """The measurements after an epoch: on the test split, the noisy validation samples and the training split.

    Args:
        fabric: Device and ranks of the run.
        method: Joins the models' predictions.
        task: The data, with the samples held out.
        config: The resolved configuration.
        train: Batches of the training samples; the other loaders take its options.
        diverged: Makes the error for predictions that are not finite.
    """

    def __init__(
        self,
        fabric: Device,
        method: Method,
        task: Task,
        config: ResolvedConfig,
        train: Loader,
        diverged: Callable[[], DivergedError],
    ) -> None:
        self.diverged = diverged
        self.fabric = fabric
        self.method = method
        self.task = task
        self.config = config
        # one pass over the whole training split serves the samples trained on and those held out
        self.train = train.with_options(subset=None).evaluation()
        self.val = self.test = None
        if task.dataset.val is not None:
            self.val = train.with_options(split=task.dataset.val, subset=None).evaluation()
        elif task.val is not None:
            self.val = train.with_options(subset=task.val).evaluation()
        if task.dataset.test is not None:
            self.test = train.with_options(split=task.dataset.test, subset=None).evaluation()

    @property
    def held_out_labels(self) -> Labels:
        """The observed labels of the validation samples, or of the training split where there are none."""
        labels = (self.val or self.train).split.labels
        return labels if self.task.val is None else labels[self.task.val]

    def out_of_sample(self, networks: Sequence[nn.Module]) -> tuple[Labels, Floats]:
        """`held_out_labels`, and the predicted probabilities (N, classes) of those samples.

        Args:
            networks: The method's models.

        Raises:
            DivergedError: Predictions are not finite.
        """
        found = self.predict(networks, self.val or self.train, keep_probabilities=True)
        assert found.probabilities is not None
        rows = found.probabilities
        return self.held_out_labels, rows if self.task.val is None else rows[self.task.val]

    def predict(self, networks: Sequence[nn.Module], loader: Loader, keep_probabilities: bool = False) -> Predictions:
        """Predict a split; raise `DivergedError` where predictions are not finite.

        Args:
            networks: The method's models.
            loader: `train`, `val` or `test` of this object.
            keep_probabilities: Whether the result includes all class probabilities.
        """
        found = predict(self.fabric, self.method, networks, loader, keep_probabilities=keep_probabilities)
        if not np.isfinite(found.confidence).all():
            raise self.diverged()
        return found

    def measure(
        self, networks: Sequence[nn.Module], epoch: int, keep_probabilities: bool, on_train: bool = False
    ) -> tuple[dict[str, Any], Predictions | None]:
        """The accuracies of a record, and the predictions on the training split where they are due.

        Args:
            networks: The method's models.
            epoch: The finished epoch, from 1.
            keep_probabilities: Whether predictions on the training split include all class probabilities.
            on_train: Evaluate the training split even if `evaluate_train_every` does not ask for it.
        """
        record: dict[str, Any] = dict.fromkeys(EVALUATED)
        if self.test is not None:
            on_test = self.predict(networks, self.test, self._small(self.test))
            right = on_test.predicted == self.test.split.labels
            record |= class_metrics("test", on_test.predicted, self.test.split.labels, on_test.probabilities)
            record["test_accuracy"] = 100.0 * float(right.mean())
            record["calibration_error"] = calibration_error(on_test.confidence, right)
        train: Predictions | None = None
        every = self.config.evaluate_train_every
        if on_train or (every is not None and (epoch % every == 0 or epoch == self.config.epochs)):
            train = self.predict(networks, self.train, keep_probabilities)
            record |= self.on_training_split(train)
        if self.val is not None:
            reused = train is not None and self.task.dataset.val is None
            if reused and train is not None:
                on_val = train
            else:
                on_val = self.predict(networks, self.val, self._small(self.val))
            held = slice(None) if self.task.val is None else self.task.val
            chances = None if on_val.probabilities is None else on_val.probabilities[held]
            record |= class_metrics("val", on_val.predicted[held], self.held_out_labels, chances)
            record["val_accuracy"] = accuracy(on_val.predicted[held], self.held_out_labels)
            record["val_loss"] = float(on_val.loss[held].mean(dtype=np.float64))
        return record, train

    def _small(self, loader: Loader) -> bool:
        """Whether all class probabilities of a split are few enough to be kept after every epoch."""
        return len(loader.split) * self.task.dataset.num_classes <= MOST_NUMBERS

    def on_training_split(self, predictions: Predictions) -> dict[str, Any]:
        """The accuracies on the samples trained on.

        Args:
            predictions: Of the whole training split.

        Returns:
            Percentages by name; those against clean labels only where these are known.
        """
        split, index = self.task.dataset.train, self.task.train
        predicted, observed = predictions.predicted[index], split.labels[index]
        found: dict[str, Any] = {"train_accuracy_observed": accuracy(predicted, observed)}
        if split.clean is not None:
            found["train_accuracy_clean"] = accuracy(predicted, split.clean[index])
            found["memorized"] = memorized(predicted, observed, split.clean[index])
        return found


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
        """Predict the whole un-augmented training split; the result is the same on all ranks.

        Args:
            networks: The method's models; for another output than probabilities, one of them.
            output: "probabilities", "features", or the name of a head of the model.

        Returns:
            One row per sample of the training split, in its order.

        Raises:
            UsageError: Several models and another output than probabilities, or no head of that name.
        """
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
        """Shuffled batches of some samples, this rank's part; none where there are fewer samples than ranks.

        Args:
            index: Positions in the training split.
            view: One view or several, named as in `Method.views`.
            batch_size: Samples per batch over all ranks; `None` for the run's.
            stream: A number that gives another order and other augmentations in the same epoch.
        """
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
        """Unscaled gradients: where the precision scales losses, the scale is taken out.

        Args:
            loss: One number.
        """
        scaler = getattr(self.fabric.strategy.precision, "scaler", None)
        self.fabric.backward(loss if scaler is None else loss / scaler.get_scale())


def verdicts(method: Method, task: Task, seed: int) -> tuple[Verdicts | None, dict[str, Any] | None]:
    """1 (right), 0 (wrong) or -1 (not looked at) for each training sample, and where this comes from.

    A method without `verified_share` gets nothing. Else they are those of the dataset; where it brings none but the
    clean labels are known, a share of the samples trained on, drawn by the run's seed and balanced over classes, is
    compared with the clean labels.

    Args:
        method: The learning method.
        task: The data.
        seed: Draws the samples whose labels are compared, where the dataset has no verdicts.

    Raises:
        UsageError: The method needs verified labels, and there are none or none that is right.
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
