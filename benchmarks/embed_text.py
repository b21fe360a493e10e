"""Text embedding: batches sorted by length and padded to their longest, beside a plain loop over the same model.

The plain loop: batches of 64 texts in the given order, each padded to its longest text of at most 256 tokens. Rates are
texts per CPU second (of all threads), so that other processes matter little.

    OMP_NUM_THREADS=1 python benchmarks/embed_text.py reviews.csv --texts 512
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from ncsam.data import load
from ncsam.embed import text_encoder
from ncsam.pretrained.minilm import SentenceEncoder, masked_mean

BATCH = 64


@torch.inference_mode()
def plain_loop(encoder: SentenceEncoder, texts: list[str]) -> np.ndarray:
    parts = []
    for start in range(0, len(texts), BATCH):
        some = texts[start : start + BATCH]
        batch = encoder._tokenizer(some, padding=True, truncation=True, max_length=256, return_tensors="pt")
        parts.append(masked_mean(encoder._model(**batch).last_hidden_state, batch["attention_mask"]).numpy())
    return np.concatenate(parts)


def rate(work: Callable[[], np.ndarray], texts: int) -> tuple[np.ndarray, float]:
    start = time.process_time()
    found = work()
    return found, texts / (time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("table", help="a table with a column of texts")
    parser.add_argument("--texts", type=int, default=512)
    options = parser.parse_args()
    texts = list(load(options.table).train.inputs)[: options.texts]
    minilm = text_encoder("minilm", precision="32-true")
    inner = minilm.encoder
    assert isinstance(inner, SentenceEncoder)
    lengths = np.array([len(ids) for ids in inner._tokenizer(texts, truncation=True, max_length=256)["input_ids"]])
    padded = sum(int(lengths[i : i + BATCH].max()) * len(lengths[i : i + BATCH]) for i in range(0, len(texts), BATCH))
    print(f"{len(texts)} texts, {lengths.mean():.0f} tokens on average, {lengths.max()} at most")
    print(f"padding of the plain loop: {padded / lengths.sum():.2f} tokens for each real one")
    minilm(texts[:BATCH])  # warm up
    plain_loop(inner, texts[:BATCH])
    new, fast = rate(lambda: minilm(texts), len(texts))
    old, slow = rate(lambda: plain_loop(inner, texts), len(texts))
    print(
        f"minilm     {fast:8.0f} texts/s, plain loop {slow:6.0f}: {fast / slow:.1f} times as fast, "
        f"largest difference {np.abs(new - old).max():.1g}"
    )
    static = text_encoder("wordllama")
    static(texts[:BATCH])
    _, static_rate = rate(lambda: static(texts), len(texts))
    print(f"wordllama  {static_rate:8.0f} texts/s")


if __name__ == "__main__":
    main()
