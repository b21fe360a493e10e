"""Estimators in the loops of users: restored weights, resumed runs, accumulation, scalers, copies, statistics."""

import copy
import io
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from optim_cases import batch, largest_difference, network, parameters, same_bits, sgd, twin

from ncsam import NCSAM

CHEAP = ["fused", "looksam"]


def make(model, estimator, **options):
    options = {"rho": 0.3, "kappa": 0.4, "flip_ratio": 0.5, "total_steps": 1, "ramp": "constant", **options}
    generator = torch.Generator().manual_seed(7)
    return NCSAM(sgd(model), estimator=estimator, refresh_every=3, generator=generator, model=model, **options)


def step(optimizer, model, i):
    x, y = batch(i, dtype=next(model.parameters()).dtype)
    return optimizer.step(lambda rows=slice(None): model(x[rows]), y)


def two_phase_step(optimizer, model, x, y, parts=1, scaler=None):
    """The loop of the documentation, for any estimator."""
    micro = list(zip(x.chunk(parts), y.chunk(parts), strict=True))
    optimizer.zero_grad()
    for a, b in micro:
        logits = model(a)
        loss = F.cross_entropy(logits, b) / parts
        optimizer.backward(loss, logits, b, scaler=scaler)
    for perturbed in optimizer.perturbations():
        with perturbed:
            for a, b in micro:
                optimizer.backward(F.cross_entropy(model(a), b) / parts, scaler=scaler)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("estimator", CHEAP)
@pytest.mark.parametrize("rho", [1e-3, 1.0])
def test_restored_bit_for_bit(estimator, rho):
    model = network("convolutional", torch.float32)
    before = parameters(model)
    optimizer = make(model, estimator, rho=rho)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    for i in range(4):
        step(optimizer, model, i)
        assert same_bits(before, parameters(model))


@pytest.mark.parametrize("estimator", CHEAP)
def test_statistics_are_those_of_the_pass_at_w(estimator):
    """The forward of the flipped samples alone, and every perturbed one, leave no trace."""
    model = network("convolutional", torch.float32)
    once = twin(model)
    optimizer = make(model, estimator)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    for i in range(4):
        step(optimizer, model, i)
        x, _ = batch(i, dtype=torch.float32)
        once(x)
    assert same_bits(list(model.buffers()), list(once.buffers()))


@pytest.mark.parametrize("estimator", CHEAP)
def test_an_exception_in_a_pass_restores(estimator):
    for broken in (1, 2):  # the second pass of a refreshing step, and the last of a cheap one
        model = network("convolutional", torch.float32)
        optimizer = make(model, estimator)
        for i in range(broken - 1):
            step(optimizer, model, i)
        before = parameters(model)
        x, y = batch(5, dtype=torch.float32)
        passes = 0

        def forward(rows=slice(None), model=model, x=x):
            nonlocal passes
            passes += 1
            if passes == 2:
                raise KeyboardInterrupt
            return model(x[rows])

        if estimator == "looksam" and broken == 2:
            continue  # one pass only
        with pytest.raises(KeyboardInterrupt):
            optimizer.step(forward, y)
        assert same_bits(before, parameters(model))
        step(optimizer, model, 6)
        assert all(torch.isfinite(p).all() for p in model.parameters())


@pytest.mark.parametrize("estimator", CHEAP)
@pytest.mark.parametrize("stop", [1, 2, 4])
def test_resume_is_bit_exact(estimator, stop):
    """Wherever in a cycle: norms, the kept vector, its age, the draws, momentum."""
    model = network("convolutional", torch.float32)
    optimizer = make(model, estimator)
    for i in range(stop):
        step(optimizer, model, i)
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict()], file)
    for i in range(stop, 7):
        step(optimizer, model, i)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    again = network("convolutional", torch.float32, seed=99)
    again.load_state_dict(weights)
    resumed = make(again, estimator)
    step(resumed, again, 0)  # what it remembers by now is forgotten
    again.load_state_dict(weights)
    resumed.load_state_dict(state)
    for i in range(stop, 7):
        step(resumed, again, i)
    assert same_bits([*parameters(model), *model.buffers()], [*parameters(again), *again.buffers()])


@pytest.mark.parametrize("estimator", CHEAP)
@pytest.mark.parametrize("way", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["deepcopy", "pickle"])
def test_copies_go_on_as_the_original(estimator, way):
    model = network(dtype=torch.float32)
    optimizer = make(model, estimator)
    for i in range(2):
        step(optimizer, model, i)
    copied_model, copied = way((model, optimizer))
    for i in range(2, 6):
        step(optimizer, model, i)
        step(copied, copied_model, i)
    assert same_bits(parameters(model), parameters(copied_model))


@pytest.mark.parametrize("estimator", CHEAP)
def test_two_phases_are_one_step(estimator):
    model = network("convolutional")
    other = twin(model)
    left, right = make(model, estimator, warmup_steps=1), make(other, estimator, warmup_steps=1)
    for i in range(6):
        two_phase_step(left, model, *batch(i))
        step(right, other, i)
    assert same_bits(parameters(model), parameters(other))
    assert same_bits(list(model.buffers()), list(other.buffers()))


@pytest.mark.parametrize("estimator", CHEAP)
@pytest.mark.parametrize("scale", [None, 1024.0])
def test_accumulation_equals_the_whole_batch(estimator, scale):
    """With every sample flipped nothing is left to chance. The first step, whose number of micro-batches cannot be
    known, is an exact one."""
    model = network()
    other = twin(model)
    options = {"flip_ratio": 1.0}
    left, right = make(model, estimator, **options), make(other, estimator, **options)
    scaler = None if scale is None else torch.amp.GradScaler("cpu", init_scale=scale)
    for i in range(7):
        x, y = batch(i)
        two_phase_step(left, model, x, y, parts=2, scaler=scaler)
        two_phase_step(right, other, x, y)
        assert torch.equal(left.last_flips.index, right.last_flips.index) if left.last_flips else True
    assert largest_difference(model, other) < 1e-12


@pytest.mark.parametrize("estimator", CHEAP)
@pytest.mark.parametrize("compensation", ["absolute", "relative"])
def test_accumulation_resumes_bit_for_bit(estimator, compensation):
    """The weight of a fused loss needs the micro-batches of the step before, and a relative one ||g*||, too."""
    model = network()
    optimizer = make(model, estimator, compensation=compensation)
    for i in range(2):
        two_phase_step(optimizer, model, *batch(i), parts=4)
    again = twin(model)
    resumed = make(again, estimator, compensation=compensation)
    two_phase_step(resumed, again, *batch(9))  # what it remembers by now is forgotten
    again.load_state_dict(model.state_dict())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for i in range(2, 5):
        two_phase_step(optimizer, model, *batch(i), parts=4)
        two_phase_step(resumed, again, *batch(i), parts=4)
    assert same_bits(parameters(model), parameters(again))


@pytest.mark.parametrize("estimator", CHEAP)
def test_overflow_skips_the_step(estimator):
    model = network(dtype=torch.float32)
    before = parameters(model)
    optimizer = make(model, estimator)
    scaler = torch.amp.GradScaler("cpu", init_scale=1e38)
    x, y = batch(dtype=torch.float32)
    two_phase_step(optimizer, model, x * 100, y, scaler=scaler)
    assert same_bits(before, parameters(model))
    assert scaler.get_scale() < 1e38
    for _ in range(90):
        two_phase_step(optimizer, model, x, y, scaler=scaler)
    assert not same_bits(before, parameters(model))
    assert all(torch.isfinite(p).all() for p in model.parameters())


@pytest.mark.parametrize("estimator", CHEAP)
def test_autocast_inside_each_pass(estimator):
    model = network("convolutional", torch.float32)
    other = twin(model)
    left, right = make(model, estimator), make(other, estimator)
    for i in range(4):
        x, y = batch(i, dtype=torch.float32)

        def forward(rows=slice(None), x=x):
            with torch.autocast("cpu", torch.bfloat16):
                return model(x[rows])

        left.step(forward, y)
        step(right, other, i)
    assert 0 < largest_difference(model, other) < 0.05


@pytest.mark.parametrize("estimator", CHEAP)
def test_flips_are_reported_when_there_are_some(estimator):
    model = network()
    optimizer = make(model, estimator)
    step(optimizer, model, 0)
    assert len(optimizer.last_flips.index) == 8
    step(optimizer, model, 1)
    assert (optimizer.last_flips is None) == (estimator == "looksam")


@pytest.mark.parametrize("estimator", CHEAP)
def test_telemetry_of_both_kinds_of_step(estimator):
    model = network()
    optimizer = make(model, estimator, telemetry_every=1)
    reports = []
    for i in range(2):
        x, y = batch(i)
        optimizer.step(lambda rows=slice(None): model(x[rows]), y, clean_targets=y.roll(1))  # noqa: B023
        reports.append(optimizer.last_step)
    refresh, between = reports
    assert refresh.cos_grad_noise is not None
    assert refresh.cos_clean is not None
    if estimator == "looksam":
        assert between.phase == "looksam"
        assert between.perturbation_norm is None
    else:
        assert between.perturbation_norm <= 0.3 + 1e-12
        assert between.cos_clean is not None
        assert (between.cos_grad_noise is None) == (estimator == "fused")


@pytest.mark.parametrize("estimator", CHEAP)
def test_automatic_radius_moves_for_all_the_steps_a_measurement_stands_for(estimator):
    """Only every third step of "looksam" has both losses; the others always do."""
    model = network()
    optimizer = make(model, estimator, rho="auto")
    step(optimizer, model, 0)
    step(optimizer, model, 1)
    share = optimizer.last_step.relative_loss_increase  # of the first step
    steps = 3 if estimator == "looksam" else 1
    assert abs(share - 0.5) > 0.01
    assert optimizer.last_step.rho == pytest.approx(0.05 * math.exp(steps * 0.1 * (0.5 - share)))


@pytest.mark.parametrize("estimator", CHEAP)
def test_what_an_estimator_measured_is_forgotten_with_the_run_it_was_measured_in(estimator):
    """The state of an exact run has nothing to reuse: whoever takes it up measures first, and goes on as a new one."""
    model = network()
    exact = make(model, "exact")
    step(exact, model, 0)
    models = [twin(model), twin(model)]
    used, new = (make(each, estimator) for each in models)
    for i in range(2):
        step(used, models[0], i)
    models[0].load_state_dict(model.state_dict())
    for i, optimizer in enumerate((used, new)):
        optimizer.load_state_dict(copy.deepcopy(exact.state_dict()))
        step(optimizer, models[i], 5)
        step(optimizer, models[i], 6)
    assert same_bits(parameters(models[0]), parameters(models[1]))


@pytest.mark.parametrize("estimator", ["fused"])
def test_what_is_reported_of_a_cheap_perturbation_is_what_it_was(estimator):
    model = network()
    x, y = batch()
    clean = y.clone()
    clean[::3] = (clean[::3] + 1) % 4
    right = y == clean
    optimizer = make(model, estimator, telemetry_every=1, sign=-1)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    places = []

    def forward(rows=slice(None)):
        places.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        return model(x[rows])

    optimizer.step(forward, y, clean_targets=clean)
    optimizer.step(forward, y, clean_targets=clean)  # the first that reuses something
    eps = places[-1] - places[0]
    gradients = torch.autograd.grad(F.cross_entropy(model(x)[right], y[right]), list(model.parameters()))
    g_clean = torch.cat([g.flatten() for g in gradients])
    report = optimizer.last_step
    assert report.perturbation_norm == pytest.approx(float(eps.norm()))
    assert report.cos_clean == pytest.approx(float(eps @ g_clean / (eps.norm() * g_clean.norm())))


@pytest.mark.parametrize("estimator", CHEAP)
def test_automatic_radius(estimator):
    """It follows the steps that have both losses; state and all."""
    model = network(dtype=torch.float32)
    optimizer = make(model, estimator, rho="auto")
    first = optimizer.rho
    for i in range(4):
        step(optimizer, model, i)
    assert optimizer.rho > first  # small at the start: it must grow
