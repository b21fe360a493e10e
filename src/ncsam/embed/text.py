"""Text: a table with a column of texts, and a language model that turns each into a vector."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from ncsam._errors import bad_value, need, unknown_name
from ncsam.data.labels import encode_labels
from ncsam.data.tables.columns import COLUMN_NAMES, read_columns
from ncsam.data.types import DataSet, Split
from ncsam.embed.encoder import usable_device
from ncsam.embed.parts import Floats, Parts
from ncsam.embed.run import write_features

_PART = 16  # batches
_LENGTH = 256  # tokens of a text that are read


class TextEncoder(Protocol):
    """Anything that turns texts into vectors; `fingerprint` tells two of them apart."""

    def __call__(self, texts: Sequence[str]) -> torch.Tensor:
        """Features (N, F) of N texts."""

    def fingerprint(self) -> str: ...


class Transformer:
    """A model of `transformers`: the mean of the last layer's vectors over the tokens of a text."""

    def __init__(self, name: str, *, device: str | torch.device = "cpu", precision: str = "32-true") -> None:
        self.device = usable_device(device)
        library = need("transformers", "transformers", f"model 'transformers:{name}'")
        self.name, self.precision = name, precision
        self.tokenizer: Any = library.AutoTokenizer.from_pretrained(name)
        self.model: Any = library.AutoModel.from_pretrained(name).to(self.device).eval()

    @torch.no_grad()
    def __call__(self, texts: Sequence[str]) -> torch.Tensor:
        tokens = self.tokenizer(list(texts), padding=True, truncation=True, max_length=_LENGTH, return_tensors="pt")
        tokens = {key: value.to(self.device) for key, value in dict(tokens).items()}
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16-mixed"):
            hidden = self.model(**tokens).last_hidden_state
        return masked_mean(hidden.float(), tokens["attention_mask"])

    def fingerprint(self) -> str:
        return f"transformers:{self.name}, {self.precision}"


def masked_mean(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean over the tokens with mask 1: (N, L, F), (N, L) -> (N, F)."""
    weight = mask.to(hidden).unsqueeze(-1)
    return (hidden * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1.0)


def read_texts(
    path: Path, text_column: str, label_column: str | None = None, split_column: str | None = None
) -> tuple[list[str], DataSet]:
    """The texts of a CSV or TSV table, and a dataset whose inputs are the row numbers; no column but these is read."""
    if path.suffix.lower() not in (".csv", ".tsv"):
        raise bad_value("data", str(path), "a .csv or .tsv table, for texts")
    table = read_columns(path)
    label_column = label_column or next((name for name in COLUMN_NAMES["label"] if name in table), "label")
    for column in (text_column, label_column, *([split_column] if split_column else [])):
        if column not in table:
            raise unknown_name(f"column of {path.name}", column, table)
    texts: list[str] = table[text_column]
    (labels,), classes = encode_labels([table[label_column]], where=str(path))
    assert labels is not None
    everything = Split(np.arange(len(texts), dtype=np.float32)[:, None], labels)
    where = np.array(table[split_column] if split_column else ["train"] * len(texts))
    test = everything.take(np.flatnonzero(where == "test")) if (where == "test").any() else None
    train = everything.take(np.flatnonzero(where != "test"))
    dataset = DataSet(path.stem, classes, train, test, (0.0,), (1.0,), None, source=str(path))
    return texts, dataset


def embed_texts(
    texts: Sequence[str],
    dataset: DataSet,
    encoder: TextEncoder,
    out: str | os.PathLike[str],
    *,
    batch_size: int = 64,
    say: Callable[[str], None] = print,
) -> Path:
    """As `ncsam.embed.embed`, of texts; `dataset` is what `read_texts` gave beside them."""

    def rows(name: str, parts: Parts, done: Callable[[int], None]) -> Floats:
        numbers = np.asarray(dataset.splits[name].inputs)[:, 0].astype(np.int64)

        def compute(start: int, stop: int) -> Iterator[Floats]:
            for first in range(start, stop, batch_size):
                chosen = numbers[first : min(stop, first + batch_size)]
                yield encoder([texts[i] for i in chosen]).float().cpu().numpy()

        return parts.rows(name, len(numbers), _PART * batch_size, compute, done)

    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()
    about = {"encoder": encoder.fingerprint(), "texts": digest, "batch_size": batch_size}
    return write_features(dataset, Path(out), about, rows, say)
