"""The training loop: epochs of steps, and the measurements after each. It reports to `sinks` and writes no files."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ncsam._arguments import is_reference
from ncsam._errors import bad_value
from ncsam.engine.backbone import fit_head
from ncsam.engine.checkpoint import seed_all
from ncsam.engine.config import IN_MEMORY, ResolvedConfig
from ncsam.engine.device import set_precision
from ncsam.engine.evaluate import Evaluator, MethodContext, verdicts
from ncsam.engine.fitted_run import wrong_label_probabilities
from ncsam.engine.given_model import check_outputs
from ncsam.engine.label_issues import Dynamics, SampleTable
from ncsam.engine.learner import Learner, create_network, train_mode
from ncsam.engine.metrics import EpochSums
from ncsam.engine.optimizers import learning_rate
from ncsam.engine.schedule_control import EarlyStopping, Interpolation, ScheduleController, Stages
from ncsam.engine.sinks import Interrupt
from ncsam.engine.task import Task, check_method, view_names
from ncsam.errors import DivergedError, Interrupted
from ncsam.methods import Method, Plan, State
from ncsam.methods import create as create_method
from ncsam.models.backbone import is_convolutional
from ncsam.optim import WeightedSAM
from ncsam.pretrained.hub import PREFIX

if TYPE_CHECKING:
    from ncsam.engine.device import Device
    from ncsam.engine.sinks import Sink

_STATISTICS_BATCHES = 2  # for BatchNorm, after an epoch of an optimizer that evaluates at moved weights alone
_CHECK_EVERY = 50  # steps between checks of the loss on an accelerator, which would have to wait for it


class Trainer:
    """One run in one process (of one or more): its models, its position in training, its history.

    Args:
        device: From `ncsam.engine.device.choose_device`.
        config: From `ncsam.engine.resolve.resolve`.
        task: The data, from `ncsam.engine.task.load_task`.
        create: Builds a model in place of `config.model`.

    Attributes:
        epoch: Finished epochs.
        batch: Finished batches of the next epoch.
        history: One record of metrics per finished epoch.
        method: The learning method.
        networks: The method's models, as training calls them.

    Examples:
        >>> from ncsam.engine import RunConfig
        >>> from ncsam.engine.device import choose_device
        >>> from ncsam.engine.resolve import resolve
        >>> from ncsam.engine.task import load_task
        >>> config = RunConfig(data="digits", epochs=1, lr=0.05)
        >>> task = load_task(config)
        >>> trainer = Trainer(choose_device(config), resolve(config, task), task)
        >>> trainer.fit()
        >>> trainer.history[0]["test_accuracy"] > 50
        True
    """

    def __init__(
        self, device: Device, config: ResolvedConfig, task: Task, create: Callable[[], nn.Module] | None = None
    ) -> None:
        set_precision(device, config.precision)
        self.fabric = device
        self.config = config
        self.task = task
        self._given = create or self._create_named
        self.method = create_method(config.method, **config.method_options)
        check_method(self.method, task)
        if config.batch_size % device.world_size:
            raise bad_value(
                "batch_size", config.batch_size, f"a multiple of the {device.world_size} devices sharing it"
            )
        seed_all(config.seed)
        networks = self._build()
        self.loader = task.loader(
            task.dataset.train,
            config,
            config.batch_size // device.world_size,
            views=view_names(config, self.method.views, task.modality),
            subset=task.train,
            device=device.device,
            rank=device.global_rank,
            world_size=device.world_size,
            channels_last=any(map(is_convolutional, networks)),
            by_length=config.model.startswith(PREFIX),
        )
        self.steps_per_epoch = len(self.loader)
        self.schedule = learning_rate(config)
        self.stages = Stages(self.method, config.epochs)
        self.learners = [
            Learner(device, network, self.method, config, self.steps_per_epoch, number)
            for number, network in enumerate(networks)
        ]
        self.networks: list[nn.Module] = [learner.network for learner in self.learners]
        self.interpolation = Interpolation([learner.bare for learner in self.learners], config.interpolation)
        seed_all(config.seed + device.global_rank)  # ranks draw different dropout masks
        split = task.dataset.train
        self.samples = SampleTable(len(split), device.device)
        self.dynamics = Dynamics(self.samples, task.dataset.num_classes)
        self.p_wrong: Tensor | None = None
        if any(isinstance(learner.optimizer, WeightedSAM) for learner in self.learners):
            self.p_wrong = wrong_label_probabilities(config, task).to(device.device)
        self.clean = None if split.clean is None else torch.from_numpy(split.clean.copy()).to(device.device)
        self.evaluator = Evaluator(device, self.method, task, config, self.loader, self._no_predictions)
        self.state = State(
            num_classes=task.dataset.num_classes,
            labels=torch.from_numpy(split.labels.copy()).to(device.device),
            epochs=config.epochs,
            steps_per_epoch=self.steps_per_epoch,
            samples=self.samples,
            seed=config.seed,
            noise_rate=config.rate,
        )
        self.state.engine = MethodContext(
            device, config, task.modality, self.loader, self.evaluator, self.learners, self.state
        )
        if len(task.train) < len(split):
            self.state.held_out = torch.ones(len(split), dtype=torch.bool, device=device.device)
            self.state.held_out[torch.from_numpy(task.train)] = False
        found, self.verified = verdicts(self.method, task, config.seed)
        self.state.verified = None if found is None else torch.from_numpy(found).to(device.device)
        self.method.on_train_start(self.state)
        self.stopping = EarlyStopping(config.patience, self.learners, self.method)
        self.control = ScheduleController(config, self.evaluator, self.notify)
        self.sinks: Sequence[Sink] = ()
        self.epoch = self.batch = 0
        self.history: list[dict[str, Any]] = []
        self.seconds = 0.0
        self.sums = EpochSums(device.device)

    def _create(self) -> nn.Module:
        """One model; one from elsewhere is tried on two samples."""
        network = self._given()
        if self.config.model == IN_MEMORY or is_reference(self.config.model):
            check_outputs(network, self.task.modality, self.task.dataset.num_classes)
        return network

    def _create_named(self) -> nn.Module:
        return create_network(
            self.config, self.task.dataset.num_classes, self.task.original_modality.in_channels, pretrained=True
        )

    def _with_fitted_head(self) -> nn.Module:
        split, device = self.task.dataset.train, self.fabric.device
        loader = self.task.loader(split, self.config, self.config.batch_size, subset=self.task.train, device=device)
        labels = torch.from_numpy(split.labels[self.task.train])
        return fit_head(self._create(), loader.evaluation(), labels, device)

    def _build(self) -> list[nn.Module]:
        """The method's models."""
        return self.method.build(self._with_fitted_head if self.config.head_init == "lda" else self._create)

    # --- training

    def fit(self, *sinks: Sink) -> None:
        """Train from the current position to the last epoch.

        Args:
            *sinks: Receive steps, epochs and messages, in this order; see `ncsam.engine.sinks`.

        Raises:
            DivergedError: The loss, the weights or the predictions are not finite.
            Interrupted: Ctrl-C or a request to terminate; the current step is finished first.
        """
        self.sinks = sinks
        try:
            for sink in sinks:
                sink.on_train_start(self)
            with Interrupt() as interrupt:
                while not self.is_finished:
                    self.train_epoch(interrupt)
            if self.kept_epoch < self.epoch:
                self.notify(
                    f"epoch {self.kept_epoch} had the highest accuracy on validation labels: its weights are kept"
                )
            self.control.report_fit(self.history[: self.kept_epoch])
        finally:
            for sink in sinks:
                sink.close()

    def train_epoch(self, interrupt: Interrupt | None = None) -> dict[str, Any]:
        """Train the next epoch, or the rest of it; its record of metrics.

        Args:
            interrupt: Checked after every step; `None` to train the epoch to its end.

        Raises:
            DivergedError: The loss, the weights or the predictions are not finite.
            Interrupted: An interrupt was requested; the current step is finished first.
        """
        began = time.perf_counter()
        epoch = self.epoch + 1
        self._begin_epoch(epoch)
        for number, batch in enumerate(self.loader.iterate(epoch, self.batch), self.batch):
            self._step(epoch, number, batch)
            self.batch = number + 1
            self.sums.seconds += time.perf_counter() - began
            for sink in self.sinks:
                sink.on_step_end(self)
            if interrupt is not None and interrupt.requested:
                self._stop()
            began = time.perf_counter()
        train_seconds = self.sums.seconds
        with self.interpolation.applied():
            record = self._measure(epoch)
            if self.state.stage == len(self.stages.stages) - 1:  # the last: before, a method's model is not whole
                self.stopping.update(epoch, record["val_accuracy"])
        total = train_seconds + time.perf_counter() - began
        record |= {"seconds": total, "train_seconds": train_seconds}
        record["samples_per_second"] = len(self.task.train) / train_seconds
        record["noise_estimate"] = self.control.noise_estimate
        record["telemetry"] = self.sums.telemetry()
        self.history.append(record)
        self.seconds += total
        self.epoch, self.batch = epoch, 0
        if self.is_finished and not self.stopping.restore():  # before the checkpoint is written
            self.interpolation.apply()
        self.sums = EpochSums(self.fabric.device)
        for sink in self.sinks:
            sink.on_epoch_end(self, record)
        if interrupt is not None and interrupt.requested and not self.is_finished:
            self._stop()
        return record

    @property
    def is_finished(self) -> bool:
        return self.epoch >= self.config.epochs or self.stopping.is_over(self.epoch)

    @property
    def kept_epoch(self) -> int:
        """The epoch whose weights the finished run has: the last, or the best by `patience`."""
        return self.stopping.best_epoch or self.epoch

    @property
    def steps_done(self) -> int:
        return self.epoch * self.steps_per_epoch + self.batch

    def notify(self, text: str) -> None:
        """Send a sentence to the sinks.

        Args:
            text: The sentence.
        """
        for sink in self.sinks:
            sink.on_message(text)

    def _stop(self) -> None:
        for sink in self.sinks:
            sink.on_interrupt(self)
        raise Interrupted(f"interrupted in epoch {min(self.epoch + 1, self.config.epochs)} of {self.config.epochs}")

    def _begin_epoch(self, epoch: int) -> None:
        self.state.epoch, self.state.batch = epoch, self.batch
        self.state.stage, self.state.stage_epoch = self.stages.at(epoch)
        stage = self.stages[self.state.stage]
        self.state.lr = self.config.lr * self._lr_factor()
        if self.batch == 0:
            if self.state.stage_epoch == 1 and self.state.stage > 0:
                self._begin_stage(fresh=stage.fresh)
            train_mode(self.networks, frozen_norms=stage.frozen_norms)
            self.method.on_epoch_start(self.networks, self.state)
            self.control.before_epoch(epoch, self.history, self.networks)
        for learner in self.learners:
            if (optimizer := learner.sharpness_aware) is not None:
                optimizer.progress = epoch / self.config.epochs  # t = e / T in the paper
                self.control.apply(optimizer, self.steps_per_epoch)
        train_mode(self.networks, frozen_norms=stage.frozen_norms)

    def _begin_stage(self, *, fresh: bool) -> None:
        networks: Sequence[nn.Module | None] = [None] * len(self.learners)
        if fresh:
            seed_all(self.config.seed + 2**20 * self.state.stage)
            networks = self._build()
            seed_all(self.config.seed + 2**20 * self.state.stage + self.fabric.global_rank)
        for learner, network in zip(self.learners, networks, strict=True):
            learner.restart(network)

    def _lr_factor(self) -> float:
        """Factor of the learning rate at this batch, by the completed share of the stage."""
        stage = self.stages[self.state.stage]
        done = (self.state.stage_epoch - 1) * self.steps_per_epoch + self.state.batch
        return stage.lr * self.schedule(done / (stage.epochs * self.steps_per_epoch))

    def _step(self, epoch: int, number: int, batch: Any) -> None:
        self.state.batch = number
        factor = self._lr_factor()
        self.state.lr = self.config.lr * factor
        with torch.no_grad():
            plans = self.method.plan(batch, self.networks, self.state)
        for learner, plan in zip(self.learners, plans, strict=True):
            learner.set_lr(factor)
            if self.p_wrong is not None and isinstance(learner.optimizer, WeightedSAM):
                learner.optimizer.p_wrong = None if plan.index is None else self.p_wrong[plan.index]
            loss = learner.step(plan, self._clean_targets(learner, plan))
            self.sums.add_loss(loss, len(batch) / len(plans))
            self._record_step(learner, plan)
        self.method.on_step_end(self.networks, self.state)
        if self.fabric.device.type == "cpu" or number % _CHECK_EVERY == 0:
            self._check_loss(epoch, number)

    def _clean_targets(self, learner: Learner, plan: Plan) -> Tensor | None:
        """The clean labels of a step, for the telemetry of a sharpness-aware optimizer alone."""
        if self.clean is None or plan.index is None or learner.sharpness_aware is None:
            return None
        return self.clean.index_select(0, plan.index)

    def _record_step(self, learner: Learner, plan: Plan) -> None:
        """The telemetry of a measured step, and which samples were flipped."""
        optimizer = learner.sharpness_aware
        if optimizer is None:
            return
        every = optimizer.telemetry_every
        if every and (optimizer.steps - 1) % every == 0 and optimizer.last_step is not None:
            self.sums.add_telemetry(optimizer.last_step.as_dict())
        flips = getattr(optimizer, "last_flips", None) if optimizer.flips_labels else None
        if flips is not None and plan.index is not None:
            self.samples.add("times_flipped", plan.index[flips.index.to(plan.index.device)], 1)

    # --- after an epoch

    def _measure(self, epoch: int) -> dict[str, Any]:
        self._check_loss(epoch, self.steps_per_epoch - 1)
        self.check_weights()
        self.samples.synchronize()
        for learner in self.learners:
            if learner.sharpness_aware is not None and learner.sharpness_aware.moves_first:
                self._collect_statistics(learner, epoch)
            learner.share_buffers()
        accuracies, on_train = self.evaluator.measure(
            self.networks, epoch, self.dynamics.keeps_probabilities, on_train=self.control.needs_train_accuracy
        )
        for learner in self.learners:
            if accuracies["val_loss"] is not None and (optimizer := learner.sharpness_aware) is not None:
                optimizer.report_val_loss(accuracies["val_loss"])
        if on_train is not None:
            self.dynamics.update(on_train, self.task.dataset.train.labels, epoch)
        return {"epoch": epoch, "train_loss": self.sums.mean_loss(), **accuracies, "lr": self.learners[0].lr}

    def _collect_statistics(self, learner: Learner, epoch: int) -> None:
        """Replace BatchNorm's statistics, which training collected at moved weights, by those of a few batches at w."""
        from torch.optim.swa_utils import update_bn

        batches = itertools.islice(self.loader.iterate(epoch, 0), _STATISTICS_BATCHES)
        update_bn(((batch.views[0],) for batch in batches), learner.network)

    def measure_training_split(self) -> None:
        """Evaluate the training split after the last epoch, where no epoch did: label issues need it."""
        found = self.evaluator.predict(self.networks, self.evaluator.train, self.dynamics.keeps_probabilities)
        self.history[-1] |= self.evaluator.on_training_split(found)
        self.dynamics.update(found, self.task.dataset.train.labels, self.epoch)

    def _check_loss(self, epoch: int, number: int) -> None:
        loss = float(self.sums.loss)
        if not math.isfinite(loss):
            raise self._diverged(f"the loss is not finite ({loss}) at epoch {epoch}, batch {number + 1}")

    def check_weights(self) -> None:
        """Raise `DivergedError` if a weight is not finite."""
        if not all(learner.is_finite() for learner in self.learners):
            raise self._diverged(f"the weights are not finite after {self.batch} batches of epoch {self.epoch + 1}")

    def _no_predictions(self) -> DivergedError:
        epoch = min(self.epoch + 1, self.config.epochs)
        return self._diverged(f"the predictions of the model are not finite in epoch {epoch}")

    def _diverged(self, what: str) -> DivergedError:
        return DivergedError(f"{what}: training diverged. Try a smaller lr (now {self.config.lr})")

    # --- the result

    @property
    def result(self) -> tuple[Method, list[nn.Module]]:
        """The method as training left it, and its models without wrappers for devices and ranks."""
        return self.method, [learner.bare for learner in self.learners]
