"""Numbers worked out on paper: schedule, selection, flip targets, perturbations, projection."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ncsam import BSAM, NCSAM, SAM
from ncsam.optim.flipping import (
    exponential,
    flip_count,
    flipped_labels,
    logit_gap,
    select,
    selection_probabilities,
)
from ncsam.optim.ramps import RAMPS, smooth


class Table(nn.Module):
    """Logits that are the weights themselves: gradients can be written down."""

    def __init__(self, rows):
        super().__init__()
        self.z = nn.Parameter(torch.tensor(rows, dtype=torch.float64))

    def forward(self):
        return self.z


def quadratic(logits, targets):
    """0.5 sum a z^2 with a = (1, 4): gradient a z."""
    return 0.5 * (logits**2 * torch.tensor([1.0, 4.0], dtype=logits.dtype)).sum()


def test_sam_on_a_quadratic():
    """w = (3, 1), g = (3, 4), ||g|| = 5, rho = .5: eps = (.3, .4); g' = (3.3, 5.6); w' = w - .1 g'."""
    model = Table([[3.0, 1.0]])
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.5, criterion=quadratic)
    loss = optimizer.step(lambda: model(), torch.tensor([0]))
    assert loss.item() == pytest.approx(6.5)
    torch.testing.assert_close(model.z.detach(), torch.tensor([[3 - 0.33, 1 - 0.56]], dtype=torch.float64))


def test_asam_on_a_quadratic():
    """T = |w| = (3, 1): T g = (9, 4), eps = rho T^2 g / ||T g|| = .5 (27, 4) / sqrt(97)."""
    model = Table([[3.0, 1.0]])
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.5, adaptive=True, criterion=quadratic)
    optimizer.step(lambda: model(), torch.tensor([0]))
    eps = torch.tensor([27.0, 4.0], dtype=torch.float64) * 0.5 / math.sqrt(97)
    expected = torch.tensor([3.0, 1.0]) - 0.1 * torch.tensor([1.0, 4.0]) * (torch.tensor([3.0, 1.0]) + eps)
    torch.testing.assert_close(model.z.detach()[0], expected.double())


def test_bsam_on_a_quadratic():
    """g+ = (3.3, 5.6), g- at rho_min = .25: (2.85, 3.2); d = g+ + g - ratio g-."""
    model = Table([[3.0, 1.0]])
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    BSAM(base, rho=0.5, rho_min=0.25, criterion=quadratic).step(lambda: model(), torch.tensor([0]))
    ratio = math.hypot(3.3, 5.6) / math.hypot(2.85, 3.2)
    d = torch.tensor([3.3 + 3 - ratio * 2.85, 5.6 + 4 - ratio * 3.2], dtype=torch.float64)
    torch.testing.assert_close(model.z.detach()[0], torch.tensor([3.0, 1.0], dtype=torch.float64) - 0.1 * d)


def test_bsam_lower_radius_follows_the_learning_rate():
    model = Table([[3.0, 1.0]])
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = BSAM(base, rho=0.5, criterion=quadratic)
    scheduler = torch.optim.lr_scheduler.LambdaLR(base, lambda i: 0.5**i)
    optimizer.step(lambda: model(), torch.tensor([0]))
    scheduler.step()
    assert optimizer._lower_radius(0.5) == pytest.approx(0.25)


def linear_batch():
    """One sample x = 1, two classes, w = (1, 0): z = (1, 0), p = (a, 1 - a), observed label 0."""
    model = nn.Linear(1, 2, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0], [0.0]]))
    return model, torch.ones(1, 1, dtype=torch.float64), torch.tensor([0])


def test_ncsam_by_hand_outside_of_the_ball():
    """g_B = (a - 1, 1 - a), flipped to class 1: g* = (a, -a). They oppose; s g* wins and v is cut back to rho."""
    model, x, y = linear_batch()
    a = 1 / (1 + math.exp(-1))
    rho, s = 0.1, 1.0
    optimizer = NCSAM(torch.optim.SGD(model.parameters(), lr=0.5), rho, s, 1.0, ramp="constant", telemetry_every=1)
    optimizer.progress = 1.0
    optimizer.step(lambda: model(x), y)
    # v = rho (-1, 1)/sqrt 2 + s (a, -a) lies along (1, -1), is s a sqrt 2 - rho long, and is cut back to rho
    assert s * a * math.sqrt(2) - rho > rho
    eps = rho / math.sqrt(2)
    b = 1 / (1 + math.exp(-(1 + 2 * eps)))
    expected = torch.tensor([[1.0 - 0.5 * (b - 1)], [0.0 - 0.5 * (1 - b)]], dtype=torch.float64)
    torch.testing.assert_close(model.weight.detach(), expected)
    assert optimizer.last_step.projected
    assert optimizer.last_step.perturbation_norm == pytest.approx(rho)
    assert optimizer.last_step.cos_sam == pytest.approx(-1.0)


def test_ncsam_by_hand_inside_of_the_ball():
    """A weak compensation shortens the perturbation, and the projection must not lengthen it again."""
    model, x, y = linear_batch()
    a = 1 / (1 + math.exp(-1))
    rho, s = 0.1, 0.05
    optimizer = NCSAM(torch.optim.SGD(model.parameters(), lr=0.5), rho, s, 1.0, ramp="constant", telemetry_every=1)
    optimizer.progress = 1.0
    optimizer.step(lambda: model(x), y)
    length = rho - s * a * math.sqrt(2)
    assert 0 < length < rho
    assert optimizer.last_step.perturbation_norm == pytest.approx(length)
    assert not optimizer.last_step.projected
    b = 1 / (1 + math.exp(-(1 - 2 * length / math.sqrt(2))))
    expected = torch.tensor([[1.0 - 0.5 * (b - 1)], [0.0 - 0.5 * (1 - b)]], dtype=torch.float64)
    torch.testing.assert_close(model.weight.detach(), expected)


@pytest.mark.parametrize(
    ("t", "r"),
    [(0.1, 0.056), (0.2, 0.208), (0.25, 0.3125), (0.3, 0.432), (0.4, 0.704), (0.45, 0.8505), (0.5, 1), (0.9, 1)],
)
def test_smooth_ramp(t, r):
    assert smooth(t) == pytest.approx(r, abs=1e-12)


def test_strength_by_epoch_and_by_step():
    """s at epochs 51, 60, 80, 99, 100 of 200 in units of kappa, by hand-set progress and by counted steps."""
    model = nn.Linear(2, 2)
    optimizer = NCSAM(torch.optim.SGD(model.parameters(), lr=0.1), kappa=0.3, total_steps=200, warmup_steps=50)
    expected = {51: 0.32382, 60: 0.432, 80: 0.704, 99: 0.98500, 100: 1.0}
    for epoch, r in expected.items():
        optimizer._steps = epoch - 1
        assert optimizer.strength == pytest.approx(0.3 * r, abs=2e-6)
        optimizer.progress = epoch / 200
        assert optimizer.strength == pytest.approx(0.3 * r, abs=2e-6)
        optimizer.progress = None
    optimizer._steps = 49
    assert optimizer.strength == 0.0  # the last step of warm-up


def test_training_beyond_its_length_stays_at_the_end_of_the_ramp():
    """r(t) falls again beyond t = 1 and is 0 at 1.5: t stops at 1, and the strength at kappa."""
    model = nn.Linear(2, 2)
    optimizer = NCSAM(torch.optim.SGD(model.parameters(), lr=0.1), kappa=0.3, total_steps=4)
    strengths = []
    for _ in range(8):
        strengths.append(optimizer.strength)
        optimizer.step(lambda: model(torch.eye(2)), torch.tensor([0, 1]))
    assert strengths == pytest.approx([0.3 * r for r in (0.3125, 1, 1, 1, 1, 1, 1, 1)])
    assert optimizer.progress == 1.0


def test_ramp_from_the_end_of_warmup():
    model = nn.Linear(2, 2)
    optimizer = NCSAM(
        torch.optim.SGD(model.parameters(), lr=0.1), kappa=1.0, total_steps=200, warmup_steps=50, ramp_from="warmup"
    )
    optimizer._steps = 50
    assert optimizer.strength == pytest.approx(smooth(1 / 150))
    optimizer._steps = 124
    assert optimizer.strength == pytest.approx(1.0)  # half of the 150 steps after warm-up


@given(st.floats(0, 1), st.sampled_from(sorted(RAMPS)))
def test_ramps_stay_in_the_unit_interval_and_saturate(t, name):
    assert 0.0 <= RAMPS[name](t) <= 1.0
    if t >= 0.5:
        assert RAMPS[name](t) == pytest.approx(1.0)


def test_selection_probabilities():
    logits = torch.tensor([[2.0, 2.0, 0.0], [1.0, 0.0, -1.0], [-1.0, 2.0, -4.0]])  # gaps 0, 1, 3
    torch.testing.assert_close(logit_gap(logits), torch.tensor([0.0, 1.0, 3.0]))
    torch.testing.assert_close(selection_probabilities(logits), torch.tensor([4 / 7, 2 / 7, 1 / 7]))


def test_selection_draws_without_replacement_by_these_probabilities():
    """Drawing two of p = (4, 2, 1)/7: pair probabilities p_i p_j (1/(1-p_i) + 1/(1-p_j))."""
    logits = torch.tensor([[2.0, 2.0, 0.0], [1.0, 0.0, -1.0], [-1.0, 2.0, -4.0]], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    rounds = 6000
    counts = {(0, 1): 0, (0, 2): 0, (1, 2): 0}
    for _ in range(rounds):
        counts[tuple(select(logits, 2, "gap", generator).tolist())] += 1
    p = [4 / 7, 2 / 7, 1 / 7]
    for (i, j), n in counts.items():
        expected = p[i] * p[j] * (1 / (1 - p[i]) + 1 / (1 - p[j]))
        assert abs(n / rounds - expected) < 4 * math.sqrt(expected * (1 - expected) / rounds)


def test_lowest_gap_takes_the_least_certain():
    logits = torch.tensor([[5.0, 0.0], [0.1, 0.0], [2.0, 0.0], [0.0, 0.3]])
    assert select(logits, 2, "lowest_gap", torch.Generator()).tolist() == [1, 3]


def test_flip_targets_differ_where_the_label_is_not_the_prediction():
    logits = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    observed = torch.tensor([0, 1, 2])
    assert flipped_labels(logits, observed, "not_observed").tolist() == [1, 0, 0]
    assert flipped_labels(logits, observed, "second").tolist() == [1, 1, 1]


@given(st.integers(1, 10_000), st.integers(0, 100))
def test_flip_count_is_the_floor_of_the_exact_product(size, percent):
    """Floating point makes .29 * 100 smaller than 29; the count is that of the exact fraction."""
    assert flip_count(percent / 100, size) == percent * size // 100


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.01, 2.0), st.floats(0.0, 20.0), st.sampled_from([1, -1]))
def test_projected_perturbation_never_leaves_the_ball(seed, rho, kappa, sign):
    torch.manual_seed(seed)
    model = nn.Linear(3, 3).double()
    x, y = torch.randn(8, 3, dtype=torch.float64), torch.randint(0, 3, (8,))
    optimizer = NCSAM(
        torch.optim.SGD(model.parameters(), lr=0.0), rho, kappa, 0.5, ramp="constant", sign=sign, telemetry_every=1
    )
    optimizer.progress = 0.5
    where = []

    def forward():
        where.append(torch.cat([p.detach().flatten().clone() for p in model.parameters()]))
        return model(x)

    optimizer.step(forward, y)
    assert (where[1] - where[0]).norm() <= rho * (1 + 1e-9)


def test_exponential_draws_have_mean_and_variance_one():
    draws = exponential(40_000, torch.Generator().manual_seed(0))
    assert abs(draws.mean() - 1) < 4 / 200
    assert abs(draws.var() - 1) < 0.06
