"""The variants by hand, through scalers, copies and restarts; and how the registry finds them."""

import ast
import copy
import inspect
import math
from functools import partial
from pathlib import Path

import pytest
import torch
from optim_cases import Counter, batch, largest_difference, network, parameters, same_bits, sgd, twin
from torch import nn

import ncsam.optim
from ncsam import ASAM, SAM, SANER, FriendlySAM
from ncsam.engine import RunConfig
from ncsam.optim import MSAM, AutoRadius, LossBudgetRadius, RisingRadius, StableSAM, reference
from processes import start

ALL = {name: ncsam.optim.get(name) for name in ncsam.optim.names()}
NEW = {"asam": ASAM, "friendlysam": FriendlySAM, "msam": MSAM, "saner": SANER, "stablesam": StableSAM}
#: With the options that change their formula.
FORMS = {"msam adaptive": partial(MSAM, adaptive=True), "msam eta 0": partial(MSAM, adaptive=True, eta=0.0)}


def step(optimizer, model, i, **options):
    x, y = batch(i, dtype=next(model.parameters()).dtype)
    return optimizer.step(lambda: model(x), y, **options)


def quadratic(logits, targets):
    """0.5 sum a z^2 with a = (1, 4): gradient a z."""
    return 0.5 * (logits**2 * torch.tensor([1.0, 4.0], dtype=logits.dtype)).sum()


# --- by hand


def test_friendlysam_by_hand():
    """At w = (3, 1), g = (3, 4). The first step is SAM's; the weights stay, so d = g - m = 0 is refused in the second.
    At w = (0, 1) then g = (0, 4), m = (3, 4), d = (-3, 0), eps = .5 (-1, 0), and the gradient there (-.5, 4)."""
    w = nn.Parameter(torch.tensor([[3.0, 1.0]], dtype=torch.float64))
    optimizer = FriendlySAM(torch.optim.SGD([w], lr=0.0), rho=0.5, decay=0.5, criterion=quadratic)
    optimizer.step(lambda: w * 1.0, torch.tensor([0]))
    assert w.grad[0].tolist() == pytest.approx([3.3, 5.6])
    optimizer.step(lambda: w * 1.0, torch.tensor([0]))
    assert optimizer.unperturbed_steps == 1
    with torch.no_grad():
        w[0, 0] = 0.0
    optimizer.step(lambda: w * 1.0, torch.tensor([0]))
    assert w.grad[0].tolist() == pytest.approx([-0.5, 4.0])
    assert optimizer.vectors["average"][w][0].tolist() == pytest.approx([1.5, 4.0])


def test_saner_by_hand():
    """L = a^2/2 - b^4/4 at (3, 1): g = (3, -1), so eps = r (3, -1) with r = 1/sqrt(10); g' = (3 + 3r, -(1 - r)^3).
    The first coordinate grows; the second keeps its sign and is shorter, and so is halved."""
    w = nn.Parameter(torch.tensor([[3.0, 1.0]], dtype=torch.float64))
    optimizer = SANER(torch.optim.SGD([w], lr=0.0), rho=1.0, criterion=lambda z, y: z[0, 0] ** 2 / 2 - z[0, 1] ** 4 / 4)
    optimizer.step(lambda: w * 1.0, torch.tensor([0]))
    r = 10**-0.5
    assert w.grad[0].tolist() == pytest.approx([3 + 3 * r, -0.5 * (1 - r) ** 3])


def test_asam_is_sam_with_adaptive():
    model = network("convolutional", torch.float32)
    other = twin(model)
    left, right = ASAM(sgd(model)), SAM(sgd(other), 0.5, adaptive=True, eta=0.01)
    for i in range(4):
        step(left, model, i)
        step(right, other, i)
    assert same_bits(parameters(model), parameters(other))


@pytest.mark.parametrize(("kind", "options"), [(SANER, {"alpha": 1.0}), (FriendlySAM, {"sigma": 0.0})])
def test_switched_off_they_are_sam(kind, options):
    model = network("convolutional", torch.float32)
    other = twin(model)
    left, right = kind(sgd(model), 0.2, **options), SAM(sgd(other), 0.2)
    for i in range(4):
        step(left, model, i)
        step(right, other, i)
    assert same_bits(parameters(model), parameters(other))


def follow(optimizer, model, other, gradient, steps=20):
    """Steps of an optimizer beside those of SGD on the gradients of a reference; the largest difference."""
    base = sgd(other)
    for i in range(steps):
        x, y = batch(i)
        optimizer.step(lambda: model(x), y)  # noqa: B023
        final = gradient(x, y, base, i)
        other(x)  # BatchNorm's statistics
        for name, p in other.named_parameters():
            p.grad = final.get(name)
        base.step()
    return largest_difference(model, other)


@pytest.mark.parametrize("name", ["mlp", "convolutional"])
def test_stablesam_against_the_reference(name):
    model = network(name)
    other = twin(model)
    difference = follow(
        StableSAM(sgd(model), 0.5), model, other, lambda x, y, *_: reference.stablesam(other, x, y, 0.5)
    )
    assert difference < 1e-12


@pytest.mark.parametrize("adaptive", [False, True])
def test_msam_against_the_reference(adaptive):
    """Without BatchNorm's running statistics, which are those of the one pass."""
    model = network("mlp")
    other = twin(model)

    def gradient(x, y, base, _):
        names = {p: name for name, p in other.named_parameters()}
        momentum = {names[p]: state["momentum_buffer"] for p, state in base.state.items()}
        if not momentum:
            return reference.gradient(other, x, y)[0]
        return reference.msam(other, x, y, 0.5, momentum, adaptive, 0.01)

    assert follow(MSAM(sgd(model), 0.5, adaptive=adaptive), model, other, gradient) < 1e-12


def test_msam_with_adam_moves_along_the_first_moment():
    w = nn.Parameter(torch.tensor([[3.0, 1.0]], dtype=torch.float64))
    optimizer = MSAM(torch.optim.Adam([w], lr=0.0), rho=0.5, criterion=quadratic)
    for expected in ([3.0, 4.0], [3.0 - 0.3, 4.0 * (1 - 0.4)]):  # g = (3, 4) at first, then at w - .5 (.6, .8)
        optimizer.step(lambda: w * 1.0, torch.tensor([0]))
        assert w.grad[0].tolist() == pytest.approx(expected)


def test_msam_moves_each_group_by_its_radius():
    """L = (a^2 + b^2) / 2 from a = 3, b = 4: the momentum is (3, 4), and the moves are .5 and .25 of (.6, .8)."""
    a, b = (nn.Parameter(torch.tensor([value], dtype=torch.float64)) for value in (3.0, 4.0))
    base = torch.optim.SGD([{"params": [a], "rho": 0.5}, {"params": [b], "rho": 0.25}], lr=0.0, momentum=0.9)
    optimizer = MSAM(base, criterion=lambda z, _: z.square().sum() / 2)
    for expected in ([3.0, 4.0], [3.0 - 0.3, 4.0 - 0.2]):
        optimizer.step(lambda: torch.cat((a, b))[None], torch.tensor([0]))
        assert [a.grad.item(), b.grad.item()] == pytest.approx(expected)


def test_msam_runs_one_pass_and_keeps_its_statistics():
    model = network("convolutional")
    counter = Counter(model)
    optimizer = MSAM(sgd(model), rho=0.5)
    for i in range(4):
        step(optimizer, model, i)
    assert (counter.forwards, counter.backwards) == (4, 4)
    assert model.body[1].num_batches_tracked == 4


def test_msam_in_two_phases_and_out_of_them():
    model = network("convolutional")
    other = twin(model)
    left, right = MSAM(sgd(model), 0.5, model=model), MSAM(sgd(other), 0.5)
    for i in range(4):
        x, y = batch(i)
        left.zero_grad()
        with left.first_pass():
            left.backward(nn.functional.cross_entropy(model(x), y))
        assert list(left.perturbations()) == []
        left.step()
        right.step(lambda: other(x), y)  # noqa: B023
    assert same_bits([*parameters(model), *model.buffers()], [*parameters(other), *other.buffers()])
    left.zero_grad()
    with pytest.raises(RuntimeError, match=r"first_pass\(\)"):
        left.backward(nn.functional.cross_entropy(model(x), y))


def msam_share(t):
    """.01 at the beginning, .1 from .6 on."""
    return min(0.01 + 0.15 * t, 0.1)


def test_the_automatic_radius_of_msam_rises_with_training_and_costs_no_pass():
    """rho = (.01 + .15 t) ||w|| up to t = .6, then .1 ||w||, with the norm in the first step; a resumed run continues
    bit for bit.
    """
    model = network()
    counter = Counter(model)
    optimizer = MSAM(sgd(model, lr=0.01), "auto", total_steps=8)
    length = reference.norm(reference.weights(model))
    step(optimizer, model, 0)
    assert optimizer.last_step.phase == "base"
    for i in range(1, 6):
        step(optimizer, model, i)
        assert optimizer.last_step.phase == "msam"
        t = (i + 1) / 8
        assert optimizer.last_step.rho == pytest.approx(msam_share(t) * length)
    assert (counter.forwards, counter.backwards) == (6, 6)

    other = twin(model)
    again = MSAM(sgd(other, lr=0.01), "auto", total_steps=8)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for i in range(6, 8):
        step(optimizer, model, i)
        step(again, other, i)
    assert same_bits(parameters(model), parameters(other))


def test_the_radius_of_msam_shrinks_while_the_validation_loss_falls():
    """After a third of training: .8 of itself where the loss fell, twice where it rose, never above the full one."""
    model = network()
    optimizer = MSAM(sgd(model, lr=0.0), "validation", total_steps=20)
    length = reference.norm(reference.weights(model))
    factors = []
    for i, loss in enumerate([5.0] * 12 + [4.0, 3.0, 2.0, 3.0, 4.0]):
        step(optimizer, model, i)
        optimizer.report_val_loss(loss)
        t = (i + 1) / 20
        factors.append(optimizer.rho / (msam_share(t) * length))
    assert factors[11:] == pytest.approx([1.0, 0.8, 0.64, 0.512, 1.0, 1.0])


@pytest.mark.parametrize(("rho", "shrinks"), [("validation", 0.8), ("auto", 1.0)])
def test_the_radius_of_msam_follows_the_validation_loss_after_a_third_of_training_if_at_all(rho, shrinks):
    model = network()
    optimizer = MSAM(sgd(model, lr=0.0), rho, total_steps=20)
    length = reference.norm(reference.weights(model))
    factors = []
    for i in range(9):
        step(optimizer, model, i)
        optimizer.report_val_loss(10.0 - i)
        factors.append(optimizer.rho / (msam_share((i + 1) / 20) * length))
    assert factors == pytest.approx([1.0] * 5 + [shrinks**n for n in (1, 2, 3, 4)])  # the seventh step is past a third


def test_a_rising_radius_needs_the_length_of_training():
    model = network()
    # the first three need a gradient at w, which one pass does not take
    for rho in (AutoRadius(), LossBudgetRadius(), "budget", torch.tensor([])):
        with pytest.raises(ValueError, match="rho"):
            MSAM(sgd(model), rho)
    weaker = MSAM(sgd(model), "validation", rho_target=0.1)  # a fifth of the default
    assert (weaker.radius.first, weaker.radius.last) == pytest.approx((0.002, 0.02))
    with pytest.raises(RuntimeError, match="total_steps"):
        step(MSAM(sgd(model), "auto"), model, 0)
    with pytest.raises(ValueError, match="last"):
        RisingRadius(0.0, -0.1)
    with pytest.raises(ValueError, match="until"):
        RisingRadius(until=0.0)


def test_a_rising_radius_is_at_most_five():
    w = nn.Parameter(torch.tensor([[300.0, 400.0]]))
    radius = RisingRadius(0.001, 0.1, until=1.0)
    optimizer = MSAM(torch.optim.SGD([w], lr=0.0, momentum=0.9), radius, total_steps=2, criterion=quadratic)
    for expected in (5.0, 5.0):  # .0505 and .1 of 500
        optimizer.step(lambda: w * 1.0, torch.tensor([0]))
        assert radius.rho == expected
    assert optimizer.last_step.rho == 5.0


def test_a_loss_budget_is_the_first_order_increase():
    """rho = tau / ||g||; within the bound on the norm of the weights."""
    model = network("convolutional")
    optimizer = SAM(sgd(model, lr=0.0), LossBudgetRadius(1e-3, bound=None))
    x, y = batch()
    losses = []

    def forward():
        logits = model(x)
        losses.append(float(nn.functional.cross_entropy(logits, y)))
        return logits

    optimizer.step(forward, y)
    norm = reference.norm(reference.gradient(twin(model), x, y)[0])
    assert optimizer.last_step.rho == pytest.approx(1e-3 / norm)
    assert losses[1] - losses[0] == pytest.approx(1e-3, rel=0.05)
    for adaptive in (False, True):
        bounded = SAM(sgd(model, lr=0.0), LossBudgetRadius(1e3, bound=0.01), adaptive=adaptive)
        for _ in range(2):
            bounded.step(lambda: model(x), y)
        weights = sum(float((p.detach() ** 2).sum()) for p in model.parameters()) ** 0.5
        assert bounded.last_step.rho == pytest.approx(0.01 * weights)
    assert SAM(sgd(model), "budget").radius.budget == 0.5


# --- as every optimizer must


@pytest.mark.parametrize("kind", [*NEW.values(), *FORMS.values()], ids=[*NEW, *FORMS])
def test_the_loss_scale_is_no_part_of_it(kind):
    model = network()
    other = twin(model)
    left, right = kind(sgd(model), 0.2, total_steps=4), kind(sgd(other), 0.2, total_steps=4)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)  # another scale in every step
    for i in range(4):
        step(left, model, i, scaler=scaler)
        scaler.update()
        step(right, other, i)
    assert largest_difference(model, other) < 1e-12


def test_the_loss_scale_is_no_part_of_a_loss_budget():
    model = network()
    other = twin(model)
    left, right = (SAM(sgd(m), LossBudgetRadius(0.01)) for m in (model, other))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for i in range(3):
        step(left, model, i, scaler=scaler)
        scaler.update()
        step(right, other, i)
        assert left.last_step.rho == pytest.approx(right.last_step.rho)
    assert largest_difference(model, other) < 1e-12


@pytest.mark.parametrize("kind", [*NEW.values(), *FORMS.values()], ids=[*NEW, *FORMS])
def test_an_overflow_leaves_weights_momentum_and_memory(kind):
    model = network(dtype=torch.float32)
    optimizer = kind(sgd(model), total_steps=10)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x, y = batch(dtype=torch.float32)
    for factor in (1.0, math.inf, 1.0):
        weights, states = parameters(model), copy.deepcopy(list(optimizer.state.values()))
        optimizer.step(lambda: model(x) * factor, y, scaler=scaler)  # noqa: B023
        scaler.update()
        assert same_bits(weights, parameters(model)) == math.isinf(factor)
        if math.isinf(factor):
            then, now = ([s["momentum_buffer"] for s in each] for each in (states, optimizer.state.values()))
            assert same_bits(then, now)
            assert all(math.isfinite(v) for v in optimizer._own_state().values() if isinstance(v, float))
            assert all(bool(v.isfinite().all()) for vector in optimizer.vectors.values() for v in vector.values())
            assert scaler.get_scale() == 512.0


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_in_the_pass_of_msam_restores_the_weights(error):
    model = network("convolutional", torch.float32)
    optimizer = MSAM(sgd(model), rho=0.5)
    step(optimizer, model, 0)
    before = parameters(model)
    x, y = batch(1, dtype=torch.float32)

    def forward():
        model(x)
        assert not same_bits(before, parameters(model))
        raise error

    with pytest.raises(error):
        optimizer.step(forward, y)
    assert same_bits(before, parameters(model))
    step(optimizer, model, 1)
    assert optimizer.last_step.phase == "msam"


@pytest.mark.parametrize("kind", ALL.values(), ids=ALL)
def test_restored_and_reduced(kind):
    """With lr 0 the weights come back bit for bit; with rho 0 the step is the base optimizer's."""
    model = network("convolutional", torch.float32)
    before = parameters(model)
    optimizer = kind(torch.optim.SGD(model.parameters(), lr=0.0), rho=0.3, total_steps=4)
    for i in range(3):
        step(optimizer, model, i)
    assert same_bits(before, parameters(model))
    other = twin(model)
    optimizer, base = kind(sgd(model), rho=0.0, total_steps=4), sgd(other)
    x, y = batch(dtype=torch.float32)
    optimizer.step(lambda: model(x), y)
    torch.nn.functional.cross_entropy(other(x), y).backward()
    base.step()
    assert same_bits(parameters(model), parameters(other))


@pytest.mark.parametrize("kind", [*ALL.values(), *FORMS.values()], ids=[*ALL, *FORMS])
@pytest.mark.parametrize("rho", [0.2, "auto"])
def test_resume_is_bit_for_bit(kind, rho):
    resumes(kind, rho)


def test_a_loss_budget_resumes_bit_for_bit():
    for kind in (SAM, StableSAM):
        resumes(kind, "budget")


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_radius_that_follows_the_validation_loss_resumes_bit_for_bit(adaptive):
    for kind in (SAM, MSAM):
        resumes(partial(kind, adaptive=adaptive), "validation")


def test_a_radius_that_rises_from_0_is_known_before_the_first_step_after_a_restart():
    model = network("mlp", torch.float32)
    optimizer = MSAM(sgd(model), rho=RisingRadius(0.0, 0.5), total_steps=8)
    for i in range(3):
        step(optimizer, model, i)
    again = twin(model)
    resumed = MSAM(sgd(again), rho=RisingRadius(0.0, 0.5), total_steps=8)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step(optimizer, model, 3)
    step(resumed, again, 3)
    assert optimizer.last_step.phase == resumed.last_step.phase == "msam"
    assert same_bits(parameters(model), parameters(again))


def resumes(kind, rho):
    model = network("convolutional", torch.float32)
    optimizer = kind(sgd(model), rho=rho, total_steps=8)
    again = twin(model)
    resumed = kind(sgd(again), rho=rho, total_steps=8)
    step(resumed, again, 9)  # what it remembers by now is forgotten

    def train(left, its, steps):
        for i in steps:
            step(left, its, i)
            left.report_val_loss(2.0 - 0.3 * i if i < 4 else 3.0)

    train(optimizer, model, range(3))
    again.load_state_dict(model.state_dict())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(optimizer, model, range(3, 7))
    train(resumed, again, range(3, 7))
    assert same_bits([*parameters(model), *model.buffers()], [*parameters(again), *again.buffers()])


# --- the registry


def test_names_and_files():
    """Every variant is found by its file, of at most 60 lines where it is new, and says what it does."""
    known = "asam bsam friendlysam msam ncsam ncsam-authors sam sam-length-matched sam-weighted saner stablesam"
    assert sorted(ALL) == known.split()
    for name in NEW:
        assert lines_of_code(inspect.getfile(ALL[name])) <= 60
    assert all((kind.__doc__ and ".. math::" in kind.__doc__) or "math:`" in kind.__doc__ for kind in ALL.values())


def lines_of_code(file):
    """Lines of a file without docstrings, imports, comments and empty lines."""
    text = Path(file).read_text()
    nodes = list(ast.walk(ast.parse(text)))
    documented = [
        n for n in nodes if isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(n)
    ]
    skipped = [n.body[0] for n in documented] + [n for n in nodes if isinstance(n, (ast.Import, ast.ImportFrom))]
    numbers = {k for n in skipped for k in range(n.lineno, n.end_lineno + 1)}
    lines = [line.strip() for k, line in enumerate(text.splitlines(), 1) if k not in numbers]
    return sum(bool(line) and not line.startswith("#") for line in lines)


@pytest.mark.parametrize("kind", ALL.values(), ids=ALL)
def test_every_option_is_in_the_signature_and_the_docstring(kind):
    parameters = inspect.signature(kind).parameters
    assert not [p for p in parameters.values() if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    shared = {"rho", "criterion", "total_steps", "warmup_steps", "rho_target", "model", "telemetry_every"}
    assert shared <= set(parameters)
    section = inspect.getdoc(kind).partition("Args:\n")[2].partition("\n\n")[0]
    own = inspect.signature(vars(kind)["__init__"]).parameters if "__init__" in vars(kind) else {}
    named = {*own, *shared, "base_optimizer"} - {"self", "options"}
    assert not [name for name in named if f"    {name}: " not in section]


def test_traits():
    """Costs in gradients, and what the engine needs to know of an optimizer without knowing its name."""
    traits = {name: (kind.passes, kind.flips_labels, kind.default_warmup) for name, kind in ALL.items()}
    assert traits["sam"] == (2, False, 0.0)
    assert traits["ncsam"] == traits["ncsam-authors"] == (3, True, 0.25)
    assert traits["bsam"] == (3, False, 0.0)
    assert traits["msam"] == (1, False, 0.0)


def test_options_of_a_variant():
    names = ncsam.optim.option_names(SANER)
    assert names[:2] == ["rho", "alpha"]
    assert {"criterion", "telemetry_every", "rho_target"} <= set(names)
    with pytest.raises(TypeError, match="unknown option of SANER 'alhpa'"):
        SANER(sgd(network()), alhpa=1.0)
    with pytest.raises(ValueError, match=r"'sanr'\..*'saner'"):
        ncsam.optim.get("sanr")


def test_a_file_put_beside_the_others_is_found(tmp_path):
    """As the recipe says: one file with `@register`. It is put on the package's path, not into the package."""
    (tmp_path / "halfsam.py").write_text(
        '"""SAM that steps on half of its gradient."""\n'
        "from ncsam.optim.registry import register\n"
        "from ncsam.optim.sam import ascent\n"
        "from ncsam.optim.sharpness_aware import SharpnessAware\n\n\n"
        "@register\nclass HalfSAM(SharpnessAware):\n"
        "    def moves(self, step):\n"
        "        for move in ascent(step, *step.gradients()):\n"
        "            yield move\n"
        "            for p in step.params:\n"
        "                p.grad *= 0.5\n"
    )

    process = start(use_half_sam, str(tmp_path))  # another process: what is registered stays
    process.join()
    assert process.exitcode == 0


def use_half_sam(folder):
    ncsam.optim.__path__.append(folder)
    assert RunConfig(optimizer="halfsam").sharpness_aware
    w = torch.nn.Parameter(torch.tensor([[3.0, 1.0]]))
    optimizer = ncsam.optim.get("halfsam")(torch.optim.SGD([w], lr=0.0), 0.5, criterion=lambda z, y: (z * z).sum() / 2)
    optimizer.step(lambda: w * 1.0, torch.tensor([0]))
    torch.testing.assert_close(w.grad, 0.5 * w.detach() * (1 + 0.5 / w.detach().norm()))


def test_the_loss_budget_names_a_wrong_start():
    with pytest.raises(ValueError, match="start"):
        LossBudgetRadius(start=-1.0)
