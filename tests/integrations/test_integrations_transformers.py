"""Hugging Face's Trainer as a real client: a small BERT trains as by the plain loop."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from integration_cases import largest_parameter_difference, make, twin

from ncsam import NCSAM, SAM, find_label_issues, methods

transformers = pytest.importorskip("transformers")
from ncsam.integrations.transformers import SharpnessAwareTrainer  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
sys.path.insert(0, str(Path(__file__).parents[1]))


def bert(seed=0, labels=4, vocabulary=32, width=16, **options):
    torch.manual_seed(seed)
    small = {"hidden_size": width, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": 32}
    config = transformers.BertConfig(vocab_size=vocabulary, num_labels=labels, **small, **off, **options)
    return transformers.BertForSequenceClassification(config)


def rows(count, seed=0):
    """Sentences whose first word tells the class, three in ten of them mislabeled."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(4, 32, (count, 6), generator=generator)
    labels = torch.randint(4, (count,), generator=generator)
    words[:, 0] = labels
    wrong = torch.rand(count, generator=generator) < 0.3
    labels = torch.where(wrong, torch.randint(4, (count,), generator=generator), labels)
    return [{"input_ids": w, "labels": y} for w, y in zip(words, labels, strict=True)]


class InOrder(SharpnessAwareTrainer):
    def _get_train_sampler(self, *args):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def trainer(model, data, folder, kind=None, **options):
    sharpness = {key: options.pop(key) for key in ("optimizers", "sharpness_aware", "method") if key in options}
    if kind is not None:
        sharpness["optimizers"] = (make(kind, model.parameters(), model), None)
    arguments = transformers.TrainingArguments(
        **{
            "output_dir": str(folder), "per_device_train_batch_size": 8, "num_train_epochs": 1, "use_cpu": True,
            "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "report_to": [], "save_strategy": "no",
            "logging_steps": 1, "disable_tqdm": True, **options,
        }
    )  # fmt: skip
    return InOrder(model=model, args=arguments, train_dataset=data, **sharpness)


def plain(kind, model, data, size=8, parts=1, clip=None, smoothing=0.0, dtype=None):
    optimizer = make(kind, model.parameters(), model, steps=len(data) // (size * parts))
    stacked = [
        (
            torch.stack([r["input_ids"] for r in data[i : i + size]]),
            torch.stack([r["labels"] for r in data[i : i + size]]),
        )
        for i in range(0, len(data), size)
    ]

    def loss_of(x, y):
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None, cache_enabled=False):
            logits = model(input_ids=x).logits
        log_p = torch.log_softmax(logits.float(), dim=1)
        own = -log_p.gather(1, y[:, None]).mean()
        return ((1 - smoothing) * own - smoothing * log_p.mean()) / parts, logits.float()

    losses = []
    for start in range(0, len(stacked), parts):
        optimizer.zero_grad()
        losses.append(0.0)
        with optimizer.first_pass():
            for x, y in stacked[start : start + parts]:
                loss, logits = loss_of(x, y)
                optimizer.backward(loss, logits, y)
                losses[-1] += float(loss.detach())
        for perturbed in optimizer.perturbations():
            with perturbed:
                for x, y in stacked[start : start + parts]:
                    optimizer.backward(loss_of(x, y)[0])
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return losses


def logged(client):
    return [entry["loss"] for entry in client.state.log_history if "loss" in entry]


@pytest.mark.parametrize("kind", ["sam", "auto", "ncsam", "msam"])
def test_equals_the_plain_loop_over_twenty_steps(kind, tmp_path):
    model, data = bert(), rows(160)
    other = twin(model)
    client = trainer(model, data, tmp_path, kind)
    client.train()
    losses = plain(kind, other, data)
    assert client.state.global_step == 20
    assert logged(client) == pytest.approx(losses, abs=1e-4)
    assert largest_parameter_difference(model, other) < 2e-6
    assert largest_parameter_difference(model, bert()) > 1e-2


@pytest.mark.parametrize("kind", ["auto", "ncsam"])
def test_accumulation_and_clipping(kind, tmp_path):
    model, data = bert(), rows(320)
    other = twin(model)
    client = trainer(model, data, tmp_path, kind, gradient_accumulation_steps=2, max_grad_norm=0.1)
    client.train()
    plain(kind, other, data, parts=2, clip=0.1)
    assert client.state.global_step == 20
    assert largest_parameter_difference(model, other) < 2e-6


def test_label_smoothing(tmp_path):
    model, data = bert(), rows(160)
    other = twin(model)
    trainer(model, data, tmp_path, "sam", label_smoothing_factor=0.2).train()
    plain("sam", other, data, smoothing=0.2)
    assert largest_parameter_difference(model, other) < 2e-6


def test_bf16(tmp_path):
    model, data = bert(), rows(160)
    other = twin(model)
    trainer(model, data, tmp_path, "sam", bf16=True).train()
    plain("sam", other, data, dtype=torch.bfloat16)
    assert largest_parameter_difference(model, other) < 1e-3
    assert largest_parameter_difference(model, bert()) > 1e-2


def test_resuming_from_a_checkpoint_changes_nothing(tmp_path):
    data = rows(80)

    def client(model, **options):
        wrap = {"sharpness_aware": lambda base: NCSAM(base, rho="auto", model=model)}
        return trainer(model, data, tmp_path, num_train_epochs=2, learning_rate=1e-2, **wrap, **options)

    whole, stopped, resumed = bert(), bert(), bert(seed=5)
    client(whole).train()
    half = client(stopped, save_strategy="epoch")
    half.train()
    again = client(resumed)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-10"))
    assert again.optimizer.optimizer.steps == 20
    assert largest_parameter_difference(whole, resumed) == 0


def test_wraps_the_optimizer_that_trainer_builds_and_tells_it_the_number_of_steps(tmp_path):
    model = bert()
    client = trainer(
        model, rows(16), tmp_path, sharpness_aware=lambda base: NCSAM(base, model=model), weight_decay=0.1,
        learning_rate=0.02,
    )  # fmt: skip
    client.train()
    ours = client.optimizer.optimizer
    assert ours.total_steps == 2
    assert type(ours.base_optimizer).__name__ == "AdamW"
    assert sorted(g["weight_decay"] for g in ours.param_groups) == [0.0, 0.1]  # none for biases and norms


def test_a_plain_optimizer_trains_as_trainers_own(tmp_path):
    one, two, data = bert(), bert(), rows(80)
    trainer(one, data, tmp_path, learning_rate=1e-2).train()
    arguments = trainer(two, data, tmp_path, learning_rate=1e-2).args
    reference = transformers.Trainer(model=two, args=arguments, train_dataset=data)
    reference._get_train_sampler = lambda *a: torch.utils.data.SequentialSampler(data)
    reference.train()
    assert largest_parameter_difference(one, two) == 0


def test_a_compute_loss_of_ones_own_is_told_what_ncsam_needs(tmp_path):
    class Own(InOrder):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return model(**inputs).loss

    model = bert()
    client = Own(
        model=model, args=trainer(model, rows(8), tmp_path).args, train_dataset=rows(8),
        optimizers=(make("ncsam", model.parameters(), model), None),
    )  # fmt: skip
    with pytest.raises(TypeError, match=r"trainer.logits_and_targets = \(logits, y\)"):
        client.train()


@pytest.mark.slow
def test_a_small_bert_learns_real_text_under_noisy_labels(tmp_path):
    """Docstrings of the standard library by package; three in ten labels are wrong, and those of the test are right."""
    import stdlib_text
    from ncsam.noise import symmetric

    texts, packages = stdlib_text.sentences()
    ids = torch.from_numpy(stdlib_text.tokens(texts))
    order = np.random.default_rng(0).permutation(len(texts))
    train, test = order[:-300], order[-300:]
    noisy = symmetric(packages[train], 0.3, num_classes=6, seed=0).noisy
    inputs = [{"input_ids": row, "attention_mask": (row > 0).long()} for row in ids]
    data = [{**inputs[i], "labels": torch.tensor(y)} for i, y in zip(train, noisy, strict=True)]
    model = bert(labels=6, vocabulary=stdlib_text.VOCABULARY, width=32, pad_token_id=0)
    client = trainer(
        model, data, tmp_path, sharpness_aware=lambda base: SAM(base, rho="auto", model=model), learning_rate=3e-3,
        num_train_epochs=5, per_device_train_batch_size=32, logging_steps=1000, lr_scheduler_type="linear",
    )  # fmt: skip
    client.train()
    found = client.predict([inputs[i] for i in test]).predictions.argmax(axis=1)
    most_common = max(np.bincount(packages[test])) / 300
    assert (found == packages[test]).mean() > most_common + 0.1


# --- methods as losses, and label issues


@pytest.mark.parametrize("method", [name for name in methods.names() if methods.get(name).is_loss])
def test_a_method_is_the_loss(method, tmp_path):
    data = rows(16)
    model = bert()
    subject = trainer(
        model, data, tmp_path, method=method, sharpness_aware=lambda base: SAM(base, rho=0.05, model=model)
    )
    batch = {name: torch.stack([torch.as_tensor(row[name]) for row in data]) for name in data[0]}
    loss = subject.compute_loss(model, dict(batch))
    expected = methods.create(method).criterion(model(batch["input_ids"]).logits, batch["labels"])
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    before = [p.detach().clone() for p in model.parameters()]
    subject.train()
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_cross_entropy_as_a_method_trains_as_the_model_itself(tmp_path):
    data, one, other = rows(32), bert(), bert()
    for model, method in ((one, {}), (other, {"method": "ce"})):
        wrap = {"sharpness_aware": lambda base, model=model: SAM(base, rho=0.05, model=model)}
        trainer(model, data, tmp_path, gradient_accumulation_steps=2, **wrap, **method).train()
    assert largest_parameter_difference(one, other) < 1e-6


def test_what_is_no_loss_is_refused(tmp_path):
    with pytest.raises(ValueError, match="method='coteaching'"):
        trainer(bert(), rows(8), tmp_path, method="coteaching")
    with pytest.raises(ValueError, match=r"label_smoothing_factor=0\.1"):
        trainer(bert(), rows(8), tmp_path, method="gce", label_smoothing_factor=0.1)


def test_predictions_go_straight_into_find_label_issues(tmp_path):
    data, model = rows(24), bert()
    output = trainer(model, data, tmp_path).predict(data)
    found = find_label_issues(output)
    with torch.no_grad():
        p = model(torch.stack([row["input_ids"] for row in data])).logits.softmax(dim=1)
    predicted = torch.from_numpy(output.predictions).double().softmax(dim=1)
    torch.testing.assert_close(predicted.float(), p, atol=1e-5, rtol=0)
    expected = find_label_issues([int(row["labels"]) for row in data], predicted.numpy())
    assert found.numbers("index").tolist() == expected.numbers("index").tolist()
    assert found.numbers("label_quality") == pytest.approx(expected.numbers("label_quality"), abs=1e-6)
    with pytest.raises(ValueError, match="pred_probs=None"):
        find_label_issues([0, 1, 0])


def test_the_example_goes_from_a_table_to_metrics_and_issues(tmp_path):
    import transformers_trainer
    from tiny_transformer import save_texts, save_tiny_bert

    folder = save_tiny_bert(tmp_path / "bert")
    table = save_texts(tmp_path / "texts.csv", rows=45)
    measured, issues, texts = transformers_trainer.main(table, str(folder), epochs=1, lr=0.01, rho=0.05)
    assert set(measured) >= {"eval_accuracy", "eval_balanced_accuracy"}
    assert 0 <= measured["eval_accuracy"] <= 1
    assert len(issues) == len(texts) == 6  # a fifth of 30 training rows
    assert set(issues["given_label"]) <= {"pos", "neg"}
