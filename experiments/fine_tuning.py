"""Fine-tuning a small transformer on texts with noisy labels, next to smooth classifiers on its frozen features.

    python experiments/fine_tuning.py OUT --texts texts_youtube.csv --texts texts_yoruba.csv

all-MiniLM-L6-v2 (22 million parameters) with mean pooling and a linear head, AdamW, linear warm-up and decay, weight
decay .01 except biases and norms, gradient norm clipped at 1, length-grouped batches of 32. A tenth of the training
split is held out with its noisy labels. The tables have the columns `split`, `text`, `weak` and `clean`; the noise is
that of `weak`, or symmetric noise on `clean`. Every run stores its probabilities after each epoch, so that stopping
rules and averages are computed afterwards. Finished runs are not repeated; `OUT/fine_tuning.json` has the results.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam import SAM, classifiers, losses, noise
from ncsam.classifiers.fit import confident_issues
from ncsam.data.types import stratified
from ncsam.engine.backbone import Interpolation, fit_linear
from ncsam.pretrained.minilm import WEIGHTS, SentenceEncoder, masked_mean

MAX_LENGTH, BATCH = 48, 32


@dataclass
class Problem:
    """Texts with observed labels; `val` and `train` are positions in the training split."""

    name: str
    texts: list[str]
    labels: np.ndarray
    clean: np.ndarray
    test_texts: list[str]
    test_labels: np.ndarray
    num_classes: int

    def __post_init__(self) -> None:
        self.train, self.val = stratified(self.labels, 0.1, seed=0)


def problem(path: Path, kind: str) -> Problem:
    """The problem of a table: `weak` labels, or symmetric noise of a rate such as `symmetric0.4`."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    classes = {name: number for number, name in enumerate(sorted({row["clean"] for row in rows}))}
    train, test = ([row for row in rows if row["split"] == split] for split in ("train", "test"))
    clean = np.array([classes[row["clean"]] for row in train])
    if kind == "weak":
        labels = np.array([classes[row["weak"]] for row in train])
    else:
        labels = noise.symmetric(clean, float(kind.removeprefix("symmetric")), seed=0).noisy
    return Problem(
        f"{path.stem.removeprefix('texts_')}-{kind}",
        [row["text"] for row in train],
        labels,
        clean,
        [row["text"] for row in test],
        np.array([classes[row["clean"]] for row in test]),
        len(classes),
    )


class Classifier(nn.Module):
    """The encoder, mean pooling, dropout and a linear head."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        from transformers import AutoModel

        self.encoder = AutoModel.from_pretrained(WEIGHTS.verified().parent)
        self.fc = nn.Linear(self.encoder.config.hidden_size, num_classes)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        return self.fc(F.dropout(masked_mean(hidden, mask), 0.1, self.training))


class Tokens:
    """Token ids of texts, and padded batches of some of them."""

    def __init__(self, texts: list[str]) -> None:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(WEIGHTS.verified().parent)
        self.ids = tokenizer(texts, truncation=True, max_length=MAX_LENGTH)["input_ids"]
        self.lengths = np.array([len(each) for each in self.ids])

    def batch(self, index: np.ndarray) -> tuple[Tensor, Tensor]:
        length = int(self.lengths[index].max())
        ids = torch.zeros(len(index), length, dtype=torch.long)
        for row, place in enumerate(index):
            ids[row, : self.lengths[place]] = torch.tensor(self.ids[place])
        return ids, (torch.arange(length) < torch.from_numpy(self.lengths[index])[:, None]).long()

    def grouped(self, index: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
        """Shuffled batches; within 16 batches, samples are sorted by length."""
        order = rng.permutation(index)
        chunks = [order[start : start + 16 * BATCH] for start in range(0, len(order), 16 * BATCH)]
        ordered = np.concatenate([chunk[np.argsort(-self.lengths[chunk], kind="stable")] for chunk in chunks])
        batches = np.array_split(ordered, math.ceil(len(ordered) / BATCH))
        return [batches[place] for place in rng.permutation(len(batches))]

    @torch.no_grad()
    def probabilities(self, model: Classifier, index: np.ndarray) -> np.ndarray:
        model.eval()
        out = np.zeros((len(index), model.fc.out_features), dtype=np.float32)
        order = np.argsort(-self.lengths[index], kind="stable")
        for places in np.array_split(order, max(1, len(order) // 64)):
            out[places] = model(*self.batch(index[places])).softmax(dim=1).numpy()
        model.train()
        return out


def smooth(data: Problem) -> dict[str, np.ndarray]:
    """The recommended classifier on frozen features: probabilities of val and test, and out of fold of `train`."""
    train = data.train
    encoder = SentenceEncoder(max_length=MAX_LENGTH, precision="float32")
    x, test = torch.from_numpy(encoder(data.texts)), torch.from_numpy(encoder(data.test_texts))
    mean, std = x[train].mean(dim=0), x[train].std(dim=0).clamp(min=1e-6)
    x, test = (x - mean) / std, (test - mean) / std
    fitted = classifiers.cross_fit("smooth", x[train], torch.from_numpy(data.labels[train]), data.num_classes)
    network = fitted.member.network(data.num_classes)
    with torch.no_grad():
        val_p, test_p = (network(rows).softmax(dim=1).numpy() for rows in (x[data.val], test))
    return {"val": val_p[None], "test": test_p[None], "oof": fitted.probabilities}


def fine_tune(data: Problem, arm: dict[str, Any], teacher: np.ndarray | None, seed: int) -> dict[str, np.ndarray]:
    """Train; probabilities of val and test after every epoch."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    model, tokens, test = Classifier(data.num_classes), Tokens(data.texts), Tokens(data.test_texts)
    labels = torch.from_numpy(data.labels)
    targets = F.one_hot(labels, data.num_classes).float()
    train = data.train
    if arm.get("prune"):
        assert teacher is not None
        train = train[~confident_issues(teacher, data.labels[train])]
    if share := arm.get("teacher"):
        assert teacher is not None
        targets[data.train] = (1 - share) * targets[data.train] + share * torch.from_numpy(teacher).float()
    if arm.get("head") == "lda":
        lda_head(model, tokens, data)
    shares = arm.get("interpolations", ())
    kept = {share: Interpolation([model], share) for share in shares}
    base = adamw(model, arm["lr"])
    steps_per_epoch = math.ceil(len(train) / BATCH)
    total = arm["epochs"] * steps_per_epoch
    optimizer: Any = base
    if "rho" in arm:
        options = {"rho_target": arm["rho_target"]} if "rho_target" in arm else {}
        optimizer = SAM(base, rho=arm["rho"], model=model, total_steps=total, **options)
    memory = torch.zeros(len(labels), data.num_classes)
    found: dict[str, list[np.ndarray]] = {
        f"{part}{share or ''}": [] for part in ("val", "test") for share in (0, *shares)
    }
    model.train()
    step = 0
    for _ in range(arm["epochs"]):
        for index in tokens.grouped(train, rng):
            ids, mask = tokens.batch(index)
            rows = torch.from_numpy(index)
            set_lr(base, arm["lr"], step / total)

            def loss_of(logits: Tensor, rows: Tensor = rows) -> Tensor:
                if arm.get("loss") == "gce":
                    return losses.gce(logits, labels[rows])
                ce = F.cross_entropy(logits, targets[rows])
                if arm.get("loss") == "elr":  # beta .7, lambda 3, as for CIFAR-10 in the paper
                    p = logits.softmax(dim=1).clamp(1e-4, 1 - 1e-4)
                    memory[rows] = 0.7 * memory[rows] + 0.3 * (p / p.sum(dim=1, keepdim=True)).detach()
                    return ce + 3.0 * (1 - (memory[rows] * p).sum(dim=1)).log().mean()
                return ce

            optimizer.zero_grad()
            logits = model(ids, mask)
            loss = loss_of(logits)
            if optimizer is base:
                loss.backward()
            else:
                optimizer.backward(loss, logits, labels[rows])
                for perturbed in optimizer.perturbations():
                    with perturbed:
                        optimizer.backward(loss_of(model(ids, mask)))
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
        found["val"].append(tokens.probabilities(model, data.val))
        found["test"].append(test.probabilities(model, np.arange(len(test.ids))))
        for share, interpolation in kept.items():
            with interpolation.applied():
                found[f"val{share}"].append(tokens.probabilities(model, data.val))
                found[f"test{share}"].append(test.probabilities(model, np.arange(len(test.ids))))
        if optimizer is not base:
            p = found["val"][-1][np.arange(len(data.val)), data.labels[data.val]]
            optimizer.report_val_loss(float(-np.log(np.maximum(p, 1e-12)).mean()))
    return {name: np.stack(values) for name, values in found.items()}


def adamw(model: nn.Module, lr: float) -> torch.optim.AdamW:
    """Weight decay .01 except biases and norms."""
    weights, plain = ([p for p in model.parameters() if (p.ndim >= 2) == decayed] for decayed in (True, False))
    return torch.optim.AdamW([{"params": weights, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}], lr=lr)


def set_lr(optimizer: torch.optim.Optimizer, lr: float, done: float) -> None:
    """Linear warm-up over the first tenth, then linear decay."""
    for group in optimizer.param_groups:
        group["lr"] = lr * min(done / 0.1, (1 - done) / 0.9)


def co_teach(data: Problem, arm: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Co-teaching: each of two models learns from the samples with the smallest loss under the other.

    The kept share falls linearly from 1 to one minus the true noise rate over the first epoch: knowledge that the
    other arms do not have. The probabilities are those of the first model.
    """
    rng = np.random.default_rng(seed)
    models = []
    for number in range(2):
        torch.manual_seed(2 * seed + number)
        models.append(Classifier(data.num_classes).train())
    optimizers = [adamw(model, arm["lr"]) for model in models]
    tokens, test, labels = Tokens(data.texts), Tokens(data.test_texts), torch.from_numpy(data.labels)
    rate = float((data.labels != data.clean)[data.train].mean())
    steps = math.ceil(len(data.train) / BATCH)
    found: dict[str, list[np.ndarray]] = {"val": [], "test": []}
    for epoch in range(arm["epochs"]):
        for step, index in enumerate(tokens.grouped(data.train, rng), start=epoch * steps):
            batch, targets = tokens.batch(index), labels[torch.from_numpy(index)]
            each = [F.cross_entropy(model(*batch), targets, reduction="none") for model in models]
            kept = max(1, round((1 - rate * min(1.0, step / steps)) * len(index)))
            chosen = [loss.detach().argsort()[:kept] for loss in each]
            for model, optimizer, loss, rows in zip(models, optimizers, each, reversed(chosen), strict=True):
                set_lr(optimizer, arm["lr"], step / (arm["epochs"] * steps))
                optimizer.zero_grad()
                loss[rows].mean().backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        found["val"].append(tokens.probabilities(models[0], data.val))
        found["test"].append(test.probabilities(models[0], np.arange(len(test.ids))))
    return {name: np.stack(values) for name, values in found.items()}


def lda_head(model: Classifier, tokens: Tokens, data: Problem) -> None:
    """Start the head as `ncsam train --model transformers:NAME` does."""
    head, model.fc = model.fc, nn.Identity()
    model.eval()
    with torch.no_grad():
        parts = np.array_split(data.train, max(1, len(data.train) // 64))
        x = torch.cat([model(*tokens.batch(part)) for part in parts])
    model.fc = head
    model.train()
    fit_linear(head, x, torch.from_numpy(data.labels[data.train]))


ARMS: dict[str, dict[str, Any]] = {
    "lda head": {"lr": 1e-4, "epochs": 3, "head": "lda", "interpolations": (0.25, 0.5, 0.75)},
    "adamw 2e-5": {"lr": 2e-5, "epochs": 3},
    "adamw 5e-5": {"lr": 5e-5, "epochs": 3},
    "adamw 1e-4": {"lr": 1e-4, "epochs": 3},
    "adamw 2e-4": {"lr": 2e-4, "epochs": 3},
    "sam .05": {"lr": 1e-4, "epochs": 3, "rho": 0.05},
    "sam .2": {"lr": 1e-4, "epochs": 3, "rho": 0.2},
    "sam validation": {"lr": 1e-4, "epochs": 3, "rho": "validation", "rho_target": 0.5},
    "gce": {"lr": 1e-4, "epochs": 3, "loss": "gce"},
    "elr": {"lr": 1e-4, "epochs": 3, "loss": "elr"},
    "co-teaching": {"lr": 1e-4, "epochs": 3, "peers": True},
    "pruned": {"lr": 1e-4, "epochs": 3, "prune": True},
    "teacher .5": {"lr": 1e-4, "epochs": 3, "teacher": 0.5},
    "teacher .8": {"lr": 1e-4, "epochs": 3, "teacher": 0.8},
    "teacher 1": {"lr": 1e-4, "epochs": 3, "teacher": 1.0},
}


def summary(data: Problem, found: dict[str, np.ndarray], frozen: dict[str, np.ndarray]) -> dict[str, Any]:
    """Accuracies in percent: noisy validation and true test, of the last and the best epoch, and averaged.

    Interpolated weights are those of the last epoch, as in the recipe.
    """

    def right(p: np.ndarray, labels: np.ndarray) -> float:
        return 100.0 * float((p.argmax(axis=1) == labels).mean())

    val = [right(p, data.labels[data.val]) for p in found["val"]]
    test = [right(p, data.test_labels) for p in found["test"]]
    best = int(np.argmax(val))  # the first of equals
    mixed = [right((p + frozen["test"][0]) / 2, data.test_labels) for p in found["test"]]
    chosen = {"last": test[-1], "early": test[best], "mean": mixed[best], "best_epoch": best + 1}
    for share in (name.removeprefix("val") for name in found if name.startswith("val0")):
        chosen[f"interpolated {share}"] = right(found[f"test{share}"][-1], data.test_labels)
    return {"val": val, "test": test, **chosen}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--texts", type=Path, action="append", required=True)
    parser.add_argument("--noise", nargs="+", default=["weak"], help="weak, symmetric0.4, ...")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--csv", type=Path, help="also write the results as a table")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    results_file = args.out / "fine_tuning.json"
    results: dict[str, Any] = json.loads(results_file.read_text()) if results_file.is_file() else {}
    torch.set_num_threads(1)
    problems = [problem(path, kind) for kind in args.noise for path in args.texts]
    for arm in args.arms:  # outermost, so that a stopped experiment has compared some arms on all problems
        for data in problems:
            kept = args.out / f"{data.name}-frozen.npz"
            if not kept.is_file():
                np.savez(kept, **smooth(data))
            frozen = dict(np.load(kept))
            results[f"{data.name}|frozen"] = summary(data, frozen, frozen)
            for seed in range(1, args.seeds + 1):
                file = args.out / f"{data.name}-{arm.replace(' ', '_')}-s{seed}.npz"
                began = time.process_time()
                if not file.is_file():
                    options = ARMS[arm]
                    peers = options.get("peers", False)
                    tuned = co_teach(data, options, seed) if peers else fine_tune(data, options, frozen["oof"], seed)
                    np.savez(file, **tuned)
                key = f"{data.name}|{arm}|{seed}"
                row = summary(data, dict(np.load(file)), frozen)
                seconds = time.process_time() - began
                row["cpu_seconds"] = round(max(seconds, results.get(key, {}).get("cpu_seconds", 0.0)))
                results[key] = row
                results_file.write_text(json.dumps(results, indent=1))
                shown = " ".join(f"{v:.1f}/{t:.1f}" for v, t in zip(row["val"], row["test"], strict=True))
                print(
                    f"{key}: frozen {results[f'{data.name}|frozen']['early']:.1f}, early {row['early']:.1f}, "
                    f"mean {row['mean']:.1f}; val/test {shown}; {seconds:.0f} s",
                    flush=True,
                )
    if args.csv is not None:
        write_table(args.csv, results)


def write_table(path: Path, results: dict[str, Any]) -> None:
    """One line per problem, arm and seed; accuracies in percent."""
    shares = ("0.25", "0.5", "0.75")
    columns = ["problem", "arm", "seed", "last", "early_stopped", "mean_with_frozen", "best_epoch"]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, *(f"interpolated_{share}" for share in shares), "cpu_seconds"])
        for key in sorted(results):
            row, (problem_name, arm, *seed) = results[key], key.split("|")
            numbers = [row[name] for name in ("last", "early", "mean")]
            kept = [row.get(f"interpolated {share}") for share in shares]
            shown = ["" if value is None else f"{value:.1f}" for value in (*numbers, *kept)]
            times = row.get("cpu_seconds") or ""  # none where a finished run was read
            writer.writerow([problem_name, arm, *(seed or [""]), *shown[:3], row["best_epoch"], *shown[3:], times])


if __name__ == "__main__":
    main()
