"""What a training step costs: time and memory against SGD's, with the passes counted, in float32 and under bf16.

    python benchmarks/step_cost.py --models mlp cnn --json FILE

Candidates take turns on one thread, and their processor time is compared; a ratio is the median of the ratios within a
round. Of an estimator that measures every k-th step, one such step and one that reuses its results are timed in each
round, and weighted 1 to k - 1. The peer's LookSAM is timed over two steps (it runs both passes in each). A pass over a
part of the batch counts as that part. Convolutions are channels last, as the engine runs them.

Memory is the peak of what torch's allocator holds from building the network to the end of two steps:
weights, gradients, optimizer state, activations, scratch. `pytorch_optimizer`'s SAM and LookSAM are driven as their
documentation shows.
"""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pytorch_optimizer
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from ncsam import BSAM, NCSAM, SAM
from ncsam.models import create
from ncsam.models.backbone import is_convolutional, to_channels_last
from ncsam.optim.estimators import Memory
from ncsam.optim.msam import MSAM
from ncsam.optim.sharpness_aware import SharpnessAware
from ncsam.vectors.saved import SavedBuffers, SavedWeights
from timing import Candidate, nothing, parser, ratio, table, take_turns, write_json

PRECISIONS = ("32-true", "bf16-mixed")
FUSED_K, LOOK_K = 20, 5  # the defaults; the peer's LookSAM measures as often as our own
BASE = {"lr": 1e-4, "momentum": 0.9, "weight_decay": 1e-3}


@dataclass(frozen=True)
class Setting:
    """A network and a batch for it; `rounds` and `quick` rounds (0: left out of a quick run)."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    rounds: int
    quick: int = 0


SETTINGS = {
    "resnet18_b128": Setting(lambda: create("resnet18", num_classes=10), (128, 3, 32, 32), 2),
    "resnet18_b32": Setting(lambda: create("resnet18", num_classes=10), (32, 3, 32, 32), 3),
    "cnn": Setting(lambda: create("cnn_small", num_classes=10, in_channels=1), (128, 1, 28, 28), 15, 3),
    "mlp": Setting(lambda: mlp(784, 256, 256, 10), (128, 784), 80, 30),
    "tiny": Setting(lambda: mlp(16, 16, 16, 10), (128, 16), 300),  # its passes cost nothing: what remains is overhead
}


def mlp(*widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Training:
    """A network that is trained on one batch, and counts its passes."""

    def __init__(self, setting: Setting, precision: str = "32-true", channels_last: bool = True) -> None:
        torch.manual_seed(0)
        self.model, self.precision = setting.build(), precision
        self.x, self.y = torch.randn(setting.shape), torch.randint(0, 10, (setting.shape[0],))
        if channels_last and is_convolutional(self.model):
            to_channels_last(self.model)
            self.x = self.x.to(memory_format=torch.channels_last)
        self.forwards = self.backwards = 0.0
        self.model.register_forward_hook(self._count)
        self.renew: Callable[[], object] = nothing  # makes the next step one that measures

    def _count(self, module: nn.Module, args: tuple[Tensor], output: Tensor) -> None:
        share = len(output) / len(self.y)
        self.forwards += share

        def count(grad: Tensor) -> None:
            self.backwards += share

        output.register_hook(count)

    def logits(self) -> Tensor:
        if self.precision == "32-true":
            return self.model(self.x)
        with torch.autocast("cpu", torch.bfloat16):
            outputs = self.model(self.x)
        return outputs.float()

    def loss(self) -> Tensor:
        return F.cross_entropy(self.logits(), self.y)

    def sgd(self) -> Callable[[], object]:
        base = torch.optim.SGD(self.model.parameters(), **BASE)

        def step() -> None:
            base.zero_grad()
            self.loss().backward()
            base.step()

        return step

    def peer(self, kind: type[torch.optim.Optimizer], **options: float) -> Callable[[], object]:
        optimizer = kind(self.model.parameters(), torch.optim.SGD, **options, **BASE)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = self.loss()
            loss.backward()
            return loss

        def step() -> None:
            closure()
            optimizer.step(closure)

        return step

    def ours(self, kind: type[SharpnessAware], **options: object) -> Callable[[], object]:
        base = torch.optim.SGD(self.model.parameters(), **BASE)
        optimizer = kind(base, rho=0.05, model=self.model, total_steps=1, **options)
        if isinstance(optimizer, NCSAM):
            self.renew = getattr(optimizer.estimator, "memory", Memory(1)).expire
        return lambda: optimizer.step(self.logits, self.y)


def ncsam(training: Training, **options: object) -> Callable[[], object]:
    return training.ours(NCSAM, ramp="constant", **options)


#: How a step is made, and every how many steps one is exact; of the peer, how many steps are timed.
CANDIDATES: dict[str, tuple[Callable[[Training], Callable[[], object]], int]] = {
    "sgd": (Training.sgd, 1),
    "sam": (lambda t: t.ours(SAM), 1),
    "peer_sam": (lambda t: t.peer(pytorch_optimizer.SAM, rho=0.05), 1),
    "peer_looksam": (lambda t: t.peer(pytorch_optimizer.LookSAM, rho=0.05, k=LOOK_K), 2),
    "ncsam_exact": (ncsam, 1),
    "ncsam_fused": (lambda t: ncsam(t, estimator="fused"), FUSED_K),
    f"ncsam_look{LOOK_K}": (lambda t: ncsam(t, estimator="looksam"), LOOK_K),
    f"sam_look{LOOK_K}": (lambda t: ncsam(t, estimator="looksam", kappa=0.0), LOOK_K),
    "msam": (lambda t: t.ours(MSAM), 1),
    "msam_adaptive": (lambda t: t.ours(MSAM, adaptive=True), 1),
    "bsam": (lambda t: t.ours(BSAM), 1),
}


def warmed_up(
    setting: Setting, make: Callable[[Training], Callable[[], object]], precision: str
) -> tuple[Training, Callable[[], object], int]:
    """A training after two steps, so that kernels are chosen and buffers made; and the most bytes held until then."""
    gc.collect()  # what earlier candidates left must not be freed while this one is watched
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        training = Training(setting, precision)
        step = make(training)
        for _ in range(2):
            step()
    events = watched.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    return training, step, max(itertools.accumulate(change for _, change in changes))


def measure(setting: Setting, rounds: int, precision: str = "32-true") -> dict[str, dict[str, float]]:
    memory: dict[str, int] = {}
    passes: dict[str, list[float]] = {}
    runs, parts = {}, {}
    for name, (make, every) in CANDIDATES.items():
        training, step, memory[name] = warmed_up(setting, make, precision)
        parts[name] = {name: 1.0}
        runs[name] = Candidate(counted(passes, name, training, step), training.renew)
        if every > 1 and name.startswith("peer"):
            runs[name] = Candidate(counted(passes, name, training, lambda step=step: (step(), step())))
            parts[name] = {name: 0.5}
        elif every > 1:  # the turn that follows at once reuses what the exact one has measured
            reused = f"{name} reused"
            runs[reused] = Candidate(counted(passes, reused, training, step), nothing)
            parts[name] = {name: 1 / every, reused: 1 - 1 / every}
    total = take_turns(runs, rounds, warmup=0)
    seconds = {
        name: [sum(share * total[part][turn] for part, share in mix.items()) for turn in range(rounds)]
        for name, mix in parts.items()
    }
    return {
        name: {
            "vs_sgd": ratio(seconds[name], seconds["sgd"]),
            "vs_sam": ratio(seconds[name], seconds["sam"]),
            "forwards": sum(share * passes[part][0] for part, share in mix.items()),
            "backwards": sum(share * passes[part][1] for part, share in mix.items()),
            "memory_vs_sgd": memory[name] / memory["sgd"],
        }
        for name, mix in parts.items()
    }


def counted(
    passes: dict[str, list[float]], name: str, training: Training, run: Callable[[], object]
) -> Callable[[], None]:
    """`run`, which leaves its forwards and backwards in `passes`."""

    def counting() -> None:
        training.forwards = training.backwards = 0.0
        run()
        passes[name] = [training.forwards, training.backwards]

    return counting


# --- constant factors


class CompiledMoves(SavedWeights):
    """Saving and moving the weights as one compiled kernel."""

    @torch.no_grad()
    def move(
        self, params: Sequence[Tensor], directions: Sequence[Tensor], scale: float, modules: Iterable[nn.Module] = ()
    ) -> None:
        self._statistics = SavedBuffers(modules)
        self._moved, self._values = list(params), self.buffers(params)
        _save_and_move([p.detach() for p in params], self._values, list(directions), torch.tensor(scale))


@torch.compile
def _save_and_move(weights: list[Tensor], saved: list[Tensor], directions: list[Tensor], scale: Tensor) -> None:
    torch._foreach_copy_(saved, weights)
    torch._foreach_add_(weights, torch._foreach_mul(directions, scale))


def constant_factor(setting: Setting, kind: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """A pass (forward and backward), and a whole step of fused NCSAM that reuses, with one thing changed."""
    training = Training(setting, channels_last=False)
    training.model._forward_hooks.clear()  # counting would break the compiled graph
    model, x, y = training.model, training.x, training.y
    if kind == "channels_last" and x.ndim == 4:
        model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    run = torch.compile(model) if kind == "compiled_network" else model

    def forward() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "bf16_autocast"):
            return run(x)

    base = torch.optim.SGD(model.parameters(), **BASE)
    optimizer = NCSAM(base, model=model, total_steps=1, ramp="constant", estimator="fused", refresh_every=10**9)
    if kind == "compiled_moves":
        optimizer._weights = CompiledMoves()
    return lambda: F.cross_entropy(forward().float(), y).backward(), lambda: optimizer.step(forward, y)


def constants(setting: Setting, rounds: int) -> dict[str, dict[str, float]]:
    """What memory format, bf16 and compiling save, against the plain form."""
    kinds = ("plain", "channels_last", "bf16_autocast", "compiled_network", "compiled_moves")
    made = {kind: constant_factor(setting, kind) for kind in kinds}
    passes = take_turns({kind: Candidate(run) for kind, (run, _) in made.items()}, rounds)
    steps = take_turns({kind: Candidate(run) for kind, (_, run) in made.items()}, rounds)
    return {
        kind: {
            "pass_vs_plain": ratio(passes[kind], passes["plain"]),
            "step_vs_plain": ratio(steps[kind], steps["plain"]),
        }
        for kind in kinds
    }


def main() -> None:
    options = parser("What a step costs, against SGD's.")
    options.add_argument("--models", nargs="+", choices=list(SETTINGS), default=None, help="these networks alone")
    options.add_argument("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    options.add_argument("--constants", action="store_true", help="memory format, bf16 and torch.compile, instead")
    chosen = options.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    figures: dict[str, float] = {}
    if chosen.constants:
        for name in chosen.models or ("cnn", "mlp"):
            rows = constants(SETTINGS[name], 3 if chosen.quick else SETTINGS[name].rounds)
            table(f"{name}: forward and backward, and a step of fused NCSAM", rows)
            figures |= {f"{name}.{who}.{what}": value for who, row in rows.items() for what, value in row.items()}
        write_json(chosen.json, figures)
        return
    for name, setting in SETTINGS.items():
        rounds = setting.quick if chosen.quick else setting.rounds
        if not rounds or name not in (chosen.models or SETTINGS):
            continue
        for precision in chosen.precision:
            rows = measure(setting, rounds, precision)
            table(f"{name}: batch {setting.shape[0]}, {precision}, {rounds} rounds", rows)
            figures |= {
                f"{name}.{precision}.{who}.{what}": value for who, row in rows.items() for what, value in row.items()
            }
    write_json(chosen.json, figures)


if __name__ == "__main__":
    main()
