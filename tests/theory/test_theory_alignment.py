"""Alignment against the optimizer's own telemetry, against explicit vectors, and in its closed form."""

import math
from dataclasses import fields

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ncsam.noise import symmetric
from ncsam.optim import NCSAM
from ncsam.optim.flipping import flipped_labels, select
from ncsam.theory import Alignment, WithClean, alignments, mean_alignment
from ncsam.vectors.arithmetic import cosine


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 4)).double()


def batch(n=40, rate=0.4, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=generator, dtype=torch.float64)
    clean = torch.randint(0, 4, (n,), generator=generator)
    wrong = torch.rand(n, generator=generator) < rate
    return x, torch.where(wrong, (clean + 1 + torch.randint(0, 3, (n,), generator=generator)) % 4, clean), clean


def gradient(model, loss):
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sign": -1},
        {"compensation": "relative"},
        {"noise_mean": "batch"},
        {"selection": "lowest_gap", "flip_target": "second"},
        {"projection": False},
    ],
)
def test_same_numbers_as_the_optimizers_telemetry(options):
    model, (x, observed, clean) = network().train(), batch()
    rho, kappa, flip_ratio = 0.05, 0.3, 0.35
    optimizer = NCSAM(
        torch.optim.SGD(model.parameters(), lr=0.1),
        rho=rho,
        kappa=kappa,
        flip_ratio=flip_ratio,
        telemetry_every=1,
        generator=torch.Generator().manual_seed(7),
        **options,
    )
    optimizer.progress = 0.4
    strength = optimizer.strength
    theory = {name: value for name, value in options.items() if name != "projection"}
    (found,) = alignments(
        model,
        (x, observed, clean),
        rho=rho,
        strength=strength,
        flip_ratio=flip_ratio,
        generator=torch.Generator().manual_seed(7),
        **theory,
    )
    optimizer.step(lambda: model(x), observed, clean_targets=clean)
    report = optimizer.last_step
    assert found.cos_clean == pytest.approx(report.cos_clean, rel=1e-9)
    assert found.cos_clean_sam == pytest.approx(report.cos_clean_sam, rel=1e-9)
    assert found.cos_sam == pytest.approx(report.cos_sam, rel=1e-9)
    assert found.cos_grad_estimate == pytest.approx(report.cos_grad_noise, rel=1e-9)
    assert found.compensation_ratio == pytest.approx(report.compensation_ratio, rel=1e-9)
    assert found.grad_norm == pytest.approx(report.grad_norm, rel=1e-9)
    assert found.flipped_mislabeled == pytest.approx(report.flipped_mislabeled)
    assert found.gain == pytest.approx(report.cos_clean - report.cos_clean_sam, rel=1e-7)


def test_every_length_and_angle_from_explicit_vectors():
    model, (x, observed, clean) = network().eval(), batch()
    (found,) = alignments(model, (x, observed, clean), rho=0.1, strength=0.2, flip_ratio=0.25)
    logits = model(x)
    right = observed == clean
    S = select(logits.detach(), 10, "gap", torch.Generator().manual_seed(0))
    labels = flipped_labels(logits.detach()[S], observed[S], "not_observed")
    vectors = {
        "grad": F.cross_entropy(model(x), observed),
        "clean": F.cross_entropy(model(x[right]), observed[right]),
        "noise": F.cross_entropy(model(x[~right]), observed[~right]),
        "estimate": F.cross_entropy(model(x[S]), labels),
    }
    g = {name: gradient(model, loss) for name, loss in vectors.items()}
    flat = {name: torch.cat([p.reshape(-1) for p in parts]) for name, parts in g.items()}
    for name, vector in flat.items():
        assert getattr(found, f"{name}_norm") == pytest.approx(float(vector.norm()))
    assert found.noise_share == pytest.approx(float((~right).double().mean()))
    for field, pair in {
        "cos_clean_noise": ("clean", "noise"),
        "cos_estimate_noise": ("estimate", "noise"),
        "cos_estimate_clean": ("estimate", "clean"),
        "cos_grad_estimate": ("grad", "estimate"),
        "cos_clean_sam": ("grad", "clean"),
    }.items():
        assert getattr(found, field) == pytest.approx(cosine(g[pair[0]], g[pair[1]])), field
    v = 0.1 * flat["grad"] / flat["grad"].norm() + 0.2 * flat["estimate"]
    assert found.cos_clean == pytest.approx(float(F.cosine_similarity(v, flat["clean"], dim=0)))
    assert found.cos_sam == pytest.approx(float(F.cosine_similarity(v, flat["grad"], dim=0)))
    assert found.flipped_mislabeled == pytest.approx(float((~right)[S].double().mean()))


def test_the_batch_gradient_is_the_mixture_of_its_parts():
    (found,) = alignments(network().train(), batch())
    share = found.noise_share
    clean, noise = (1 - share) * found.clean_norm, share * found.noise_norm
    assert found.grad_norm**2 == pytest.approx(clean**2 + noise**2 + 2 * clean * noise * found.cos_clean_noise)
    assert found.cos_clean_sam == pytest.approx((clean + noise * found.cos_clean_noise) / found.grad_norm)


def example(between, estimate_clean=0.1, sam=0.8):
    values = dict.fromkeys((field.name for field in fields(Alignment)), 0.0)
    return Alignment(
        **(values | {"cos_grad_estimate": between, "cos_estimate_clean": estimate_clean, "cos_clean_sam": sam})
    )


def test_other_strengths_in_closed_form():
    u, x = torch.tensor([1.0, 0, 0]).double(), torch.tensor([0.8, 0.6, 0]).double()
    star = torch.tensor([-0.4, 0.5, math.sqrt(1 - 0.16 - 0.25)]).double()
    found = example(-0.4, float(star @ x), 0.8)
    for q in (0.0, 0.5, 2.4, 2.6, 10.0):
        for sign in (1, -1):
            v = u + sign * q * star
            clean, sam = found.at(q, sign)
            assert clean == pytest.approx(float(v @ x / v.norm()))
            assert sam == pytest.approx(float(v @ u / v.norm()))
    assert found.at(1e9)[1] == pytest.approx(-0.4)


@pytest.mark.parametrize("between", [-0.9, -0.4, -0.05])
def test_against_sam_from_the_reversal_on(between):
    found = example(between)
    assert found.reversal == pytest.approx(-1 / between)
    assert found.at(found.reversal * 0.99)[1] > 0 > found.at(found.reversal * 1.01)[1]
    assert example(0.2).reversal == math.inf
    assert example(0.2).at(1e6)[1] > 0


def test_slope_tells_whether_a_little_compensation_helps():
    for found in (example(-0.4, 0.1), example(-0.1, -0.3), example(0.3, 0.2)):
        assert found.slope == pytest.approx((found.at(1e-6)[0] - found.at(0)[0]) / 1e-6, rel=1e-4)
    assert example(-0.4, 0.1).at(0.1)[0] > 0.8
    assert example(-0.1, -0.3).at(0.1)[0] < 0.8


def test_right_labels_only():
    x, _, clean = batch()
    (found,) = alignments(network().train(), (x, clean, clean))
    assert found.noise_share == 0
    assert found.noise_norm == 0
    assert math.isnan(found.cos_clean_noise)
    assert found.cos_clean_sam == pytest.approx(1.0)
    (sam,) = alignments(network().train(), batch(), flip_ratio=0.0)
    assert sam.cos_clean == sam.cos_clean_sam
    assert sam.cos_sam == 1.0
    assert sam.compensation_ratio == 0.0
    (relative,) = alignments(network().train(), batch(), flip_ratio=0.0, compensation="relative")
    assert relative.compensation_ratio == 0.0


def test_a_loader_gives_one_record_per_batch_and_their_mean():
    model, batches = network().train(), [batch(seed=1), batch(n=24, seed=2, rate=0.0)]
    found = alignments(model, batches, generator=torch.Generator().manual_seed(3))
    assert len(found) == 2
    mean = mean_alignment(found)
    assert mean.cos_clean == pytest.approx((found[0].cos_clean + found[1].cos_clean) / 2)
    assert mean.cos_clean_noise == found[0].cos_clean_noise  # the second has no wrong label
    assert mean.gain == pytest.approx((found[0].gain + found[1].gain) / 2)


def test_clean_labels_join_a_loader_by_index():
    from ncsam.data.loading.loader import Loader
    from ncsam.data.types import Split

    x, _, clean = batch(30)
    record = symmetric(clean.numpy(), 0.5, num_classes=4, seed=0)
    loader = Loader(Split(x.float().numpy(), record.noisy), 8, views="plain", seed=3)
    triples = list(WithClean(loader, record.clean))
    assert sum(len(y) for _, y, _ in triples) == 30
    place = {tuple(row): i for i, row in enumerate(x.float().tolist())}
    for inputs, observed, true in triples:
        for row, y, t in zip(inputs.tolist(), observed.tolist(), true.tolist(), strict=True):
            assert (y, t) == (record.noisy[place[tuple(row)]], record.clean[place[tuple(row)]])
    assert len(alignments(network().float(), WithClean(loader, record.clean))) == 4


def test_the_network_is_left_as_it_was():
    model = network().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    alignments(model, [batch(), batch(seed=2)])
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(p.grad is None for p in model.parameters())
    assert model.training


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rho": 0.0}, "rho=0"),
        ({"strength": -1.0}, "strength=-1"),
        ({"flip_ratio": 2.0}, "flip_ratio=2"),
        ({"compensation": "half"}, "compensation='half'"),
        ({"selection": "best"}, "selection='best'"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        alignments(network(), batch(), **options)
    with pytest.raises(ValueError, match="clean"):
        alignments(network(), batch()[:2])


@settings(deadline=None)
@given(st.lists(st.floats(-20, 20), min_size=2, max_size=12), st.data())
def test_a_flipped_label_turns_the_logit_gradient_against_its_own(logits, data):
    z = torch.tensor([logits], dtype=torch.float64)
    y = torch.tensor([data.draw(st.integers(0, len(logits) - 1))])
    f = flipped_labels(z, y, "not_observed")
    p = z.softmax(dim=1)[0]
    product = (p - F.one_hot(y, len(logits))[0]) @ (p - F.one_hot(f, len(logits))[0])
    assert float(product) <= -float(torch.minimum(p[y], p[f])) + 1e-12
