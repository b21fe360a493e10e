"""Groups, state, schedulers, hooks, copies: the wrapper is an optimizer like any other."""

import copy
import io
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from optim_cases import Counter, batch, network, parameters, same_bits, sgd, twin
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

from ncsam import BSAM, NCSAM, SAM

ALL = [SAM, NCSAM, BSAM]


def step(optimizer, model, i):
    x, y = batch(i, dtype=next(model.parameters()).dtype)
    return optimizer.step(lambda: model(x), y)


@pytest.mark.parametrize("cls", ALL)
def test_groups_and_state_are_the_base_optimizers_own(cls):
    """Pitfall 21: the same objects, also after load_state_dict and add_param_group."""
    model = network()
    base = sgd(model)
    optimizer = cls(base, total_steps=9)

    def shared():
        return (
            optimizer.param_groups is base.param_groups
            and optimizer.state is base.state
            and all(a is b for a, b in zip(optimizer.param_groups, base.param_groups, strict=True))
        )

    assert shared()
    step(optimizer, model, 0)
    optimizer.load_state_dict(optimizer.state_dict())
    assert shared()
    base.load_state_dict(base.state_dict())
    assert shared()
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))], "lr": 0.7})
    assert shared()
    assert base.param_groups[-1]["lr"] == 0.7
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.param_groups[1]["lr"] = 0.0
    before = parameters(model)
    step(optimizer, model, 1)
    assert same_bits(before, parameters(model))


def through_a_file(state):
    """Saved and loaded as a checkpoint is: tensors, numbers and text only."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("cls", ALL)
def test_resume_is_bit_exact(cls):
    """Pitfalls 5, 17, 22: momentum, step count, schedule position and the draws of flipping all come back."""
    options = {"rho": 0.2, "total_steps": 10, "warmup_steps": 2}
    model = network("convolutional", torch.float32)
    optimizer = cls(sgd(model), **options)
    scheduler = CosineAnnealingLR(optimizer, 10)
    for i in range(5):
        step(optimizer, model, i)
        scheduler.step()
    saved = through_a_file([model.state_dict(), optimizer.state_dict(), scheduler.state_dict()])
    for i in range(5, 10):
        step(optimizer, model, i)
        scheduler.step()

    torch.manual_seed(12345)  # another process would start with another seed
    again = network("convolutional", torch.float32, seed=99)
    resumed = cls(sgd(again), **options)
    later = CosineAnnealingLR(resumed, 10)
    again.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    later.load_state_dict(saved[2])
    assert resumed.steps == 5
    for i in range(5, 10):
        step(resumed, again, i)
        later.step()
    assert same_bits([*parameters(model), *model.buffers()], [*parameters(again), *again.buffers()])


def test_hand_set_progress_is_saved():
    model = network()
    optimizer = NCSAM(sgd(model))
    optimizer.progress = 0.4
    other = NCSAM(sgd(model))
    other.load_state_dict(through_a_file(optimizer.state_dict()))
    assert other.progress == 0.4


@pytest.mark.parametrize("cls", ALL)
def test_counts_are_saved(cls):
    model = network()
    optimizer = cls(sgd(model), total_steps=9)
    step(optimizer, model, 0)
    optimizer.criterion = lambda logits, targets: logits.sum() * 0.0  # a zero gradient, which nothing can follow
    step(optimizer, model, 1)
    other = cls(sgd(model), total_steps=9)
    other.load_state_dict(through_a_file(optimizer.state_dict()))
    assert (other.steps, other.unperturbed_steps) == (optimizer.steps, optimizer.unperturbed_steps) == (2, 1)


def test_bsam_remembers_its_first_learning_rate():
    """rho_min(t) = rho lr(t) / lr(0): who resumes with the rate of the moment has not begun with it."""
    model = network()
    again, unaware = twin(model), twin(model)
    optimizer = BSAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.3)
    optimizer.param_groups[0]["lr"] = 0.02
    resumed = BSAM(torch.optim.SGD(again.parameters(), lr=0.02), rho=0.3)
    resumed.load_state_dict(through_a_file(optimizer.state_dict()))
    step(optimizer, model, 0)
    step(resumed, again, 0)
    step(BSAM(torch.optim.SGD(unaware.parameters(), lr=0.02), rho=0.3), unaware, 0)
    assert same_bits(parameters(model), parameters(again))
    assert not same_bits(parameters(model), parameters(unaware))


def test_a_checkpoint_of_the_bare_base_optimizer_loads():
    model = network()
    base = sgd(model)
    F.cross_entropy(model(batch()[0]), batch()[1]).backward()
    base.step()
    optimizer = NCSAM(sgd(model), total_steps=3)
    optimizer.load_state_dict(base.state_dict())
    assert same_bits(
        [s["momentum_buffer"] for s in optimizer.state.values()], [s["momentum_buffer"] for s in base.state.values()]
    )
    assert optimizer.steps == 0


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize("way", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["deepcopy", "pickle"])
def test_copies_go_on_as_the_original(cls, way):
    model = network(dtype=torch.float32)
    optimizer = cls(sgd(model), rho=0.2, total_steps=8)
    CosineAnnealingLR(optimizer, 8)  # patches `step` of the instance, which must not travel
    for i in range(3):
        step(optimizer, model, i)
    copied_model, copied = way((model, optimizer))
    assert copied.param_groups is copied.base_optimizer.param_groups
    for i in range(3, 6):
        step(optimizer, model, i)
        step(copied, copied_model, i)
    assert same_bits(parameters(model), parameters(copied_model))
    assert copied.steps == optimizer.steps == 6


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize("on", ["wrapper", "base"])
@pytest.mark.parametrize("phases", ["one call", "two phases"])
def test_schedulers_work_on_either_without_warnings(cls, on, phases):
    """Pitfall 23: PyTorch warns if it never saw `step` called."""
    model = network()
    base = sgd(model)
    optimizer = cls(base, total_steps=9, model=model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler = CosineAnnealingLR(optimizer if on == "wrapper" else base, 4)
        for i in range(3):
            x, y = batch(i)
            if phases == "one call":
                optimizer.step(lambda: model(x), y)  # noqa: B023
            else:
                optimizer.zero_grad()
                logits = model(x)
                optimizer.backward(F.cross_entropy(logits, y), logits, y)
                for perturbed in optimizer.perturbations():
                    with perturbed:
                        F.cross_entropy(model(x), y).backward()
                optimizer.step()
            scheduler.step()
    assert base.param_groups[0]["lr"] == pytest.approx(0.1 * (1 + 2**-0.5 * -1) / 2)  # cos(3 pi / 4)


def test_one_cycle_reaches_momentum_through_the_wrapper():
    model = network()
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    OneCycleLR(SAM(base), max_lr=0.5, total_steps=10)
    assert base.param_groups[0]["momentum"] == pytest.approx(0.95)


def test_step_hooks_run_once_on_each():
    """Clipping by a hook of the base sees the gradient of the perturbed pass, and no other."""
    model = network()
    base = sgd(model)
    optimizer = NCSAM(base, total_steps=1)
    calls = []
    optimizer.register_step_pre_hook(lambda *a: calls.append("wrapper"))
    base.register_step_pre_hook(lambda *a: calls.append("base"))
    optimizer.register_step_post_hook(lambda *a: calls.append("after"))
    step(optimizer, model, 0)
    assert calls == ["wrapper", "base", "after"]


@pytest.mark.parametrize("cls", ALL)
def test_step_returns_the_clean_loss_and_enables_gradients(cls):
    """Pitfall 24: the loss at w, a plain number; also when the caller's gradients are off."""
    model = network()
    x, y = batch()
    expected = F.cross_entropy(model(x), y).item()
    with torch.no_grad():
        loss = cls(sgd(model), rho=1.0, total_steps=1).step(lambda: model(x), y)
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    assert not loss.requires_grad


def test_gradients_of_earlier_backwards_do_not_leak_in():
    model = network()
    other = twin(model)
    x, y = batch()
    (F.cross_entropy(model(x), y) * 100).backward()
    SAM(sgd(model)).step(lambda: model(x), y)
    SAM(sgd(other)).step(lambda: other(x), y)
    assert same_bits(parameters(model), parameters(other))


def test_weight_decay_stays_out_of_the_perturbation():
    """Pitfall 25: eps depends on the data alone, whatever the base optimizer decays."""
    where = []
    for decay in (0.0, 10.0):
        model = network()
        x, y = batch()
        optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.0, weight_decay=decay), 0.5)

        def forward(model=model, x=x):
            where.append(parameters(model))
            return model(x)

        optimizer.step(forward, y)
    assert same_bits(where[1], where[3])


def test_momentum_sees_the_final_gradient_alone():
    """Pitfall 25: after one step the buffer is the gradient at w + eps."""
    model = network()
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = NCSAM(base, 0.5, 0.5, 0.5, total_steps=1)
    step(optimizer, model, 0)
    for p in model.parameters():
        assert torch.equal(base.state[p]["momentum_buffer"], p.grad)


def test_generator_makes_flipping_reproducible():
    flips = []
    for seed in (1, 1, 2):
        model = network()
        optimizer = NCSAM(sgd(model), total_steps=1, generator=torch.Generator().manual_seed(seed))
        step(optimizer, model, 0)
        flips.append(optimizer.last_flips.index.tolist())
    assert flips[0] == flips[1] != flips[2]


def test_default_generator_follows_the_global_seed():
    flips = []
    for seed in (1, 1, 2):
        model = network()
        torch.manual_seed(seed)
        optimizer = NCSAM(sgd(model), total_steps=1)
        step(optimizer, model, 0)
        flips.append(optimizer.last_flips.index.tolist())
    assert flips[0] == flips[1] != flips[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend",
    [
        "aot_eager",
        pytest.param("inductor", marks=pytest.mark.stress),  # the same graphs, as C++ that takes long to compile
    ],
)
def test_compiled_networks(backend):
    """Pitfall 29: the compiled graph sees the moved weights, restored buffers, and s(t) does not recompile it."""
    model = network("convolutional", torch.float32)
    other = twin(model)
    compiled = torch.compile(model, backend=backend)
    left = NCSAM(sgd(model), 0.2, 0.5, 0.5, total_steps=8, generator=torch.Generator().manual_seed(0))
    right = NCSAM(sgd(other), 0.2, 0.5, 0.5, total_steps=8, generator=torch.Generator().manual_seed(0))
    torch._dynamo.utils.counters.clear()
    graphs = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for i in range(8):
            x, y = batch(i, dtype=torch.float32)
            left.step(lambda: compiled(x), y)  # noqa: B023
            right.step(lambda: other(x), y)  # noqa: B023
            graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[-1] == graphs[1]
    for p, q in zip([*model.parameters(), *model.buffers()], [*other.parameters(), *other.buffers()], strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(reentrant):
    """Pitfall 29: recomputed activations see the weights of their own pass."""
    from torch.utils.checkpoint import checkpoint

    model = network()
    other = twin(model)
    x, y = batch()

    def body(v):
        return torch.tanh(model.first(v))

    def forward():
        v = x.flatten(1)[:, :6].requires_grad_(True)
        return model.last(checkpoint(body, v, use_reentrant=reentrant))

    NCSAM(sgd(model), 0.5, 0.5, 0.5, total_steps=1).step(forward, y)
    NCSAM(sgd(other), 0.5, 0.5, 0.5, total_steps=1).step(lambda: other(x), y)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("code", "forbidden"),
    [
        ("import ncsam", ("torch", "numpy", "scipy", "click")),
        (
            "import ncsam; ncsam.NCSAM",
            (
                "scipy",
                "sklearn",
                "matplotlib",
                "PIL",
                "pooch",
                "lightning_fabric",
                "torch.distributed.tensor",
                "torch._dynamo",
            ),
        ),
    ],
)
def test_importing_is_light(code, forbidden):
    """The package itself waits for nothing; the optimizers need torch and numpy alone, without torch's slow parts."""
    import subprocess
    import sys

    loaded = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not set(forbidden) & set(loaded)


def test_counter_is_honest():
    """The helper that counts passes counts one of each for a plain step."""
    model = network()
    count = Counter(model)
    F.cross_entropy(model(batch()[0]), batch()[1]).backward()
    assert (count.forwards, count.backwards) == (1, 1)
