"""`step(closure)` as in torch, Lightning and other implementations; and settings in parameter groups."""

import copy

import pytest
import torch
import torch.nn.functional as F
from optim_cases import batch, largest_difference, network, parameters, same_bits, sgd, twin

from ncsam import ASAM, BSAM, NCSAM, SAM, AutoRadius
from ncsam.optim import reference

KINDS = {"sam": SAM, "asam": ASAM, "bsam": BSAM}


def closures(optimizer, model, x, y):
    """The forms that people write."""

    def torch_style():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    def sam_style():
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    def loss_alone():
        return F.cross_entropy(model(x), y)

    def number():
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss.item()

    return {"torch": torch_style, "sam": sam_style, "loss": loss_alone, "number": number}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("form", ["torch", "sam", "loss", "number"])
@pytest.mark.parametrize("rho", [0.2, "auto"])
def test_closures_step_as_forward_and_targets_do(kind, form, rho):
    model = network("convolutional", torch.float32)
    other = twin(model)
    left, right = kind(sgd(model), rho, chance_loss=1.4), kind(sgd(other), rho, chance_loss=1.4)
    for i in range(5):
        x, y = batch(i, dtype=torch.float32)
        loss = left.step(closures(left, model, x, y)[form])
        assert float(loss) == pytest.approx(float(right.step(lambda: other(x), y)))  # noqa: B023
    assert same_bits([*parameters(model), *model.buffers()], [*parameters(other), *other.buffers()])


def test_the_keyword_works_as_well():
    model = network()
    other = twin(model)
    left, right = SAM(sgd(model)), SAM(sgd(other))
    x, y = batch()
    left.step(closure=lambda: F.cross_entropy(model(x), y))
    right.step(lambda: other(x), y)
    assert same_bits(parameters(model), parameters(other))


def test_ncsam_takes_closures_that_return_logits_and_targets():
    model = network("convolutional")
    other = twin(model)
    left, right = (NCSAM(sgd(m), total_steps=5, generator=torch.Generator().manual_seed(1)) for m in (model, other))
    for i in range(4):
        x, y = batch(i)

        def closure():
            logits = model(x)  # noqa: B023
            return F.cross_entropy(logits, y), logits, y  # noqa: B023

        left.step(closure)
        right.step(lambda: other(x), y)  # noqa: B023
    assert same_bits(parameters(model), parameters(other))


@pytest.mark.parametrize("form", ["torch", "loss"])
def test_ncsam_says_what_its_closure_must_return(form):
    model = network()
    x, y = batch()
    optimizer = NCSAM(sgd(model), total_steps=5)
    before = parameters(model)
    with pytest.raises(TypeError, match="logits, targets"):
        optimizer.step(closures(optimizer, model, x, y)[form])
    assert same_bits(before, parameters(model))


@pytest.mark.parametrize("returned", ["logits", "number", "constant"])
def test_a_closure_that_returns_no_loss(returned):
    model = network()
    x, _ = batch()
    results = {"logits": lambda: model(x), "number": lambda: 0.5, "constant": lambda: torch.tensor(0.5)}
    before = parameters(model)
    with pytest.raises(TypeError, match=r"closure returned .*targets"):
        SAM(sgd(model)).step(results[returned])
    assert same_bits(before, parameters(model))


def test_a_scaler_must_not_step_with_a_closure():
    model = network(dtype=torch.float32)
    x, y = batch(dtype=torch.float32)
    optimizer, scaler = SAM(sgd(model)), torch.amp.GradScaler("cpu")
    scaler.scale(F.cross_entropy(model(x), y)).backward()
    with pytest.raises(TypeError, match="scaler=scaler"):
        scaler.step(optimizer, lambda: F.cross_entropy(model(x), y))


def test_lightning_without_a_mixin():
    lightning = pytest.importorskip("pytorch_lightning")
    x, y = batch(size=32, dtype=torch.float32)

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network("convolutional", torch.float32)

        def training_step(self, pair, _):
            return F.cross_entropy(self.net(pair[0]), pair[1])

        def configure_optimizers(self):
            return SAM(sgd(self.net), 0.2)

    net = Net()
    other = twin(net.net)
    optimizer = SAM(sgd(other), 0.2)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(net, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16))
    for k in range(2):
        optimizer.step(lambda: other(x[16 * k : 16 * k + 16]), y[16 * k : 16 * k + 16])  # noqa: B023
    assert largest_difference(net.net, other) < 1e-6


# --- settings in groups


def grouped(model, **first):
    """Two groups, the first with settings of its own."""
    own = list(model.parameters())
    half = len(own) // 2
    groups = [{"params": own[:half], **first}, {"params": own[half:]}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


def by_name(model, first, second):
    names = [name for name, _ in model.named_parameters()]
    half = len(names) // 2
    return {name: first if i < half else second for i, name in enumerate(names)}


@pytest.mark.parametrize("name", ["mlp", "convolutional"])
@pytest.mark.parametrize(("own", "adaptive"), [(0.4, False), (0.0, False), (0.4, True)])
def test_radii_of_groups_against_the_reference(name, own, adaptive):
    """eps = rho_k T_k^2 g_k / ||T g||, the norm over the groups that are perturbed."""
    model = network(name)
    other = twin(model)
    optimizer = SAM(grouped(model, rho=own, adaptive=adaptive), 0.1, eta=0.01)
    base = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    rho, scaled = by_name(other, own, 0.1), by_name(other, adaptive, False)
    for i in range(20):
        x, y = batch(i)
        optimizer.step(lambda: model(x), y)  # noqa: B023
        w = reference.weights(other)
        g, _ = reference.gradient(other, x, y)
        moved = {n: v for n, v in g.items() if rho[n] > 0}
        T = {n: w[n].abs() + 0.01 if scaled[n] else torch.ones_like(v) for n, v in moved.items()}
        length = reference.norm({n: T[n] * v for n, v in moved.items()})
        eps = {n: rho[n] * T[n] ** 2 * v / length for n, v in moved.items()}
        final, _ = reference.gradient(other, x, y, at=reference.moved(w, eps))
        other(x)  # BatchNorm's statistics
        for n, p in other.named_parameters():
            p.grad = final.get(n)
        base.step()
    assert largest_difference(model, other) < 1e-12


@pytest.mark.parametrize("projection", [True, False])
@pytest.mark.parametrize("first", [{"kappa": 0.0}, {"kappa": 2.0, "rho": 0.3}, {"rho": 0.3}])
def test_ncsam_settings_of_groups_against_the_reference(first, projection):
    """v_k = rho_k g_k / ||g|| + s_k g*_k, shrunk to sum ||v_k||^2 / rho_k^2 <= 1."""
    model = network("convolutional")
    other = twin(model)
    options = {"ramp": "constant", "flip_ratio": 0.5, "total_steps": 99, "projection": projection}
    optimizer = NCSAM(grouped(model, **first), 0.1, 0.5, generator=torch.Generator().manual_seed(3), **options)
    draws = torch.Generator().manual_seed(3)
    base = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    rho, kappa = by_name(other, first.get("rho", 0.1), 0.1), by_name(other, first.get("kappa", 0.5), 0.5)
    for i in range(10):
        x, y = batch(i)
        optimizer.step(lambda: model(x), y)  # noqa: B023
        w = reference.weights(other)
        g, logits = reference.gradient(other, x, y)
        S = reference.selected(logits, 0.5, "gap", torch.empty(16, dtype=torch.float64).exponential_(generator=draws))
        labels = torch.tensor([reference.flipped(logits[i], int(y[i]), "not_observed") for i in S])
        noise, _ = reference.gradient(other, x, y, criterion=lambda z, _: F.cross_entropy(z[S], labels))  # noqa: B023
        v = {n: rho[n] * g[n] / reference.norm(g) + kappa[n] * noise[n] for n in g}
        length = reference.norm({n: v[n] / rho[n] for n in v})
        shrink = min(1.0, 1.0 / length) if projection else 1.0
        final, _ = reference.gradient(other, x, y, at=reference.moved(w, {n: shrink * v[n] for n in v}))
        other(x)
        for n, p in other.named_parameters():
            p.grad = final.get(n)
        base.step()
    assert largest_difference(model, other) < 1e-12


def test_a_scheduler_may_change_the_radius():
    model = network("convolutional")
    other = twin(model)
    left, right = SAM(sgd(model), 0.5), SAM(sgd(other), 0.5)
    for i in range(6):
        x, y = batch(i)
        for group in left.param_groups:
            group["rho"] = 0.5 / (1 + i)
        right.rho = 0.5 / (1 + i)
        left.step(lambda: model(x), y)  # noqa: B023
        right.step(lambda: other(x), y)  # noqa: B023
        assert left.last_step.rho == left.rho == 0.5 / (1 + i)
    assert same_bits(parameters(model), parameters(other))
    left.param_groups[0]["rho"] = -1.0
    with pytest.raises(ValueError, match=r"rho=-1\.0"):
        left.step(lambda: model(x), y)


def test_kappa_of_the_groups_is_that_of_the_step():
    model = network()
    optimizer = NCSAM(sgd(model), kappa=0.3, total_steps=1)
    assert [group["kappa"] for group in optimizer.param_groups] == [0.3, 0.3]
    optimizer.param_groups[1]["kappa"] = 0.6
    assert optimizer.kappa == optimizer.strength == 0.6
    optimizer.kappa = 0.0
    assert [group["kappa"] for group in optimizer.param_groups] == [0.0, 0.0]


def test_settings_of_groups_survive_a_restart():
    model = network()
    optimizer = NCSAM(grouped(model, rho=0.3, kappa=0.7, adaptive=True), 0.1, 0.2, total_steps=9)
    state = copy.deepcopy(optimizer.state_dict())
    again = NCSAM(grouped(twin(model)), 0.5, 0.5, total_steps=9)
    again.load_state_dict(state)
    found = [(g["rho"], g["kappa"], g["adaptive"]) for g in again.param_groups]
    assert found == [(0.3, 0.7, True), (0.1, 0.2, False)]
    bare = torch.optim.SGD(twin(model).parameters(), lr=0.1).state_dict()
    fresh = SAM(torch.optim.SGD(model.parameters(), lr=0.1), 0.3)
    fresh.load_state_dict(bare)  # of the base optimizer alone
    assert fresh.rho == fresh.param_groups[0]["rho"] == 0.3


def test_new_groups_get_the_settings():
    model, more = network(), network(seed=1)
    optimizer = SAM(sgd(model), 0.3)
    optimizer.add_param_group({"params": list(more.parameters()), "rho": 0.1})
    assert [group["rho"] for group in optimizer.param_groups] == [0.3, 0.3, 0.1]
    assert [group["adaptive"] for group in optimizer.param_groups] == [False] * 3


def test_a_base_may_be_wrapped_again():
    """What the first wrapper put into the groups does not outlive it; what the user put there does."""
    base = grouped(network(), rho=0.7)
    SAM(base, 0.1)
    assert [group["rho"] for group in SAM(base, 0.2).param_groups] == [0.7, 0.2]


def test_an_adaptive_radius_is_one_for_all_groups():
    model = network()
    optimizer = SAM(sgd(model), AutoRadius(start=0.2))
    x, y = batch()
    for _ in range(3):
        optimizer.step(lambda: model(x), y)
        assert {group["rho"] for group in optimizer.param_groups} == {optimizer.last_step.rho}
    with pytest.raises(ValueError, match="rho='auto'"):
        SAM(grouped(network(), rho=0.3), "auto")
    with pytest.raises(ValueError, match=r"rho=-0\.3"):
        SAM(grouped(network(), rho=-0.3))
