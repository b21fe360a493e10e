"""What each loss becomes at the ends of its range, and why it is robust."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from ncsam import losses

LOGITS = torch.randn(64, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
LABELS = torch.randint(5, (64,), generator=torch.Generator().manual_seed(2))
EVERY = [torch.full((64,), c) for c in range(5)]


def test_gce_goes_from_cross_entropy_to_mae():
    ce = F.cross_entropy(LOGITS, LABELS, reduction="none")
    torch.testing.assert_close(losses.gce(LOGITS, LABELS, q=1e-9, reduction="none"), ce, rtol=1e-7, atol=0)
    torch.testing.assert_close(
        losses.gce(LOGITS, LABELS, q=1.0, reduction="none"), losses.mae(LOGITS, LABELS, reduction="none")
    )


@settings(max_examples=30, deadline=None)
@given(st.floats(0.01, 1.0))
def test_gce_gradient_is_that_of_cross_entropy_times_a_power(q):
    z = LOGITS.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(losses.gce(z, LABELS, q=q, reduction="sum"), z)
    (of_ce,) = torch.autograd.grad(F.cross_entropy(z, LABELS, reduction="sum"), z)
    power = LOGITS.softmax(1).gather(1, LABELS[:, None]) ** q
    torch.testing.assert_close(gradient, power * of_ce)


def test_truncated_gce_lets_go_of_what_it_does_not_believe():
    z = LOGITS.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(losses.truncated_gce(z, LABELS, k=0.3, reduction="sum"), z)
    believed = LOGITS.softmax(1).gather(1, LABELS[:, None]).squeeze(1) > 0.3
    assert 0 < int(believed.sum()) < 64
    assert torch.equal(gradient.abs().sum(1) > 0, believed)


def test_js_goes_from_cross_entropy_to_mae():
    ce = F.cross_entropy(LOGITS, LABELS, reduction="none")
    torch.testing.assert_close(losses.js(LOGITS, LABELS, pi=1e-7, reduction="none"), ce, rtol=1e-5, atol=1e-6)
    # towards pi = 1 it nears 1 - p_y like 1 / log(1 - pi): the next term of the expansion makes that a sharp test
    rest = 1e-9
    p = LOGITS.softmax(1).gather(1, LABELS[:, None]).squeeze(1)
    expected = (1 - p) + ((1 - p) + p * p.log()) / -math.log(rest)
    torch.testing.assert_close(losses.js(LOGITS, LABELS, pi=1 - rest, reduction="none"), expected, rtol=1e-5, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.05, 0.95), st.integers(1, 3))
def test_gjs_is_bounded_and_zero_only_for_the_label(pi, views):
    several = [LOGITS + 3 * k for k in range(views)]  # shifted logits: all views say the same
    values = losses.gjs(several, LABELS, pi=pi, reduction="none")
    torch.testing.assert_close(values, losses.js(LOGITS, LABELS, pi=pi, reduction="none"))
    assert (values > 0).all()
    entropy = -(pi * math.log(pi) + (1 - pi) * math.log(1 - pi))
    assert (values <= entropy / -((1 - pi) * math.log(1 - pi)) + 1e-9).all()  # the divergence is at most H(pi)
    sure = 60.0 * F.one_hot(LABELS, 5).double()
    assert losses.gjs([sure] * views, LABELS, pi=pi).item() == pytest.approx(0, abs=1e-12)


def test_gjs_asks_the_views_to_agree():
    """By the identity GJS = JS of the label and the mean prediction + the divergence between the views."""
    pi, other = 0.3, LOGITS.flip(0)
    mean = (LOGITS.softmax(1) + other.softmax(1)) / 2
    between = sum((p * (p.log() - mean.log())).sum(1) / 2 for p in (LOGITS.softmax(1), other.softmax(1)))
    scale = -1 / ((1 - pi) * math.log(1 - pi))
    expected = losses.js(mean.log(), LABELS, pi=pi, reduction="none") + scale * (1 - pi) * between
    torch.testing.assert_close(losses.gjs((LOGITS, other), LABELS, pi=pi, reduction="none"), expected)


@pytest.mark.parametrize(
    ("loss", "total"),
    [(losses.mae, 4.0), (losses.nce, 1.0), (losses.rce, -4 * math.log(1e-4))],
)
def test_symmetric_losses_have_a_constant_sum_over_labels(loss, total):
    summed = sum(loss(LOGITS, label, reduction="none") for label in EVERY)
    torch.testing.assert_close(summed, torch.full((64,), total, dtype=torch.float64))


def test_sl_and_apl_contain_their_parts():
    ce, rce = F.cross_entropy(LOGITS, LABELS), losses.rce(LOGITS, LABELS)
    torch.testing.assert_close(losses.symmetric(LOGITS, LABELS, alpha=1.0, beta=0.0), ce)
    torch.testing.assert_close(losses.symmetric(LOGITS, LABELS, alpha=0.0, beta=1.0), rce)
    torch.testing.assert_close(losses.apl(LOGITS, LABELS, alpha=0.0, passive="mae"), losses.mae(LOGITS, LABELS))


def test_peer_in_expectation_is_the_confidence_regularizer():
    """Over all draws (n1, n2), by enumeration."""
    size, alpha = 6, 0.7
    z, y = LOGITS[:size], LABELS[:size]
    pairs = [(a, b) for a in range(size) for b in range(size)]
    total = 0.0
    for a, b in pairs:
        total += losses.peer(z, y, torch.full((size,), a), y[torch.full((size,), b)], alpha=alpha) / len(pairs)
    prior = torch.bincount(y, minlength=5).double() / size
    torch.testing.assert_close(total, losses.confidence_regularized(z, y, prior, beta=alpha, floor=1e-5))


def test_peer_draws_follow_their_generator():
    first = losses.peer(LOGITS, LABELS, generator=torch.Generator().manual_seed(0))
    assert torch.equal(first, losses.peer(LOGITS, LABELS, generator=torch.Generator().manual_seed(0)))
    assert not torch.equal(first, losses.peer(LOGITS, LABELS, generator=torch.Generator().manual_seed(1)))


def test_dmi_changes_by_a_constant_under_class_conditional_noise():
    """Labels as their distribution over the noise, Y T: the loss moves by -log |det T|, the gradient not at all."""
    transition = torch.full((5, 5), 0.1, dtype=torch.float64) + 0.5 * torch.eye(5, dtype=torch.float64)
    clean = F.one_hot(LABELS, 5).double()
    z = LOGITS.clone().requires_grad_()
    before, after = losses.dmi(z, clean), losses.dmi(z, clean @ transition)
    assert (after - before).item() == pytest.approx(-math.log(float(transition.det())))
    torch.testing.assert_close(torch.autograd.grad(after, z), torch.autograd.grad(before, z))


def test_forward_with_identity_is_cross_entropy():
    ce = F.cross_entropy(LOGITS, LABELS, reduction="none")
    identity = torch.eye(5)
    torch.testing.assert_close(losses.forward_corrected(LOGITS, LABELS, identity, reduction="none"), ce)
    torch.testing.assert_close(losses.backward_corrected(LOGITS, LABELS, identity, reduction="none"), ce)


def test_backward_is_unbiased():
    """The mean over the observed labels of a true class i is the loss of i."""
    transition = torch.softmax((3 * torch.eye(5) + torch.randn(5, 5)).double(), dim=1)
    corrected = torch.stack([losses.backward_corrected(LOGITS, y, transition, reduction="none") for y in EVERY], dim=1)
    torch.testing.assert_close(corrected @ transition.T, -LOGITS.log_softmax(1))


def test_forward_is_minimized_by_the_clean_posterior():
    """At p = P(true | x) the gradient of the expected forward loss vanishes, though labels are noisy."""
    transition = torch.softmax((2 * torch.eye(5) + torch.randn(5, 5)).double(), dim=1)
    z = LOGITS.clone().requires_grad_()
    noisy = z.detach().softmax(1) @ transition
    loss = losses.forward_corrected(z, noisy, transition, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, z)
    assert gradient.abs().max() < 1e-12


def test_transition_from_anchor_points():
    """Predictions that are T's rows for some samples: these are found; the most certain outliers are passed over."""
    transition = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.25, 0.15, 0.6]])
    weak = torch.full((94, 3), 1 / 3)
    assert torch.equal(losses.estimate_transition(torch.cat((weak, transition)), quantile=None), transition)
    outliers = torch.eye(3) * 0.97 + 0.01
    samples = torch.cat((weak, transition, outliers))
    assert torch.equal(losses.estimate_transition(samples, quantile=None), outliers)
    torch.testing.assert_close(losses.estimate_transition(samples, quantile=0.99), transition)
    # where all predictions are alike nothing is an outlier
    torch.testing.assert_close(losses.estimate_transition(weak), torch.full((3, 3), 1 / 3))
