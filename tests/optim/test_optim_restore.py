"""Weights and statistics come back bit for bit, always; buffers are written once, at w."""

import gc

import pytest
import torch
from optim_cases import CLASSES, Counter, batch, network, parameters, same_bits, sgd, twin
from torch import nn

from ncsam import ASAM, BSAM, NCSAM, SAM, SANER, FriendlySAM
from ncsam.optim import MSAM, StableSAM, WeightedSAM
from ncsam.vectors.saved import submodules

ALL = [SAM, NCSAM, BSAM]
TWO_PASSES = [*ALL, StableSAM]


def make(cls, base, **options):
    return cls(base, **{"rho": 0.1, "total_steps": 1, **options})


def still(model):
    """A base optimizer that moves nothing: what is left after a step is what was restored."""
    return torch.optim.SGD(model.parameters(), lr=0.0)


@pytest.mark.parametrize("cls", TWO_PASSES)
@pytest.mark.parametrize("rho", [1e-4, 1e-2, 1.0])
def test_restored_bit_for_bit(cls, rho):
    """Pitfall 1: w + eps - eps is not w in half of all weights."""
    model = network("convolutional", torch.float32)
    before = parameters(model)
    x, y = batch(dtype=torch.float32)
    make(cls, still(model), rho=rho).step(lambda: model(x), y)
    assert same_bits(before, parameters(model))


@pytest.mark.parametrize("cls", TWO_PASSES)
def test_storage_stays_where_it_is(cls):
    """Pitfall 2: swapping `.data` breaks flat buffers, compiled graphs and tied views."""
    model = network("convolutional", torch.float32)
    addresses = [p.data_ptr() for p in model.parameters()]
    seen = []

    def forward():
        seen.append([p.data_ptr() for p in model.parameters()])
        return model(x)

    x, y = batch(dtype=torch.float32)
    make(cls, sgd(model)).step(forward, y)
    assert all(s == addresses for s in seen)
    assert addresses == [p.data_ptr() for p in model.parameters()]


class Forks(nn.Module):
    """The first pass uses both branches, later ones only one: stochastic depth, mixture of experts, early exit."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(6, CLASSES), nn.Linear(6, CLASSES)
        self.passes = 0

    def forward(self, x):
        self.passes += 1
        x = x.flatten(1)[:, :6]
        return self.left(x) + self.right(x) if self.passes == 1 else self.left(x)


@pytest.mark.parametrize("cls", TWO_PASSES)
def test_parameters_without_gradient_in_the_second_pass_are_restored(cls):
    """Pitfall 3: restore what was perturbed, not what has a gradient now."""
    model = Forks()
    before = parameters(model)
    x, y = batch(dtype=torch.float32)
    make(cls, still(model)).step(lambda: model(x), y)
    assert same_bits(before, parameters(model))
    if cls is not BSAM:  # BSAM's step holds g itself, which the branch has
        assert model.right.weight.grad is None


@pytest.mark.parametrize("cls", TWO_PASSES)
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, MemoryError])
def test_an_exception_in_the_second_pass(cls, error):
    """Pitfall 4: nothing may be left perturbed; statistics neither; and the next step works."""
    model = network("convolutional", torch.float32)
    x, y = batch(dtype=torch.float32)
    passes = 0

    def forward():
        nonlocal passes
        passes += 1
        logits = model(x)
        if passes == 2:
            raise error
        return logits

    once = twin(model)
    once(x)
    before = parameters(model)
    optimizer = make(cls, sgd(model))
    with pytest.raises(error):
        optimizer.step(forward, y)
    assert same_bits(before, parameters(model))
    assert same_bits(list(once.buffers()), list(model.buffers()))
    optimizer.step(lambda: model(x), y)
    assert not same_bits(before, parameters(model))


@pytest.mark.parametrize("cls", TWO_PASSES)
def test_a_second_loss_that_is_not_finite(cls):
    """Pitfall 3: the weights come back also when the perturbed loss is not a number."""
    model = network(dtype=torch.float32)
    x, y = batch(dtype=torch.float32)
    calls = 0

    def criterion(logits, targets):
        nonlocal calls
        calls += 1
        return nn.functional.cross_entropy(logits, targets) * (float("nan") if calls > 1 else 1.0)

    before = parameters(model)
    optimizer = make(cls, torch.optim.SGD(model.parameters(), lr=1.0), criterion=criterion, **(
        {"flip_criterion": "ce"} if cls is NCSAM else {}))  # fmt: skip
    seen = []
    optimizer.base_optimizer.register_step_pre_hook(lambda *a: seen.append(same_bits(before, parameters(model))))
    optimizer.step(lambda: model(x), y)
    assert seen == [True]


@pytest.mark.parametrize("cls", ALL)
def test_scratch_is_not_part_of_the_state(cls):
    """Pitfall 5: a checkpoint holds the base optimizer's state and our counters, no copy of the weights."""
    model = network(dtype=torch.float32)
    x, y = batch(dtype=torch.float32)
    optimizer = make(cls, sgd(model))
    optimizer.step(lambda: model(x), y)
    for entry in optimizer.state_dict()["state"].values():
        assert set(entry) == {"momentum_buffer"}
    own = optimizer.state_dict()["sharpness_aware"]
    assert all(v.dtype == torch.uint8 for v in own.values() if isinstance(v, torch.Tensor))  # generator bytes alone


class TracksItself(nn.Module):
    """A norm layer of one's own: a buffer updated in place, one replaced by assignment."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("count", torch.zeros(()))
        self.last = nn.Linear(6, CLASSES)

    def forward(self, x):
        x = x.flatten(1)[:, :6]
        if self.training:
            self.mean.lerp_(x.detach().mean(0), 0.1)
            self.count = self.count + 1
        return self.last(x - self.mean)


NORMS = {
    "BatchNorm1d": lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(72), nn.Linear(72, CLASSES)),
    "cumulative": lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(72, momentum=None), nn.Linear(72, CLASSES)),
    "BatchNorm2d": lambda: nn.Sequential(nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, CLASSES)),
    "SyncBatchNorm": lambda: nn.Sequential(nn.Flatten(), nn.SyncBatchNorm(72).eval(), nn.Linear(72, CLASSES)),
    "InstanceNorm2d": lambda: nn.Sequential(
        nn.InstanceNorm2d(2, track_running_stats=True), nn.Flatten(), nn.Linear(72, CLASSES)
    ),
    "spectral_norm": lambda: nn.Sequential(
        nn.Flatten(), nn.utils.parametrizations.spectral_norm(nn.Linear(72, CLASSES))
    ),
    "own": TracksItself,
}


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize("name", NORMS)
def test_statistics_as_after_one_clean_pass(cls, name):
    """Pitfall 19: statistics, batch counts and any other buffer are written once, at w, in every kind of layer."""
    torch.manual_seed(0)
    model = NORMS[name]()
    once = twin(model)
    optimizer = make(cls, still(model))
    for i in range(3):
        x, y = batch(i, dtype=torch.float32)
        optimizer.step(lambda: model(x), y)  # noqa: B023
        once(x)
    assert same_bits(list(once.buffers()), list(model.buffers()))


def forwards_by(model, x):
    """Ways in which people hand over the same network."""

    class Trainer:
        def __init__(self):
            self.network = model
            self.nets = {"main": model}

        def logits(self):
            return self.network(x)

    def helper():
        return model(x)

    trainer = Trainer()
    import functools

    return {
        "lambda": lambda: model(x),
        "partial": functools.partial(model, x),
        "method": trainer.logits,
        "attribute": lambda: trainer.network(x),
        "dictionary": lambda: trainer.nets["main"](x),
        "function": lambda: helper(),
        "default": lambda m=model: m(x),
        "comprehension": lambda: torch.stack([m(x) for m in [model]]).mean(0),
    }


@pytest.mark.parametrize("way", list(forwards_by(nn.Identity(), None)))
def test_the_network_is_found_behind_any_forward(way):
    model = network("convolutional", torch.float32)
    once = twin(model)
    x, y = batch(dtype=torch.float32)
    SAM(still(model), 0.1).step(forwards_by(model, x)[way], y)
    once(x)
    assert same_bits(list(once.buffers()), list(model.buffers()))


#: Forwards and backwards of a step that perturbs.
PASSES = {NCSAM: (2, 3), BSAM: (3, 3), MSAM: (1, 1)}
PASSES |= dict.fromkeys((SAM, ASAM, FriendlySAM, SANER, StableSAM, WeightedSAM), (2, 2))


@pytest.mark.parametrize(("cls", "passes"), PASSES.items(), ids=[cls.__name__ for cls in PASSES])
def test_passes_are_counted(cls, passes):
    """Pitfall 17: also one of each in warm-up and at rho 0, and no noise pass at s = 0."""
    x, y = batch(dtype=torch.float32)
    model = network(dtype=torch.float32)
    count = Counter(model)
    optimizer = make(cls, sgd(model), warmup_steps=1, total_steps=10)
    optimizer.step(lambda: model(x), y)
    assert (count.forwards, count.backwards) == (1, 1)
    optimizer.step(lambda: model(x), y)
    assert (count.forwards - 1, count.backwards - 1) == passes
    if cls is NCSAM:
        optimizer.kappa = 0.0
        optimizer.step(lambda: model(x), y)
        assert (count.forwards, count.backwards) == (5, 6)
    optimizer.rho = 0.0
    before = count.forwards, count.backwards
    optimizer.step(lambda: model(x), y)
    assert (count.forwards, count.backwards) == (before[0] + 1, before[1] + 1)


@pytest.mark.parametrize("cls", ALL)
def test_gradients_of_the_passes_are_not_summed(cls):
    """Pitfall 15: on a linear loss every pass has the same gradient; the step must see it once (BSAM: g+ + g - g-)."""
    w = nn.Parameter(torch.ones(1, 2, dtype=torch.float64))
    optimizer = cls(torch.optim.SGD([w], lr=1.0), rho=0.1, criterion=lambda z, t: (z * torch.tensor([3.0, 4.0])).sum())
    if cls is NCSAM:
        optimizer.kappa = 0.0
    optimizer.step(lambda: w * 1.0, torch.tensor([0]))
    torch.testing.assert_close(w.detach(), torch.tensor([[-2.0, -3.0]], dtype=torch.float64))


@pytest.mark.parametrize("cls", ALL)
def test_memory_beyond_the_base_optimizer(cls):
    """During the last pass: a copy of the weights, and the gradients named in the docstrings, no more."""
    model = nn.Linear(400, 250, bias=False)  # 100,000 weights: everything else is small
    x, y = torch.randn(4, 400), torch.randint(0, 250, (4,))
    optimizer = make(cls, torch.optim.SGD(model.parameters(), lr=0.1))
    large = []

    last = {SAM: 4, NCSAM: 4, BSAM: 6}[cls]  # forwards of two steps; the first one allocates

    def forward():
        large.append(0)
        if len(large) < last:
            return model(x)
        gc.collect()
        large.append(sum(type(o) in (torch.Tensor, nn.Parameter) and o.numel() == 100_000 for o in gc.get_objects()))
        return model(x)

    optimizer.step(forward, y)
    optimizer.step(forward, y)
    # the weights and their saved copy; BSAM also keeps g and g+; NCSAM's direction is dropped once applied
    assert large[-1] <= {SAM: 2, NCSAM: 2, BSAM: 4}[cls]


def test_parameters_of_others_keep_their_clean_gradient():
    """Pitfall 27: a head that another optimizer owns gets the gradient of the clean pass, not the sum of all passes."""
    body, head = nn.Linear(6, 5).double(), nn.Linear(5, CLASSES).double()
    model = nn.Sequential(nn.Flatten(), body, nn.Tanh(), head)
    x, y = batch()
    x = x[:, :1, :1, :]
    nn.functional.cross_entropy(model(x), y).backward()
    expected = head.weight.grad.clone()
    head.zero_grad()
    optimizer = NCSAM(torch.optim.SGD(body.parameters(), lr=0.1), 0.5, 0.5, 0.4, total_steps=1)
    optimizer.step(lambda: model(x), y)
    torch.testing.assert_close(head.weight.grad, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("same", [True, False])
def test_dropout_masks(same):
    """Pitfall 16: the same mask in both passes by option; without it a new one."""
    torch.manual_seed(0)
    drop = nn.Dropout(0.5)
    model = nn.Sequential(nn.Flatten(), drop, nn.Linear(72, CLASSES))
    masks = []
    drop.register_forward_hook(lambda m, a, out: masks.append((out != 0).clone()))
    x, y = batch(dtype=torch.float32)
    torch.manual_seed(1)
    SAM(still(model), 0.1, same_dropout=same).step(lambda: model(x), y)
    assert torch.equal(masks[0], masks[1]) is same
    if same:  # the stream goes on as after one clean pass; it is not rewound
        after = torch.get_rng_state()
        torch.manual_seed(1)
        model(x)
        assert torch.equal(after, torch.get_rng_state())


def test_a_module_that_occurs_twice_is_saved_once():
    shared = nn.BatchNorm1d(3)
    model = nn.Sequential(shared, nn.Sequential(shared, nn.Linear(3, 2)))
    assert set(submodules([model, shared])) == set(model.modules())
    assert len(submodules([model, shared])) == 4
