"""What is decided during training: an epoch's stage, the end of warm-up, the share of a batch that NCSAM flips, and
which weights are kept.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from ncsam import optim
from ncsam._arguments import count, ratio
from ncsam._errors import bad_value
from ncsam.engine import recipes
from ncsam.engine.config import ResolvedConfig
from ncsam.engine.evaluate import Evaluator
from ncsam.engine.learner import Learner, full_state, load_network
from ncsam.issues.find import has_memorized
from ncsam.methods import Method, Stage
from ncsam.noise import estimate_noise
from ncsam.optim.sharpness_aware import SharpnessAware
from ncsam.vectors.arithmetic import is_dtensor

_DECISIONS: dict[str, Any] = {"warmup_epochs": count, "flip_ratio": ratio, "noise_estimate": ratio}


def is_memorizing(trained: Sequence[float], held_out: Sequence[float], samples: int) -> bool:
    r"""Whether a model fits the labels that it has seen better than those that it has not.

    By `ncsam.issues.find.has_memorized`, of the means of both accuracies over the last three epochs.

    The noisy validation accuracy alone stops rising at about the same time; but its own noise, several points for some
    hundred samples, hides when, and it also stops rising in a model that cannot fit more.

    Args:
        trained: Accuracy on the observed labels of training samples after each epoch, in [0, 1].
        held_out: Accuracy on the observed labels of held-out samples after each epoch.
        samples: Number of held-out samples.
    """
    epochs = recipes.SMOOTHED_EPOCHS.value
    if len(trained) < epochs:
        return False
    t, v = (math.fsum(values[-epochs:]) / epochs for values in (trained, held_out))
    return has_memorized(t, v, samples)


class ScheduleController:
    """Decides the end of a warm-up "auto" and a flip ratio "auto"; a value is `None` until it is decided.

    Everything follows from what all ranks know, so all ranks decide the same, and a resumed run what it had decided.

    Args:
        config: The resolved configuration.
        evaluator: Evaluates the held-out samples.
        notify: Called with a sentence on each decision.
    """

    def __init__(self, config: ResolvedConfig, evaluator: Evaluator, notify: Callable[[str], None]) -> None:
        self.config = config
        self.evaluator = evaluator
        self.notify = notify
        self.flips_labels = config.sharpness_aware and optim.get(config.optimizer).flips_labels
        self.warmup_epochs = None if config.warmup == "auto" else config.warmup_epochs
        self.flip_ratio = None if config.flip_ratio == "auto" else config.flip_ratio
        self.noise_estimate: float | None = None

    @property
    def needs_train_accuracy(self) -> bool:
        """Whether the training split must be evaluated after the coming epoch."""
        return self.warmup_epochs is None and self.config.sharpness_aware

    def before_epoch(self, epoch: int, history: Sequence[Mapping[str, Any]], networks: Sequence[nn.Module]) -> None:
        """Decide what can be decided before `epoch`, the first of which is 1.

        Args:
            epoch: The coming epoch.
            history: Records of the epochs before it.
            networks: The method's models, which predict held-out samples to estimate the noise rate.
        """
        if not self.config.sharpness_aware:
            return
        if self.warmup_epochs is None:
            self._end_warmup(history)
        if self.warmup_epochs == epoch - 1 and self.flips_labels and self.flip_ratio is None:
            self._estimate_flip_ratio(networks)

    def apply(self, optimizer: SharpnessAware, steps_per_epoch: int) -> None:
        """Pass what is decided to an optimizer.

        Args:
            optimizer: The optimizer; its `warmup_steps` and `flip_ratio` are set.
            steps_per_epoch: Optimizer steps per epoch.
        """
        if self.warmup_epochs is not None:
            optimizer.warmup_steps = self.warmup_epochs * steps_per_epoch
        if self.flips_labels and self.flip_ratio is not None:
            optimizer.flip_ratio = self.flip_ratio  # type: ignore[attr-defined]

    def report_fit(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Say so if a perturbed run memorized nothing: it may also have learned too little.

        Args:
            history: Records up to the epoch whose weights are kept.
        """
        if not self.config.sharpness_aware or not history:
            return
        t, v = history[-1]["train_accuracy_observed"], history[-1]["val_accuracy"]
        if t is None or v is None or has_memorized(t / 100, v / 100, len(self.evaluator.held_out_labels)):
            return
        self.notify(
            f"no labels were memorized: accuracy {t:.1f} % on training labels, {v:.1f} % on held-out labels. If that "
            "is lower than expected, the perturbation may be too strong: compare with optimizer sgd"
        )

    def _end_warmup(self, history: Sequence[Mapping[str, Any]]) -> None:
        trained, held_out = (
            [record[name] / 100 for record in history] for name in ("train_accuracy_observed", "val_accuracy")
        )
        if is_memorizing(trained, held_out, len(self.evaluator.held_out_labels)):
            self.warmup_epochs = len(history)
            why = "training labels are fitted better than held-out labels"
            self.notify(f"warm-up ends after {self.warmup_epochs} epochs: {why}")

    def _estimate_flip_ratio(self, networks: Sequence[nn.Module]) -> None:
        """min(estimated noise rate, .4), from the predictions of the warmed-up model on held-out samples."""
        labels, probabilities = self.evaluator.out_of_sample(networks)
        self.noise_estimate = float(estimate_noise(labels, probabilities).rate)
        self.flip_ratio = min(self.noise_estimate, recipes.MAX_FLIP_RATIO.value)
        self.notify(
            f"after warm-up {100 * self.noise_estimate:.1f} % of the held-out labels look wrong to the model: "
            f"flip_ratio {self.flip_ratio:.3f}"
        )

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _DECISIONS}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned.

        Args:
            state: The decisions by name, possibly among other entries; missing ones stay as they are.

        Raises:
            UsageError: A decision has an invalid value.
        """
        for name, checked in _DECISIONS.items():
            decided = state.get(name, getattr(self, name))
            setattr(self, name, None if decided is None else checked(name, decided))


class Stages:
    """Which stage of a method an epoch belongs to. Epochs count from 1, stages from 0.

    Args:
        method: The learning method, which divides the epochs.
        epochs: Number of epochs of the run.

    Raises:
        UsageError: The stages of the method do not add up to the epochs.
    """

    def __init__(self, method: Method, epochs: int) -> None:
        self.stages = method.stages(epochs)
        lengths = [stage.epochs for stage in self.stages]
        if min(lengths, default=0) < 1 or sum(lengths) != epochs:
            raise bad_value("stages", lengths, f"numbers of epochs from 1 that add up to {epochs}")
        self.ends = list(accumulate(lengths))

    def __getitem__(self, number: int) -> Stage:
        return self.stages[number]

    def at(self, epoch: int) -> tuple[int, int]:
        """The number of the stage, and the epoch's number within it, from 1.

        Args:
            epoch: An epoch of the run, from 1.
        """
        number = next(number for number, end in enumerate(self.ends) if epoch <= end)
        return number, epoch - (self.ends[number] - self.stages[number].epochs)


class EarlyStopping:
    """Keeps the weights of the epoch with the highest validation accuracy, the first of equals.

    Args:
        patience: Epochs without a higher accuracy after which training ends; `None`: train to the end and keep the
            last weights.
        learners: The models and their optimizers.
        method: The learning method, whose state is kept with the weights.
    """

    def __init__(self, patience: int | None, learners: Sequence[Learner], method: Method) -> None:
        self.patience = patience
        self.learners = learners
        self.method = method
        self.best_epoch = 0
        self.best_accuracy = -1.0
        self._kept: dict[str, Any] | None = None

    def update(self, epoch: int, accuracy: float | None) -> None:
        """Take note of a finished epoch. Every rank must call it.

        Args:
            epoch: The finished epoch, from 1.
            accuracy: On validation labels, in percent; `None` if there are none.
        """
        if self.patience is None or accuracy is None or accuracy <= self.best_accuracy:
            return
        self.best_epoch, self.best_accuracy = epoch, accuracy
        networks = [copy.deepcopy(full_state(dict(learner.bare.state_dict()))) for learner in self.learners]
        self._kept = {"networks": networks, "method": copy.deepcopy(self.method.state_dict())}

    def is_over(self, epoch: int) -> bool:
        """Whether training ends after this epoch.

        Args:
            epoch: The finished epoch, from 1.
        """
        return self.patience is not None and 0 < self.best_epoch <= epoch - self.patience

    def restore(self) -> bool:
        """Put the kept weights back, if there are any."""
        if self._kept is None:
            return False
        for learner, network in zip(self.learners, self._kept["networks"], strict=True):
            load_network(learner.bare, network)
        self.method.load_state_dict(self._kept["method"])
        return True

    def state_dict(self) -> dict[str, Any]:
        return {"best_epoch": self.best_epoch, "best_accuracy": self.best_accuracy, "kept": self._kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned.

        Args:
            state: The best epoch, its accuracy and the kept weights.
        """
        self.best_epoch, self.best_accuracy = int(state["best_epoch"]), float(state["best_accuracy"])
        self._kept = state["kept"]


class Interpolation:
    r"""The model :math:`(1 - a) \theta_0 + a \theta` next to the weights :math:`\theta` that are trained.

    Args:
        networks: The models, with the weights :math:`\theta_0`.
        share: a, above 0 and at most 1; with 1 nothing is kept and nothing changes.
    """

    def __init__(self, networks: Sequence[nn.Module], share: float) -> None:
        self.networks = networks
        self.share = share
        self._start = [tensor.clone() for tensor in self._tensors()] if share < 1 else []

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The interpolated weights within the block, the trained ones after it."""
        if self.share == 1:
            yield
            return
        trained = [tensor.clone() for tensor in self._tensors()]
        self.apply()
        try:
            yield
        finally:
            for tensor, value in zip(self._tensors(), trained, strict=True):
                tensor.copy_(value)

    def apply(self) -> None:
        """Replace the trained weights by the interpolated ones."""
        if self.share < 1:
            for tensor, start in zip(self._tensors(), self._start, strict=True):
                tensor.copy_(torch.lerp(start, tensor, self.share))

    def _tensors(self) -> list[Tensor]:
        """Weights and statistics, of sharded ones the part of this rank."""
        every = [t.detach() for network in self.networks for t in (*network.parameters(), *network.buffers())]
        here = [t.to_local() if is_dtensor(t) else t for t in every]
        return [t for t in here if t.is_floating_point()]
