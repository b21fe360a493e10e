"""A pretrained transformer encoder with a classification head, for texts.

References:
    N. Reimers and I. Gurevych, Sentence-BERT, EMNLP 2019, arXiv:1908.10084 (mean pooling over the tokens).
    E. J. Hu et al., LoRA: Low-rank adaptation of large language models, ICLR 2022, arXiv:2106.09685.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ncsam._arguments import positive
from ncsam._errors import bad_value, need
from ncsam.models.backbone import MOST, Backbone, check_probability
from ncsam.pretrained.hub import load_encoder, model_folder
from ncsam.pretrained.minilm import masked_mean


class TransformerClassifier(Backbone):
    """The mean of the last hidden layer over the tokens of a text, dropout, then the head.

    Args:
        encoder: A model of transformers that takes `input_ids` and `attention_mask`.
        num_classes: Number of classes.
        dropout: Dropout probability before the head, in [0, 1).
    """

    family = "transformer"

    def __init__(self, encoder: nn.Module, num_classes: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.encoder = encoder
        self.num_features = int(encoder.config.hidden_size)  # type: ignore[union-attr, arg-type]
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(self.num_features, num_classes)
        pooler = getattr(encoder, "pooler", None)
        if isinstance(pooler, nn.Module):  # not used here, so it must not wait for gradients
            pooler.requires_grad_(False)

    def features(self, x: Mapping[str, Tensor]) -> Tensor:
        """Mean of the last hidden layer over the tokens, after dropout, (N, hidden size).

        Args:
            x: `input_ids` and `attention_mask`, each (N, length).

        Raises:
            ValueError: One of the two is missing.
        """
        if not isinstance(x, Mapping) or not {"input_ids", "attention_mask"} <= x.keys():
            raise ValueError("a transformer takes token sequences: a dict of input_ids and attention_mask")
        mask = x["attention_mask"]
        hidden = self.encoder(input_ids=x["input_ids"], attention_mask=mask.long()).last_hidden_state
        out: Tensor = self.dropout(masked_mean(hidden, mask))
        return out


def from_transformers(
    name: str, num_classes: int, pretrained: bool | str, *, dropout: float = 0.1, lora: int | None = None
) -> TransformerClassifier:
    """A classifier around an encoder of transformers.

    Args:
        name: A folder with `config.json`, tokenizer and `model.safetensors`, or a model of the Hugging Face hub.
        num_classes: Number of classes.
        pretrained: Whether to load the weights. Without, nothing is downloaded.
        dropout: Dropout probability before the head, in [0, 1).
        lora: Rank of low-rank updates of the linear layers, which are trained in the place of the encoder's weights.

    Raises:
        UsageError: There is no such model, or it is no encoder.
        ImportError: transformers, or peft for `lora`, is not installed.
    """
    if isinstance(pretrained, str):
        raise bad_value("pretrained", pretrained, "True or False: the weights are those of the model's folder")
    check_probability("dropout", dropout)
    if lora is not None:
        positive("lora", lora, MOST)
        need("peft", "lora", "low-rank adaptation (lora)")
    encoder = load_encoder(model_folder(name, download=pretrained), pretrained=pretrained)
    return TransformerClassifier(encoder if lora is None else _with_lora(encoder, lora), num_classes, dropout)


def _with_lora(encoder: Any, rank: int) -> Any:
    """The encoder with trainable updates B A of rank `rank`, scaled by 2, in all linear layers; the rest is frozen."""
    import peft

    return peft.get_peft_model(
        encoder, peft.LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.05, target_modules="all-linear")
    )
