"""Pretrained features: images or texts turned into vectors once, so that training takes seconds.

>>> from ncsam import data, embed
>>> encoder = embed.image_encoder("timm:resnet50.a1_in1k", device="cuda")       # doctest: +SKIP
>>> embed.embed(data.load("photos/"), encoder, "features.npz")                     # doctest: +SKIP
"""

from ncsam.embed.encoder import Encoder, image_encoder
from ncsam.embed.run import embed
from ncsam.embed.text import Transformer, embed_texts, read_texts

__all__ = ["Encoder", "Transformer", "embed", "embed_texts", "image_encoder", "read_texts"]
