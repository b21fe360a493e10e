"""WordLlama: static token embeddings of 256 dimensions, averaged over a text.

The table and the tokenizer ship in the pip package `wordllama`. They are read directly: importing that package would
load compiled extensions and reconfigure Python's logging.

References:
    L. Miller, WordLlama, 2024, https://github.com/dleemiller/WordLlama.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np

from ncsam._arguments import positive
from ncsam._errors import need
from ncsam.pretrained.packaged import PackagedFile
from ncsam.pretrained.text import Floats, checked

WEIGHTS = PackagedFile(
    package="wordllama",
    path="weights/l2_supercat_256.safetensors",
    sha256="64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
    extra="text",
)
TOKENIZER = PackagedFile(
    package="wordllama",
    path="tokenizers/l2_supercat_tokenizer_config.json",
    sha256="93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68",
    extra="text",
)
_ROWS = 4096  # texts tokenized at a time


class WordLlama:
    """Mean of the embeddings of a text's tokens; zeros for a text without tokens.

    Args:
        max_length: Tokens of a text that are read; the rest is cut off.

    Raises:
        ImportError: `wordllama`, `tokenizers` or `safetensors` is not installed.
        DamagedWeightsError: A file of the package is not the published one.

    Examples:
        >>> WordLlama()(["a good film", "a bad film"]).shape                    # doctest: +SKIP
        (2, 256)
    """

    num_features = 256

    def __init__(self, *, max_length: int = 512) -> None:
        self.max_length = positive("max_length", max_length)

    @staticmethod
    def installed() -> bool:
        """Whether the weights and what reads them are there. Nothing is read or imported."""
        libraries = all(find_spec(name) is not None for name in ("tokenizers", "safetensors"))
        return libraries and WEIGHTS.find() is not None and TOKENIZER.find() is not None

    @cached_property
    def table(self) -> Floats:
        """The embedding of each token, read when first needed."""
        load_file = need("safetensors.numpy", "text", "WordLlama").load_file
        return np.ascontiguousarray(load_file(WEIGHTS.verified())["embedding.weight"], dtype=np.float32)

    @cached_property
    def _tokenizer(self) -> Any:
        tokenizer = need("tokenizers", "text", "WordLlama").Tokenizer.from_file(str(TOKENIZER.verified()))
        tokenizer.no_padding()
        tokenizer.enable_truncation(self.max_length)
        return tokenizer

    def __call__(self, texts: Sequence[str]) -> Floats:
        """Embeddings (N, 256) of N texts."""
        found = checked(texts)
        out = np.zeros((len(found), self.num_features), dtype=np.float32)
        for start in range(0, len(found), _ROWS):
            encoded = self._tokenizer.encode_batch_fast(found[start : start + _ROWS], add_special_tokens=False)
            for row, text in enumerate(encoded, start):
                if text.ids:
                    out[row] = self.table[text.ids].mean(axis=0)
        return out

    def fingerprint(self) -> str:
        return f"wordllama:{WEIGHTS.sha256}:{self.max_length}"
