"""SAM with probabilities of wrong labels: its perturbation by hand, its reductions, and what it refuses."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam.optim import SAM, WeightedSAM

P = torch.tensor([0.0, 0.25, 1.0, 0.5, 0.9], dtype=torch.float64)


def problem() -> tuple[nn.Sequential, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).double()
    return model, torch.randn(5, 4, dtype=torch.float64), torch.tensor([0, 2, 1, 1, 0])


def base(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("strength", [0.5, 1.0])
@pytest.mark.parametrize(
    ("threshold", "followed"),
    [(None, P), (0.9, [0, 0, 1, 0, 0]), (0.5, [0, 0, 1, 0, 1]), (0.0, [0, 1, 1, 1, 1]), (1.0, [0] * 5)],
)
def test_the_step_is_that_of_single_gradients_added_up(
    strength: float, threshold: float | None, followed: Tensor | list[int]
) -> None:
    model, x, y = problem()
    slow = copy.deepcopy(model)
    losses = F.cross_entropy(slow(x), y, reduction="none")
    params = list(slow.parameters())
    v = [torch.zeros_like(p) for p in params]
    for i in range(5):
        for total, g in zip(v, torch.autograd.grad(losses[i], params, retain_graph=True), strict=True):
            total += (1 - 2 * strength * followed[i]) * g
    norm = torch.cat([d.flatten() for d in v]).norm()
    start = [p.detach().clone() for p in params]
    with torch.no_grad():
        for p, d in zip(params, v, strict=True):
            p += 0.3 * d / norm
    gradient = torch.autograd.grad(F.cross_entropy(slow(x), y), params)
    expected = torch.cat([(w - 0.1 * g).flatten() for w, g in zip(start, gradient, strict=True)])

    optimizer = WeightedSAM(base(model), rho=0.3, strength=strength, threshold=threshold, telemetry_every=1)
    loss = optimizer.step(lambda: model(x), y, p_wrong=P)
    assert optimizer.last_step.grad_norm == pytest.approx(float(norm) / 5)
    assert float(loss) == pytest.approx(losses.mean().item(), abs=1e-12)
    torch.testing.assert_close(weights(model), expected, rtol=0, atol=1e-12)
    assert optimizer.p_wrong is None


def test_without_strength_or_probabilities_it_is_sam() -> None:
    found = []
    for kind, options, p in (
        (SAM, {}, {}),
        (WeightedSAM, {"strength": 0.0}, {"p_wrong": P}),
        (WeightedSAM, {}, {}),
        (WeightedSAM, {"warmup_steps": 9}, {"p_wrong": P}),
        (WeightedSAM, {"threshold": 1.0}, {"p_wrong": P}),
    ):
        model, x, y = problem()
        optimizer = kind(base(model), rho=0.2, **options)
        for _ in range(3):
            optimizer.step(lambda model=model, x=x: model(x), y, **p)
        found.append(weights(model))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    torch.testing.assert_close(found[0], found[4], rtol=0, atol=1e-12)
    plain, x, y = problem()
    steps = base(plain)
    for _ in range(3):
        steps.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        steps.step()
    assert torch.equal(found[3], weights(plain))


def test_resumed_it_continues_bit_for_bit() -> None:
    found = []
    for interrupted in (False, True):
        model, x, y = problem()
        options = {"rho": "auto", "total_steps": 4, "threshold": 0.5}
        optimizer = WeightedSAM(base(model), **options)
        for number in range(4):
            if interrupted and number == 2:
                state, weights_then = copy.deepcopy((optimizer.state_dict(), model.state_dict()))
                model, x, y = problem()
                model.load_state_dict(weights_then)
                optimizer = WeightedSAM(base(model), **options)
                optimizer.load_state_dict(state)
            optimizer.step(lambda model=model, x=x: model(x), y, p_wrong=P)
        found.append(weights(model))
    assert torch.equal(*found)


@pytest.mark.parametrize("scaled", [False, True])
def test_where_all_weights_cancel_the_base_steps_on_the_batch(scaled: bool) -> None:
    model, x, y = problem()
    plain = copy.deepcopy(model)
    optimizer = WeightedSAM(base(model), rho=0.2, threshold=None)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if scaled else None
    optimizer.step(lambda: model(x), y, p_wrong=torch.full((5,), 0.5), scaler=scaler)
    F.cross_entropy(plain(x), y).backward()
    base(plain).step()
    torch.testing.assert_close(weights(model), weights(plain), rtol=0, atol=1e-12)
    assert optimizer.unperturbed_steps == 1


def test_micro_batches_of_one_size_add_up_to_their_batch() -> None:
    """Each has its own probabilities, which say how much of the whole it is worth."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    whole = copy.deepcopy(model)
    x, y = torch.randn(4, 4, dtype=torch.float64), torch.tensor([0, 2, 1, 1])
    WeightedSAM(base(whole), rho=0.3).step(lambda: whole(x), y, p_wrong=P[:4])
    optimizer = WeightedSAM(base(model), rho=0.3, model=model)
    for part in (slice(0, 2), slice(2, 4)):
        optimizer.p_wrong = P[part]
        logits = model(x[part])
        optimizer.backward(F.cross_entropy(logits, y[part]) / 2, logits, y[part])
    for perturbed in optimizer.perturbations():
        with perturbed:
            for part in (slice(0, 2), slice(2, 4)):
                optimizer.backward(F.cross_entropy(model(x[part]), y[part]) / 2)
    optimizer.step()
    torch.testing.assert_close(weights(model), weights(whole), rtol=0, atol=1e-12)


def test_an_overflow_of_the_weighted_gradient_skips_the_step() -> None:
    model, x, y = problem()
    before = weights(model)
    factors = iter([float("inf"), 1.0])
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    WeightedSAM(base(model), rho=0.3).step(lambda: model(x) * next(factors), y, p_wrong=P, scaler=scaler)
    scaler.update()
    assert torch.equal(weights(model), before)
    assert scaler.get_scale() == 512.0


def test_a_copy_of_the_optimizer_has_no_probabilities() -> None:
    model, _, _ = problem()
    optimizer = WeightedSAM(base(model))
    optimizer.p_wrong = P
    assert copy.deepcopy(optimizer).p_wrong is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([0.1] * 4, "p_wrong of 4 probabilities: expected 5, one for each sample of the batch"),
        ([0.1] * 4 + [1.5], r"p_wrong\[4\]=1.5: expected one number in \[0, 1\] for each sample of the batch"),
        ([0.1, -0.5, 0.1, 2.0, 0.1], r"p_wrong\[1\]=-0.5: expected one number"),
        ([0.1, float("nan"), 0.1, 0.1, 0.1], r"p_wrong\[1\]=nan: expected one number"),
        ([[0.1]] * 5, r"p_wrong=\[\[0.1\], .*: expected one number"),
        (0.5, "p_wrong=0.5: expected one number"),
        ("0.5", "p_wrong='0.5': expected one number"),
        ([None] * 5, r"p_wrong=\[None, .*: expected one number"),
        (torch.full((5,), 0.5 + 0j), "p_wrong=tensor.*: expected one number"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"strength": 0.0}, {"warmup_steps": 3}])
def test_what_is_no_probability_for_each_sample_is_refused(wrong: object, message: str, options: dict) -> None:
    """In steps, too, that do not need it yet, and before the weights change."""
    model, x, y = problem()
    before = weights(model)
    optimizer = WeightedSAM(base(model), **options)
    with pytest.raises(ValueError, match=message):
        optimizer.step(lambda: model(x), y, p_wrong=wrong)
    assert torch.equal(before, weights(model))
    optimizer.step(lambda: model(x), y)  # nothing of it is left


def test_lists_and_whole_numbers_are_probabilities_too() -> None:
    found = []
    for p in (
        torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0]),
        [0, 1, 0, 1, 0],
        torch.tensor([False, True, False, True, False]),
    ):
        model, x, y = problem()
        WeightedSAM(base(model), rho=0.3).step(lambda model=model, x=x: model(x), y, p_wrong=p)
        found.append(weights(model))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_other_wrong_options_are_refused() -> None:
    model, x, y = problem()
    with pytest.raises(ValueError, match="strength=2"):
        WeightedSAM(base(model), strength=2.0)
    with pytest.raises(ValueError, match="threshold=nan"):
        WeightedSAM(base(model), threshold=float("nan"))
    optimizer = WeightedSAM(base(model))
    with pytest.raises(TypeError, match="p_wrong needs the logits"):
        optimizer.step(lambda: F.cross_entropy(model(x), y), p_wrong=P)
    optimizer.p_wrong = P[:4]
    with pytest.raises(ValueError, match="p_wrong of 4 probabilities: expected 5"):
        optimizer.step(lambda: model(x), y)
