"""Noise-Compensated Sharpness-Aware Minimization."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import Unpack  # comes with torch

from ncsam._arguments import choice, flag, instance, non_negative, number, positive, ratio
from ncsam._errors import bad_value
from ncsam.optim.estimators import Compensation, Estimator, Exact, FlippedLoss
from ncsam.optim.flipping import FlipRule, Flips, Selection, Target, criterion_by_name, flipped_loss
from ncsam.optim.fused import Fused
from ncsam.optim.looksam import LookSAM
from ncsam.optim.radii import RadiusLike
from ncsam.optim.ramps import Ramp, ramp_by_name
from ncsam.optim.registry import Criterion, Options, register
from ncsam.optim.row_forward import RowForward
from ncsam.optim.sharpness_aware import SharpnessAware
from ncsam.optim.step import MicroBatch, Move, Step

#: The choices of the authors' public code (repository CBNI-NCSAM), where they differ from the printed algorithm.
AUTHORS: dict[str, Any] = {
    "projection": False,
    "selection": "clusters",
    "flip_target": "random",
    "flip_criterion": "smoothed_ce",
    "flip_forward": "separate",
}
_AUTHORS_WARMUP = 49  # epochs


@register
class NCSAM(SharpnessAware):
    r"""SAM whose perturbation is corrected for the bias that mislabeled samples put into it.

    After warm-up, for a batch B with observed labels y and logits z at w:

    1. :math:`g_B = \nabla L_B(w)`.
    2. m = floor(flip_ratio |B|) samples S are drawn without replacement with :math:`p_i \propto 1/(1+\delta_i)`,
       :math:`\delta_i` the gap between the two largest logits; each gets, for this gradient only, the label
       :math:`\hat y_i = \arg\max_{c \ne y_i} z_i^{(c)}`.
    3. :math:`g^* = \nabla \frac1m \sum_{i \in S} \ell(z_i, \hat y_i)` from the same graph.
    4. :math:`s(t) = \kappa \min(1, 2(3-2t)t^2)`.
    5. :math:`v = \rho\, g_B/\|g_B\| + s(t)\, g^*` and :math:`\epsilon = v \min(1, \rho/\|v\|)`.
    6. The base optimizer steps at w with :math:`\nabla L_B(w + \epsilon)`.

    A step costs two forwards and three backwards, a copy of the weights and one of the gradients (`adaptive`: two);
    `estimator` offers cheaper ones. `NCSAM.authors` makes the step of the authors' public code, which differs.
    With kappa = 0, flip_ratio = 0 or while s(t) = 0 it is a `SAM` step, and with rho = 0 the base optimizer's,
    bit for bit. With `adaptive` the same is done in ASAM's coordinates: g is T g, and eps is T times the result.
    `rho`, `kappa` and `adaptive` live in `param_groups`: a group may have its own, and a scheduler may change them.

    Note:
        In our experiments the compensation gave no gain over the same optimizer with kappa=0, at one extra backward
        pass per step; with generated noise it was up to 7.7 points below (docs/experiments/real_noise.md). With
        "absolute" compensation the effect of kappa depends on the length of g*. Needs `total_steps`, or `progress` set
        by hand.

    Args:
        base_optimizer: An instance of any `torch.optim.Optimizer`; its groups and state are shared.
        rho: Radius of the perturbation, as for `SAM`.
        kappa: The largest strength of the compensation.
        flip_ratio: Share of a batch to flip: the noise rate if known, at most .4 in the paper.
        ramp: "smooth" (the paper's), "linear", "cosine", "constant", or a function of t in [0, 1].
        ramp_from: t is counted from the start of training ("start", the paper's e / T) or from the end of warm-up
            ("warmup").
        sign: +1 adds s g* (the paper's equations), -1 subtracts it.
        projection: Project onto the rho-ball; `False` leaves v as it is.
        compensation: "absolute": `s g*`. "relative": `s rho g*/||g*||`, so that kappa is a share of rho.
        noise_mean: g* is a mean over the flipped samples ("flipped") or over the whole batch ("batch").
        selection: "gap" (by p_i), "uniform", "lowest_gap" (the least certain, no draw), or "clusters" (the authors'):
            k-means of the normalized features in evaluation mode, and in each cluster Bernoulli draws at the rate
            flip_ratio (1 - mean gap / largest gap). Costs one forward and the clustering.
        clusters: The number of clusters.
        flip_target: "not_observed" (the paper's equation), "second" (the second-highest logit), or "random" (the
            authors'): any other class.
        flip_forward: "shared": g* from the graph of g_B. "separate" (the authors'): from a forward of the flipped rows
            alone in training mode, with their own batch statistics; BatchNorm's running statistics are not updated
            by it. Costs flip_ratio of a forward more and of a backward less. A single flipped row that BatchNorm cannot
            normalize is left out.
        flip_criterion: Loss of the flipped labels: `None` for `criterion`, "ce", "smoothed_ce" (.9 for the label, .1
            shared by the others), or a function.
        warmup: Warm-up steps are the base optimizer's ("base") or SAM's ("sam").
        generator: Source of the draws. Default: one of its own, seeded by `torch.initial_seed()`.
        estimator: How the perturbation is computed, and at what cost. "exact": g_B and g* from this batch; 2 forwards,
            3 backwards. "fused": g_B + beta g* by one backward; 2 and 2 (`Fused`). "looksam": most steps reuse what a
            perturbation adds to the gradient; 1 and 1 (`LookSAM`).
        refresh_every: Every so many steps "fused" does an exact one (20), and "looksam" measures (5).
        adaptive: Whether to scale by ASAM's T = |w| + eta.
        eta: The offset of T.

    Examples:
        >>> import torch
        >>> model = torch.nn.Linear(4, 3)
        >>> base = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> optimizer = NCSAM(base, rho=0.05, kappa=0.1, flip_ratio=0.5, total_steps=100, warmup_steps=25)
        >>> x, y = torch.ones(2, 4), torch.tensor([0, 2])
        >>> loss = optimizer.step(lambda: model(x), y)  # logits out, observed labels in; the loss at w
        >>> optimizer.steps, optimizer.warming_up
        (1, True)

    References:
        Xu, Deng, Pang: NCSAM: Noise-Compensated Sharpness-Aware Minimization for Noisy Label Learning. 2026, arXiv
        2601.19947; its equation labels are in brackets. The authors' public code: repository CBNI-NCSAM.
    """

    passes = 3
    flips_labels = True
    default_warmup = 0.25
    #: Perturb along g_B alone, by the length of NCSAM's perturbation: the control of `LengthMatchedSAM`.
    length_only: ClassVar[bool] = False

    def __init__(
        self,
        base_optimizer: Optimizer,
        rho: RadiusLike = 0.05,
        kappa: float = 0.1,
        flip_ratio: float = 0.4,
        *,
        ramp: str | Ramp = "smooth",
        ramp_from: Literal["start", "warmup"] = "start",
        sign: Literal[1, -1] = 1,
        projection: bool = True,
        compensation: Literal["absolute", "relative"] = "absolute",
        noise_mean: Literal["flipped", "batch"] = "flipped",
        selection: Selection = "gap",
        clusters: int = 3,
        flip_target: Target = "not_observed",
        flip_forward: Literal["shared", "separate"] = "shared",
        flip_criterion: Literal["ce", "smoothed_ce"] | Criterion | None = None,
        warmup: Literal["base", "sam"] = "base",
        generator: torch.Generator | None = None,
        estimator: Literal["exact", "fused", "looksam"] = "exact",
        refresh_every: int | None = None,
        adaptive: bool = False,
        eta: float = 0.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(base_optimizer, rho, **options)
        self._add_group_setting("kappa", kappa, non_negative)
        self._add_group_setting("adaptive", adaptive, flag)
        self.eta = non_negative("eta", eta)
        self.ramp = ramp_by_name(ramp)
        self.flip_ratio = ratio("flip_ratio", flip_ratio)
        self.ramp_from = choice("ramp_from", ramp_from, ("start", "warmup"))
        number("sign", sign, "1 or -1", lambda v: v in (1, -1))
        self.sign = int(sign)
        self.projection = flag("projection", projection)
        self.compensation = choice("compensation", compensation, ("absolute", "relative"))
        self.noise_mean = choice("noise_mean", noise_mean, ("flipped", "batch"))
        choice("selection", selection, ("gap", "uniform", "lowest_gap", "clusters"))
        choice("flip_target", flip_target, ("not_observed", "second", "random"))
        self.selection, self.flip_target = selection, flip_target
        self.clusters = positive("clusters", clusters)
        self.flip_forward = choice("flip_forward", flip_forward, ("shared", "separate"))
        self.flip_criterion = criterion_by_name(flip_criterion)
        self.warmup = choice("warmup", warmup, ("base", "sam"))
        if generator is not None:
            instance("generator", generator, torch.Generator, "a torch.Generator or None")
        else:  # seeding from the global seed draws no number from the global generator
            generator = torch.Generator().manual_seed(torch.initial_seed())
        self.generator = generator
        #: The flips of the last step: positions in the batch (micro-batches joined) and temporary labels.
        self.last_flips: Flips | None = None
        self._row_forward = RowForward()
        self._how: Compensation  # of the step that is open
        self.estimator = self._make_estimator(estimator, refresh_every)

    @classmethod
    def authors(
        cls,
        base_optimizer: Optimizer,
        gamma: float = 0.25,
        flip_ratio: float = 0.4,
        *,
        steps_per_epoch: int,
        epochs: int = 200,
        rho: RadiusLike = 0.05,
        **options: Any,
    ) -> NCSAM:
        r"""NCSAM as its authors' public code runs it.

        .. math:: \epsilon = \rho\, g_B/\|g_B\| + \gamma \min(1, 2(3-2t)t^2)\, g_n

        without projection, so that :math:`\|\epsilon\|` is many times rho. g_n is the mean gradient of the flipped
        samples: selected by clusters, flipped to random classes, with smoothed labels, from their own forward.
        The first 49 epochs are the base optimizer's. A step costs three forwards (one in evaluation mode) and two
        backwards, and a forward and backward of the flipped rows. t counts steps; in their code it is e / T in all
        steps of epoch e, as with `optimizer.progress = e / T`.

        Args:
            base_optimizer: In their code SGD, lr .05, momentum .9, weight decay 1e-3, cosine per step.
            gamma: The largest strength (`kappa`), in their code lr times k: .10, .25, 1.25 for CIFAR-10 with 20, 40
                and 60 % of noise, .25, .75, 1.5 for CIFAR-100.
            flip_ratio: The largest rate of a cluster; theirs are .2, .4, .4.
            steps_per_epoch: To count the epochs in steps.
            epochs: Of training, warm-up included.
            rho: Radius of SAM's part.
            **options: Other options of `NCSAM`, which take precedence. Their experiments have `clusters=5`.

        Examples:
            >>> import torch
            >>> model = torch.nn.Linear(4, 3)
            >>> base = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
            >>> optimizer = NCSAM.authors(base, gamma=0.25, flip_ratio=0.4, steps_per_epoch=391)
            >>> optimizer.total_steps, optimizer.warmup_steps
            (78200, 19159)
        """
        steps = positive("steps_per_epoch", steps_per_epoch)
        lengths = {"total_steps": positive("epochs", epochs) * steps, "warmup_steps": _AUTHORS_WARMUP * steps}
        return cls(base_optimizer, rho, gamma, flip_ratio, **{**AUTHORS, **lengths, **options})

    def _make_estimator(self, name: str, every: int | None) -> Estimator:
        choice("estimator", name, ("exact", "fused", "looksam"))
        every = None if every is None else positive("refresh_every", every)
        exact = Exact()
        if name == "exact":
            return exact
        if self.flip_forward == "separate" or self.length_only:
            raise bad_value("estimator", name, "'exact' with flip_forward='separate' and length-matched steps")
        if name == "fused":
            return Fused(exact, every or 20)
        if self.perturbation == "local":
            raise bad_value("perturbation", "local", "'synced' with estimator='looksam', whose ranks share one step")
        self.radius.steps_per_update = every or 5
        return LookSAM(exact, self.vectors, every or 5)

    @property
    def kappa(self) -> float:
        """The largest strength of the compensation, with several groups the largest. Setting it sets all groups."""
        return float(max(self._settings("kappa")))

    @kappa.setter
    def kappa(self, value: float) -> None:
        self._set_in_groups("kappa", non_negative("kappa", value))

    @property
    def strength(self) -> float:
        """s(t) = kappa * ramp(t) of the coming step; 0 during warm-up."""
        kappa = self.kappa
        if kappa == 0 or self.warming_up:
            return 0.0
        t = self.progress
        if t is None:
            raise bad_value(
                "total_steps",
                None,
                "a number with kappa > 0, because the strength s(t) follows training; or set optimizer.progress in "
                "[0, 1] before each step",
            )
        if self.ramp_from == "warmup":
            if self.total_steps is None:
                raise bad_value("total_steps", None, "a number with ramp_from='warmup': it tells where warm-up ends")
            start = min(1.0, self.warmup_steps / max(1, self.total_steps))
            t = max(0.0, (t - start) / (1.0 - start)) if start < 1.0 else 1.0
        return kappa * self.ramp(t)

    @property
    def perturbs(self) -> bool:
        return self.rho > 0 and (self.warmup == "sam" or not self.warming_up)

    @contextmanager
    def first_pass(self) -> Iterator[None]:
        separate, clusters = self.flip_forward == "separate", self.selection == "clusters"
        recorded = self._row_forward.recording(self._modules or (), clusters) if separate or clusters else nullcontext()
        kept = _kept_graphs() if not separate and "torch._dynamo" in sys.modules else nullcontext()
        with recorded, kept, super().first_pass():
            yield

    # --- the step: lines 1 to 3 in `collect`, 4 to 6 in `moves`

    def _new_step(self) -> Step:
        self._how = self._compensation()
        return super()._new_step()

    def collect(self, step: Step, batch: MicroBatch) -> None:
        how = self._how
        flips = None
        if self.perturbs and how.strength > 0 and how.flip_ratio > 0 and self.estimator.flips(how):
            flips = self._draw(step, batch)
        if flips is None:
            super().collect(step, batch)
        else:
            self.estimator.collect(step, how, batch, flips)
            self._row_forward.restore()

    def moves(self, step: Step) -> Iterator[Move]:
        how = self._how
        step.report.strength = how.strength
        self.last_flips = step.flips.joined()
        yield from self.estimator.moves(step, how)

    def _compensation(self) -> Compensation:
        relative, over_batch = self.compensation == "relative", self.noise_mean == "batch"
        return Compensation(
            self.strength,
            self.flip_ratio,
            self.sign,
            relative,
            over_batch,
            self.projection,
            self.scaling_offset,
            self.length_only,
            self.flip_forward == "separate",
        )

    def _draw(self, step: Step, batch: MicroBatch) -> FlippedLoss | None:
        """The loss of this micro-batch's flipped samples; `None` if there are none."""
        logits, targets = batch.logits, batch.targets
        if logits is None or targets is None:
            raise TypeError("backward(loss, logits, targets) of NCSAM needs the logits and the targets, to flip labels")
        self._check_batch(logits, targets)
        rule = FlipRule(self.flip_ratio, self.selection, self.flip_target, self.clusters)
        known = batch.clean_targets if step.measured else None
        size = logits.shape[0]
        group = step.synced_group
        drawn = step.flips.draw(
            logits, targets, rule, self.generator, group, known, lambda: self._row_forward.features(size)
        )
        if drawn is None:
            return None
        flips, samples = drawn
        criterion = self.flip_criterion or self.criterion
        rows = flips.index.shape[0]

        def mean() -> Tensor | None:
            if self.flip_forward == "shared":
                return flipped_loss(criterion, logits.index_select(0, flips.index), flips, targets)
            own = self._row_forward.logits(flips.index, size) if rows else None
            return None if own is None else flipped_loss(criterion, own, flips, targets)

        return FlippedLoss(mean, rows, samples)

    # --- restarts and copies

    def _own_state(self) -> dict[str, Any]:
        own = {**super()._own_state(), "generator": self.generator.get_state()}
        memory = self.estimator.state_dict()
        return {**own, "estimator": memory} if memory else own

    def _load_own_state(self, own: dict[str, Any]) -> None:
        super()._load_own_state(own)
        if "generator" in own:
            self.generator.set_state(own["generator"].cpu())
        self.estimator.load_state_dict(own.get("estimator", {}))

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        generator = state.pop("generator")
        del state["_row_forward"]
        return {**state, "last_flips": None, "generator_state": (str(generator.device), generator.get_state())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        device, random = state.pop("generator_state")
        self.generator = torch.Generator(device)
        self.generator.set_state(random)
        self._row_forward = RowForward()
        super().__setstate__(state)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(rho={self._shown_radius()}, kappa={self.kappa}, flip_ratio={self.flip_ratio}, "
            f"total_steps={self.total_steps}, warmup_steps={self.warmup_steps}, base_optimizer={self.base_optimizer!r})"
        )


@contextmanager
def _kept_graphs() -> Iterator[None]:
    """Graphs that are compiled here keep what their backward needs, to run twice.

    The setting is torch's own. Its `patch` takes many times as long as setting the value, which small models notice.
    """
    import torch._functorch.config as compiled_graphs

    before = compiled_graphs.donated_buffer
    if before:
        compiled_graphs.donated_buffer = False
    try:
        yield
    finally:
        if before:
            compiled_graphs.donated_buffer = True
