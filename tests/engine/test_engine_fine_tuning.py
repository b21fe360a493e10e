"""Fine-tuning: the recipe that is resolved, its parts by their definitions, and every method on token sequences."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ncsam import classifiers, data, methods, models
from ncsam.data.loading.loader import Loader
from ncsam.data.loading.sampling import grouped_by_length
from ncsam.engine import RunConfig, train
from ncsam.engine import recipes as r
from ncsam.engine.checkpoint import restore_trainer, trainer_state
from ncsam.engine.device import choose_device
from ncsam.engine.optimizers import _groups, layer_depths, learning_rate
from ncsam.engine.resolve import resolve
from ncsam.engine.task import load_task
from ncsam.engine.trainer import Trainer
from ncsam.errors import UsageError

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from resolved import resolved

from tiny_transformer import save_texts, save_tiny_bert

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"transformers:{save_tiny_bert(tmp_path_factory.mktemp('bert'))}"


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_texts(tmp_path_factory.mktemp("texts") / "texts.csv", rows=48)


def config(model: str, texts: Path, **changes: Any) -> RunConfig:
    read = {"label_column": "label", "data_options": {"clean_column": "clean"}}
    return RunConfig.from_dict({"data": str(texts), "model": model, "val_share": 0.25, **read, **changes})


# --- the recipe


def test_a_transformer_gets_the_recipe_of_fine_tuning(bert: str, texts: Path) -> None:
    asked = config(bert, texts)
    task = load_task(asked)
    found = resolve(asked, task)
    assert (found.optimizer, RunConfig().optimizer) == ("adamw", "sam")
    assert (found.base, found.lr, found.weight_decay) == ("adamw", r.SMALL_ENCODER_LR.value, 0.01)
    assert (found.schedule, found.lr_warmup, found.clip_norm, found.batch_size) == ("linear", 0.1, 1.0, 32)
    assert (found.patience, found.epochs, found.layer_decay) == (None, r.ENCODER_EPOCHS.value, 1.0)
    assert (found.head_init, found.interpolation) == ("lda", 0.5)
    digits = resolve(RunConfig(model="mlp"), load_task(RunConfig()))
    assert (digits.head_init, digits.interpolation) == ("random", 1.0)
    assert not asked.conflicts(found)  # the same command resumes


def test_options_override_the_recipe(bert: str, texts: Path) -> None:
    given = {"base": "sgd", "lr": 0.5, "schedule": "cosine", "lr_warmup": 0.3, "clip_norm": None, "patience": None}
    asked = config(bert, texts, **given, optimizer="sam", batch_size=8, epochs=7)
    found = resolve(asked, load_task(asked))
    assert {name: getattr(found, name) for name in given} == given
    assert (found.batch_size, found.epochs) == (8, 7)


def test_the_learning_rate_depends_on_the_size_of_the_model(tmp_path: Path, texts: Path, bert: str) -> None:
    folder = save_tiny_bert(tmp_path / "large")
    wide = transformers.BertConfig(vocab_size=19, max_position_embeddings=32)  # BERT-base: 86 million without its words
    wide.save_pretrained(folder)
    large = models.traits(f"transformers:{folder}")
    assert large.family == "transformer"
    assert 80e6 < large.weights < 100e6
    asked = config(bert, texts)
    task = load_task(asked)
    assert resolve(asked.replace(model=f"transformers:{folder}"), task).lr == 2e-5
    assert resolve(asked.replace(lora=4), task).lr == r.LORA_LR.value


def test_other_models_keep_their_own_recipe() -> None:
    asked = RunConfig(data="digits", model="mlp")
    found = resolve(asked, load_task(asked))
    assert (found.base, found.schedule, found.lr_warmup, found.batch_size) == ("sgd", "cosine", 0.0, 128)
    assert (found.clip_norm, found.patience, found.layer_decay) == (None, None, 1.0)


# --- its parts


def test_the_learning_rate_rises_linearly_and_falls_to_zero() -> None:
    factor = learning_rate(resolved(schedule="linear", lr_warmup=0.2))
    assert [round(factor(t), 12) for t in (0.0, 0.1, 0.2, 0.6, 1.0)] == [0.0, 0.5, 1.0, 0.5, 0.0]
    cosine = learning_rate(resolved(schedule="cosine", lr_warmup=0.2))
    assert cosine(0.6) == pytest.approx(0.5)


def test_adamw_decays_neither_biases_nor_norms(bert: str) -> None:
    network = models.create(bert, 2)
    groups = _groups(resolved(optimizer="adamw", weight_decay=0.01, model=bert), network)
    decayed, plain = groups
    assert "weight_decay" not in decayed
    assert plain["weight_decay"] == 0.0
    assert {p.ndim for p in decayed["params"]} == {2}
    assert {p.ndim for p in plain["params"]} == {1}
    trained = sum(p.requires_grad for p in network.parameters())
    assert sum(len(group["params"]) for group in groups) == trained
    assert len(_groups(resolved(optimizer="sgd", model=bert), network)) == 1
    assert len(_groups(resolved(optimizer="adamw", model="mlp"), models.create("mlp", 2, in_features=3))) == 1


def test_layers_have_decaying_learning_rates(bert: str) -> None:
    network = models.create(bert, 2)
    rates = {
        id(p): group["lr"]
        for group in _groups(resolved(optimizer="sgd", lr=1.0, layer_decay=0.5), network)
        for p in group["params"]
    }
    by_name = {name: rates[id(p)] for name, p in network.named_parameters() if p.requires_grad}
    assert by_name["fc.weight"] == 1.0
    assert by_name["encoder.encoder.layer.1.output.dense.bias"] == 0.5
    assert by_name["encoder.encoder.layer.0.output.dense.bias"] == 0.25
    assert by_name["encoder.embeddings.word_embeddings.weight"] == 0.125
    assert layer_depths(["conv1.w", "layer1.0.w", "layer4.1.w", "norm.w"]) == {
        "conv1.w": 2,
        "layer1.0.w": 2,
        "layer4.1.w": 5,
        "norm.w": 5,
    }


@pytest.mark.parametrize("optimizer", ["sgd", "sam"])
def test_the_gradient_is_clipped(optimizer: str, bert: str, texts: Path) -> None:
    options = {"lr": 1.0, "momentum": 0.0, "weight_decay": 0.0, "schedule": "constant", "lr_warmup": 0.0, "rho": 0.05}
    options |= {"interpolation": 1.0}
    asked = config(
        bert, texts, optimizer=optimizer, base="sgd", batch_size=64, epochs=1, clip_norm=1e-3, patience=None, **options
    )
    task = load_task(asked)
    trainer = Trainer(choose_device(asked), resolve(asked, task), task)
    before = torch.cat([p.detach().flatten().clone() for p in trainer.learners[0].bare.parameters()])
    trainer.fit()  # one step
    after = torch.cat([p.detach().flatten() for p in trainer.learners[0].bare.parameters()])
    assert float((after - before).norm()) == pytest.approx(1e-3, rel=1e-3)


def test_early_stopping_restores_the_best_weights(bert: str, texts: Path) -> None:
    """A run of just so many epochs, on a constant learning rate, has the same weights."""
    options = {"optimizer": "adamw", "lr": 0.01, "schedule": "constant", "lr_warmup": 0.0, "batch_size": 8}
    stopped = train(config(bert, texts, patience=2, epochs=12, **options), console=False)
    trainer = stopped.trainer
    accuracies = [record["val_accuracy"] for record in trainer.history]
    assert trainer.kept_epoch == 1 + int(np.argmax(accuracies)) == stopped["kept_epoch"]
    assert trainer.epoch in (trainer.kept_epoch + 2, 12)
    shorter = train(config(bert, texts, patience=None, epochs=trainer.kept_epoch, **options), console=False)
    for one, other in zip(
        trainer.learners[0].bare.state_dict().values(),
        shorter.trainer.learners[0].bare.state_dict().values(),
        strict=True,
    ):
        assert torch.equal(one, other)
    assert stopped["last"] == shorter["last"]


def test_patience_needs_validation_samples(bert: str, texts: Path) -> None:
    asked = config(bert, texts, patience=3, val_share=0.0, optimizer="adamw")
    with pytest.raises(UsageError, match="patience=3"):
        resolve(asked, load_task(asked))


def test_batches_of_similar_length() -> None:
    lengths = np.arange(2000) * 7919 % 101
    order = np.random.default_rng(0).permutation(2000)
    grouped = grouped_by_length(order, lengths, 8)
    assert sorted(grouped) == list(range(2000))

    def padded(rows: np.ndarray) -> int:
        return sum(8 * int(lengths[rows[start : start + 8]].max()) for start in range(0, 2000, 8))

    assert padded(grouped) < 0.65 * padded(order)
    assert padded(grouped) < 1.1 * lengths.sum()


def test_a_loader_by_length_has_every_sample_once_and_can_be_entered_anywhere(texts: Path) -> None:
    read = data.load(str(texts), label_column="label", clean_column="clean")
    loader = Loader(read.train, 5, by_length=True, seed=3)
    batches = list(loader.iterate(2))
    assert sorted(int(i) for batch in batches for i in batch.index) == list(range(len(read.train)))
    for whole, part in zip(batches[3:], loader.iterate(2, 3), strict=True):
        assert torch.equal(whole.index, part.index)
    assert [b.index.tolist() for b in loader.iterate(1)] != [b.index.tolist() for b in batches]
    sorted_by_length = [int(b.views[0]["attention_mask"].sum(1).max()) for b in loader.evaluation(5).iterate(0)]
    assert sorted_by_length == sorted(sorted_by_length, reverse=True)


def test_the_tokenizer_and_length_are_those_of_the_model(bert: str, texts: Path) -> None:
    inputs = load_task(config(bert, texts, max_length=6)).dataset.train.inputs
    assert (inputs.length, inputs.tokenizer.size) == (6, 19)
    assert load_task(config(bert, texts, max_length=500)).dataset.train.inputs.length == 32  # its positions
    assert load_task(config("text_mean", texts, max_length=6)).dataset.train.inputs.length == 6


def test_the_features_ignore_padding(bert: str) -> None:
    network = models.create(bert, 3, pretrained=True).eval()
    ids = torch.tensor([[2, 5, 6, 3]])
    short = network({"input_ids": ids, "attention_mask": torch.ones_like(ids).bool()})
    longer = torch.cat([ids, torch.zeros(1, 3, dtype=torch.long)], dim=1)
    assert torch.allclose(short, network({"input_ids": longer, "attention_mask": longer > 0}), atol=1e-6)


# --- every method, with SAM and NCSAM around AdamW


def tokens_methods() -> list[str]:
    found = []
    for name in methods.names():
        method = methods.create(name)
        if not (
            method.images_only or method.mixes_inputs or any(view not in ("train", "auto") for view in method.views)
        ):
            found.append(name)
    return found


#: Losses, of which tests/methods/test_methods_runs.py trains few, and one method of each mechanism.
QUICK = ("apl", "ce", "cleannet", "coteaching", "elr", "forward", "gce", "js", "plc", "regce", "sl")


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name in QUICK else pytest.mark.stress) for name in tokens_methods()]
)
def test_every_method_without_images_runs_on_token_sequences(method: str, bert: str, texts: Path) -> None:
    short = {"inner_steps": 2, "references": 2, "warmup_epochs": 1} if method == "cleannet" else {}
    asked = config(
        bert,
        texts,
        method=method,
        method_options=short,
        optimizer="sam",
        epochs=2,
        batch_size=16,
        rho=0.05,
        rate=0.2,
        telemetry_every=0,
    )
    trainer = train(asked, console=False).trainer
    assert isinstance(trainer, Trainer)
    assert all(np.isfinite(record["train_loss"]) for record in trainer.history)
    assert trainer.config.base == "adamw"


def test_methods_that_need_images_or_mixtures_are_refused(bert: str, texts: Path) -> None:
    for method in ("dividemix", "mixup"):
        with pytest.raises(UsageError, match=f"method='{method}'"):
            train(config(bert, texts, method=method, epochs=2), console=False)


@pytest.mark.parametrize("optimizer", ["sam", "ncsam"])
def test_without_perturbation_the_steps_are_those_of_adamw(optimizer: str, bert: str, texts: Path) -> None:
    options = {"epochs": 2, "batch_size": 16, "patience": None}
    sharp = {"rho": 0.0, "kappa": 0.0} if optimizer == "ncsam" else {"rho": 0.0}
    plain = train(config(bert, texts, optimizer="adamw", **options), console=False)
    wrapped = train(config(bert, texts, optimizer=optimizer, **sharp, **options), console=False)
    for one, other in zip(
        plain.trainer.learners[0].bare.parameters(), wrapped.trainer.learners[0].bare.parameters(), strict=True
    ):
        assert torch.equal(one, other)


# --- images, by a stand-in for timm

TIMM = """
import torch
from torch import nn

class Vit(nn.Module):
    num_features = 8
    def __init__(self, in_chans):
        super().__init__()
        self.embed = nn.Conv2d(in_chans, 8, 4, 4)
        self.blocks = nn.ModuleList([nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2)])
        self.norm = nn.LayerNorm(8)
    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = x + block(x, x, x)[0]
        return self.norm(x).mean(1)

class Conv(nn.Module):
    num_features = 8
    def __init__(self, in_chans, norm):
        super().__init__()
        self.conv1 = nn.Conv2d(in_chans, 8, 4, 4)
        self.norm = norm
    def forward(self, x):
        return self.norm(self.conv1(x)).mean((2, 3))

NAMES = {
    "vit": Vit,
    "convnext": lambda in_chans: Conv(in_chans, nn.GroupNorm(1, 8)),
    "resnet": lambda in_chans: Conv(in_chans, nn.BatchNorm2d(8)),
}

def is_model(name):
    return name in NAMES

def list_models():
    return list(NAMES)

def create_model(name, pretrained, num_classes, in_chans):
    return NAMES[name](in_chans)
"""


@pytest.fixture
def timm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "timm.py").write_text(TIMM)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)


@pytest.mark.parametrize(
    ("name", "base", "lr", "clip_norm"),
    [("vit", "adamw", 1e-4, 1.0), ("convnext", "adamw", 1e-4, 1.0), ("resnet", "sgd", 0.0125, None)],
)
@pytest.mark.usefixtures("timm")
def test_a_model_of_timm_is_fine_tuned_by_its_kind(name: str, base: str, lr: float, clip_norm: float | None) -> None:
    rng = np.random.default_rng(0)
    images = data.from_arrays(rng.integers(0, 255, (32, 8, 8, 3), dtype=np.uint8), np.arange(32) % 2)
    asked = RunConfig(model=f"timm:{name}", pretrained=True, epochs=1, batch_size=8, rho=0.05)
    trainer = train(asked, dataset=images, console=False).trainer
    assert (trainer.config.base, trainer.config.lr, trainer.config.clip_norm) == (base, lr, clip_norm)
    assert trainer.config.layer_decay == 0.75
    rates = [group["initial_lr"] for group in trainer.learners[0].optimizer.param_groups]
    assert rates[0] == lr  # of the head
    assert min(rates) < 0.8 * lr


# --- errors


def test_an_unknown_model_without_a_network_is_one_sentence(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.snapshot_download", no_network)
    with pytest.raises(UsageError, match=r"model='transformers:no-such/model'.*no connection"):
        train(config("transformers:no-such/model", texts), tmp_path / "run", console=False)
    assert not (tmp_path / "run" / "config.yaml").exists()


def no_network(*args: Any, **options: Any) -> None:
    raise OSError("no connection")


def test_what_does_not_fit_is_named(bert: str, texts: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"model='transformers:.*images|model='transformers:.*features"):
        load_task(RunConfig(data="digits", model=bert))
    with pytest.raises(UsageError, match="max_length=5"):
        load_task(RunConfig(data="digits", max_length=5))
    asked = config("text_mean", texts, lora=4)
    with pytest.raises(UsageError, match="lora=4"):
        resolve(asked, load_task(asked))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"model='transformers:.*config\.json"):
        load_task(config(f"transformers:{tmp_path / 'empty'}", texts))
    with pytest.raises(UsageError, match="dropout"):
        models.create(bert, 2, dropout=2.0)


def test_pickled_weights_are_not_loaded(tmp_path: Path) -> None:
    folder = save_tiny_bert(tmp_path / "pickled")
    weights = folder / "model.safetensors"
    torch.save({}, folder / "pytorch_model.bin")
    weights.unlink()
    with pytest.raises(UsageError, match="model="):
        models.create(f"transformers:{folder}", 2, pretrained=True)


def test_lora_without_peft_names_the_extra(bert: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ImportError, match=r"ncsam\[lora\]"):
        models.create(bert, 2, lora=2)


def test_lora_trains_few_weights(bert: str, texts: Path) -> None:
    pytest.importorskip("peft")
    network = models.create(bert, 2, lora=2, pretrained=True)
    trained = {name for name, p in network.named_parameters() if p.requires_grad}
    assert all("lora_" in name or name.startswith("fc.") for name in trained)
    summary = train(config(bert, texts, lora=2, epochs=1, optimizer="adamw"), console=False)
    after = summary.trainer.learners[0].bare
    frozen = "encoder.base_model.model.encoder.layer.0.attention.self.query.base_layer.weight"
    assert torch.equal(after.get_parameter(frozen), network.get_parameter(frozen))


# --- close to the pretrained model


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.learners[0].bare.parameters()])


def trained(asked: RunConfig, *, halfway: bool = False) -> tuple[torch.Tensor, torch.Tensor, Trainer]:
    """Weights before and after training; `halfway`, a second trainer continues after the first epoch."""
    task = load_task(asked)
    trainer = Trainer(choose_device(asked), resolve(asked, task), task)
    start = weights(trainer)
    if halfway:
        trainer.train_epoch()
        saved = trainer_state(trainer)
        trainer = Trainer(choose_device(asked), resolve(asked, task), task)
        restore_trainer(trainer, saved)
    trainer.fit()
    return start, weights(trainer), trainer


def test_the_head_starts_as_discriminant_analysis(bert: str, texts: Path) -> None:
    asked = config(bert, texts)
    task = load_task(asked)
    trainer = Trainer(choose_device(asked), resolve(asked, task), task)
    network: Any = trainer.learners[0].bare.eval()
    batches = list(task.loader(task.dataset.train, asked, 8, subset=task.train).evaluation().iterate(0))
    with torch.no_grad():
        x = torch.cat([network.features(batch.views[0]) for batch in batches])
        logits = network.head(x)
    z = (x - x.mean(dim=0)) / x.std(dim=0).clamp(min=1e-6)
    y = torch.from_numpy(task.dataset.train.labels[task.train])
    lda = classifiers.cross_fit("lda", z, y, task.dataset.num_classes, shrinkage=0.8, unit=False, prune=1)
    torch.testing.assert_close(logits, lda.member.network(task.dataset.num_classes)(z), rtol=1e-3, atol=1e-3)


def test_interpolated_weights_lie_between_start_and_end(bert: str, texts: Path) -> None:
    options = {"epochs": 2, "patience": None, "lr": 1e-3}
    start, end, _ = trained(config(bert, texts, **options, interpolation=1.0))
    again, between, trainer = trained(config(bert, texts, **options, interpolation=0.25))
    assert torch.equal(start, again)
    assert (end - start).norm() > 0
    torch.testing.assert_close(between, start + 0.25 * (end - start))
    last = trainer.history[-1]
    trainer.measure_training_split()
    assert trainer.history[-1] == last  # the epochs were measured with the weights that are kept
    _, resumed, _ = trained(config(bert, texts, **options, interpolation=0.25), halfway=True)
    assert torch.equal(between, resumed)


def test_early_stopping_keeps_interpolated_weights(bert: str, texts: Path) -> None:
    asked = config(bert, texts, epochs=2, patience=1, lr=1e-3, interpolation=0.5)
    task = load_task(asked)
    trainer = Trainer(choose_device(asked), resolve(asked, task), task)
    start = weights(trainer)
    trainer.train_epoch()
    end = weights(trainer)
    assert trainer.stopping.restore()
    torch.testing.assert_close(weights(trainer), (start + end) / 2)
    with pytest.raises(UsageError, match="interpolation"):
        config(bert, texts, interpolation=0.0)


def test_a_model_without_features_has_no_head_to_fit() -> None:
    asked = RunConfig(data="digits", head_init="lda", epochs=1)
    with pytest.raises(UsageError, match="head_init"):
        train(asked, console=False, model=torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)))
