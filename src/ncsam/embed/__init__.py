"""Pretrained features: images or texts turned into embeddings once, so that training takes seconds.

`choose_backbone` picks an encoder for the data and the machine, `image_encoder` and `text_encoder` make one by name.
`features_of` gives the dataset of features in memory, `embed` writes it to a file. Both remember the original samples
and the encoder: `read_inputs` encodes new samples for a trained model.

Examples:
    >>> from ncsam import data, embed
    >>> encoder = embed.image_encoder("lite0", size=160)                                # doctest: +SKIP
    >>> features = embed.features_of(data.load("photos/"), encoder)                     # doctest: +SKIP
"""

from ncsam.embed.cache import FeatureCache
from ncsam.embed.choose import Choice, choose_backbone, choose_encoder
from ncsam.embed.encoder import Encoder, image_encoder
from ncsam.embed.features import encoder_from, features_of
from ncsam.embed.inputs import NewSamples, encoded_inputs, read_inputs, read_samples
from ncsam.embed.run import embed
from ncsam.embed.text import NamedTextEncoder, text_encoder

__all__ = [
    "Choice",
    "Encoder",
    "FeatureCache",
    "NamedTextEncoder",
    "NewSamples",
    "choose_backbone",
    "choose_encoder",
    "embed",
    "encoded_inputs",
    "encoder_from",
    "features_of",
    "image_encoder",
    "read_inputs",
    "read_samples",
    "text_encoder",
]
