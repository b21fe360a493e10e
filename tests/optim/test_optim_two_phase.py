"""Loops that own their backward: accumulation, clipping, GradScaler, Lightning, Fabric."""

import pytest
import torch
import torch.nn.functional as F
from optim_cases import Counter, batch, largest_difference, network, parameters, same_bits, sgd, twin

from ncsam import BSAM, NCSAM, SAM

ALL = [SAM, NCSAM, BSAM]


def make(cls, model, **options):
    if cls is NCSAM:
        options = {"kappa": 0.5, "flip_ratio": 0.5, "generator": torch.Generator().manual_seed(0), **options}
    return cls(sgd(model), **{"rho": 0.3, "total_steps": 6, "model": model, **options})


def two_phase_step(optimizer, model, x, y, parts=1, scaler=None, max_norm=None):
    """The loop of the documentation."""
    micro = list(zip(x.chunk(parts), y.chunk(parts), strict=True))
    optimizer.zero_grad()
    for a, b in micro:
        logits = model(a)
        optimizer.backward(F.cross_entropy(logits, b) / parts, logits, b, scaler=scaler)
    for perturbed in optimizer.perturbations():
        with perturbed:
            for a, b in micro:
                loss = F.cross_entropy(model(a), b) / parts
                (loss if scaler is None else scaler.scale(loss)).backward()
    if scaler is not None:
        scaler.unscale_(optimizer)
    if max_norm is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("cls", ALL)
def test_two_phases_are_one_step(cls):
    model = network("convolutional")
    other = twin(model)
    left, right = make(cls, model, warmup_steps=1), make(cls, other, warmup_steps=1)
    for i in range(5):
        x, y = batch(i)
        two_phase_step(left, model, x, y)
        right.step(lambda: other(x), y)  # noqa: B023
    assert same_bits(parameters(model), parameters(other))
    assert same_bits(list(model.buffers()), list(other.buffers()))
    assert left.steps == right.steps == 5


@pytest.mark.parametrize("cls", [SAM, BSAM])
@pytest.mark.parametrize("parts", [2, 4])
def test_accumulation_equals_the_whole_batch(cls, parts):
    """Pitfall 30: g over all micro-batches, then all of them again at w + eps."""
    model = network()
    other = twin(model)
    left, right = make(cls, model), make(cls, other)
    for i in range(4):
        x, y = batch(i)
        two_phase_step(left, model, x, y, parts)
        right.step(lambda: other(x), y)  # noqa: B023
    assert largest_difference(model, other) < 1e-12


def test_accumulated_noise_gradient():
    """Pitfalls 11 and 30: g* is the mean over the flips of all micro-batches, whatever the loss was divided by.

    With every sample flipped, nothing is left to chance: micro-batches must give exactly the whole batch's step.
    """
    model = network()
    other = twin(model)
    left, right = make(NCSAM, model, flip_ratio=1.0), make(NCSAM, other, flip_ratio=1.0)
    for i in range(4):
        x, y = batch(i)
        two_phase_step(left, model, x, y, parts=4)
        right.step(lambda: other(x), y)  # noqa: B023
        assert torch.equal(left.last_flips.index, torch.arange(16))
        assert torch.equal(left.last_flips.labels, right.last_flips.labels)
    assert largest_difference(model, other) < 1e-12


def test_a_mean_over_the_whole_batch_counts_all_micro_batches():
    """With half of the samples flipped, g* as a mean over the batch is half of that over the flips, in four parts, too.

    The flips of both sides are the same ones: equal seeds and, up to here, equal weights.
    """
    model = network()
    other = twin(model)
    left = make(NCSAM, model, kappa=0.8, noise_mean="batch")
    right = make(NCSAM, other, kappa=0.4)
    for i in range(4):
        two_phase_step(left, model, *batch(i), parts=4)
        two_phase_step(right, other, *batch(i), parts=4)
        assert len(left.last_flips.index) == 8
    assert largest_difference(model, other) < 1e-12


def test_zero_grad_drops_an_unfinished_step():
    """A first phase that was given up leaves neither flips nor a noise gradient behind."""
    model = network()
    other = twin(model)
    left, right = make(NCSAM, model, flip_ratio=1.0), make(NCSAM, other, flip_ratio=1.0)
    x, y = batch(7)
    logits = model(x)
    left.backward(F.cross_entropy(logits, y), logits, y)
    two_phase_step(left, model, *batch())  # begins with zero_grad
    two_phase_step(right, other, *batch())
    assert torch.equal(left.last_flips.index, torch.arange(16))
    assert same_bits(parameters(model), parameters(other))


@pytest.mark.parametrize("ratio", [0.1, 0.3, 0.7])
def test_micro_batches_flip_as_many_as_the_whole_batch(ratio):
    """m = floor(ratio |B|) of the joined batch, not the sum of each one's floor."""
    model = network()
    optimizer = make(NCSAM, model, flip_ratio=ratio)
    x, y = batch()
    two_phase_step(optimizer, model, x, y, parts=8)  # two samples each
    assert len(optimizer.last_flips.index) == int(ratio * 16 + 1e-9)
    assert len(set(optimizer.last_flips.index.tolist())) == len(optimizer.last_flips.index)


@pytest.mark.parametrize("cls", ALL)
def test_scaler_with_accumulation_and_clipping(cls):
    """Pitfalls 12 and 26: `unscale_` once, clip the final gradient alone; the perturbation knows neither."""
    model = network()
    other = twin(model)
    left, right = make(cls, model, flip_ratio=1.0) if cls is NCSAM else make(cls, model), None
    right = make(cls, other, flip_ratio=1.0) if cls is NCSAM else make(cls, other)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for i in range(4):
        x, y = batch(i)
        two_phase_step(left, model, x, y, parts=2, scaler=scaler, max_norm=0.05)
        two_phase_step(right, other, x, y, parts=1, max_norm=0.05)
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        assert float(norm) == pytest.approx(0.05, rel=1e-4)
    assert largest_difference(model, other) < 1e-12


@pytest.mark.parametrize("cls", ALL)
def test_scaler_skips_on_overflow_and_the_loop_goes_on(cls):
    model = network(dtype=torch.float32)
    before = parameters(model)
    optimizer = make(cls, model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1e38)
    x, y = batch(dtype=torch.float32)
    two_phase_step(optimizer, model, x * 100, y, scaler=scaler)
    assert same_bits(before, parameters(model))
    assert scaler.get_scale() < 1e38
    for _ in range(90):  # it backs off until steps are taken again
        two_phase_step(optimizer, model, x, y, scaler=scaler)
    assert not same_bits(before, parameters(model))
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_clipping_the_first_gradient_would_be_another_step():
    """Pitfall 26, the reason: NCSAM's s g* is not scale-free, so clipping at w would change eps."""
    x, y = batch()
    where = []
    for factor in (1.0, 0.01):
        model = network()
        optimizer = make(NCSAM, model, flip_ratio=1.0)
        logits = model(x)
        optimizer.backward(F.cross_entropy(logits, y) * factor, logits, y)
        for perturbed in optimizer.perturbations():
            with perturbed:
                where.append(parameters(model))
                F.cross_entropy(model(x), y).backward()
    for a, b in zip(*where, strict=True):  # a factor on L_B alone is invisible: g* is taken from the logits
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("cls", ALL)
def test_weights_are_restored_on_leaving(cls):
    model = network("convolutional", torch.float32)
    optimizer = make(cls, model)
    x, y = batch(dtype=torch.float32)
    before = parameters(model)
    logits = model(x)
    optimizer.backward(F.cross_entropy(logits, y), logits, y)
    passes = 0
    for perturbed in optimizer.perturbations():
        with perturbed:
            assert not same_bits(before, parameters(model))
            F.cross_entropy(model(x), y).backward()
        assert same_bits(before, parameters(model))
        passes += 1
    assert passes == (2 if cls is BSAM else 1)


def test_an_exception_in_the_block_restores():
    model = network("convolutional", torch.float32)
    optimizer = make(SAM, model)
    x, y = batch(dtype=torch.float32)
    before = parameters(model)
    logits = model(x)
    optimizer.backward(F.cross_entropy(logits, y), logits, y)
    (perturbed,) = [next(optimizer.perturbations())]
    with pytest.raises(KeyboardInterrupt), perturbed:
        raise KeyboardInterrupt
    assert same_bits(before, parameters(model))
    with pytest.raises(TypeError, match="without arguments"):
        optimizer.step()


def test_phases_out_of_order():
    model = network()
    x, y = batch()
    optimizer = SAM(sgd(model), model=model)
    with pytest.raises(RuntimeError, match="call backward"):
        next(optimizer.perturbations())
    optimizer.backward(F.cross_entropy(model(x), y))
    with pytest.raises(TypeError, match="without arguments"):
        optimizer.step()
    nameless = SAM(sgd(model))
    nameless.backward(F.cross_entropy(model(x), y))
    with pytest.raises(RuntimeError, match="pass model= to SAM"):
        next(nameless.perturbations())
    with pytest.raises(TypeError, match="needs the logits"):
        make(NCSAM, model).backward(F.cross_entropy(model(x), y))


def test_warmup_yields_no_perturbation():
    model = network()
    count = Counter(model)
    optimizer = make(NCSAM, model, warmup_steps=1)
    x, y = batch()
    two_phase_step(optimizer, model, x, y)
    assert (count.forwards, count.backwards) == (1, 1)
    assert optimizer.last_step.phase == "base"


def test_backward_by_a_function_of_ones_own():
    """Fabric's and Accelerate's `backward`; a factor that it multiplies into the loss is told by `loss_scale`."""
    model = network()
    other = twin(model)
    left, right = make(NCSAM, model), make(NCSAM, other)
    x, y = batch()

    def backward(loss, **options):
        (loss / 8).backward(**options)

    left.zero_grad()
    logits = model(x)
    left.backward(F.cross_entropy(logits, y), logits, y, backward=backward, loss_scale=1 / 8)
    for perturbed in left.perturbations():
        with perturbed:
            F.cross_entropy(model(x), y).backward()
    left.step()
    right.step(lambda: other(x), y)
    assert largest_difference(model, other) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_lightning_manual_optimization(precision, tmp_path):
    """Pitfall 13: in Lightning's manual optimization the loop is the same; momentum and weights match a bare loop."""
    lightning = pytest.importorskip("pytorch_lightning")

    class Noisy(lightning.LightningModule):
        def __init__(self, network):
            super().__init__()
            self.network = network
            self.automatic_optimization = False

        def configure_optimizers(self):
            return make(NCSAM, self.network)

        def training_step(self, data, index):
            x, y = data
            optimizer = self.optimizers()
            wrapped = optimizer.optimizer
            wrapped.zero_grad()
            logits = self.network(x)
            wrapped.backward(F.cross_entropy(logits.float(), y), logits, y, backward=self.manual_backward)
            for perturbed in wrapped.perturbations():
                with perturbed:
                    self.manual_backward(F.cross_entropy(self.network(x).float(), y))
            optimizer.step()

    batches = [batch(i, dtype=torch.float32) for i in range(4)]
    model = network(dtype=torch.float32)
    other = twin(model)
    trainer = lightning.Trainer(
        max_epochs=1, precision=precision, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(Noisy(model), torch.utils.data.DataLoader(batches, batch_size=None))
    optimizer = make(NCSAM, other)
    for x, y in batches:

        def forward(x=x):
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
                return other(x)

        optimizer.step(forward, y)
    assert largest_difference(model, other) < 1e-6
    assert largest_difference(model, network(dtype=torch.float32)) > 1e-3  # it did train
