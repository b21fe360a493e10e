"""The numbers to watch, against their definitions."""

import pytest
import torch
import torch.nn.functional as F
from optim_cases import Counter, batch, network, sgd

from ncsam import BSAM, NCSAM, SAM


def flat(gradients):
    return torch.cat([g.flatten() for g in gradients])


def gradient(model, loss):
    return flat(torch.autograd.grad(loss, list(model.parameters()), retain_graph=True))


def cos(a, b):
    return float(a @ b / (a.norm() * b.norm()))


def test_every_quantity_of_ncsam():
    model = network()
    x, y = batch()
    clean = y.clone()
    clean[::3] = (clean[::3] + 1) % 4  # the truth of every third sample is another class
    rho, kappa = 0.3, 0.8
    optimizer = NCSAM(sgd(model, lr=0.0), rho, kappa, 0.5, total_steps=4, telemetry_every=1)
    logits = model(x)
    g = gradient(model, F.cross_entropy(logits, y))
    right = y == clean
    g_clean = gradient(model, F.cross_entropy(logits[right], y[right]))
    where = []

    def forward():
        where.append(flat([p.detach() for p in model.parameters()]))
        return model(x)

    optimizer.step(forward, y, clean_targets=clean)
    flips, report = optimizer.last_flips, optimizer.last_step
    noise = gradient(model, F.cross_entropy(model(x)[flips.index], flips.labels))
    eps = where[1] - where[0]
    s = kappa * 2 * (3 - 0.5) * 0.25**2

    assert report.phase == "ncsam"
    assert (report.step, report.progress, report.flipped) == (1, 0.25, 8)
    assert report.strength == pytest.approx(s)
    assert report.grad_norm == pytest.approx(float(g.norm()))
    assert report.noise_grad_norm == pytest.approx(float(noise.norm()))
    assert report.cos_grad_noise == pytest.approx(cos(g, noise))
    assert report.compensation_ratio == pytest.approx(s * float(noise.norm()) / rho)
    assert report.cos_sam == pytest.approx(cos(g, eps))
    assert report.perturbation_norm == pytest.approx(float(eps.norm()))
    assert report.projected == (float((rho * g / g.norm() + s * noise).norm()) > rho)
    assert report.flipped_mislabeled == pytest.approx(float((~right)[flips.index].double().mean()))
    assert report.cos_clean == pytest.approx(cos(eps, g_clean))
    assert report.cos_clean_sam == pytest.approx(cos(g, g_clean))


@pytest.mark.parametrize(
    "options",
    [
        {"sign": -1},
        {"kappa": 20.0},
        {"kappa": 20.0, "sign": -1},
        {"kappa": 20.0, "projection": False},
        {"kappa": 2.0, "compensation": "relative", "sign": -1},
        {"adaptive": True, "eta": 0.01},
        {"adaptive": True, "eta": 0.01, "kappa": 20.0, "sign": -1},
    ],
    ids=lambda options: ",".join(f"{name}={value}" for name, value in options.items()),
)
def test_of_the_alternatives(options):
    """In ASAM's coordinates (T = 1 without it) v = rho T g/||T g|| + sign s T g*, and eps = T v min(1, rho/||v||)."""
    model = network()
    x, y = batch()
    clean = y.clone()
    clean[::3] = (clean[::3] + 1) % 4
    rho, s, sign = 0.3, options.get("kappa", 0.8), options.get("sign", 1)
    optimizer = NCSAM(
        sgd(model, lr=0.0),
        rho,
        **{"kappa": s, "flip_ratio": 0.5, "total_steps": 4, "ramp": "constant", "telemetry_every": 1, **options},
        generator=torch.Generator().manual_seed(1),
    )
    where = []

    def forward():
        where.append(flat([p.detach() for p in model.parameters()]))
        return model(x)

    optimizer.step(forward, y, clean_targets=clean)
    flips, report = optimizer.last_flips, optimizer.last_step
    logits, right = model(x), y == clean
    scaling = where[0].abs() + 0.01 if "adaptive" in options else torch.ones_like(where[0])
    g = scaling * gradient(model, F.cross_entropy(logits, y))
    noise = scaling * gradient(model, F.cross_entropy(logits[flips.index], flips.labels))
    g_clean = gradient(model, F.cross_entropy(logits[right], y[right]))
    relative = "compensation" in options
    v = rho * g / g.norm() + sign * s * noise * (rho / noise.norm() if relative else 1.0)
    shrink = min(1.0, rho / float(v.norm())) if options.get("projection", True) else 1.0
    eps = where[1] - where[0]

    torch.testing.assert_close(eps, scaling * v * shrink, rtol=0, atol=1e-12)
    assert report.grad_norm == pytest.approx(float(g.norm()))
    assert report.noise_grad_norm == pytest.approx(float(noise.norm()))
    assert report.cos_grad_noise == pytest.approx(cos(g, noise))
    assert report.compensation_ratio == pytest.approx(s if relative else s * float(noise.norm()) / rho)
    assert report.cos_sam == pytest.approx(cos(g, v))
    assert report.perturbation_norm == pytest.approx(float(v.norm()) * shrink)
    assert report.projected == (shrink < 1.0)
    mislabeled = float((~right)[flips.index].double().mean())
    assert mislabeled != 0.5  # which would be right the other way round, too
    assert report.flipped_mislabeled == pytest.approx(mislabeled)
    assert report.cos_clean == pytest.approx(cos(eps, g_clean))
    assert report.cos_clean_sam == pytest.approx(cos(scaling * g, g_clean))


@pytest.mark.parametrize("cls", [SAM, BSAM])
def test_of_sam_and_bsam(cls):
    model = network()
    x, y = batch()
    g = gradient(model, F.cross_entropy(model(x), y))
    optimizer = cls(sgd(model), rho=0.3, telemetry_every=1)
    optimizer.step(lambda: model(x), y, clean_targets=y)
    assert optimizer.last_step.grad_norm == pytest.approx(float(g.norm()))
    assert optimizer.last_step.cos_clean == pytest.approx(1.0)  # all labels are right: the clean part is the batch
    assert optimizer.last_step.perturbation_norm == 0.3


def test_intervals():
    """Off: only what is free. Every k steps: measured on the first of each k."""
    for every, expected in ((0, [False] * 6), (1, [True] * 6), (3, [True, False, False] * 2)):
        model = network()
        optimizer = NCSAM(sgd(model), total_steps=6, telemetry_every=every)
        measured = []
        for i in range(6):
            x, y = batch(i)
            optimizer.step(lambda: model(x), y)  # noqa: B023
            assert optimizer.last_step.step == i + 1
            measured.append("grad_norm" in optimizer.last_step.as_dict())
        assert measured == expected


def test_measuring_changes_nothing_but_costs_a_backward_for_the_clean_part():
    models = [network(), network()]
    counts = [Counter(m) for m in models]
    for model, every in zip(models, (0, 1), strict=True):
        optimizer = NCSAM(sgd(model), total_steps=3, telemetry_every=every, generator=torch.Generator().manual_seed(0))
        for i in range(3):
            x, y = batch(i)
            optimizer.step(lambda: model(x), y, clean_targets=y.flip(0))  # noqa: B023
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(p, q)
    assert (counts[0].forwards, counts[0].backwards) == (6, 9)
    assert (counts[1].forwards, counts[1].backwards) == (6, 12)


@pytest.mark.parametrize("cls", [SAM, BSAM])
def test_scaled_losses_of_sam_and_bsam_report_unscaled_norms(cls):
    model = network()
    x, y = batch()
    g = gradient(model, F.cross_entropy(model(x), y))
    optimizer = cls(sgd(model), rho=0.3, telemetry_every=1)
    optimizer.step(lambda: model(x), y, scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
    assert optimizer.last_step.grad_norm == pytest.approx(float(g.norm()))


def test_scaled_losses_report_unscaled_norms():
    model = network()
    x, y = batch()
    g = gradient(model, F.cross_entropy(model(x), y))
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    optimizer = NCSAM(sgd(model), total_steps=1, telemetry_every=1)
    optimizer.step(lambda: model(x), y, scaler=scaler)
    assert optimizer.last_step.grad_norm == pytest.approx(float(g.norm()))
