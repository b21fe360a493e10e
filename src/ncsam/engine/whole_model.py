"""The model of a run on embedded images together with its encoder: from images to logits, for use elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ncsam._trees import Tree, leaves
from ncsam.data.modalities import saved_modality
from ncsam.data.modalities.features import Features
from ncsam.data.modalities.images import Images
from ncsam.embed.encoder import Encoder
from ncsam.embed.features import encoder_from
from ncsam.engine.predictor import LoadedRun, Predictor


class EncodedImages(Predictor):
    """A predictor of features behind the backbone that computes them.

    Args:
        encoder: Computes the features.
        mean: Of the features, one number or one each; empty for no normalization.
        std: Likewise.
        predictor: Takes normalized features and returns logits.
    """

    def __init__(self, encoder: Encoder, mean: Sequence[float], std: Sequence[float], predictor: Predictor) -> None:
        super().__init__(predictor.method, list(predictor.networks))
        self.backbone = encoder.network
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(mean or (0.0,)))
        self.register_buffer("std", torch.tensor(std or (1.0,)))

    def forward(self, inputs: Tree) -> Tensor:
        """Logits (batch, classes).

        Args:
            inputs: Normalized images (batch, channels, height, width).
        """
        features = self.backbone.features(leaves(inputs)[0])
        return super().forward((features - self.mean) / self.std)


def with_encoder(trained: LoadedRun, named: Collection[str] = ()) -> LoadedRun:
    """The run's model from images on, where it was trained on their embeddings; any other model as it is.

    Args:
        trained: The model of a run.
        named: As in `ncsam.embed.encoder_from`.

    Raises:
        UsageError: The encoder's weights are no longer those of the run, or it is code not in `named`.
    """
    features = trained.modality
    if not isinstance(features, Features) or (features.encoder or {}).get("kind") != "images":
        return trained
    assert features.encoder is not None
    encoder = encoder_from(features.encoder, named=named)
    assert isinstance(encoder, Encoder)
    images = saved_modality(Images(encoder.mean, encoder.std, encoder.size, len(encoder.mean)))
    about = (
        {name: trained.about[name] for name in ("name", "classes")}
        | images
        | {"encoder": encoder.name, "crop": encoder.crops}
    )
    whole = EncodedImages(encoder, features.mean, features.std, trained.network).eval().requires_grad_(False)
    return replace(trained, network=whole, about=about)
