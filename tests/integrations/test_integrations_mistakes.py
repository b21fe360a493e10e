"""The usual mistakes in each framework: the error names the lines that are right there."""

import re

import pytest
import torch
import torch.nn.functional as F
from integration_cases import batches, largest_difference, make, network, plain_loop, twin

from ncsam import NCSAM, SAM

#: What the message must hold, by the loop that runs.
LINES = {
    "plain": [r"loss = optimizer\.step\(lambda: model\(x\), y\)", r"run_passes", "my-loop"],
    "scaler": [r"optimizer\.step\(lambda: model\(x\), y, scaler=scaler\); scaler\.update\(\)"],
    "lightning": [r"class Net\(SharpnessAwareMixin, LightningModule\)", r'return \{"loss": loss, "logits": logits'],
    "lightning manual": [r"self\.manual_step\(lambda: self\(x\), y\)", r"self\.optimizers\(\)\.optimizer"],
    "transformers": [r"SharpnessAwareTrainer\(model=model, args=args, sharpness_aware=lambda base: SAM\("],
    "accelerate": [r"loss = sharpness_step\(accelerator, optimizer, compute, x, y\)"],
    "fabric": [r"optimizer\.optimizer\.run_passes\(lambda: compute_loss\(\), backward=fabric\.backward\)"],
}


def sam(model):
    return SAM(torch.optim.SGD(model.parameters(), lr=0.1), model=model)


def backwards(optimizer, model, data, run):
    """`loss.backward(); step()`."""
    for x, y in data:
        optimizer.zero_grad()
        run(F.cross_entropy(model(x), y))
        optimizer.step()


def perturbed_micro_batches(optimizer, model, data, run):
    """`perturbations()` for each micro-batch, and one step for all."""
    ours = optimizer
    while hasattr(ours, "optimizer"):
        ours = ours.optimizer
    optimizer.zero_grad()
    for x, y in data:
        ours.backward(F.cross_entropy(model(x), y) / len(data), backward=run)
        for perturbed in ours.perturbations():
            with perturbed:
                run(F.cross_entropy(model(x), y) / len(data))
    optimizer.step()


MISTAKES = [backwards, perturbed_micro_batches]


def told(loop, run):
    """Run it, and check the words of the error."""
    with pytest.raises((TypeError, RuntimeError)) as error:
        run()
    named = [name for name, lines in LINES.items() if all(re.search(line, str(error.value)) for line in lines)]
    assert named == [loop]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_in_a_plain_loop(mistake):
    model = network()
    told("plain", lambda: mistake(sam(model), model, batches(2), torch.Tensor.backward))


def test_with_a_scaler():
    model = network()
    optimizer, scaler = sam(model), torch.amp.GradScaler("cpu")

    def run():
        (x, y), *_ = batches(1)
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        scaler.step(optimizer)

    told("scaler", run)


# --- Lightning


def lightning_fit(training_step, tmp_path, automatic, optimizer=sam, accumulate=1):
    lightning = pytest.importorskip("pytorch_lightning")

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = network()
            self.automatic_optimization = automatic

        def configure_optimizers(self):
            return optimizer(self)

        def training_step(self, batch, batch_idx):
            return training_step(self, batch)

    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
        accumulate_grad_batches=accumulate,
    )  # fmt: skip
    trainer.fit(Net(), torch.utils.data.DataLoader(batches(2), batch_size=None))


def test_in_lightning_without_the_mixin(tmp_path):
    """SAM takes Lightning's closure; NCSAM needs logits and targets, which only the mixin gives it."""

    def step(module, batch):
        return F.cross_entropy(module.network(batch[0]), batch[1])

    def ncsam(model):
        return NCSAM(torch.optim.SGD(model.parameters(), lr=0.1), model=model, total_steps=2)

    lightning_fit(step, tmp_path, automatic=True)
    # its closure holds the last micro-batch alone: the step would be that of half of the batch
    told("lightning", lambda: lightning_fit(step, tmp_path, automatic=True, accumulate=2))
    told("lightning", lambda: lightning_fit(step, tmp_path, automatic=True, optimizer=ncsam))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_in_lightnings_manual_optimization(mistake, tmp_path):
    def step(module, batch):
        mistake(module.optimizers(), module.network, [batch, batch], module.manual_backward)

    told("lightning manual", lambda: lightning_fit(step, tmp_path, automatic=False))


def test_the_two_phases_through_lightnings_wrapper(tmp_path):
    def step(module, batch):
        wrapped, (x, y) = module.optimizers(), batch
        wrapped.zero_grad()
        wrapped.backward(F.cross_entropy(module.network(x), y), backward=module.manual_backward)
        for perturbed in wrapped.perturbations():
            with perturbed:
                wrapped.backward(F.cross_entropy(module.network(x), y), backward=module.manual_backward)
        wrapped.step()

    told("lightning manual", lambda: lightning_fit(step, tmp_path, automatic=False))


# --- Hugging Face


def test_with_the_plain_trainer(tmp_path):
    pytest.importorskip("transformers")
    from test_integrations_transformers import bert, rows, trainer
    from transformers import Trainer

    model = bert()
    arguments = trainer(model, rows(8), tmp_path).args
    wrong = Trainer(model=model, args=arguments, train_dataset=rows(8), optimizers=(sam(model), None))
    told("transformers", wrong.train)


def test_with_a_trainer_that_perturbs_for_each_micro_batch(tmp_path):
    pytest.importorskip("transformers")
    from test_integrations_transformers import bert, rows, trainer
    from transformers import Trainer

    class Wrong(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            ours = self.optimizer.optimizer
            loss = self.compute_loss(model, inputs)
            ours.backward(loss)
            for perturbed in ours.perturbations():
                with perturbed:
                    self.compute_loss(model, inputs).backward()
            return loss.detach()

    model = bert()
    arguments = trainer(model, rows(32), tmp_path, gradient_accumulation_steps=2).args
    wrong = Wrong(model=model, args=arguments, train_dataset=rows(32), optimizers=(sam(model), None))
    told("transformers", wrong.train)


# --- Accelerate and Fabric


@pytest.mark.parametrize("mistake", MISTAKES)
def test_with_an_optimizer_that_accelerate_prepared(mistake):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    optimizer = accelerator.prepare(sam(raw := network()))
    told("accelerate", lambda: mistake(optimizer, raw, batches(2), accelerator.backward))


@pytest.mark.parametrize("mistake", [backwards, perturbed_micro_batches])
def test_with_an_optimizer_that_fabric_set_up(mistake):
    fabric = pytest.importorskip("lightning_fabric").Fabric(accelerator="cpu", devices=1)
    raw = network()
    model, optimizer = fabric.setup(raw, sam(raw))
    told("fabric", lambda: mistake(optimizer, model, batches(2), fabric.backward))


@pytest.mark.parametrize("kind", ["sam", "auto", "ncsam"])
def test_the_lines_for_fabric_equal_the_plain_loop_over_twenty_steps(kind):
    fabric = pytest.importorskip("lightning_fabric").Fabric(accelerator="cpu", devices=1)
    raw, data = network(), batches(20)
    other = twin(raw)
    model, optimizer = fabric.setup(raw, make(kind, raw.parameters(), raw))
    for x, y in data:

        def compute(x=x, y=y):
            logits = model(x)
            return F.cross_entropy(logits, y), logits, y

        optimizer.optimizer.run_passes(compute, backward=fabric.backward)
        optimizer.step()
    plain_loop(kind, other, [[batch] for batch in data])
    assert largest_difference(raw, other) < 1e-6
    assert largest_difference(raw, network()) > 1e-2
