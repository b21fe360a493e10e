"""Lightning as a real client: every setting trains as the plain loop does."""

import pytest
import torch
import torch.nn.functional as F
from integration_cases import batches, largest_difference, make, network, plain_loop, twin

from ncsam.integrations.lightning import SharpnessAwareMixin

lightning = pytest.importorskip("pytorch_lightning")


class Net(SharpnessAwareMixin, lightning.LightningModule):
    def __init__(self, network, kind="sam", **options):
        super().__init__()
        self.network, self.kind, self.options = network, kind, options
        self.logged, self.seen = [], 0

    def configure_optimizers(self):
        options = {"steps": self.trainer.estimated_stepping_batches, **self.options}
        model = self.network if self.kind == "separate" else self  # a separate forward repeats the call of the model
        return make(self.kind, self.network.parameters(), model, **options)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.network(x)
        loss = F.cross_entropy(logits.float(), y)
        self.log("loss", loss)
        self.seen += not self.is_perturbed
        return {"loss": loss, "logits": logits, "targets": y}

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.logged.append(float(self.trainer.callback_metrics["loss"]))


class Manual(Net):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        x, y = batch
        self.log("loss", self.manual_step(lambda: self.network(x), y))


def fit(module, data, tmp_path, ckpt_path=None, **options):
    trainer = lightning.Trainer(
        **{
            "max_epochs": 1, "accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False,
            "enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": tmp_path, **options,
        }
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=None), ckpt_path=ckpt_path)
    return trainer


@pytest.mark.parametrize("kind", ["sam", "auto", "ncsam", "separate", "msam"])
@pytest.mark.parametrize("module", [Net, Manual])
def test_equals_the_plain_loop_over_twenty_steps(kind, module, tmp_path):
    data = batches(20)
    model = network()
    other = twin(model)
    client = module(model, kind)
    trainer = fit(client, data, tmp_path)
    optimizer, losses = plain_loop(kind, other, [[b] for b in data])
    assert trainer.global_step == 20
    assert largest_difference(model, other) < 1e-6
    assert largest_difference(model, network()) > 1e-2  # it did train
    assert client.logged == pytest.approx(losses, abs=1e-5)  # at w, though training_step ran at w + eps last
    ours = trainer.optimizers[0]
    assert (ours.steps, ours.rho) == (20, pytest.approx(optimizer.rho, rel=1e-4))


@pytest.mark.parametrize("kind", ["sam", "auto", "ncsam", "msam"])
def test_accumulation_and_clipping(kind, tmp_path):
    data = batches(40)
    model = network()
    other = twin(model)
    module = Net(model, kind)
    trainer = fit(module, data, tmp_path, accumulate_grad_batches=2, gradient_clip_val=0.05)
    plain_loop(kind, other, [data[i : i + 2] for i in range(0, 40, 2)], clip=0.05)
    assert trainer.global_step == 20
    assert module.seen == 40
    assert largest_difference(model, other) < 1e-6


@pytest.mark.parametrize("module", [Net, Manual])
@pytest.mark.parametrize(("precision", "dtype"), [("bf16-mixed", torch.bfloat16), ("16-mixed", torch.float16)])
def test_mixed_precision(module, precision, dtype, tmp_path):
    """With the scaler the gradients differ by its rounding in half precision alone."""
    data = batches(20)
    model = network()
    other = twin(model)
    options = {"precision": precision}
    if dtype is torch.float16:
        from pytorch_lightning.plugins import MixedPrecision

        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        options = {"plugins": [MixedPrecision("16-mixed", "cpu", scaler)]}
    trainer = fit(module(model, "ncsam"), data, tmp_path, **options)
    plain_loop("ncsam", other, [[b] for b in data], dtype=dtype)
    assert trainer.global_step == 20
    assert largest_difference(model, other) < (1e-6 if dtype is torch.bfloat16 else 5e-3)
    assert largest_difference(model, network()) > 1e-2


@pytest.mark.parametrize("kind", ["auto", "ncsam"])
def test_resuming_from_a_checkpoint_changes_nothing(kind, tmp_path):
    data = batches(10)
    whole, stopped, resumed = network(), network(), network(seed=7)
    fit(Net(whole, kind), data, tmp_path, max_epochs=2)
    first = Net(stopped, kind, steps=20)  # half of a training that is planned for twenty
    trainer = fit(first, data, tmp_path, max_epochs=2, max_steps=10)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    second = Net(resumed, kind)
    trainer = fit(second, data, tmp_path, max_epochs=2, ckpt_path=tmp_path / "half.ckpt")
    assert trainer.global_step == 20
    assert trainer.optimizers[0].steps == 20
    assert largest_difference(whole, resumed) == 0


def test_dropout_masks_are_drawn_again_when_asked_for(tmp_path):
    masks = []

    class Dropping(Net):
        def training_step(self, batch, batch_idx):
            masks.append(F.dropout(torch.ones(64), 0.5))
            return super().training_step(batch, batch_idx)["loss"]

    for same in (True, False):
        masks.clear()
        fit(Dropping(network(), same_dropout=same), batches(1), tmp_path)
        assert len(masks) == 2
        assert torch.equal(*masks) is same


def test_a_step_that_returns_none_is_skipped(tmp_path):
    class Skipping(Net):
        def training_step(self, batch, batch_idx):
            return None if batch_idx == 1 else super().training_step(batch, batch_idx)

    data = batches(3)
    model = network()
    other = twin(model)
    fit(Skipping(model), data, tmp_path)
    plain_loop("sam", other, [[data[0]], [data[2]]])
    assert largest_difference(model, other) < 1e-6


# --- mistakes


def test_the_mixin_must_come_first():
    with pytest.raises(TypeError, match=r"class Wrong\(SharpnessAwareMixin, LightningModule\)"):

        class Wrong(lightning.LightningModule, SharpnessAwareMixin):
            pass


def test_ncsam_without_labels_names_the_line_to_write(tmp_path):
    class Lossy(Net):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx)["loss"]

    with pytest.raises(TypeError, match=r'\{"loss".*"logits".*"targets": y\}'):
        fit(Lossy(network(), "ncsam"), batches(1), tmp_path)


def test_an_iterator_in_place_of_a_batch_is_refused():
    with pytest.raises(TypeError, match="take a batch"):

        class Wrong(SharpnessAwareMixin, lightning.LightningModule):
            def training_step(self, dataloader_iter):
                pass


def test_manual_step_wants_one_of_our_optimizers(tmp_path):
    class Plain(Manual):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    with pytest.raises(TypeError, match="manual_step needs"):
        fit(Plain(network()), batches(1), tmp_path)


def test_another_optimizer_trains_as_ever(tmp_path):
    class Plain(Net):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    model = network()
    other = twin(model)
    (x, y), *_ = data = batches(1)
    fit(Plain(model), data, tmp_path)
    sgd = torch.optim.SGD(other.parameters(), lr=0.1)
    F.cross_entropy(other(x), y).backward()
    sgd.step()
    assert largest_difference(model, other) < 1e-7
