"""What a loop may do wrong, and what may interrupt it: nothing goes unnoticed, and no weight stays moved."""

import inspect
import sys
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from optim_cases import batch, largest_difference, network, parameters, same_bits, sgd, twin
from torch.distributed.algorithms.join import Join

import ncsam.optim
from ncsam import NCSAM, SAM, AutoRadius
from ncsam.vectors.saved import SavedWeights


def first_phase(optimizer, model, x, y):
    logits = model(x)
    optimizer.backward(F.cross_entropy(logits, y), logits, y)


def second_phase(optimizer, model, x, y):
    for perturbed in optimizer.perturbations():
        with perturbed:
            optimizer.backward(F.cross_entropy(model(x), y))


def test_perturbations_for_each_micro_batch_are_refused():
    """What an override of a trainer's `training_step` does: the gradient would be neither step's."""
    model = network()
    optimizer = SAM(sgd(model), model=model)
    first_phase(optimizer, model, *batch())
    second_phase(optimizer, model, *batch())
    with pytest.raises(RuntimeError, match=r"after perturbations\(\) and before step\(\)"):
        first_phase(optimizer, model, *batch(1))
    optimizer.zero_grad()
    first_phase(optimizer, model, *batch(1))


@pytest.mark.parametrize("call", ["step", "whole", "run_passes"])
def test_a_step_inside_a_perturbed_block_is_refused(call):
    model = network()
    x, y = batch()
    optimizer = SAM(sgd(model), model=model)
    before = parameters(model)
    first_phase(optimizer, model, x, y)
    calls = {
        "step": lambda: optimizer.step(),
        "whole": lambda: optimizer.step(lambda: model(x), y),
        "run_passes": lambda: optimizer.run_passes(lambda: F.cross_entropy(model(x), y)),
    }
    for perturbed in optimizer.perturbations():
        with perturbed:
            optimizer.backward(F.cross_entropy(model(x), y))
            with pytest.raises(RuntimeError, match="inside `with perturbed:`"):
                calls[call]()
    assert same_bits(before, parameters(model))


def test_the_usual_loop_gets_the_right_lines():
    model = network()
    x, y = batch()
    optimizer = SAM(sgd(model), model=model)
    F.cross_entropy(model(x), y).backward()
    with pytest.raises(TypeError, match=r"optimizer\.step\(lambda: model\(x\), y\)"):
        optimizer.step()


def test_weights_cast_to_sixteen_bits_later_are_refused():
    model = network(dtype=torch.float32)
    optimizer = SAM(sgd(model))
    model.to(torch.bfloat16)
    x, y = batch(dtype=torch.float32)
    with pytest.raises(ValueError, match="16-bit"):
        optimizer.step(lambda: model(x.bfloat16()), y)


@pytest.mark.parametrize(
    ("kind", "option"), [(NCSAM, "projection"), (NCSAM, "adaptive"), (NCSAM, "same_dropout"), (SAM, "adaptive")]
)
def test_flags_are_flags(kind, option):
    with pytest.raises(ValueError, match=f"{option}='abc'"):
        kind(sgd(network()), total_steps=1, **{option: "abc"})


def test_a_loop_left_early_leaves_no_step_behind():
    model = network()
    x, y = batch()
    optimizer = SAM(sgd(model), model=model)
    before = parameters(model)
    first_phase(optimizer, model, x, y)
    for _ in optimizer.perturbations():
        break
    assert same_bits(before, parameters(model))
    with pytest.raises(TypeError, match="none is open"):
        optimizer.step()
    with pytest.raises(RuntimeError, match="needs the gradients"):
        next(iter(optimizer.perturbations()))


def test_run_passes_is_the_whole_step():
    """And micro-batches are the joined batch."""
    model = network("convolutional")
    others = [twin(model) for _ in range(2)]
    options = {"rho": "auto", "kappa": 0.3, "flip_ratio": 1.0, "total_steps": 4, "compensation": "relative"}
    whole = NCSAM(sgd(model), **options)
    passes = [NCSAM(sgd(other), model=other, **options) for other in others]

    def evaluate(network, x, y, parts):
        logits = network(x)
        return F.cross_entropy(logits, y) / parts, logits, y

    plain = network("mlp")
    accumulated, joined = twin(plain), SAM(sgd(plain))
    divided = SAM(sgd(accumulated), model=accumulated)
    for i in range(4):
        x, y = batch(i)
        loss = whole.step(lambda: model(x), y)  # noqa: B023
        assert passes[0].run_passes(lambda: evaluate(others[0], x, y, 1)).item() == loss.item()  # noqa: B023
        passes[0].step()
        joined.step(lambda: plain(x), y)  # noqa: B023
        halves = zip(x.chunk(2), y.chunk(2), strict=True)
        divided.run_passes([lambda a=a, b=b: evaluate(accumulated, a, b, 2)[0] for a, b in halves])
        divided.step()
    assert same_bits(parameters(model), parameters(others[0]))
    assert largest_difference(plain, accumulated) < 1e-12


# --- interrupts


@pytest.mark.parametrize("kind", [ncsam.optim.get(name) for name in ncsam.optim.names()], ids=lambda k: k.name)
def test_an_interrupt_within_a_step_leaves_no_weight_moved_and_gradients_on(kind):
    """A KeyboardInterrupt at lines all over a step: w or the step's end, never w + eps. `make stress` has every line.

    Lines of torch's `no_grad` count: interrupted there, it alone would leave gradients off for the whole process.
    """
    roots = (str(ncsam.optim.__path__[0]).rsplit("/", 1)[0], inspect.getfile(torch.no_grad))
    x, y = batch(dtype=torch.float32)

    def run(stop):
        model = network("convolutional", torch.float32)
        before = [*parameters(model), *(b.clone() for b in model.buffers())]
        optimizer = kind(torch.optim.SGD(model.parameters(), lr=0.0), rho=0.5, total_steps=2)
        lines = 0

        def trace(frame, event, arg):
            nonlocal lines
            if not frame.f_code.co_filename.startswith(roots):
                return None
            if event == "line":
                lines += 1
                if lines == stop:
                    raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            optimizer.step(lambda: model(x), y)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        gradients = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        optimizer.zero_grad()  # the next call
        return lines, same_bits(before[: len(parameters(model))], parameters(model)) and gradients

    total, _ = run(0)
    assert total > 100
    moved = [stop for stop in range(1, total + 1, total // 25) if not run(stop)[1]]
    assert moved == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the loop that is closed
@pytest.mark.parametrize("call", ["zero_grad", "load_state_dict", "step"])
def test_weights_that_no_restore_reached_come_back_with_the_next_call(call, monkeypatch):
    """Every restore of a step is interrupted before it has done anything."""
    x, y = batch(dtype=torch.float32)
    model = network("convolutional", torch.float32)
    before = parameters(model)
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.0), rho=0.5)
    state, restore = optimizer.state_dict(), SavedWeights.restore

    def interrupted(self):
        if self._moved:
            raise KeyboardInterrupt
        restore(self)

    with monkeypatch.context() as patched:
        patched.setattr(SavedWeights, "restore", interrupted)
        with pytest.raises(KeyboardInterrupt):
            optimizer.step(lambda: model(x), y)
    assert not same_bits(before, parameters(model))
    if call == "zero_grad":
        optimizer.zero_grad()
    elif call == "load_state_dict":
        optimizer.load_state_dict(state)
    else:
        optimizer.step(lambda: model(x), y)
    assert same_bits(before, parameters(model))


# --- beyond classification


def test_dense_classes_and_ignored_targets():
    """Segmentation: logits (batch, classes, h, w); ignore_index does not count, neither in L_0; int32 works."""
    torch.manual_seed(0)
    model = torch.nn.Conv2d(2, 3, 1)
    x = torch.randn(4, 2, 5, 5)
    y = torch.randint(0, 3, (4, 5, 5), dtype=torch.int32)
    y[:, :2] = -100
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho="auto")
    for _ in range(3):
        loss = optimizer.step(lambda: model(x), y)
    assert torch.isfinite(loss)
    counts = optimizer.radius.state_dict()["labels"]
    assert counts.tolist() == [3.0 * float((y == c).sum()) for c in range(3)]
    with pytest.raises(ValueError, match="targets hold -5 to"):
        optimizer.step(lambda: model(x), torch.where(y < 0, -5, y))


def test_regression_measures_what_guessing_costs():
    """The mean loss of the first five steps stands for L_0; until then the radius waits."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    x, y = torch.randn(32, 3), torch.randn(32, 1) + 2.0
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.02), rho="auto", criterion=F.mse_loss)
    losses, radii = [], []
    for _ in range(9):
        losses.append(float(optimizer.step(lambda: model(x), y)))
        radii.append(optimizer.rho)
    assert radii[:4] == [0.05] * 4
    assert radii[4] != 0.05
    assert optimizer.radius.state_dict()["first_losses"] == pytest.approx(losses[:5])


def test_any_targets_and_dictionaries():
    """A detection-style loop: `run_passes` asks for a loss alone."""
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"box": torch.nn.Linear(3, 4), "score": torch.nn.Linear(3, 2)})
    x = torch.randn(8, 3)
    target = {"boxes": torch.randn(8, 4), "labels": torch.randint(0, 2, (8,))}
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho="auto", model=model)

    def evaluate():
        return F.l1_loss(model["box"](x), target["boxes"]) + F.cross_entropy(model["score"](x), target["labels"])

    first = float(optimizer.run_passes(evaluate))
    optimizer.step()
    for _ in range(30):
        last = float(optimizer.run_passes(evaluate))
        optimizer.step()
    assert last < first


def test_a_bound_on_the_radius():
    """rho <= bound ||w||, by the norm of the weights as they are."""
    model = network()
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.0), rho=AutoRadius(4.9, bound=0.02))
    x, y = batch()
    for _ in range(5):
        optimizer.step(lambda: model(x), y)
    norm = torch.cat([p.detach().flatten() for p in model.parameters()]).norm()
    assert optimizer.rho == pytest.approx(0.02 * float(norm))
    assert optimizer.rho_target == 4.9


def test_an_automatic_radius_never_leaves_a_tenth_of_the_weights():
    """Whatever the target and the network: where nothing a perturbation does reaches the target, it stops there."""
    model = network()
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.0), rho="auto", rho_target=4.9)
    x, y = batch()
    for _ in range(60):
        optimizer.step(lambda: model(x), y)
    norm = torch.cat([p.detach().flatten() for p in model.parameters()]).norm()
    assert optimizer.rho == pytest.approx(0.1 * float(norm))


@pytest.fixture
def single_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("kind", "options", "fine"),
    [
        (SAM, {"rho": 0.1}, True),
        (SAM, {"rho": "auto"}, False),
        (SAM, {"rho": 0.1, "perturbation": "local"}, False),
        (NCSAM, {"rho": 0.1, "total_steps": 2}, False),
    ],
)
def test_what_ranks_exchange_under_join_is_known_to_ddp_or_refused(kind, options, fine, single_rank):
    """A rank that is out of batches would never answer what DDP does not know of: the others would wait for ever."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 3))
    optimizer = kind(torch.optim.SGD(model.parameters(), lr=0.1), process_group=single_rank, **options)
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    before = parameters(model)
    refused = nullcontext() if fine else pytest.raises(RuntimeError, match="uneven inputs under torch's Join")
    with refused, Join([model]):
        optimizer.step(lambda: model(x), y)
    assert same_bits(before, parameters(model)) is not fine
