"""What all candidates share: the data, the folds and the device."""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam.automl.verified import Verified
from ncsam.data.loading.loader import Loader
from ncsam.data.types import Labels, Split
from ncsam.engine.config import RunConfig
from ncsam.engine.device import choose_device
from ncsam.engine.task import Task
from ncsam.issues.calibration import stratified_folds

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]
_BATCH = 512
_SMALL_IMAGE = 16  # pixels; up to here a fully connected network is what `--model auto` takes, too


class Problem:
    """A task split into folds. Positions index the training split; validation samples are in no fold.

    Args:
        config: the configuration of the search.
        task: the data.
        folds: number of folds, at least 2.
        verified: verified labels, which replace the given ones in training. `None`: there are none.

    Attributes:
        labels: the given labels, by which candidates are compared (N,).
        training_labels: the labels that candidates are trained on (N,).
        trusted: which of them are verified (N,).
        positions: positions of the samples that are in a fold.
        held_out: positions of each fold.

    Raises:
        UsageError: if the data is neither images nor features.
    """

    def __init__(self, config: RunConfig, task: Task, folds: int, verified: Verified | None = None) -> None:
        if task.modality.name not in ("images", "features"):
            raise bad_value("data", config.data, f"images or features, not {task.modality.name} (see `ncsam embed`)")
        self.config = config
        self.task = task
        self.dataset = task.dataset
        self.labels: Labels = task.dataset.train.labels
        self.training_labels, self.trusted = self.labels, np.zeros(len(self.labels), dtype=bool)
        if verified is not None:
            self.training_labels = self.labels.copy()
            self.training_labels[verified.rows] = verified.labels
            self.trusted[verified.rows] = True
        self.positions: Indices = task.train
        self.num_folds = folds
        self.fabric = choose_device(config.replace(devices=1, num_nodes=1, strategy="auto"))
        assigned = stratified_folds(self.labels[self.positions], folds, config.seed)
        self.held_out = [self.positions[assigned == fold] for fold in range(folds)]

    @property
    def classes(self) -> int:
        return self.dataset.num_classes

    @property
    def channels(self) -> int:
        """Input channels of the models: 1 for features."""
        return self.task.modality.in_channels

    @property
    def is_vectors(self) -> bool:
        """Whether samples are features, or images treated as features because they are small or the model is an mlp."""
        size = self.dataset.size
        return size is None or max(size) <= _SMALL_IMAGE or self.config.model == "mlp"

    @property
    def is_table(self) -> bool:
        """Whether the features are the named columns of a table."""
        return bool(getattr(self.task.modality, "columns", ()))

    def fold_task(self, fold: int) -> Task:
        """Return the task of training on all folds but one.

        Args:
            fold: number of the fold, which becomes the validation split.

        Returns:
            A task without a test split.
        """
        held = self.held_out[fold]
        kept = np.setdiff1d(self.positions, held)
        split = dataclasses.replace(self.dataset.train, labels=self.training_labels)
        dataset = dataclasses.replace(self.dataset, train=split, test=None, val=None)
        return dataclasses.replace(self.task, dataset=dataset, train=kept, val=held)

    def loader(self, split: Split, subset: Indices | None = None) -> Loader:
        """Return batches of a split in order, preprocessed as in evaluation.

        Args:
            split: any split of the data.
            subset: positions in the split. `None`: all.
        """
        config = self.config.replace(precision="32-true")
        return self.task.loader(split, config, _BATCH, subset=subset, device=self.fabric.device).evaluation(_BATCH)

    @cached_property
    def vectors(self) -> Tensor:
        """The training split, standardized and flattened: (N, d), on the CPU."""
        batches = self.loader(self.dataset.train).iterate(0)
        return torch.cat([batch.views[0].flatten(1).cpu() for batch in batches])

    @torch.no_grad()
    def log_probabilities(self, network: nn.Module, split: Split, subset: Indices | None = None) -> Floats:
        """Return log p(class | x) for samples of a split.

        Args:
            network: a model that returns logits. It is moved to the device and set to evaluation mode.
            split: any split of the data.
            subset: positions in the split. `None`: all.

        Returns:
            float32 (samples, classes), in order.
        """
        network.to(self.fabric.device).eval()
        rows = [network(batch.views[0]).float().log_softmax(dim=1) for batch in self.loader(split, subset).iterate(0)]
        found: Floats = torch.cat(rows).cpu().numpy()
        return found
