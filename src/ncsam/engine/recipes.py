"""Tuned constants: the value, what it applies to, and the experiment that chose it.

The threshold of memorization is `ncsam.issues.find.MEMORIZED_GAP`, because label issues use it, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True)
class Recipe(Generic[_T]):
    """A tuned constant.

    Args:
        value: The constant.
        applies_to: The data, models or options for which it holds.
        chosen_by: The document of the experiment, or the reason, behind the value.
    """

    value: _T
    applies_to: str
    chosen_by: str


_REAL_NOISE = "docs/experiments/real_noise.md"
_SETTINGS = "docs/experiments/settings.md"

#: SAM needs a smaller step than SGD: at lr .05 the adaptive radius loses most of what it gains at .0125.
LR_FACTOR = Recipe(
    0.25, "lr: auto, for mlps and pretrained models, relative to the base optimizer's default", _REAL_NOISE
)
#: Weight decay makes the result depend less on the length of training.
WEIGHT_DECAY = Recipe(0.001, "weight_decay: auto", _REAL_NOISE)
MLP_WEIGHT_DECAY = Recipe(0.005, "weight_decay: auto, for mlps", _REAL_NOISE)
#: With its many features, a linear head memorizes most labels under a smaller one.
HEAD_WEIGHT_DECAY = Recipe(0.3, "weight_decay: auto, on a frozen backbone", "a trial on Lite0 whose script is gone")
EPOCHS = Recipe(60, "epochs: auto", _SETTINGS)
MLP_EPOCHS = Recipe(30, "epochs: auto, for mlps", _REAL_NOISE)
#: Too few steps leave a perturbed model untrained.
MLP_STEPS = Recipe(800, "epochs: auto, for mlps: the fewest steps", _REAL_NOISE)
SMALL_BATCH = Recipe(
    32, "batch_size: null, below SMALL_DATA training samples, where 128 makes too few steps", _SETTINGS
)
SMALL_DATA = Recipe(5000, "batch_size: null, in training samples", _SETTINGS)
BATCH = Recipe(128, "batch_size: null", _SETTINGS)

#: Where nothing else prevents memorization.
RHO_TARGET = Recipe(0.5, "rho_target: auto", _SETTINGS)
#: With their small steps less is enough.
MLP_RHO_TARGET = Recipe(0.4, "rho_target: auto, for mlps", _REAL_NOISE)
#: Augmentation and most methods prevent memorization too: next to them the full target costs more than it saves.
SMALL_RHO_TARGET = Recipe(
    0.1, "rho_target: auto, with augmentation, methods that resist memorization, or few features", _SETTINGS
)
#: Below, an mlp learns slowly and memorizes more slowly still: the full target lost up to 2.5 points.
FEW_FEATURES = Recipe(40, "rho_target: auto, for mlps", _REAL_NOISE)

_FINE_TUNING = "docs/experiments/fine_tuning.md"
_NOT_MEASURED = "common practice (Devlin et al. 2019, arXiv:1810.04805), not measured here"
OPTIMIZER = Recipe("sam", "optimizer: auto", _REAL_NOISE)
#: The cheapest: SAM around AdamW was not measured to the end.
TRANSFORMER_OPTIMIZER = Recipe("adamw", "optimizer: auto, for transformers:NAME", _FINE_TUNING)
#: Encoders with at least so many weights have the smaller learning rate: BERT-base has 110 million, MiniLM 23 million.
LARGE_ENCODER = Recipe(80_000_000, "lr: auto, for pretrained transformers and ConvNeXt, in weights", _NOT_MEASURED)
LARGE_ENCODER_LR = Recipe(2e-5, "lr: auto, for pretrained transformers from LARGE_ENCODER weights", _NOT_MEASURED)
#: The only one that was run; not compared with others.
SMALL_ENCODER_LR = Recipe(1e-4, "lr: auto, for smaller pretrained transformers", _FINE_TUNING)
LORA_LR = Recipe(5e-4, "lr: auto, with lora", "common practice (Hu et al. 2022, arXiv:2106.09685), not measured here")
ENCODER_WEIGHT_DECAY = Recipe(0.01, "weight_decay: auto, for pretrained transformers and ConvNeXt", _NOT_MEASURED)
ENCODER_EPOCHS = Recipe(3, "epochs: auto, for pretrained transformers", _FINE_TUNING)
ENCODER_BATCH = Recipe(32, "batch_size: auto, for pretrained transformers", _NOT_MEASURED)
ENCODER_LR_WARMUP = Recipe(0.1, "lr_warmup: auto, for pretrained transformers and ConvNeXt", _NOT_MEASURED)
ENCODER_CLIP = Recipe(1.0, "clip_norm: auto, for pretrained transformers and ConvNeXt", _NOT_MEASURED)
ENCODER_HEAD_INIT: Recipe[Literal["lda"]] = Recipe("lda", "head_init: auto, for pretrained transformers", _FINE_TUNING)
ENCODER_INTERPOLATION = Recipe(0.5, "interpolation: auto, for pretrained transformers", _FINE_TUNING)
LAYER_DECAY = Recipe(
    0.75,
    "layer_decay: auto, for pretrained models of timm and torchvision",
    "common practice (Bao et al. 2022, arXiv:2106.08254), not measured here",
)

METHOD_WARMUP = Recipe(
    0.25, "warmup: null, for methods with `needs_warmup` under an adaptive radius", "docs/experiments/methods.md"
)
MAX_FLIP_RATIO = Recipe(0.4, "flip_ratio: null and auto", "the paper: 40 % was best at noise rates of 40 % and more")
SMOOTHED_EPOCHS = Recipe(3, "warmup: auto, epochs over which both accuracies are averaged", _SETTINGS)

TINY_IMAGE = Recipe(16, "model: auto, pixels of the longer side up to which an mlp is used", _SETTINGS)
SMALL_IMAGE = Recipe(96, "model: auto, pixels of the longer side up to which the CIFAR stem is used", _SETTINGS)
HIDDEN = Recipe((256, 256), "model: auto, hidden layers of mlps", _REAL_NOISE)
