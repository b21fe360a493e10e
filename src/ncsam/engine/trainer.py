"""The training loop: epochs of steps, measurements after each, and a checkpoint of everything."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from ncsam._errors import bad_value
from ncsam.engine.checkpoint import load_checkpoint, save_checkpoint, to_stderr, what_is_left
from ncsam.engine.config import RunConfig
from ncsam.engine.context import MethodContext
from ncsam.engine.dynamics import Dynamics
from ncsam.engine.evaluate import Evaluator
from ncsam.engine.interrupt import Interrupt
from ncsam.engine.learner import Learner
from ncsam.engine.loggers import Logger, open_loggers
from ncsam.engine.metrics import EpochSums
from ncsam.engine.modes import train_mode
from ncsam.engine.network import create_network
from ncsam.engine.optimizers import learning_rate
from ncsam.engine.progress import Console
from ncsam.engine.samples import SampleTable
from ncsam.engine.schedule_control import Settling
from ncsam.engine.snapshot import restore_snapshot, take_snapshot
from ncsam.engine.stages import Stages
from ncsam.engine.task import Task, check_method, view_names
from ncsam.engine.verified import verdicts
from ncsam.errors import DivergedError, Interrupted
from ncsam.methods import Plan, State
from ncsam.methods import create as create_method
from ncsam.optim import NCSAM
from ncsam.runs import layout

if TYPE_CHECKING:
    from ncsam.engine.device import Device

_LOOK_EVERY = 50  # steps between looks at the loss on an accelerator, which would have to wait for it


class Trainer:
    """One run in one process (of one or more): its networks, its place in training, its history."""

    def __init__(self, fabric: Device, config: RunConfig, task: Task, folder: Path, console: bool) -> None:
        self.fabric = fabric
        self.config = config
        self.task = task
        self.folder = folder
        self.method = create_method(config.method, **config.method_options)
        check_method(self.method, task)
        assert config.batch_size is not None, "a settled configuration"
        if config.batch_size % fabric.world_size:
            raise bad_value(
                "batch_size", config.batch_size, f"a multiple of the {fabric.world_size} devices sharing it"
            )
        self.loader = task.loader(
            task.dataset.train,
            config,
            config.batch_size // fabric.world_size,
            views=view_names(config, self.method.views, task.modality),
            subset=task.train,
            device=fabric.device,
            rank=fabric.global_rank,
            world_size=fabric.world_size,
        )
        self.steps_per_epoch = len(self.loader)
        self.factor = learning_rate(config)
        self.stages = Stages(self.method, config.epochs)
        seed_all(config.seed)
        self.learners = [
            Learner(fabric, network, self.method, config, self.steps_per_epoch, number)
            for number, network in enumerate(self.method.build(self._create_network))
        ]
        self.networks: list[nn.Module] = [learner.network for learner in self.learners]
        seed_all(config.seed + fabric.global_rank)  # ranks draw different dropout masks
        split = task.dataset.train
        self.samples = SampleTable(len(split), fabric.device)
        self.dynamics = Dynamics(self.samples, task.dataset.num_classes)
        self.clean = None if split.clean is None else torch.from_numpy(split.clean.copy()).to(fabric.device)
        self.state = State(
            num_classes=task.dataset.num_classes,
            labels=torch.from_numpy(split.labels.copy()).to(fabric.device),
            epochs=config.epochs,
            steps_per_epoch=self.steps_per_epoch,
            samples=self.samples,
            seed=config.seed,
            noise_rate=config.rate,
            engine=MethodContext(self),
        )
        if len(task.train) < len(split):
            self.state.held_out = torch.ones(len(split), dtype=torch.bool, device=fabric.device)
            self.state.held_out[torch.from_numpy(task.train)] = False
        found, self.verified = verdicts(self.method, task, config.seed)
        self.state.verified = None if found is None else torch.from_numpy(found).to(fabric.device)
        self.method.on_train_start(self.state)
        self.evaluator = Evaluator(fabric, self.method, task, config, self.loader, self._no_predictions)
        shown = console and fabric.is_global_zero
        self.console = Console(shown, config.epochs, self.steps_per_epoch, str(fabric.device), task.modality.name)
        self.epoch = 0  # epochs that are finished
        self.batch = 0  # batches of the next one that are done
        self.history: list[dict[str, Any]] = []
        self.settling = Settling(config, self.evaluator, self.console)
        self.seconds = 0.0
        self._saved_at = self._save_seconds = 0.0
        self.sums = EpochSums(fabric.device)
        self.begin: Callable[[], None] = _nothing  # called when a first step has shown that the options are good
        self.before_writing: Callable[[], None] = _nothing  # raises if the run folder is gone

    def _create_network(self) -> nn.Module:
        return create_network(
            self.config, self.task.dataset.num_classes, self.task.original_modality.in_channels, pretrained=True
        )

    # --- training

    def fit(self) -> None:
        """Train from where the checkpoint stands to the end."""
        loggers = self._open_loggers()
        try:
            with Interrupt() as interrupt:
                while self.epoch < self.config.epochs:
                    self._epoch(interrupt, loggers)
            self.settling.note_what_was_fitted(self.history)
        finally:
            self.console.close()
            for logger in loggers:
                logger.close()

    def _open_loggers(self) -> list[Logger]:
        if not self.fabric.is_global_zero:
            return []
        return open_loggers(self.config.loggers, self.folder, self.config.to_dict(), self.history)

    def _epoch(self, interrupt: Interrupt, loggers: list[Logger]) -> None:
        began = time.perf_counter()
        epoch = self.epoch + 1
        self._begin_epoch(epoch)
        for number, batch in enumerate(self.loader.iterate(epoch, self.batch), self.batch):
            self._step(epoch, number, batch)
            if self._steps_done == 0:
                self.before_writing()
                self.begin()
            self.batch = number + 1
            self.console.step(epoch, self.batch)
            every = self.config.checkpoint_every
            if every and self._steps_done % every == 0 and self.batch < self.steps_per_epoch:
                self.sums.seconds += time.perf_counter() - began
                self.save()
                began = time.perf_counter()
            if interrupt.requested:
                self.sums.seconds += time.perf_counter() - began
                self._stop()
        train_seconds = self.sums.seconds + time.perf_counter() - began
        record = self._measured(epoch)
        total = self.sums.seconds + time.perf_counter() - began
        record |= {"seconds": total, "train_seconds": train_seconds}
        record["samples_per_second"] = len(self.task.train) / train_seconds
        record["noise_estimate"] = self.settling.noise_estimate
        record["telemetry"] = self.sums.telemetry()
        self.history.append(record)
        self.seconds += total
        self.epoch, self.batch = epoch, 0
        self.sums = EpochSums(self.fabric.device)
        self.before_writing()
        for logger in loggers:
            logger.log(record)
        self.console.epoch(record)
        if self._save_is_due():
            self.save()
        if interrupt.requested and self.epoch < self.config.epochs:
            self._stop()

    def _begin_epoch(self, epoch: int) -> None:
        self.state.epoch, self.state.batch = epoch, self.batch
        self.state.stage, self.state.stage_epoch = self.stages.at(epoch)
        stage = self.stages[self.state.stage]
        self.state.lr = self.config.lr * self._factor()
        if self.batch == 0:
            if self.state.stage_epoch == 1 and self.state.stage > 0:
                self._begin_stage(fresh=stage.fresh)
            train_mode(self.networks, frozen_norms=stage.frozen_norms)
            self.method.on_epoch_start(self.networks, self.state)
            self.settling.before_epoch(epoch, self.history, self.networks)
        for learner in self.learners:
            if (optimizer := learner.sharpness_aware) is not None:
                optimizer.progress = epoch / self.config.epochs  # t = e / T, the paper's
                self.settling.apply(optimizer, self.steps_per_epoch)
        train_mode(self.networks, frozen_norms=stage.frozen_norms)

    def _begin_stage(self, *, fresh: bool) -> None:
        networks: Sequence[nn.Module | None] = [None] * len(self.learners)
        if fresh:
            seed_all(self.config.seed + 2**20 * self.state.stage)
            networks = self.method.build(self._create_network)
            seed_all(self.config.seed + 2**20 * self.state.stage + self.fabric.global_rank)
        for learner, network in zip(self.learners, networks, strict=True):
            learner.restart(network)

    def _factor(self) -> float:
        """Of the learning rate at this batch: by the share of the stage that is done."""
        stage = self.stages[self.state.stage]
        done = (self.state.stage_epoch - 1) * self.steps_per_epoch + self.state.batch
        return stage.lr * self.factor(done / (stage.epochs * self.steps_per_epoch))

    def _step(self, epoch: int, number: int, batch: Any) -> None:
        self.state.batch = number
        factor = self._factor()
        self.state.lr = self.config.lr * factor
        with torch.no_grad():
            plans = self.method.plan(batch, self.networks, self.state)
        for learner, plan in zip(self.learners, plans, strict=True):
            learner.set_lr(factor)
            known = self.clean is not None and plan.index is not None
            loss = learner.step(plan, self.clean[plan.index] if known and self.clean is not None else None)
            self.sums.add_loss(loss, len(batch) / len(plans))
            self._note(learner, plan)
        self.method.on_step_end(self.networks, self.state)
        if self.fabric.device.type == "cpu" or number % _LOOK_EVERY == 0:
            self._check_loss(epoch, number)

    def _note(self, learner: Learner, plan: Plan) -> None:
        """Telemetry of a measured step, and who was flipped in any."""
        optimizer = learner.sharpness_aware
        if optimizer is None:
            return
        every = optimizer.telemetry_every
        if every and (optimizer.steps - 1) % every == 0 and optimizer.last_step is not None:
            self.sums.add_telemetry(optimizer.last_step.as_dict())
        if isinstance(optimizer, NCSAM) and plan.index is not None and (flips := optimizer.last_flips) is not None:
            self.samples.add("times_flipped", plan.index[flips.index.to(plan.index.device)], 1)

    # --- after an epoch

    def _measured(self, epoch: int) -> dict[str, Any]:
        self._check_loss(epoch, self.steps_per_epoch - 1)
        self._check_weights()
        self.samples.synchronize()
        for learner in self.learners:
            learner.share_buffers()
        accuracies, on_train = self.evaluator.measure(
            self.networks, epoch, self.dynamics.keeps_probabilities, watched=self.settling.watches
        )
        for learner in self.learners:
            if accuracies["val_loss"] is not None and (optimizer := learner.sharpness_aware) is not None:
                optimizer.report_val_loss(accuracies["val_loss"])
        if on_train is not None:
            self.dynamics.update(on_train, self.task.dataset.train.labels, epoch)
        return {"epoch": epoch, "train_loss": self.sums.mean_loss(), **accuracies, "lr": self.learners[0].lr}

    def _check_loss(self, epoch: int, number: int) -> None:
        loss = float(self.sums.loss)
        if not math.isfinite(loss):
            raise self._diverged(f"the loss is not finite ({loss}) at epoch {epoch}, batch {number + 1}")

    def _check_weights(self) -> None:
        if not all(learner.is_finite() for learner in self.learners):
            raise self._diverged(f"the weights are not finite after {self.batch} batches of epoch {self.epoch + 1}")

    def _no_predictions(self) -> DivergedError:
        epoch = min(self.epoch + 1, self.config.epochs)
        return self._diverged(f"the predictions of the network are not finite in epoch {epoch}")

    def _diverged(self, what: str) -> DivergedError:
        left = what_is_left(self.folder / layout.CHECKPOINTS)  # the run's own, and not those of a folder around it
        return DivergedError(f"{what}: training diverged. Try a smaller lr (now {self.config.lr}). {left}")

    # --- the place in training

    @property
    def _steps_done(self) -> int:
        return self.epoch * self.steps_per_epoch + self.batch

    def _stop(self) -> None:
        if self.fabric.world_size == 1:  # ranks are interrupted at different steps: their last common one is on disk
            self.save()
        raise Interrupted(
            f"interrupted in epoch {min(self.epoch + 1, self.config.epochs)} of {self.config.epochs}; "
            "the same command goes on from here"
        )

    def _save_is_due(self) -> bool:
        """Whether to write a checkpoint after an epoch: always, unless epochs are so short that it would slow them.

        Then the next one waits until saving takes a twentieth of the time. What is lost by a kill is computed again to
        the same bits. Ranks would not agree on the time, so with several every epoch counts.
        """
        if self.config.checkpoint_every or self.fabric.world_size > 1 or self.epoch == self.config.epochs:
            return True
        return time.perf_counter() - self._saved_at >= 20 * self._save_seconds

    def save(self) -> None:
        """Write the checkpoint. Every rank must call it."""
        began = time.perf_counter()
        self._check_weights()
        self.samples.synchronize()
        taken = take_snapshot(self)
        if self.fabric.is_global_zero:
            self.before_writing()
            save_checkpoint(self.folder / layout.CHECKPOINTS, *taken)
        self._saved_at = time.perf_counter()
        self._save_seconds = self._saved_at - began

    def resume(self) -> bool:
        """Go to where the checkpoint stands, if there is one."""
        say = to_stderr if self.fabric.is_global_zero else _nothing
        state = load_checkpoint(self.folder / layout.CHECKPOINTS, say)
        if state is not None:
            restore_snapshot(self, state)
        return state is not None


def _nothing(*_: Any) -> None:
    pass


def seed_all(seed: int) -> None:
    """Seed the global generators of torch, numpy and Python."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - code we call may use it
    random.seed(seed)
