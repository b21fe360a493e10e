"""A small model for text: the mean of the words' vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from ncsam._arguments import positive
from ncsam.models.backbone import MOST, Backbone, check_probability
from ncsam.models.mlp import widths
from ncsam.models.registry import register

_MOST_TOKENS = 1_000_000_000


class TextMean(Backbone):
    """h = sum_t m_t E[token_t] / max(1, sum_t m_t) over the tokens that the mask m admits; then layers with ReLU.

    Padding has mask 0, so that it changes nothing; a text without tokens has h = 0.

    Args:
        num_classes: Number of classes.
        tokens: Size of the vocabulary.
        width: Length of a word's vector.
        hidden: Widths of layers before the head.
        dropout: Dropout probability, in [0, 1).
    """

    family = "text"

    def __init__(self, num_classes: int, tokens: int, width: int, hidden: Sequence[int], dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        layers: list[nn.Module] = [nn.Dropout(dropout)]
        self.num_features = width
        for size in hidden:
            layers += [nn.Linear(self.num_features, size), nn.ReLU(), nn.Dropout(dropout)]
            self.num_features = size
        self.body = nn.Sequential(*layers)
        self.fc = nn.Linear(self.num_features, num_classes)

    def features(self, x: Mapping[str, Tensor]) -> Tensor:
        """Output of the last hidden layer; the mean vector where there is none.

        Args:
            x: `input_ids` and `attention_mask`, each (N, length).

        Raises:
            ValueError: One of the two is missing.
        """
        if not isinstance(x, Mapping) or not {"input_ids", "attention_mask"} <= x.keys():
            raise ValueError("text_mean takes token sequences: a dict of input_ids and attention_mask (batch, length)")
        mask = x["attention_mask"].unsqueeze(2).to(self.embedding.weight.dtype)
        total = (self.embedding(x["input_ids"]) * mask).sum(dim=1)
        out: Tensor = self.body(total / mask.sum(dim=1).clamp(min=1.0))
        return out


@register
def text_mean(
    num_classes: int,
    in_channels: int = 1,
    *,
    tokens: int = 20_002,
    width: int = 128,
    hidden: Sequence[int] = (),
    dropout: float = 0.0,
) -> TextMean:
    """A bag of embeddings: the mean of the words' vectors, then the head.

    Args:
        num_classes: Number of classes.
        in_channels: Not used.
        tokens: Size of the vocabulary (by default 20,000 words, padding and the unknown word).
        width: Length of a word's vector.
        hidden: Widths of layers before the head.
        dropout: Dropout probability, in [0, 1).

    References:
        Joulin et al., 2016, Bag of tricks for efficient text classification, arXiv 1607.01759.
    """
    positive("tokens", tokens, _MOST_TOKENS)
    positive("width", width, MOST)
    check_probability("dropout", dropout)
    return TextMean(num_classes, tokens, width, widths(hidden), dropout)
