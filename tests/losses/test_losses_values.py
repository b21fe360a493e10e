"""Every loss against values worked out by hand, its gradient, its reductions and its module."""

import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ncsam import losses

P = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]], dtype=torch.float64)
LOGITS = P.log() + torch.tensor([[0.3], [-1.0]])  # softmax does not see a shift
LABELS = torch.tensor([0, 1])
TRANSITION = torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.0, 0.3, 0.7]], dtype=torch.float64)
MEMORY = torch.tensor([[0.6, 0.2, 0.2], [0.0, 1.0, 0.0]], dtype=torch.float64)
PRIOR = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
LOG = math.log


def kl(first, second):
    return sum(a * LOG(a / b) for a, b in zip(first, second, strict=True) if a)


def js_by_hand(distributions, weights):
    m = [sum(w * d[c] for w, d in zip(weights, distributions, strict=True)) for c in range(3)]
    scale = -1 / ((1 - weights[0]) * LOG(1 - weights[0]))
    return scale * sum(w * kl(d, m) for w, d in zip(weights, distributions, strict=True))


VALUES = {
    "ce": (lambda z, y, r: losses.cross_entropy(z, y, reduction=r), [-LOG(0.5), -LOG(0.2)]),
    "smoothing": (
        lambda z, y, r: losses.cross_entropy(z, y, smoothing=0.3, reduction=r),
        [
            -(0.8 * LOG(0.5) + 0.1 * LOG(0.3) + 0.1 * LOG(0.2)),
            -(0.1 * LOG(0.1) + 0.8 * LOG(0.2) + 0.1 * LOG(0.7)),
        ],
    ),
    "mae": (lambda z, y, r: losses.mae(z, y, reduction=r), [0.5, 0.8]),
    "gce": (lambda z, y, r: losses.gce(z, y, q=0.5, reduction=r), [2 * (1 - 0.5**0.5), 2 * (1 - 0.2**0.5)]),
    "truncated": (
        lambda z, y, r: losses.truncated_gce(z, y, q=0.5, k=0.4, reduction=r),
        [2 * (1 - 0.5**0.5), 2 * (1 - 0.4**0.5)],
    ),
    "rce": (lambda z, y, r: losses.rce(z, y, log_zero=-4.0, reduction=r), [2.0, 3.2]),
    "nce": (
        lambda z, y, r: losses.nce(z, y, reduction=r),
        [LOG(0.5) / LOG(0.5 * 0.3 * 0.2), LOG(0.2) / LOG(0.1 * 0.2 * 0.7)],
    ),
    "symmetric": (
        lambda z, y, r: losses.symmetric(z, y, alpha=0.1, beta=2.0, reduction=r),
        [-0.1 * LOG(0.5) + 2 * -LOG(1e-4) * 0.5, -0.1 * LOG(0.2) + 2 * -LOG(1e-4) * 0.8],
    ),
    "apl mae": (
        lambda z, y, r: losses.apl(z, y, alpha=10.0, beta=0.5, passive="mae", reduction=r),
        [10 * LOG(0.5) / LOG(0.03) + 0.25, 10 * LOG(0.2) / LOG(0.014) + 0.4],
    ),
    "apl rce": (
        lambda z, y, r: losses.apl(z, y, alpha=1.0, beta=0.1, reduction=r),
        [LOG(0.5) / LOG(0.03) - 0.05 * LOG(1e-4), LOG(0.2) / LOG(0.014) - 0.08 * LOG(1e-4)],
    ),
    "js": (
        lambda z, y, r: losses.js(z, y, pi=0.3, reduction=r),
        [js_by_hand([(1, 0, 0), (0.5, 0.3, 0.2)], (0.3, 0.7)), js_by_hand([(0, 1, 0), (0.1, 0.2, 0.7)], (0.3, 0.7))],
    ),
    "gjs": (
        lambda z, y, r: losses.gjs((z, z.flip(1)), y, pi=0.2, reduction=r),
        [
            js_by_hand([(1, 0, 0), (0.5, 0.3, 0.2), (0.2, 0.3, 0.5)], (0.2, 0.4, 0.4)),
            js_by_hand([(0, 1, 0), (0.1, 0.2, 0.7), (0.7, 0.2, 0.1)], (0.2, 0.4, 0.4)),
        ],
    ),
    "peer": (
        lambda z, y, r: losses.peer(
            z, y, torch.tensor([1, 1]), torch.tensor([0, 2]), alpha=0.5, floor=0.01, reduction=r
        ),
        [-LOG(0.51) + 0.5 * LOG(0.11), -LOG(0.21) + 0.5 * LOG(0.71)],
    ),
    "confidence regularized": (
        lambda z, y, r: losses.confidence_regularized(z, y, PRIOR, beta=2.0, floor=0.0, reduction=r),
        [
            -LOG(0.5) + 2 * (0.5 * LOG(0.5) + 0.25 * LOG(0.3) + 0.25 * LOG(0.2)),
            -LOG(0.2) + 2 * (0.5 * LOG(0.1) + 0.25 * LOG(0.2) + 0.25 * LOG(0.7)),
        ],
    ),
    "forward": (
        lambda z, y, r: losses.forward_corrected(z, y, TRANSITION, reduction=r),
        [-LOG(0.5 * 0.8 + 0.3 * 0.2), -LOG(0.1 * 0.1 + 0.2 * 0.7 + 0.7 * 0.3)],
    ),
    "backward": (
        lambda z, y, r: losses.backward_corrected(z, y, TRANSITION, reduction=r),
        [float((TRANSITION.inverse() @ -P[0].log())[0]), float((TRANSITION.inverse() @ -P[1].log())[1])],
    ),
    "elr": (
        lambda z, y, r: losses.elr(z, y, MEMORY, weight=3.0, reduction=r),
        [-LOG(0.5) + 3 * LOG(1 - 0.4), -LOG(0.2) + 3 * LOG(1 - 0.2)],
    ),
}
MODULES = {
    "ce": losses.CE(),
    "smoothing": losses.LabelSmoothing(0.3),
    "mae": losses.MAE(),
    "gce": losses.GCE(0.5),
    "truncated": losses.TruncatedGCE(0.5, 0.4),
    "rce": losses.RCE(-4.0),
    "nce": losses.NCE(),
    "symmetric": losses.Symmetric(0.1, 2.0),
    "apl mae": losses.APL(10.0, 0.5, "mae"),
    "apl rce": losses.APL(1.0, 0.1),
    "js": losses.JS(),
    "forward": losses.Forward(TRANSITION),
    "backward": losses.Backward(TRANSITION),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_and_reductions(name):
    loss, expected = VALUES[name]
    torch.testing.assert_close(loss(LOGITS, LABELS, "none"), torch.tensor(expected, dtype=torch.float64))
    assert float(loss(LOGITS, LABELS, "mean")) == pytest.approx(sum(expected) / 2)
    assert float(loss(LOGITS, LABELS, "sum")) == pytest.approx(sum(expected))


@pytest.mark.parametrize("name", VALUES)
def test_gradient(name):
    loss, _ = VALUES[name]
    assert torch.autograd.gradcheck(lambda z: loss(z, LABELS, "none"), LOGITS.clone().requires_grad_())


@pytest.mark.parametrize("name", sorted(set(VALUES) - {"peer"}))
def test_one_hot_targets_are_class_numbers(name):
    loss, _ = VALUES[name]
    onehot = F.one_hot(LABELS, 3).double()
    torch.testing.assert_close(loss(LOGITS, onehot, "none"), loss(LOGITS, LABELS, "none"))


@pytest.mark.parametrize("name", sorted(set(VALUES) - {"js", "gjs", "peer"}))
def test_losses_are_linear_in_soft_targets(name):
    """A loss under probabilities t is the mean over t of its values under the labels."""
    loss, _ = VALUES[name]
    t = torch.tensor([[0.2, 0.5, 0.3], [0.9, 0.0, 0.1]], dtype=torch.float64)
    by_label = torch.stack([loss(LOGITS, torch.full((2,), c), "none") for c in range(3)], dim=1)
    torch.testing.assert_close(loss(LOGITS, t, "none"), (by_label * t).sum(dim=1))


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_the_functions(name):
    loss, _ = VALUES[name]
    assert isinstance(MODULES[name], nn.Module)
    assert torch.equal(MODULES[name](LOGITS, LABELS), loss(LOGITS, LABELS, "mean"))


def test_modules_with_other_inputs():
    assert torch.equal(losses.GJS(0.2)((LOGITS, LOGITS.flip(1)), LABELS), VALUES["gjs"][0](LOGITS, LABELS, "mean"))
    assert torch.equal(losses.ELR()(LOGITS, LABELS, MEMORY), VALUES["elr"][0](LOGITS, LABELS, "mean"))
    drawn = losses.Peer(0.5, 0.01)(LOGITS, LABELS, torch.tensor([1, 1]), torch.tensor([0, 2]))
    assert torch.equal(drawn, VALUES["peer"][0](LOGITS, LABELS, "mean"))
    assert torch.equal(losses.DMI()(LOGITS, LABELS), losses.dmi(LOGITS, LABELS))
    assert "q=0.5" in repr(losses.GCE(0.5))
    assert set(losses.Forward(TRANSITION).state_dict()) == {"transition"}


def test_dmi_is_the_log_determinant():
    logits, labels = torch.randn(40, 4, dtype=torch.float64), torch.arange(40) % 4
    joint = sum(torch.outer(F.one_hot(y, 4).double(), z.softmax(0)) for z, y in zip(logits, labels, strict=True)) / 40
    assert float(losses.dmi(logits, labels)) == pytest.approx(-float(joint.det().abs().log()))
    assert torch.autograd.gradcheck(lambda z: losses.dmi(z, labels), logits.clone().requires_grad_())
    assert torch.autograd.gradcheck(lambda z: losses.dmi(z, labels, eps=0.01), logits.clone().requires_grad_())
    # the same number by the volume, as eps goes to 0
    assert float(losses.dmi(logits, labels, eps=1e-9)) == pytest.approx(float(losses.dmi(logits, labels)), rel=1e-9)


def test_dmi_of_a_batch_without_some_class_is_a_volume():
    logits = torch.randn(9, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 0, 2] * 3)
    p = logits.detach().softmax(dim=1)
    rows = torch.stack((p[labels == 0].sum(0), p[labels == 2].sum(0))) / 9
    area = torch.linalg.vector_norm(torch.linalg.cross(rows[0], rows[1]))
    loss = losses.dmi(logits, labels)
    assert float(loss) == pytest.approx(-math.log(float(area)))
    loss.backward()
    assert logits.grad.isfinite().all()
    assert logits.grad.abs().sum() > 0


def test_sln_targets():
    labels = torch.tensor([1, 0, 2]).repeat(4000)
    generator = torch.Generator().manual_seed(3)
    targets = losses.noisy_targets(labels, 3, 0.5, generator=generator)
    rest = targets - F.one_hot(labels, 3)
    assert float(rest.mean()) == pytest.approx(0.0, abs=0.01)
    assert float(rest.std()) == pytest.approx(0.5, rel=0.02)
    assert torch.equal(losses.noisy_targets(labels, 3, 0.0), F.one_hot(labels, 3).float())
    z = torch.randn(len(labels), 3)
    again = losses.sln(z, labels, sigma=0.5, generator=torch.Generator().manual_seed(3))
    assert float(again) == pytest.approx(float(-(targets * z.log_softmax(1)).sum(1).mean()), rel=1e-5)
    assert float(losses.SLN(0.0)(z, labels)) == pytest.approx(float(F.cross_entropy(z, labels)), rel=1e-6)


def test_elr_stays_finite_where_prediction_and_memory_agree():
    logits = torch.tensor([[50.0, 0.0]], requires_grad=True)
    loss = losses.elr_regularizer(logits, torch.tensor([[1.0, 0.0]]))
    assert float(loss) == pytest.approx(math.log(1e-4), rel=1e-3)
    loss.backward()
    assert logits.grad.isfinite().all()


def test_far_logits_stay_finite():
    z = torch.tensor([[200.0, -200.0, 0.0], [-300.0, 300.0, 0.0]], requires_grad=True)
    for name in ("ce", "mae", "gce", "rce", "nce", "symmetric", "js", "gjs", "forward", "backward"):
        values = VALUES[name][0](z, torch.tensor([1, 0]), "none")
        (grad,) = torch.autograd.grad(values.sum(), z)
        assert values.isfinite().all(), name
        assert grad.isfinite().all(), name


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: losses.gce(LOGITS, LABELS, q=0.0), "q=0.0"),
        (lambda: losses.gce(LOGITS, LABELS, q=1.5), "q=1.5"),
        (lambda: losses.truncated_gce(LOGITS, LABELS, k=1.0), "k=1.0"),
        (lambda: losses.cross_entropy(LOGITS, LABELS, smoothing=1.0), "smoothing=1.0"),
        (lambda: losses.mae(LOGITS, LABELS, reduction="men"), "reduction='men'"),
        (lambda: losses.mae(LOGITS, LABELS[:1]), "targets.shape"),
        (lambda: losses.mae(LOGITS, P[:1]), "targets.shape"),
        (lambda: losses.symmetric(LOGITS, LABELS, alpha=-1.0), "alpha=-1.0"),
        (lambda: losses.rce(LOGITS, LABELS, log_zero=1.0), "log_zero=1.0"),
        (lambda: losses.apl(LOGITS, LABELS, passive="mea"), "Did you mean 'mae'"),
        (lambda: losses.js(LOGITS, LABELS, pi=1.0), "pi=1.0"),
        (lambda: losses.gjs((), LABELS), "views"),
        (lambda: losses.forward_corrected(LOGITS, LABELS, torch.eye(4)), "transition.shape"),
        (lambda: losses.confidence_regularized(LOGITS, LABELS, PRIOR[:2]), "prior.shape"),
        (lambda: losses.estimate_transition(torch.zeros(0, 3)), "probabilities.shape"),
        (lambda: losses.estimate_transition(P, quantile=0.0), "quantile=0.0"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call()
