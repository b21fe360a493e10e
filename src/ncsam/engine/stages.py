"""The stages of a run, as its method wants them."""

from __future__ import annotations

from itertools import accumulate

from ncsam._errors import bad_value
from ncsam.methods import Method, Stage


class Stages:
    """Which stage an epoch belongs to. Epochs are counted from 1, stages from 0."""

    def __init__(self, method: Method, epochs: int) -> None:
        self.stages = method.stages(epochs)
        lengths = [stage.epochs for stage in self.stages]
        if min(lengths, default=0) < 1 or sum(lengths) != epochs:
            raise bad_value("stages", lengths, f"whole numbers of epochs from 1 that add up to {epochs}")
        self.ends = list(accumulate(lengths))

    def __getitem__(self, number: int) -> Stage:
        return self.stages[number]

    def at(self, epoch: int) -> tuple[int, int]:
        """The number of the stage, and the epoch's own number in it, from 1."""
        number = next(number for number, end in enumerate(self.ends) if epoch <= end)
        return number, epoch - (self.ends[number] - self.stages[number].epochs)
