"""What one step collects, from its first backward at w to the update; each step has its own."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ncsam.optim.flipping import StepFlips
from ncsam.optim.radius import Radius
from ncsam.vectors.arithmetic import all_agree, average_over_ranks, cosine, is_sharded, scale_, sum_over_ranks
from ncsam.vectors.saved import SavedWeights, submodules


@dataclass
class StepReport:
    """The last step in numbers. `None` where a quantity does not apply, or was not measured at this step.

    Always filled: `step` (counted from 1), `phase` ("base", "looksam" or a variant's name: what was done), `rho`,
    `progress` t and `strength` s(t). The rest is measured every `telemetry_every` steps, because each of them
    costs a reduction over all gradients. With `adaptive`, `cos_sam` and `perturbation_norm` are of T^-1 eps, in the
    coordinates in which ASAM's ball is round; `cos_clean` and `cos_clean_sam` are of eps itself.
    """

    step: int
    phase: str
    rho: float
    progress: float | None = None
    #: With an adaptive radius: the relative loss increase caused by the perturbations before this one.
    relative_loss_increase: float | None = None
    strength: float | None = None
    #: ||g_B||, the gradient of the mini-batch.
    grad_norm: float | None = None
    #: ||g*||, the gradient of the flipped samples.
    noise_grad_norm: float | None = None
    #: cos(g_B, g*).
    cos_grad_noise: float | None = None
    #: s ||g*|| / rho: above one, the compensation outweighs SAM's own perturbation.
    compensation_ratio: float | None = None
    #: cos(eps_SAM, eps).
    cos_sam: float | None = None
    #: ||eps||, and whether the projection onto the ball shortened it.
    perturbation_norm: float | None = None
    projected: bool | None = None
    #: Number of flipped samples, and the share of them that were truly mislabeled (with `clean_targets`).
    flipped: int | None = None
    flipped_mislabeled: float | None = None
    #: cos(eps, g_clean), g_clean over the samples whose observed label is right (with `clean_targets`).
    cos_clean: float | None = None
    #: cos(eps_SAM, g_clean): what SAM itself would have had.
    cos_clean_sam: float | None = None

    def note_flips(self, flips: StepFlips) -> None:
        """How many samples were flipped, and how many of them were mislabeled, where that is known.

        Args:
            flips: The flips of the step, all micro-batches drawn.
        """
        self.flipped = flips.flipped or None
        self.flipped_mislabeled = flips.mislabeled_share()

    def as_dict(self) -> dict[str, float | int | str | bool]:
        """The quantities that were measured, for a logger."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class MicroBatch(NamedTuple):
    """What a backward at w is given."""

    loss: Tensor
    logits: Tensor | None = None
    targets: Tensor | None = None
    clean_targets: Tensor | None = None
    #: Summed loss and number of the correctly labeled samples, where telemetry asks for their gradient.
    clean: tuple[Tensor, int] | None = None


@dataclass
class Move:
    """Where the next pass is evaluated: at w + scale * directions.

    Attributes:
        params: The parameters that move.
        directions: One direction for each of them; the list is emptied when the weights have moved.
        scale: One factor for all directions, or one for each.
    """

    params: list[Tensor]
    directions: list[Tensor]
    scale: float | Sequence[float]

    @classmethod
    def nowhere(cls) -> Move:
        """Stay at w, for a pass whose gradient is that of w."""
        return cls([], [], 0.0)


class Step:
    """One step: its radius, its parameters and ranks, the gradients taken so far, and its report.

    Attributes:
        params: The parameters that the optimizer trains.
        report: The step in numbers; `rho` is the radius, with several groups the largest.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        modules: Iterable[nn.Module],
        weights: SavedWeights,
        report: StepReport,
        measured: bool,
        synced_group: dist.ProcessGroup | None,
        local_group: dist.ProcessGroup | None,
        radius: Radius,
        groups: Sequence[Mapping[str, Any]],
    ) -> None:
        self.params = params
        self._radius = radius
        self._groups = groups
        self._unperturbed = {p for group in groups if not group["rho"] for p in group["params"]}
        self._modules = modules
        self.report = report
        #: Whether telemetry is due.
        self.measured = measured
        #: The ranks whose samples count as one batch.
        self.synced_group = synced_group
        #: The ranks that perturb each on its own, and must agree before they do.
        self.local_group = local_group
        self.micro_batches = 0
        self.loss_scale = 1.0
        #: Whether a GradScaler scales the loss.
        self.scaled = False
        #: Whether a norm forbade the perturbation.
        self.refused = False
        self._weights = weights
        self._sides: dict[str, SideGradient] = {}
        self._run: Callable[..., None]

    @functools.cached_property
    def others(self) -> list[Tensor]:
        """Parameters of the model that the optimizer does not own."""
        own = set(map(id, self.params))
        every = (p for module in submodules(self._modules) for p in module._parameters.values())
        return [p for p in every if p is not None and p.requires_grad and id(p) not in own]

    @functools.cached_property
    def flips(self) -> StepFlips:
        """The labels that are flipped in this step, for optimizers that flip some."""
        return StepFlips()

    @property
    def rho(self) -> float:
        """The radius of the step; with several groups the largest."""
        return self.report.rho

    def fit_radius(self, norm: float) -> None:
        """Set a radius that depends on the norm of the step's gradient (in the units of the scaled loss).

        Args:
            norm: The norm; 0 and values that are not finite leave the radius as it is.
        """
        if math.isfinite(norm) and norm > 0:
            rho = self._radius.at_norm(norm / self.loss_scale)
            self.report.rho = self.report.rho if rho is None else rho

    def relative(self, name: str, params: Sequence[Tensor]) -> list[float] | None:
        """A setting of each parameter's group, relative to the largest; `None` where all groups agree.

        Args:
            name: A setting in `param_groups`, such as "rho" or "kappa".
            params: The parameters asked for.

        Returns:
            A factor in [0, 1] for each of them, or `None`.
        """
        values = [float(group[name]) for group in self._groups]
        if all(value == values[0] for value in values):
            return None
        largest = max(values)
        of = {p: v / largest for group, v in zip(self._groups, values, strict=True) for p in group["params"]}
        return [of[p] for p in params]

    def scaled_by_radius(self, params: Sequence[Tensor], scale: float) -> float | list[float]:
        """A factor for the directions of these parameters, each by the radius of its group.

        Args:
            params: The parameters that will move.
            scale: The factor in groups with the largest radius.

        Returns:
            `scale` itself where all groups have one radius, else a factor for each parameter.
        """
        relative = self.relative("rho", params)
        return scale if relative is None else [scale * factor for factor in relative]

    def begin_micro_batch(self, run: Callable[..., None], loss_scale: float, scaled: bool) -> None:
        """Take the backward of the coming micro-batch, which `collect` and `add_side_gradient` run.

        Args:
            run: Called with a loss and `retain_graph`.
            loss_scale: The factor by which `run` multiplies the loss.
            scaled: Whether that factor is an enabled `GradScaler`'s.
        """
        self.micro_batches += 1
        self._run, self.loss_scale, self.scaled = run, loss_scale, scaled

    def collect(self, loss: Tensor, batch: MicroBatch, keep_graph: bool = False) -> None:
        """Backward of a loss into `.grad`, and of the batch's correctly labeled part aside.

        Args:
            loss: What is differentiated, usually the loss of the batch.
            batch: The micro-batch; `batch.clean` is its correctly labeled part, where telemetry is due.
            keep_graph: Whether another backward follows.
        """
        self._run(loss, retain_graph=keep_graph or batch.clean is not None)
        if batch.clean is not None:
            self.add_side_gradient("clean", *batch.clean, keep_graph=keep_graph)

    def add_side_gradient(self, name: str, loss: Tensor | None, samples: int, keep_graph: bool = False) -> None:
        """Add the gradient of a loss, summed over so many samples of all ranks, to one kept apart from `.grad`.

        Args:
            name: Of the side gradient.
            loss: The sum over this rank's samples; `None` where it has none.
            samples: Their number over all ranks.
            keep_graph: Whether another backward follows.
        """
        side = self._sides.setdefault(name, SideGradient())
        side.add(loss, samples, self.params, self.others, lambda value: self._run(value, retain_graph=keep_graph))

    def side_gradient(self, name: str, params: Sequence[Tensor]) -> tuple[list[Tensor], float] | None:
        """Take the mean gradient as (sum, factor), or `None` if no sample was added.

        Args:
            name: As given to `add_side_gradient`.
            params: The parameters whose gradients are returned; zeros where there is none.

        Returns:
            One tensor per parameter, and the factor that makes their sum the mean of the unscaled loss.
        """
        side = self._sides.pop(name, None)
        if side is None or side.samples == 0:
            return None
        sums, factor = side.take(params, self.synced_group)
        return sums, factor / (side.samples * self.loss_scale)

    def gradients(self) -> tuple[list[Tensor], list[Tensor]]:
        """The parameters that have a gradient by now, and their gradients."""
        params = [p for p in self.params if p.grad is not None]
        return params, [p.grad for p in params if p.grad is not None]

    def directions(self) -> tuple[list[Tensor], list[Tensor]]:
        """The parameters to perturb, in groups with a radius above 0, and their gradients."""
        params = self.perturbed([p for p in self.params if p.grad is not None])
        return params, [p.grad for p in params if p.grad is not None]

    def perturbed(self, params: list[Tensor]) -> list[Tensor]:
        """Those of the parameters that are in groups with a radius above 0.

        Args:
            params: Parameters of the optimizer.
        """
        return [p for p in params if p not in self._unperturbed] if self._unperturbed else params

    def magnitudes(self, params: Sequence[Tensor], eta: float | None) -> list[Tensor] | None:
        """ASAM's T of each parameter, in scratch space that is free until the weights move.

        Args:
            params: The parameters.
            eta: T = |w| + eta in groups that are `adaptive`, and 1 in others. `None`: no group is.
        """
        if eta is None:
            return None
        adaptive = self.relative("adaptive", params) if "adaptive" in self._groups[0] else None
        return self._weights.magnitudes(params, eta, adaptive)

    def may_perturb(self, *norms: float) -> bool:
        """Whether all norms, on all ranks that perturb on their own, allow a perturbation; noted if not.

        Args:
            *norms: Lengths that must be finite and above 0, such as that of the gradient.
        """
        usable = all(math.isfinite(norm) and norm > 0 for norm in norms)
        if all_agree(usable, self.params[0].device, self.local_group):
            return True
        self.refused = True
        if self.scaled and not all(map(math.isfinite, norms)):
            scale_(self.gradients()[1], math.inf)  # the scaler must see the overflow, to skip the step and back off
        self.average_if_local()
        return False

    def average_if_local(self) -> None:
        """Average the gradients at w over ranks that perturb on their own, where no pass follows that does so."""
        if self.local_group is not None:
            average_over_ranks(self.gradients()[1], self.local_group)

    def cosine_with_clean(self, params: Sequence[Tensor], directions: Sequence[Tensor]) -> float | None:
        """cos(directions, g_clean), where telemetry asked for that gradient.

        Args:
            params: The parameters that will move.
            directions: One for each of them.

        Returns:
            The cosine, or `None` where that gradient was not taken.
        """
        clean = self.side_gradient("clean", params)
        return None if clean is None else cosine(directions, clean[0])


class SideGradient:
    """Sum over some samples of their loss gradient, over micro-batches and ranks.

    The mean is `factor` times the sum: the division by the number of samples, the loss scale and the ranks is left
    to whoever scales the vector anyway, so that it costs no pass over memory.
    """

    def __init__(self) -> None:
        self._sums: dict[Tensor, Tensor] = {}
        self.samples = 0

    def add(
        self,
        loss: Tensor | None,
        samples: int,
        params: Sequence[Tensor],
        others: Sequence[Tensor],
        backward: Callable[[Tensor], None],
    ) -> None:
        """Add the gradient of `loss`, a sum over `samples` samples of all ranks, with respect to `params`.

        `others` are parameters that the graph reaches but the optimizer does not own; their gradients are kept clean.

        Args:
            loss: The sum over this rank's samples; `None` where it has none.
            samples: Their number over all ranks.
            params: The parameters that the optimizer trains.
            others: Trainable parameters of the model that it does not own.
            backward: Runs the backward of a loss into `.grad`.
        """
        self.samples += samples
        if loss is None:
            return
        with gradients_aside([*params, *others]):
            for p in params:
                p.grad = self._sums.get(p)
            backward(loss)
            self._sums = {p: p.grad for p in params if p.grad is not None}

    def take(self, params: Sequence[Tensor], group: dist.ProcessGroup | None) -> tuple[list[Tensor], float]:
        """The summed gradient of each of `params`, and the factor that makes it this group's sum.

        Sharded parameters were averaged over the ranks by their own backward; others are summed here.

        Args:
            params: The parameters asked for; zeros where none was added.
            group: The ranks whose samples count as one batch; `None` for this process alone.
        """
        sums = [self._sums.get(p) for p in params]
        self._sums = {}
        tensors = [torch.zeros_like(p) if s is None else s for p, s in zip(params, sums, strict=True)]
        if group is None:
            return tensors, 1.0
        if is_sharded(params):
            return tensors, float(dist.get_world_size(group))
        sum_over_ranks(tensors, group)
        return tensors, 1.0


@contextmanager
def gradients_aside(params: Iterable[Tensor]) -> Iterator[None]:
    """Lay the parameters' gradients aside: the block starts with none, and leaves none behind.

    Args:
        params: Their `.grad` is put back on leaving, also after an exception.
    """
    held = [(p, p.grad) for p in params]
    for p, _ in held:
        p.grad = None
    try:
        yield
    finally:
        for p, grad in held:
            p.grad = grad
