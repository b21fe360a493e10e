"""The automatic radius: its rule in numbers, what must not upset it, and every way of stepping and restarting."""

import copy
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from optim_cases import CLASSES, batch, network, parameters, same_bits, sgd
from torch.amp.grad_scaler import GradScaler

from ncsam import BSAM, NCSAM, SAM
from ncsam.optim.radius import AutoRadius

KINDS = {
    "sam": (SAM, {}),
    "asam": (SAM, {"adaptive": True, "eta": 0.01}),
    "bsam": (BSAM, {}),
    "ncsam": (NCSAM, {"kappa": 0.5, "compensation": "relative", "total_steps": 20, "sign": -1}),
}


def make(name, network, **options):
    kind, own = KINDS[name]
    generator = {"generator": torch.Generator().manual_seed(3)} if kind is NCSAM else {}
    return kind(sgd(network), **{"rho": "auto", **own, **generator, **options})


def fed(*losses, target=0.5, guess=2.0):
    """A radius after steps with these losses (at w, at w + eps)."""
    return told(AutoRadius(target, chance_loss=guess), *losses)


def told(radius, *losses):
    for here, there in losses:
        radius.note_batch(torch.tensor(here), None, None, None)
        radius.note_perturbed(torch.tensor(there))
        radius.end(perturbed=True, params=[], group=None)
    return radius


# --- the rule


def test_one_step_by_hand():
    radius = fed((1.0, 1.8))  # 0.8 of the 1.0 that was learned over guessing
    assert radius.relative_loss_increase == pytest.approx(0.8)
    assert radius.rho == pytest.approx(0.05 * math.exp(0.1 * (0.5 - 0.8)))


def test_the_share_is_smoothed():
    radius = fed((1.0, 1.8), (1.0, 1.2))
    assert radius.relative_loss_increase == pytest.approx(0.5 * 0.8 + 0.5 * 0.2)
    assert radius.rho == pytest.approx(0.05 * math.exp(0.1 * (0.5 - 0.8)) * math.exp(0.1 * (0.5 - 0.5)))


def test_on_target_it_stays():
    assert fed(*[(1.0, 1.5)] * 9).rho == pytest.approx(0.05)
    assert fed(*[(1.0, 1.2)] * 9, target=0.2).rho == pytest.approx(0.05)


def test_little_learned_is_measured_against_h():
    assert fed((1.99, 2.0)).relative_loss_increase == pytest.approx(0.01 / 0.05)
    assert fed((3.0, 3.01)).relative_loss_increase == pytest.approx(0.01 / 0.05)  # worse than guessing


def test_bounds():
    assert fed(*[(1.0, 1.0)] * 400).rho == 5.0
    assert fed(*[(1.0, 9.0)] * 400).rho == 0.01
    assert fed((1.0, 1e9)).rho == pytest.approx(0.05 * math.exp(0.1 * (0.5 - 5.0)))
    assert fed((1.0, -1e9)).rho == pytest.approx(0.05 * math.exp(0.1 * (0.5 + 5.0)))


def test_a_rare_measurement_moves_it_as_far_as_all_the_steps_it_stands_for():
    """As under the estimator "looksam"; but by no more than a factor of e."""
    for share, factor in ((0.4, math.exp(10 * 0.1 * 0.1)), (-1.0, math.e), (2.0, 1 / math.e)):
        radius = AutoRadius(0.5, chance_loss=2.0)
        radius.steps_per_update = 10
        assert told(radius, (1.0, 1.0 + share)).rho == pytest.approx(0.05 * factor)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_losses_that_are_not_finite(bad):
    before = fed((1.0, 1.8))
    assert fed((1.0, 1.8), (bad, 1.0)).rho == before.rho
    shrunk = fed((1.0, bad))
    assert shrunk.relative_loss_increase == 5.0
    assert shrunk.rho == pytest.approx(0.05 * math.exp(0.1 * (0.5 - 5.0)))


def test_the_rule_holds_in_a_step():
    """Against both losses taken by hand, with labels counted over the steps."""
    model = network()
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho="auto")
    rho, share, counts = 0.05, None, torch.zeros(CLASSES, dtype=torch.float64)
    for i in range(6):
        x, y = batch(i)
        assert optimizer.rho == pytest.approx(rho, rel=1e-12)
        there = copy.deepcopy(model)
        here = F.cross_entropy(there(x), y)
        gradients = torch.autograd.grad(here, list(there.parameters()))
        norm = torch.sqrt(sum((g**2).sum() for g in gradients))
        with torch.no_grad():
            for p, g in zip(there.parameters(), gradients, strict=True):
                p += rho * g / norm
            risen = float(F.cross_entropy(there(x), y) - here)
        counts += torch.bincount(y, minlength=CLASSES)
        f = counts / counts.sum()
        now = risen / max(0.05, float(-(f * f.log()).sum() - here.detach()))
        share = now if share is None else (share + now) / 2
        rho *= math.exp(0.1 * (0.5 - share))
        optimizer.step(lambda: model(x), y)  # noqa: B023
    assert optimizer.rho == pytest.approx(rho, rel=1e-9)
    assert optimizer.last_step.relative_loss_increase is not None


def test_it_reaches_its_target():
    """On a fixed batch the loop settles where the perturbation takes away half of what was learned."""
    model = network()
    x, y = batch(size=64)
    for _ in range(200):
        loss = F.cross_entropy(model(x), y)
        for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
            p.data -= 0.5 * g
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.0), rho=AutoRadius(bound=None))
    for _ in range(300):
        optimizer.step(lambda: model(x), y)
    assert optimizer.radius.relative_loss_increase == pytest.approx(0.5, abs=1e-3)
    assert 0.01 < optimizer.rho < 5


# --- the loss of guessing


def guess_of(optimizer):
    return float(optimizer.radius._pending[2])


def test_guessing_costs_the_entropy_of_the_labels():
    model = network()
    x, _ = batch(size=8)
    y = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
    optimizer = make("sam", model)
    optimizer.step(lambda: model(x), y)
    assert guess_of(optimizer) == pytest.approx(1.5 * math.log(2))
    soft = make("sam", model)
    soft.step(lambda: model(x), F.one_hot(y, CLASSES).double())
    assert guess_of(soft) == pytest.approx(1.5 * math.log(2))


def mae(logits, targets):
    """Mean absolute error: 2 - 2 p_y."""
    return (2 - 2 * logits.softmax(1).gather(1, targets[:, None])).mean()


def test_another_criterion_is_asked_itself():
    """Mean absolute error of a guess of (n_c + 1) / (n + C): 2 - 2 p_y."""
    model = network()
    x, _ = batch(size=8)
    y = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])

    optimizer = make("sam", model, criterion=mae)
    optimizer.step(lambda: model(x), y)
    p = [5 / 12, 3 / 12, 3 / 12, 1 / 12]
    assert guess_of(optimizer) == pytest.approx(2 - 2 * (4 * p[0] + 2 * p[1] + 2 * p[2]) / 8)


def test_another_criterion_is_asked_by_each_micro_batch():
    """L_0 is the mean of what each of them finds, as the loss is, by the frequencies in all of them."""
    model = network()
    x, _ = batch(size=8)
    y = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])

    optimizer = make("sam", model, criterion=mae, model=model)
    for _ in range(3):
        logits = model(x)
        optimizer.backward(mae(logits, y) / 3, logits, y)
    for perturbed in optimizer.perturbations():
        with perturbed:
            for _ in range(3):
                optimizer.backward(mae(model(x), y) / 3)
    p = [13 / 28, 7 / 28, 7 / 28]
    assert guess_of(optimizer) == pytest.approx(2 - 2 * (4 * p[0] + 2 * p[1] + 2 * p[2]) / 8)


def test_a_given_guess_needs_no_classes():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    optimizer = SAM(
        torch.optim.SGD(model.parameters(), lr=0.1), "auto", criterion=F.mse_loss, chance_loss=1.0, model=model
    )
    optimizer.step(lambda: model(x), y)
    assert optimizer.rho != 0.05


@pytest.mark.parametrize(("radius_signal", "same"), [("criterion", True), ("loss", False)])
def test_the_radius_follows_the_criterion_where_the_loss_has_another_scale(radius_signal, same):
    """Eight times the loss has the same perturbation, by the criterion the same radius, and without a step the same
    weights; told eight times the losses, it takes little for learned, or nothing."""
    found = []
    for factor, measure in ((1.0, "loss"), (8.0, radius_signal)):
        model = network()
        x, y = batch()
        optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.0), "auto", model=model, radius_signal=measure)

        def evaluate(model=model, x=x, y=y, factor=factor):
            logits = model(x)
            return factor * F.cross_entropy(logits, y), logits, y

        for _ in range(5):
            optimizer.run_passes(evaluate)
            optimizer.step()
        found.append(optimizer.rho)
    assert (found[1] == pytest.approx(found[0], rel=1e-5)) is same


def test_one_class_alone():
    """Nothing to learn over guessing: the radius stays finite and in bounds, and training goes on."""
    model = network()
    x, _ = batch()
    optimizer = make("sam", model)
    for _ in range(50):
        loss = optimizer.step(lambda: model(x), torch.zeros(16, dtype=torch.int64))
    assert 0.01 <= optimizer.rho <= 5
    assert float(loss) < 0.2


# --- in every way of stepping


@pytest.mark.parametrize("name", KINDS)
def test_two_phases_are_the_whole_step(name):
    whole, parts = network(), network()
    one, two = make(name, whole), make(name, parts, model=parts)
    for i in range(4):
        x, y = batch(i)
        one.step(lambda: whole(x), y)  # noqa: B023
        two.zero_grad()
        logits = parts(x)
        two.backward(F.cross_entropy(logits, y), logits, y)
        for perturbed in two.perturbations():
            with perturbed:
                two.backward(F.cross_entropy(parts(x), y))
        two.step()
        assert one.rho == two.rho
    assert same_bits(parameters(whole), parameters(parts))
    assert one.rho != 0.05


@pytest.mark.parametrize("name", KINDS)
def test_accumulation_is_the_joined_batch(name):
    whole, parts = network(), network()
    options = {"flip_ratio": 0.0} if name == "ncsam" else {}  # who is flipped depends on how the draws are dealt
    one, two = make(name, whole, **options), make(name, parts, model=parts, **options)
    for i in range(4):
        x, y = batch(i)
        one.step(lambda: whole(x), y)  # noqa: B023
        two.zero_grad()
        halves = list(zip(x.chunk(2), y.chunk(2), strict=True))
        for a, b in halves:
            logits = parts(a)
            two.backward(F.cross_entropy(logits, b) / 2, logits, b)
        for perturbed in two.perturbations():
            with perturbed:
                for a, b in halves:
                    two.backward(F.cross_entropy(parts(a), b) / 2)
        two.step()
    assert one.rho == pytest.approx(two.rho, rel=1e-9)


def test_a_second_phase_that_hides_its_loss_is_refused():
    model = network()
    x, y = batch()
    optimizer = make("sam", model, model=model)
    logits = model(x)
    optimizer.backward(F.cross_entropy(logits, y), logits, y)
    passes = optimizer.perturbations()
    with next(passes):
        F.cross_entropy(model(x), y).backward()
    with pytest.raises(RuntimeError, match=r"optimizer\.backward\(loss\)"):
        next(passes)


def test_scaled_losses_are_not_seen():
    """A GradScaler's factor is no part of the loss."""
    plain, scaled = network(dtype=torch.float32), network(dtype=torch.float32)
    one, two = make("sam", plain), make("sam", scaled)
    scaler = GradScaler("cpu", init_scale=1024.0)
    for i in range(3):
        x, y = batch(i, dtype=torch.float32)
        one.step(lambda: plain(x), y)  # noqa: B023
        two.step(lambda: scaled(x), y, scaler=scaler)  # noqa: B023
        scaler.update()
    assert one.rho == pytest.approx(two.rho, rel=1e-5)


def test_an_overflow_leaves_the_radius():
    model = network(dtype=torch.float32)
    x, y = batch(dtype=torch.float32)
    optimizer = make("sam", model)
    scaler = GradScaler("cpu", init_scale=2.0**127)
    optimizer.step(lambda: model(x * 1e3), y, scaler=scaler)
    assert optimizer.unperturbed_steps == 1
    assert optimizer.rho == 0.05


def test_bf16_autocast():
    model = network(dtype=torch.float32)
    optimizer = make("sam", model)
    x, y = batch(dtype=torch.float32)

    def forward():
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    for _ in range(5):
        optimizer.step(forward, y)
    assert 0.05 < optimizer.rho < 0.1


def test_bsam_measures_the_upper_pass():
    """Its second pass, below, would say the opposite."""
    a, b = network(), network()
    x, y = batch()
    one, two = make("sam", a), make("bsam", b)
    one.step(lambda: a(x), y)
    two.step(lambda: b(x), y)
    assert one.rho == two.rho


def test_warm_up_only_counts_labels():
    model = network()
    optimizer = make("sam", model, warmup_steps=3)
    for i in range(3):
        x, y = batch(i)
        optimizer.step(lambda: model(x), y)  # noqa: B023
    assert optimizer.rho == 0.05
    assert float(optimizer.radius._labels.sum()) == 48
    optimizer.step(lambda: model(x), y)
    assert optimizer.rho != 0.05


# --- restarts


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("way", ["state_dict", "pickle"])
def test_resume_is_bit_for_bit(name, way):
    def train(model, optimizer, steps):
        for i in steps:
            x, y = batch(i)
            optimizer.step(lambda: model(x), y)  # noqa: B023

    whole = network()
    optimizer = make(name, whole)
    train(whole, optimizer, range(8))
    half = network()
    first = make(name, half)
    train(half, first, range(4))
    if way == "pickle":
        half, second = pickle.loads(pickle.dumps((half, first)))
    else:
        second = make(name, half)
        second.load_state_dict(copy.deepcopy(first.state_dict()))
    train(half, second, range(4, 8))
    assert same_bits(parameters(whole), parameters(half))
    assert optimizer.rho == second.rho


def test_the_labels_seen_before_a_restart_count():
    """L_0 is the entropy of all labels so far; only a network that has learned something shows the difference."""
    model = network()
    x, y = batch()
    plain = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for _ in range(200):
        plain.zero_grad()
        F.cross_entropy(model(x), y).backward()
        plain.step()
    again = copy.deepcopy(model)
    optimizer = make("sam", model)
    optimizer.step(lambda: model(x), y)
    resumed = make("sam", again)
    again.load_state_dict(model.state_dict())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    some = y == y[0]  # one class: alone, it would have no entropy
    for one, its in ((optimizer, model), (resumed, again)):
        assert float(one.step(lambda: its(x[some]), y[some])) < 0.5  # noqa: B023
    assert optimizer.rho == resumed.rho


def test_the_state_is_plain():
    """Checkpoints are read with weights_only=True."""
    model = network()
    optimizer = make("sam", model)
    x, y = batch()
    optimizer.step(lambda: model(x), y)
    own = optimizer.state_dict()["sharpness_aware"]["radius"]
    assert set(own) == {"rho", "increase", "labels", "first_losses", "weight_norm", "age"}
    assert own["rho"] == optimizer.rho
    assert own["labels"].sum() == 16


def test_setting_rho_ends_it():
    model = network()
    optimizer = make("sam", model)
    optimizer.rho = 0.2
    x, y = batch()
    optimizer.step(lambda: model(x), y)
    assert optimizer.rho == 0.2
    with pytest.raises(ValueError, match="rho"):
        optimizer.rho = -1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rho": "big"}, "rho='big'"),
        ({"rho_target": 0.0}, "rho_target=0.0"),
        ({"rho_target": "half"}, "rho_target='half'"),
        ({"chance_loss": -1.0}, "chance_loss=-1.0"),
        ({"radius_signal": "size"}, "radius_signal='size'"),
    ],
)
def test_errors_name_the_argument(options, words):
    with pytest.raises(ValueError, match=words):
        make("sam", network(), **options)


def test_it_shows_itself():
    assert "rho='auto', now 0.05" in repr(make("sam", network()))
    assert "rho='auto', now 0.05" in repr(make("ncsam", network()))
