"""Norms that are zero, empty or not finite, odd parameters, and one clear error for each mistake."""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from optim_cases import CLASSES, batch, network, parameters, same_bits, sgd, twin
from torch import nn

from ncsam import BSAM, NCSAM, SAM
from ncsam.vectors.arithmetic import cosine, global_dot, global_norm

ALL = [SAM, NCSAM, BSAM]


def linear(logits, targets):
    return logits.sum() * 0.0  # a gradient that is exactly zero


@pytest.mark.parametrize("cls", ALL)
def test_zero_gradient_means_no_perturbation(cls):
    """Pitfall 6: no division by a zero norm; the step is the base optimizer's, and it is counted."""
    model = network(dtype=torch.float32)
    before = parameters(model)
    x, y = batch(dtype=torch.float32)
    optimizer = cls(torch.optim.SGD(model.parameters(), lr=0.1), total_steps=2, criterion=linear)
    optimizer.step(lambda: model(x), y)
    assert same_bits(before, parameters(model))
    assert optimizer.unperturbed_steps == 1
    assert optimizer.last_step.phase == "base"


def test_zero_noise_gradient_leaves_sam():
    """Pitfall 6: g* = 0 under relative compensation divides by nothing; eps is SAM's."""
    model = network(dtype=torch.float64)
    other = twin(model)
    x, y = batch()
    zero = lambda z, t: z.sum() * 0.0  # noqa: E731
    NCSAM(
        sgd(model), 0.1, 0.5, 0.4, total_steps=1, compensation="relative", flip_criterion=zero
    ).step(lambda: model(x), y)  # fmt: skip
    SAM(sgd(other), 0.1).step(lambda: other(x), y)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-12)


@pytest.mark.parametrize("estimator", ["exact", "fused", "looksam"])
def test_a_compensation_that_cancels_the_perturbation_leaves_the_base_step(estimator):
    """Pitfall 6: two classes, all weights zero, every label flipped: g* = -g_B, so v = 0 and no direction is left."""
    model, other = (nn.Linear(3, 2).double() for _ in range(2))
    x, y = batch()[0][:, 0, 0, :3], (torch.arange(16) % 3 == 0).long()
    for p in (*model.parameters(), *other.parameters()):
        nn.init.zeros_(p)
    optimizer = NCSAM(
        sgd(model), 0.1, 1.0, 1.0, total_steps=1, compensation="relative", ramp="constant", estimator=estimator
    )
    optimizer.step(lambda rows=slice(None): model(x[rows]), y)
    assert optimizer.unperturbed_steps == 1
    assert optimizer.last_step.phase == "base"
    base = sgd(other)
    F.cross_entropy(other(x), y).backward()
    base.step()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert float(q.abs().max()) > 0.0
        torch.testing.assert_close(p, q, rtol=0, atol=1e-15)


def test_zero_lower_gradient_of_bsam():
    """Pitfall 6: ||g_-|| = 0 drops its term: d = g+ + g."""
    w = nn.Parameter(torch.tensor([[0.5, 0.0]], dtype=torch.float64))
    clipped = lambda z, t: z.clamp(min=0.3).sum()  # noqa: E731  gradient (1, 0) above .3, zero below
    optimizer = BSAM(torch.optim.SGD([w], lr=0.1), rho=0.1, rho_min=0.4, criterion=clipped)
    optimizer.step(lambda: w * 1.0, torch.tensor([0]))
    torch.testing.assert_close(w.detach(), torch.tensor([[0.5 - 0.1 * 2, 0.0]], dtype=torch.float64))


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_gradient_that_is_not_finite(cls, value):
    """Pitfall 7: a norm that is not finite never scales anything; the weights are not moved."""
    model = network(dtype=torch.float32)
    x, y = batch(dtype=torch.float32)
    where = []

    def forward():
        where.append(parameters(model))
        return model(x)

    optimizer = cls(
        torch.optim.SGD(model.parameters(), lr=0.0), total_steps=1, criterion=lambda z, t: F.cross_entropy(z, t) * value
    )
    optimizer.step(forward, y)
    assert len(where) == 1
    assert optimizer.unperturbed_steps == 1


@pytest.mark.parametrize("compensation", ["absolute", "relative"])
def test_noise_gradient_that_is_not_finite(compensation):
    model = network(dtype=torch.float32)
    x, y = batch(dtype=torch.float32)
    infinite = lambda z, t: F.cross_entropy(z, t) * math.inf  # noqa: E731
    optimizer = NCSAM(sgd(model), total_steps=1, compensation=compensation, flip_criterion=infinite)
    optimizer.step(lambda: model(x), y)
    assert optimizer.unperturbed_steps == 1
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_one_norm_over_all_groups():
    """Pitfalls 7 and 9: the perturbation of two groups is that of one group."""
    model = network(dtype=torch.float64)
    other = twin(model)
    x, y = batch()
    groups = [{"params": [p]} for p in model.parameters()]
    SAM(torch.optim.SGD(groups, lr=0.1), 0.5).step(lambda: model(x), y)
    SAM(torch.optim.SGD(other.parameters(), lr=0.1), 0.5).step(lambda: other(x), y)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-12)


def test_norm_counts_only_what_is_perturbed():
    """Pitfalls 9 and 27: frozen and foreign parameters are no part of the norm; eps of the rest has length rho."""
    model = network("awkward")
    owned = list(model.last.parameters())
    x, y = batch()
    where = []

    def forward():
        where.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        return model(x)

    SAM(torch.optim.SGD(owned, lr=0.0), 0.5).step(forward, y)
    assert float((where[1] - where[0]).norm()) == pytest.approx(0.5, rel=1e-12)


def test_norms_and_dots_against_flat_vectors():
    """Mixed dtypes and shapes: accumulated as one vector."""
    a = [torch.randn(3, 4, dtype=torch.float64), torch.randn(5), torch.randn(2, dtype=torch.complex64)]
    b = [torch.randn_like(t) for t in a]
    flat = [
        torch.cat([torch.view_as_real(t).flatten().double() if t.is_complex() else t.flatten().double() for t in ts])
        for ts in (a, b)
    ]
    assert global_norm(a) == pytest.approx(float(flat[0].norm()), rel=1e-6)
    assert global_dot(a, b) == pytest.approx(float(flat[0] @ flat[1]), rel=1e-5, abs=1e-5)
    assert cosine(a, a) == pytest.approx(1.0)
    assert global_norm([]) == 0.0


def test_complex_parameters():
    """Pitfall 27: eps of a complex weight follows its real and imaginary gradient."""
    w = nn.Parameter(torch.tensor([1 + 2j], dtype=torch.complex128))
    where = []

    def forward():
        where.append(w.detach().clone())
        return torch.view_as_real(w)

    loss = lambda z, t: (z**2).sum() / 2  # noqa: E731  gradient w
    SAM(torch.optim.SGD([w], lr=0.1), 0.5, criterion=loss).step(forward, torch.tensor([0]))
    eps = where[1] - where[0]
    torch.testing.assert_close(eps, 0.5 * torch.tensor([1 + 2j]) / math.sqrt(5), check_dtype=False)


def test_sparse_gradients_are_refused():
    """Pitfall 27."""
    model = nn.Sequential(nn.EmbeddingBag(10, CLASSES, sparse=True))
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="sparse gradient"):
        optimizer.step(lambda: model(torch.tensor([[1, 2], [3, 4]])), torch.tensor([0, 1]))


def test_requires_grad_toggled_between_steps():
    """Pitfall 27: a layer that is frozen later is neither moved nor counted; thawed, it is again."""
    model = network(dtype=torch.float64)
    x, y = batch()
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1), 0.5)
    optimizer.step(lambda: model(x), y)
    model.first.requires_grad_(False)
    frozen = model.first.weight.detach().clone()
    optimizer.step(lambda: model(x), y)
    assert torch.equal(frozen, model.first.weight)
    model.first.requires_grad_(True)
    optimizer.step(lambda: model(x), y)
    assert not torch.equal(frozen, model.first.weight)


def test_soft_targets():
    """Probabilities serve the clean passes; flipping takes their argmax as the observed label."""
    x, y = batch()
    soft = 0.9 * F.one_hot(y, CLASSES).double() + 0.1 / CLASSES
    model = network()
    optimizer = NCSAM(sgd(model), 0.3, 0.5, 0.5, total_steps=1, generator=torch.Generator().manual_seed(1))
    optimizer.step(lambda: model(x), soft)
    hard = network()
    other = NCSAM(sgd(hard), 0.3, 0.5, 0.5, total_steps=1, generator=torch.Generator().manual_seed(1))
    other.step(lambda: hard(x), y)
    assert torch.equal(optimizer.last_flips.index, other.last_flips.index)
    assert torch.equal(optimizer.last_flips.labels, other.last_flips.labels)
    assert (optimizer.last_flips.labels != y[optimizer.last_flips.index]).all()


def test_flips_never_reach_the_targets():
    model = network()
    x, y = batch()
    kept = y.clone()
    NCSAM(sgd(model), total_steps=1, flip_ratio=1.0).step(lambda: model(x), y)
    assert torch.equal(y, kept)


CONSTRUCTION = [
    (SAM, {"rho": -0.1}, "rho=-0.1"),
    (SAM, {"rho": math.nan}, "rho=nan"),
    (SAM, {"rho": "large"}, "rho='large'"),
    (SAM, {"eta": -1.0}, "eta=-1.0"),
    (SAM, {"warmup_steps": -1}, "warmup_steps=-1"),
    (SAM, {"total_steps": 1.5}, "total_steps=1.5"),
    (SAM, {"perturbation": "global"}, "perturbation='global'"),
    (SAM, {"telemetry_every": -1}, "telemetry_every=-1"),
    (NCSAM, {"kappa": -1.0}, "kappa=-1.0"),
    (NCSAM, {"flip_ratio": 1.2}, r"flip_ratio=1.2"),
    (NCSAM, {"flip_ratio": -0.1}, "flip_ratio=-0.1"),
    (NCSAM, {"ramp": "smoth"}, "unknown ramp 'smoth'.*'smooth'"),
    (NCSAM, {"sign": 0}, "sign=0"),
    (NCSAM, {"compensation": "big"}, "compensation='big'"),
    (NCSAM, {"selection": "all"}, "selection='all'"),
    (NCSAM, {"flip_target": "third"}, "flip_target='third'"),
    (NCSAM, {"flip_criterion": "mse"}, "flip_criterion='mse'"),
    (NCSAM, {"noise_mean": "x"}, "noise_mean='x'"),
    (NCSAM, {"ramp_from": "x"}, "ramp_from='x'"),
    (NCSAM, {"warmup": "adam"}, "warmup='adam'"),
    (BSAM, {"rho_min": "lr"}, "rho_min='lr'"),
    (BSAM, {"rho_min": -1.0}, "rho_min=-1.0"),
]


@pytest.mark.parametrize(
    ("cls", "options", "message"), CONSTRUCTION, ids=lambda v: str(v) if isinstance(v, dict) else ""
)
def test_errors_of_construction(cls, options, message):
    with pytest.raises(ValueError, match=message):
        cls(sgd(network()), **options)


def test_the_base_must_be_a_plain_optimizer():
    model = network()
    with pytest.raises(TypeError, match="base_optimizer="):
        SAM(torch.optim.SGD)
    with pytest.raises(TypeError, match="plain torch optimizer"):
        SAM(SAM(sgd(model)))
    with pytest.raises(ValueError, match="no parameters"):
        SAM(torch.optim.SGD([{"params": []}], lr=0.1))


@pytest.mark.parametrize(
    "call",
    [
        lambda params: SAM(params, torch.optim.SGD, lr=0.1, rho=0.05),
        lambda params: SAM(params, base_optimizer=torch.optim.SGD, rho=0.05),
        lambda params: SAM(params, torch.optim.SGD(params, lr=0.1), rho=0.05),
        lambda params: SAM(base_optimizer=torch.optim.SGD, rho=0.05),
    ],
)
def test_the_arguments_of_other_packages_are_answered_by_ours(call):
    with pytest.raises(TypeError, match=r"invalid base_optimizer=.*as in SAM\(torch.optim.SGD\(model.parameters\(\)"):
        call(list(network().parameters()))


def test_a_validation_loss_may_still_have_its_graph():
    optimizer = SAM(sgd(network()), rho="validation", total_steps=10)
    optimizer.progress = 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.report_val_loss(torch.ones((), requires_grad=True) * 2)


X, Y = batch()
STEPS = {
    "nothing": ({}, TypeError, r"step\(\) without arguments"),
    "no loss": ({"forward": lambda: None}, TypeError, "closure"),
    "not callable": ({"forward": X, "targets": Y}, TypeError, "forward=Tensor"),
    "short": ({"targets": Y[:3]}, ValueError, r"targets of shape \(3,\)"),
    "two-dimensional": ({"targets": Y[:, None]}, ValueError, r"targets of shape \(16, 1\)"),
    "too large": ({"targets": Y + CLASSES}, ValueError, "expected 0 to 3"),
    "negative": ({"targets": Y - 5}, ValueError, "expected 0 to 3"),
    "soft of another shape": ({"targets": torch.rand(16, 3)}, ValueError, "probabilities must have"),
    "a list": ({"targets": Y.tolist()}, TypeError, "targets is list"),
    "one class": ({"forward": "one class"}, ValueError, "1 class"),
    "no class dimension": ({"forward": "flat"}, ValueError, r"logits of shape \(16,\)"),
    "not a tensor": ({"forward": "tuple"}, TypeError, "returned tuple"),
}


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize("case", STEPS)
def test_errors_of_a_step(cls, case):
    arguments, error, message = STEPS[case]
    model = network()
    odd = {"one class": lambda: model(X)[:, :1], "flat": lambda: model(X)[:, 0], "tuple": lambda: (model(X),)}
    arguments = (
        {"targets": Y, "forward": lambda: model(X), **arguments} if arguments and case != "no loss" else arguments
    )
    if isinstance(arguments.get("forward"), str):
        arguments["forward"] = odd[arguments["forward"]]
    before = parameters(model)
    with pytest.raises(error, match=message):
        cls(sgd(model), total_steps=1).step(**arguments)
    assert same_bits(before, parameters(model))


def test_criterion_that_returns_a_vector():
    model = network()
    optimizer = SAM(sgd(model), criterion=nn.CrossEntropyLoss(reduction="none"))
    with pytest.raises(ValueError, match=r"criterion returned shape \(16,\).*reduction='mean'"):
        optimizer.step(lambda: model(X), Y)
    with pytest.raises(TypeError, match="criterion returned float"):
        SAM(sgd(model), criterion=lambda z, t: 1.0).step(lambda: model(X), Y)


def test_strength_needs_a_position_in_training():
    model = network()
    with pytest.raises(ValueError, match="total_steps=None"):
        NCSAM(sgd(model)).step(lambda: model(X), Y)
    with pytest.raises(ValueError, match=r"progress=1.5"):
        NCSAM(sgd(model)).progress = 1.5


def test_sam_takes_any_targets_with_a_criterion_of_ones_own():
    model = nn.Linear(3, 1).double()
    x, y = torch.randn(8, 3, dtype=torch.float64), torch.randn(8, 1, dtype=torch.float64)
    loss = SAM(torch.optim.SGD(model.parameters(), lr=0.1), criterion=F.mse_loss).step(lambda: model(x), y)
    assert loss.ndim == 0
