"""A BERT of two layers with random weights and a WordPiece tokenizer, in a folder as transformers writes it."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

WORDS = ("good", "fine", "great", "bad", "awful", "poor", "film", "book", "song", "the", "a", "very", "##ly", "is")


def save_tiny_bert(folder: Path, *, dropout: float = 0.1) -> Path:
    """Write configuration, tokenizer and safetensors; the weights are the same at every call."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    tokenizer = BertTokenizerFast(vocab={word: i for i, word in enumerate(vocabulary)}, model_max_length=32)
    tokenizer.save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    before = torch.random.get_rng_state()
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)
    torch.random.set_rng_state(before)
    return folder


def save_texts(path: Path, rows: int = 60, wrong: float = 0.2, seed: int = 0) -> Path:
    """Write a table `split, text, label, clean`: sentences of good or bad words; some training labels are flipped."""
    rng = np.random.default_rng(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["split", "text", "label", "clean"])
        for row in range(rows):
            clean = row % 2
            mood = WORDS[3 * clean : 3 * clean + 3]
            text = " ".join(rng.choice([*mood, *mood, *WORDS[6:12]], size=int(rng.integers(2, 12))))
            text = f"{mood[row % 3]} {text}"
            split = "test" if row >= 2 * rows // 3 else "train"
            flipped = split == "train" and rng.random() < wrong
            names = ("pos", "neg")
            writer.writerow([split, text, names[clean ^ flipped], names[clean]])
    return path
