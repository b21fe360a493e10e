"""Each estimator does what its formula says, pays what it promises, and equals the exact step where it must."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from optim_cases import NETWORKS, Counter, batch, largest_difference, network, parameters, same_bits, sgd, twin
from torch import nn

from ncsam import NCSAM, SAM
from ncsam.optim import reference
from ncsam.optim.estimators import Memory
from ncsam.optim.flipping import exponential
from ncsam.optim.looksam import ALPHA

CHEAP = ["fused", "looksam"]
RHO, KAPPA, RATIO = 0.3, 0.4, 0.5


def make(model, estimator, **options):
    options = {"kappa": KAPPA, "flip_ratio": RATIO, "total_steps": 1, "ramp": "constant", **options}
    return NCSAM(
        sgd(model), options.pop("rho", RHO), estimator=estimator, generator=torch.Generator().manual_seed(7), **options
    )


def step(optimizer, model, i, size=16):
    x, y = batch(i, size, next(model.parameters()).dtype)
    return optimizer.step(lambda rows=slice(None): model(x[rows]), y)


# --- the formulas, step by step, against slow ones


class Oracle:
    """The estimators as one reads them, on dictionaries of tensors; draws as the optimizer draws."""

    def __init__(self, estimator, every, compensation="absolute"):
        self.estimator, self.every, self.compensation = estimator, every, compensation
        self.draws = torch.Generator().manual_seed(7)
        self.done = 0
        self.norm = self.noise_norm = self.orthogonal = None

    def flips(self, logits, y):
        S = reference.selected(logits, RATIO, "gap", exponential(len(y), self.draws))
        return S, torch.tensor([reference.flipped(logits[i], int(y[i]), "not_observed") for i in S])

    def gradient(self, model, x, y):
        """The gradient to step on."""
        refresh = self.done % self.every == 0
        self.done += 1
        g, logits = reference.gradient(model, x, y)
        if self.estimator == "looksam":
            mixed = refresh and self.norm is not None and self.compensation == "absolute"
            if not mixed:
                self.follow(reference.norm(g))
            if not refresh:
                scale = ALPHA * reference.norm(g) / reference.norm(self.orthogonal)
                return {n: g[n] + scale * self.orthogonal[n] for n in g}
        else:
            mixed = self.estimator == "fused" and not refresh
        if mixed:
            v = self.fused(model, x, y, logits)
            g = {n: e * self.norm / RHO for n, e in v.items()}  # what one has at w is g_B + beta g*
        else:
            v = self.composed(model, x, y, g, logits)
        shrink = min(1.0, RHO / reference.norm(v))
        w = reference.weights(model)
        descent, _ = reference.gradient(model, x, y, at=reference.moved(w, {n: shrink * e for n, e in v.items()}))
        if self.estimator == "looksam":
            along = sum(float((descent[n] * g[n]).sum()) for n in g) / reference.norm(g) ** 2
            self.orthogonal = {n: descent[n] - along * g[n] for n in g}
        return descent

    def follow(self, norm):
        """A geometric mean with weights .8 and .2, of norms that at most double or halve it."""
        if self.norm is None:
            self.norm = norm
        else:
            self.norm = self.norm**0.8 * min(max(norm, self.norm / 2), 2 * self.norm) ** 0.2

    def fused(self, model, x, y, logits):
        """rho / N (g_B + beta g*) from one gradient of the sum of losses, N the norm that exact steps measured."""
        S, labels = self.flips(logits, y)
        beta = KAPPA * self.norm / (RHO if self.compensation == "absolute" else self.noise_norm)
        both, _ = reference.gradient(
            model, x, y, criterion=lambda z, t: F.cross_entropy(z, t) + beta * F.cross_entropy(z[S], labels)
        )
        return {n: RHO / self.norm * e for n, e in both.items()}

    def composed(self, model, x, y, g, logits):
        """rho g_B/||g_B|| + s g*, both from this batch."""
        S, labels = self.flips(logits, y)
        found, _ = reference.gradient(model, x, y, criterion=lambda z, _: F.cross_entropy(z[S], labels))
        noise = {n: found.get(n, torch.zeros_like(g[n])) for n in g}
        lengths = reference.norm(g), reference.norm(noise)
        if self.estimator != "looksam":
            self.norm, self.noise_norm = (
                lengths if self.norm is None else ((self.norm + lengths[0]) / 2, (self.noise_norm + lengths[1]) / 2)
            )
        size = KAPPA if self.compensation == "absolute" else KAPPA * RHO / lengths[1]
        return {n: RHO * g[n] / lengths[0] + size * noise[n] for n in g}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("compensation", ["absolute", "relative"])
@pytest.mark.parametrize("estimator", CHEAP)
def test_follows_the_slow_reference(estimator, compensation, name):
    every = 3
    model = network(name)
    mirror = twin(model)
    optimizer = make(model, estimator, refresh_every=every, compensation=compensation)
    oracle, base = Oracle(estimator, every, compensation), sgd(mirror)
    for i in range(8):
        x, y = batch(i, 16 if i != 4 else 5)  # a short batch among them
        gradient = oracle.gradient(mirror, x, y)
        loss = step(optimizer, model, i, len(x))
        clean = F.cross_entropy(mirror(x), y)  # updates statistics once, as the pass at w does
        assert loss.item() == pytest.approx(clean.item(), abs=1e-10)
        for n, p in mirror.named_parameters():
            p.grad = gradient.get(n)
        base.step()
    assert largest_difference(model, mirror) < 1e-9


@pytest.mark.parametrize("estimator", ["fused"])
@pytest.mark.parametrize("options", [{}, {"adaptive": True, "eta": 0.01}, {"noise_mean": "batch", "sign": -1}], ids=str)
def test_refreshing_every_step_is_the_exact_step(estimator, options):
    model = network("convolutional")
    other = twin(model)
    left, right = make(model, estimator, refresh_every=1, **options), make(other, "exact", **options)
    for i in range(5):
        step(left, model, i)
        step(right, other, i)
    assert largest_difference(model, other) < 1e-12


@pytest.mark.parametrize("options", [{"noise_mean": "batch"}, {"sign": -1}, {"projection": False}, {"adaptive": True}])
def test_fused_is_exact_where_the_norm_is_known(options):
    """With the weights held still and one batch, the norm that was measured is the norm, and g_B + beta g* is all."""
    where = []
    for estimator in ("exact", "fused"):
        model = network()
        optimizer = make(model, estimator, selection="lowest_gap", **options)
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        step(optimizer, model, 0)
        assert estimator == "exact" or not optimizer.estimator.memory.due
        x, y = batch(0)

        def forward(model=model, x=x):
            where.append(parameters(model))
            return model(x)

        optimizer.step(forward, y)
    for a, b in zip(where[1], where[3], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    assert not torch.allclose(where[0][0], where[1][0])


@pytest.mark.parametrize(
    "options", [{"kappa": 0.0}, {"compensation": "relative"}, {"adaptive": True, "eta": 0.01}], ids=str
)
def test_look_that_always_measures(options):
    """Without compensation it is SAM. Where a norm that it does not follow must be known, ||g*|| or ||T g_B||, it
    measures exactly."""
    model = network("convolutional")
    other = twin(model)
    left, right = make(model, "looksam", refresh_every=1, **options), make(other, "exact", **options)
    for i in range(4):
        step(left, model, i)
        step(right, other, i)
    assert largest_difference(model, other) < 1e-12


def test_look_by_hand():
    """L = (4 a^2 + b^2) / 2 at w = (3/4, 4): g = (3, 4), eps = (.3, .4) at rho .5, g' = (4.2, 4.4).

    g'.g / |g|^2 = 30.2 / 25, so g_v = (4.2 - 3.624, 4.4 - 4.832) = (.576, -.432), |g_v| = .72; on the next step, at the
    same weights, the base is given (3, 4) + .85 (5 / .72) g_v = (6.4, 1.45).
    """
    w = nn.Parameter(torch.tensor([0.75, 4.0], dtype=torch.float64))
    optimizer = NCSAM(torch.optim.SGD([w], lr=0.0), 0.5, 0.0, estimator="looksam", refresh_every=2)
    optimizer.criterion = lambda z, y: (4 * z[0, 0] ** 2 + z[0, 1] ** 2) / 2
    seen = []
    for _ in range(3):
        optimizer.step(lambda: w[None], torch.tensor([0]))
        seen.append(w.grad.tolist())
    assert seen[0] == pytest.approx([4.2, 4.4])
    assert seen[1] == pytest.approx([6.4, 1.45])
    assert seen[2] == pytest.approx([4.2, 4.4])


# --- the price


@pytest.mark.parametrize(
    ("estimator", "refresh", "between"),
    [
        ("exact", (2, 3), (2, 3)),
        ("fused", (2, 3), (2, 2)),
        ("looksam", (2, 2), (1, 1)),
    ],
)
def test_passes_over_three_cycles(estimator, refresh, between):
    """Pitfall 17: a cheap variant must really skip the pass."""
    model = network("convolutional")
    optimizer = make(model, estimator, refresh_every=4)
    count = Counter(model)
    seen = []
    for i in range(12):
        before = count.forwards, count.backwards
        step(optimizer, model, i)
        seen.append((count.forwards - before[0], count.backwards - before[1]))
    assert seen[4:] == [refresh, between, between, between] * 2
    assert seen[0] == (refresh if estimator != "looksam" else (2, 3))  # which knows no norm yet


@pytest.mark.parametrize("estimator", ["exact", "looksam"])
def test_a_compiled_loop_steps_as_a_plain_one(estimator):
    """A function that calls `step` may be compiled, with a compiled network inside."""
    model = network(dtype=torch.float32)
    other = twin(model)
    left, right = make(model, estimator, refresh_every=2), make(other, estimator, refresh_every=2)
    compiled = torch.compile(model, backend="eager")

    @torch.compile(backend="eager")
    def train(x, y):
        x = x * 1.0
        return left.step(lambda rows=slice(None): compiled(x[rows]), y) * 2.0

    for i in range(4):
        x, y = batch(i, dtype=torch.float32)
        loss = train(x, y)
        assert loss.item() == pytest.approx(2.0 * step(right, other, i).item())
    assert same_bits(parameters(model), parameters(other))


def test_a_compiled_network_may_warm_up():
    """Its first backwards keep no graph; later ones must be able to."""
    model = network("convolutional", torch.float32)
    other = twin(model)
    left, right = make(model, "exact", warmup_steps=1), make(other, "exact", warmup_steps=1)
    compiled = torch.compile(model, backend="aot_eager")
    for i in range(3):
        x, y = batch(i, dtype=torch.float32)
        left.step(lambda: compiled(x), y)  # noqa: B023
        step(right, other, i)
    assert left.last_step.phase == "ncsam"
    assert largest_difference(model, other) < 1e-4


@pytest.mark.parametrize("estimator", ["exact", *CHEAP])
def test_targets_are_read_once_a_step(estimator, monkeypatch):
    """Reading them waits for the device; but wrong ones are refused in any step."""
    reads = []
    extremes = torch.aminmax
    monkeypatch.setattr(torch, "aminmax", lambda values: reads.append(len(values)) or extremes(values))
    model = network()
    optimizer = make(model, estimator, refresh_every=2)
    for i in range(3):
        step(optimizer, model, i)
    assert reads == [16] * 3
    x, _ = batch()
    with pytest.raises(ValueError, match="targets hold 0 to 99"):
        optimizer.step(lambda rows=slice(None): model(x[rows]), torch.arange(16) // 15 * 99)


# --- the limits


@pytest.mark.parametrize("estimator", ["fused"])
@pytest.mark.parametrize("options", [{"kappa": 0.0}, {"flip_ratio": 0.0}])
def test_without_compensation_it_is_sam(estimator, options):
    model = network("convolutional", torch.float32)
    other = twin(model)
    left, right = make(model, estimator, refresh_every=2, **options), SAM(sgd(other), RHO)
    for i in range(4):
        step(left, model, i)
        step(right, other, i)
    assert same_bits(parameters(model), parameters(other))


@pytest.mark.parametrize("estimator", CHEAP)
def test_no_radius_is_the_base_optimizer(estimator):
    model = network("convolutional", torch.float32)
    other = twin(model)
    optimizer, base = make(model, estimator, rho=0.0), sgd(other)
    for i in range(3):
        x, y = batch(i, dtype=torch.float32)
        step(optimizer, model, i)
        base.zero_grad()
        F.cross_entropy(other(x), y).backward()
        base.step()
    assert same_bits([*parameters(model), *model.buffers()], [*parameters(other), *other.buffers()])


@pytest.mark.parametrize("estimator", CHEAP)
def test_strength_that_starts_later(estimator):
    """While s(t) = 0 there is nothing to reuse; the first compensated step measures."""
    model = network()
    optimizer = make(model, estimator, ramp=lambda t: float(t > 0.5), refresh_every=3, total_steps=None)
    phases = []
    for i in range(6):
        optimizer.progress = 0.0 if i < 3 else 1.0
        step(optimizer, model, i)
        phases.append(optimizer.last_step.phase)
    if estimator == "looksam":
        assert phases == ["sam", "looksam", "looksam", "ncsam", "looksam", "looksam"]
    else:
        assert phases == ["sam"] * 3 + ["ncsam"] * 3
    assert all(torch.isfinite(p).all() for p in model.parameters())


@pytest.mark.parametrize("estimator", ["fused"])
def test_strength_is_this_steps_own(estimator):
    """What is reused is g* or a norm, not s(t): with s back at 0 the perturbation is SAM's."""
    model = network()
    optimizer = make(model, estimator, ramp=lambda t: 1.0 - t, refresh_every=9, total_steps=None)
    optimizer.progress = 0.0
    step(optimizer, model, 0)
    optimizer.progress = 1.0
    step(optimizer, model, 1)
    assert optimizer.last_step.phase == "sam"


# --- what goes wrong


@pytest.mark.parametrize("estimator", CHEAP)
@pytest.mark.parametrize("cheap", [False, True])
def test_zero_gradients_are_counted_and_harmless(estimator, cheap):
    model = network()
    optimizer = make(model, estimator, refresh_every=9)
    if cheap:
        step(optimizer, model, 0)
    criterion = optimizer.criterion
    optimizer.criterion = lambda z, y: criterion(z, y) * 0.0
    before = optimizer.unperturbed_steps
    step(optimizer, model, 1)
    assert optimizer.unperturbed_steps == before + 1
    optimizer.criterion = criterion
    step(optimizer, model, 2)
    assert optimizer.unperturbed_steps == before + 1
    assert all(torch.isfinite(p).all() for p in model.parameters())


@pytest.mark.parametrize("estimator", ["exact", *CHEAP])
@pytest.mark.parametrize("cheap", [False, True])
def test_noise_gradient_that_is_not_finite(estimator, cheap):
    """The step is then the base optimizer's, on g_B alone, though one backward may have mixed the two; and no memory
    of it stays."""
    model = network()
    optimizer = make(model, estimator, refresh_every=2)
    if cheap:
        step(optimizer, model, 0)
    other = twin(model)
    base = sgd(other)
    base.load_state_dict(copy.deepcopy(optimizer.base_optimizer.state_dict()))
    optimizer.flip_criterion = lambda z, y: F.cross_entropy(z, y) * math.inf
    x, y = batch(1)
    step(optimizer, model, 1)
    F.cross_entropy(other(x), y).backward()
    base.step()
    reuses = cheap and estimator == "looksam"  # these take no g* now
    assert optimizer.unperturbed_steps == (0 if reuses else 1)
    if not reuses:
        assert largest_difference(model, other) < 1e-12
    optimizer.flip_criterion = None
    for i in range(2, 5):
        step(optimizer, model, i)
    assert optimizer.unperturbed_steps == (0 if reuses else 1)
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_fused_measurement_that_is_not_finite():
    """Look then steps on g_B, taken anew at w, keeps what it has, and measures again at once."""
    model = network()
    optimizer = make(model, "looksam", refresh_every=1)
    for i in range(2):
        step(optimizer, model, i)
    kept = [t.clone() for t in optimizer.vectors["orthogonal"].values()]
    other = twin(model)
    base = sgd(other)
    base.load_state_dict(copy.deepcopy(optimizer.base_optimizer.state_dict()))
    optimizer.flip_criterion = lambda z, y: F.cross_entropy(z, y) * math.inf
    x, y = batch(2)
    step(optimizer, model, 2)
    F.cross_entropy(other(x), y).backward()
    base.step()
    assert optimizer.unperturbed_steps == 1
    assert largest_difference(model, other) < 1e-12
    assert same_bits(kept, list(optimizer.vectors["orthogonal"].values()))
    optimizer.flip_criterion = None
    step(optimizer, model, 3)
    assert optimizer.last_step.phase == "ncsam"


def test_bad_arguments():
    model = network()
    with pytest.raises(ValueError, match="estimator='cheap'"):
        make(model, "cheap")
    with pytest.raises(ValueError, match="refresh_every=0"):
        make(model, "fused", refresh_every=0)
    with pytest.raises(ValueError, match="perturbation='local'"):
        make(model, "looksam", perturbation="local")


def test_default_refreshes():
    assert {name: make(network(), name).estimator.memory.every for name in CHEAP} == {"fused": 20, "looksam": 5}


def test_memory_smooths_norms():
    memory = Memory(2)
    assert memory.due
    memory.refresh()
    memory.note_norms(4.0, 1.0, 128)
    assert (memory.norm, memory.noise_norm, memory.due) == (4.0, 1.0, False)
    memory.age()
    assert memory.due
    memory.note_norms(2.0, 3.0, 128)
    assert (memory.norm, memory.noise_norm) == (3.0, 2.0)


def test_memory_follows_a_norm():
    memory = Memory(2)
    memory.follow(4.0)
    assert memory.norm == 4.0
    memory.follow(6.0)
    assert memory.norm == pytest.approx(4.0**0.8 * 6.0**0.2)
    before = memory.norm
    memory.follow(1000.0)  # counts as twice
    assert memory.norm == pytest.approx(before * 2**0.2)
    memory.follow(0.001)
    assert memory.norm == pytest.approx(before)


def test_norms_of_a_short_batch_are_no_guess_for_the_next():
    """The last batch of an epoch is often small, and its gradient long."""
    memory = Memory(2)
    memory.note_norms(9.0, 9.0, 13)
    memory.note_norms(4.0, 1.0, 128)  # the first of full size counts alone
    assert (memory.norm, memory.noise_norm) == (4.0, 1.0)
    memory.note_norms(20.0, 20.0, 13)
    assert (memory.norm, memory.noise_norm) == (4.0, 1.0)
