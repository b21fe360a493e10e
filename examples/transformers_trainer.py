"""From a CSV of texts with noisy labels to an evaluated transformer and label issues, by Hugging Face's Trainer.

    python examples/transformers_trainer.py texts.csv --model sentence-transformers/all-MiniLM-L6-v2

The table has the columns `text` and `label`, and may have `split` (train, test). A fifth of the training rows is held
out: their labels are as noisy as the rest, and the best epoch is chosen by them.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, TrainingArguments

import ncsam
from ncsam.integrations.transformers import SharpnessAwareTrainer


class Rows(torch.utils.data.Dataset):
    """Token ids and labels; the collator pads them batch by batch."""

    def __init__(self, tokenizer: Any, texts: list[str], labels: list[int]) -> None:
        self.encoded = tokenizer(texts, truncation=True, max_length=128)
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {**{name: values[row] for name, values in self.encoded.items()}, "labels": self.labels[row]}


def metrics(prediction: Any) -> dict[str, float]:
    """What Trainer reports after each evaluation."""
    predicted = prediction.predictions.argmax(axis=1)
    per_class = [np.mean(predicted[prediction.label_ids == c] == c) for c in np.unique(prediction.label_ids)]
    return {
        "accuracy": float(np.mean(predicted == prediction.label_ids)),
        "balanced_accuracy": float(np.mean(per_class)),
    }


def main(table: Path, model: str, *, method: str = "gce", epochs: int = 3, lr: float = 5e-5, rho: float = 0.0) -> Any:
    """Train, evaluate, and find label issues among the held-out rows."""
    with open(table, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    classes = sorted({row["label"] for row in rows})
    test = [row for row in rows if row.get("split") == "test"]
    known = [row for row in rows if row.get("split") != "test"]
    order = np.random.default_rng(0).permutation(len(known))
    held, kept = ([known[i] for i in part] for part in np.split(order, [len(known) // 5]))

    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForSequenceClassification.from_pretrained(model, num_labels=len(classes))

    def dataset(part: list[dict[str, str]]) -> Rows:
        return Rows(tokenizer, [row["text"] for row in part], [classes.index(row["label"]) for row in part])

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=epochs,
            learning_rate=lr,
            warmup_steps=0.1,  # below 1: a share of all steps
            weight_decay=0.01,
            per_device_train_batch_size=32,
            eval_strategy="epoch",
            save_strategy="epoch",
            load_best_model_at_end=True,
            metric_for_best_model="accuracy",
            report_to=[],
            disable_tqdm=True,
            seed=1,
        )
        trainer = SharpnessAwareTrainer(
            model=network,
            args=arguments,
            train_dataset=dataset(kept),
            eval_dataset=dataset(held),
            data_collator=DataCollatorWithPadding(tokenizer),
            compute_metrics=metrics,
            method=method,
            sharpness_aware=(lambda base: ncsam.SAM(base, rho=rho, model=network)) if rho else None,
        )
        trainer.train()
        measured = trainer.evaluate(dataset(test)) if test else trainer.evaluate()
        issues = ncsam.find_label_issues(trainer.predict(dataset(held)), classes=classes)
    return measured, issues, [row["text"] for row in held]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--model", required=True, help="a folder, or a name of the Hugging Face hub")
    parser.add_argument("--method", default="gce")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rho", type=float, default=0.0, help="radius of SAM; 0: AdamW alone")
    given = parser.parse_args()
    measured, issues, texts = main(given.table, given.model, method=given.method, epochs=given.epochs, rho=given.rho)
    print(f"accuracy {100 * measured['eval_accuracy']:.1f} %")
    for row, index in enumerate(issues["index"][:10]):
        print(f"{issues['given_label'][row]} -> {issues['suggested_label'][row]}: {texts[index][:80]}")
