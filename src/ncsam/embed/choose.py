"""Which pretrained backbone to use for images or texts on this machine, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ncsam._errors import bad_value
from ncsam.data.modalities.images import Images
from ncsam.data.modalities.text import TextList
from ncsam.data.types import DataSet
from ncsam.embed.encoder import PHOTOGRAPH, Encoder, image_encoder
from ncsam.embed.text import NamedTextEncoder, text_encoder
from ncsam.models import lite0
from ncsam.pretrained import minilm, wordllama
from ncsam.pretrained.libraries import Published, reachable, status
from ncsam.pretrained.packaged import PackagedFile

#: Images with a shorter side below this hold too little for a backbone of photographs.
SMALLEST_SIDE = 24
#: Gray images with a shorter side up to this are taken for digits, icons and the like.
GRAY_SIDE = 64
#: Images whose longer side is at most this are thumbnails, enlarged to `THUMBNAIL_SIZE` on a CPU.
THUMBNAIL_SIDE = 96
THUMBNAIL_SIZE, PHOTO_SIZE = 160, 224

#: In the order of preference. On a CPU small models; on an accelerator those worth fine-tuning.
_SMALL = (
    Published("timm", "tf_efficientnet_lite0.in1k", "model.safetensors", 224),
    Published("torchvision", "mobilenet_v3_large", "mobilenet_v3_large-5c1a4163.pth", 224),
)
_LARGE = (
    Published("timm", "resnet50.a1_in1k", "model.safetensors", 224),
    Published("torchvision", "resnet50", "resnet50-11ad3fa6.pth", 224),
)


@dataclass(frozen=True)
class Choice:
    """A backbone and the reason for it.

    Attributes:
        name: "lite0", "minilm", "wordllama", "timm:NAME", "torchvision:NAME"; `None` where none can or should be used.
        reason: One sentence for the user.
        size: Pixels a side of the backbone's input; `None` for texts.
        frozen: Whether to train a classifier on fixed features rather than to fine-tune.
        download: Whether weights have to be downloaded first.
        install: The command that would make a backbone available, where there is none.
    """

    name: str | None
    reason: str
    size: int | None = None
    frozen: bool = True
    download: bool = False
    install: str | None = None


def choose_backbone(
    modality: str,
    image_size: tuple[int, int] | None = None,
    device: str = "cpu",
    *,
    channels: int = 3,
    online: Callable[[str], bool] = reachable,
) -> Choice:
    """The backbone for this kind of data on this machine.

    On a CPU the packaged EfficientNet-Lite0 comes first: it needs no download, and larger models take minutes. On an
    accelerator timm and torchvision come first. Wherever nothing is available, the reason names what is missing.

    Args:
        modality: "image" or "text".
        image_size: (height, width) of a typical image, in pixels.
        device: Where to compute, such as "cpu" or "cuda:0".
        channels: Of the images.
        online: `online(url)` tells whether a file can be downloaded.

    Examples:
        >>> choose_backbone("image", (28, 28), channels=1).name is None
        True
    """
    if modality == "text":
        return _for_text()
    if modality != "image":
        raise bad_value("modality", modality, "image or text")
    if image_size is None or min(image_size) < 1:
        raise bad_value("image_size", image_size, "(height, width) of the images in pixels")
    if unlike := unlike_photographs(image_size, channels):
        return Choice(None, f"no pretrained backbone: {unlike}")
    on_cpu = device.partition(":")[0] == "cpu"
    size = input_size(image_size, on_cpu)
    packaged = _usable(lite0.WEIGHTS)
    if packaged and on_cpu:
        return Choice("lite0", "EfficientNet-Lite0 is installed and fast on a CPU", size)
    problems = []
    for model in _SMALL if on_cpu else _LARGE:
        found = status(model.library)
        if not found.usable:
            problems.append(found.problem)
        elif model.cached():
            return Choice(model.name, f"{model.library} is installed and the weights are here", size, on_cpu)
        elif online(model.url):
            return Choice(model.name, f"{model.library} is installed", size, on_cpu, download=True)
        else:
            problems.append(f"the weights of {model.name} are neither here nor can be downloaded")
    why = "; ".join(problems)
    if packaged:
        return Choice("lite0", f"EfficientNet-Lite0, since {why}", size, on_cpu)
    install = lite0.WEIGHTS.install
    return Choice(None, f"no pretrained backbone: {why}. For a better model: {install}", install=install)


def choose_encoder(
    dataset: DataSet, device: str = "cpu", *, online: Callable[[str], bool] = reachable
) -> tuple[Encoder | NamedTextEncoder | None, Choice]:
    """The pretrained encoder for a dataset on this machine, ready to use, and the reason for it.

    Args:
        dataset: Images or texts; for anything else there is no encoder, and the reason says so.
        device: Where to compute.
        online: As for `choose_backbone`.

    Returns:
        The encoder or `None`, and the choice.
    """
    inputs = dataset.train.inputs
    if isinstance(inputs, TextList):
        choice = choose_backbone("text", device=device)
        return (None if choice.name is None else text_encoder(choice.name, device=device)), choice
    if not Images.holds(inputs) or dataset.size is None:
        return None, Choice(None, "no pretrained backbone: the samples are neither images nor texts")
    channels = inputs.shape[3] if isinstance(inputs, np.ndarray) and inputs.ndim == 4 else len(dataset.mean)
    choice = choose_backbone("image", dataset.size, device, channels=channels, online=online)
    if choice.name is None or choice.size is None:
        return None, choice
    photographs = min(dataset.size) >= PHOTOGRAPH  # thumbnails lose nothing at their margins
    return image_encoder(choice.name, size=(choice.size,) * 2, crop=photographs, device=device), choice


def unlike_photographs(image_size: tuple[int, int], channels: int) -> str | None:
    """Why the images clearly are not photographs: other channels, tiny, or small and gray.

    Args:
        image_size: (height, width) in pixels.
        channels: Channels of the images.

    Returns:
        The reason, or `None` if they may be photographs.
    """
    side = min(image_size)
    if channels not in (1, 3):
        return f"images with {channels} channels are not photographs"
    if side < SMALLEST_SIDE:
        return f"images of {image_size[0]}x{image_size[1]} pixels are too small for one"
    if channels == 1 and side <= GRAY_SIDE:
        return f"small gray images ({image_size[0]}x{image_size[1]}) are rather digits or icons than photographs"
    return None


def input_size(image_size: tuple[int, int], on_cpu: bool) -> int:
    """Pixels a side of the backbone's input: thumbnails gain nothing beyond 160, which is twice as fast as 224.

    Args:
        image_size: (height, width) of the images in pixels.
        on_cpu: Whether features are computed on a CPU; on an accelerator the size is always 224.
    """
    return THUMBNAIL_SIZE if on_cpu and max(image_size) <= THUMBNAIL_SIDE else PHOTO_SIZE


def _for_text() -> Choice:
    transformers = status("transformers")
    if transformers.usable and _usable(minilm.WEIGHTS):
        return Choice("minilm", "all-MiniLM-L6-v2 is installed")
    static = all(status(library).usable for library in ("tokenizers", "safetensors"))
    if static and _usable(wordllama.WEIGHTS):
        why = transformers.problem or f"{minilm.WEIGHTS.package} is not installed"
        return Choice("wordllama", f"WordLlama, since {why}")
    install = wordllama.WEIGHTS.install
    return Choice(None, f"no pretrained text encoder is installed. For a better model: {install}", install=install)


def _usable(file: PackagedFile) -> bool:
    return file.find() is not None
