"""Images: arrays in memory, files, or made on demand; cropped, mirrored and augmented by views."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ncsam._errors import bad_value, need
from ncsam._text import path_cell
from ncsam.data.augment.views import CROP, VIEWS, View, resolve_views
from ncsam.data.images.decode import ImageFiles, Request, Stored, channels_first, covered, decoded_batches
from ncsam.data.images.decode_cache import DecodeCache
from ncsam.data.images.exif import exif_transpose, open_image
from ncsam.data.images.files import IMAGE_SUFFIXES, image_files
from ncsam.data.loading.sampling import BatchRequest, Draws
from ncsam.data.modalities.base import BatchTransform, Modality, Store, check_counts, check_numbers
from ncsam.data.modalities.features import read_arrays
from ncsam.data.types import DataSet, Inputs, LazyImages, PathList

if TYPE_CHECKING:
    from PIL.Image import Image

# Small batches are rendered several at a time: a call costs as much as some dozens of 32 x 32 images do.
_BLOCK_BYTES = 1 << 20
_PHOTOGRAPH = 128  # pixels; from here on a shorter side of 8/7 is cropped (256 to 224), as is usual for photographs
_LONGEST = 160  # pixels of a preview

Cropped = Iterator[tuple[BatchRequest, list[Tensor]]]  # one uint8 (B, C, H, W) per view, mirrored

#: Endings of files that are given by mistake to a run on images.
_TABLES_AND_TEXTS = frozenset((".csv", ".tsv", ".parquet", ".txt", ".tar"))


@dataclass(frozen=True)
class Images(Modality):
    """uint8 images of 1 or 3 channels, whose `mean` and `std` are in units of [0, 1]; `size` is what a model sees.

    Attributes:
        mean, std: One number, or one per channel.
        size: (height, width).
        channels: Of the stored images, or of `mean` for files.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: tuple[int, int]
    channels: int

    name: ClassVar[str] = "images"
    prepared: ClassVar[str] = (
        "images scaled to [0, 1], then (x - mean) / std for each channel; (batch, channels, height, width)"
    )
    augmentations: ClassVar[Mapping[str, str]] = {
        "none": "plain",
        "standard": "weak",
        "paper": "weak_cutout",
        "strong": "ncsam",
        "stronger": "ncsam_stronger",
    }

    def __post_init__(self) -> None:
        check_numbers(mean=self.mean, std=self.std)
        check_counts(size=self.size, channels=(self.channels,))
        if len(self.size) != 2:
            raise bad_value("size", self.size, "(height, width)")

    @classmethod
    def holds(cls, inputs: Inputs) -> bool:
        if isinstance(inputs, np.ndarray):
            return inputs.dtype == np.uint8 and inputs.ndim in (3, 4)
        if isinstance(inputs, (PathList, LazyImages)):
            return True
        return type(inputs) in (list, tuple) and len(inputs) > 0 and isinstance(inputs[0], (Path, np.ndarray))

    @classmethod
    def of(cls, dataset: DataSet) -> Images:
        if dataset.size is None:
            raise bad_value("size", None, f"the (height, width) that a model sees, for the images of {dataset.name}")
        inputs = dataset.train.inputs
        stored = inputs.shape[3] if isinstance(inputs, np.ndarray) and inputs.ndim == 4 else len(dataset.mean)
        return cls(dataset.mean, dataset.std, dataset.size, stored)

    @classmethod
    def open(cls, inputs: Any, device: torch.device) -> Store:
        return PixelStore(inputs, device) if isinstance(inputs, np.ndarray) else FileStore(inputs, device)

    def input_sizes(self) -> dict[str, int]:
        return {"in_features": self.channels * self.size[0] * self.size[1]}

    @property
    def in_channels(self) -> int:
        return self.channels

    def augmentation(self) -> str:
        return "standard" if self.channels == 3 and max(self.size) >= 24 else "none"

    def second_view(self, augment: str, named: str) -> str:
        """The one that is named, where the run augments at all; where it does not, because mirrored or cut they would
        be other images (digits, 8 x 8), they are shifted alone.

        Args:
            augment: The run's augmentation, a key of `augmentations`.
            named: The view that the method asks for.
        """
        return "shifted" if augment == "none" else named

    @classmethod
    def has_view(cls, view: str) -> bool:
        return view in VIEWS

    def preparation(self, inputs: Inputs) -> dict[str, Any]:
        photographs = min(self.size) >= _PHOTOGRAPH and not isinstance(inputs, np.ndarray)
        resize = round(max(self.size) * 8 / 7) if photographs else None
        return {"mean": self.mean, "std": self.std, "size": self.size, "resize": resize}

    def example(self, count: int = 2) -> Tensor:
        return torch.randn(count, self.channels, *self.size, generator=torch.Generator().manual_seed(0))

    def read(self, paths: Sequence[Path]) -> tuple[list[str], Inputs]:
        """Files, folders of them, or one .npz with an array x.

        Args:
            paths: A folder stands for all image files in it and below it.

        Returns:
            A name for each image, and the paths or the uint8 array (N, H, W, C).

        Raises:
            UsageError: A folder holds no image, or a path is no file, or a table or text.
        """
        if any(path.suffix == ".npz" for path in paths):
            names, images = read_arrays(paths)
            return names, images[..., None] if images.ndim == 3 else images
        found: list[Path] = []
        for path in paths:
            below = [path / name for name in image_files(path)] if path.is_dir() else [path]
            if not below:
                raise bad_value("inputs", str(path), f"a folder with images ({', '.join(IMAGE_SUFFIXES)})")
            found += below
        other = next((path for path in found if path.suffix.lower() in _TABLES_AND_TEXTS), None)
        if other is not None:
            raise bad_value("inputs", str(other), "image files, folders of them, or an .npz file with an array x")
        odd = next((path for path in found if not path.is_file()), None)
        if odd is not None:
            raise bad_value("inputs", str(odd), "a regular file")
        return [path_cell(path) for path in found], found

    def preview(self, inputs: Inputs, index: int) -> Image | None:
        """A small image; `None` for a damaged file.

        Args:
            inputs: `Split.inputs`.
            index: Position of the image.

        Returns:
            An image whose longer side has at most 160 pixels.
        """
        pil: Any = need("PIL.Image", "data", "showing images")
        item: Any = inputs[index]
        if isinstance(item, Path):
            try:
                with open_image(item) as file:
                    file.draft("RGB", (_LONGEST, _LONGEST))
                    small: Image = exif_transpose(file, "RGB")
            except (OSError, SyntaxError, ValueError):
                return None
        else:
            pixels = np.asarray(item)
            small = pil.fromarray(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[-1] == 1 else pixels)
        small.thumbnail((_LONGEST, _LONGEST))
        return small

    @classmethod
    def described(cls, inputs: Inputs) -> str:
        if isinstance(inputs, np.ndarray):
            return f"{inputs.dtype} {' x '.join(map(str, inputs.shape[1:]))}, in memory"
        return "image files" if isinstance(inputs, PathList) else "decoded on demand"


class ImageStore(Store):
    """What the two ways of storing images share: views by name."""

    kind = "images"
    usual_view = "weak"

    def resolve(self, views: Any) -> tuple[View, ...]:
        return resolve_views(views)


class PixelStore(ImageStore):
    """uint8 images of one size, kept as one NCHW tensor on the device and augmented there.

    Args:
        images: uint8 (N, H, W) or (N, H, W, C).
        device: Where they are kept.
    """

    def __init__(self, images: npt.NDArray[Any], device: torch.device) -> None:
        channels_at_end = images if images.ndim == 4 else images[..., None]
        pixels = np.require(channels_at_end.transpose(0, 3, 1, 2), requirements=["C", "W"])  # torch warns of others
        self.pixels = torch.from_numpy(pixels).to(device)

    def check(self, transform: BatchTransform) -> BatchTransform:
        _, channels, height, width = self.pixels.shape
        transform.check_normalization(channels, "channels")
        size = transform.size or (height, width)
        fits = size[0] <= height and size[1] <= width
        if not fits and any(view.crop != "resized" for view in transform.views):
            raise bad_value("size", size, f"at most {(height, width)}, the images' own")
        for view in transform.views:
            view.pad_by((height, width), size)
        return replace(transform, size=size)

    def render(self, requests: Iterable[BatchRequest], transform: BatchTransform) -> Iterator[tuple[Tensor, ...]]:
        assert transform.size is not None
        scale, shift = transform.normalizer(255, (-1, 1, 1), self.pixels.device)
        for block in _blocks(requests, max(1, _BLOCK_BYTES // self.pixels[0].numel())):
            index = torch.from_numpy(np.concatenate([request.index for request in block])).to(self.pixels.device)
            images = self.pixels.index_select(0, index)
            views = []
            for number, view in enumerate(transform.views):
                draws = np.concatenate([request.draws[number] for request in block])
                cropped = view.cropped(images, draws, transform.size)
                views.append(transform.delivered(view.finished(cropped, draws, scale, shift)))
            sizes = [len(request.index) for request in block]
            yield from zip(*(torch.split(rendered, sizes) for rendered in views), strict=True)


def _blocks(requests: Iterable[BatchRequest], images: int) -> Iterator[list[BatchRequest]]:
    """Join batches until they hold at least so many images."""
    block: list[BatchRequest] = []
    for request in requests:
        block.append(request)
        if sum(len(member.index) for member in block) >= images:
            yield block
            block = []
    if block:
        yield block


class FileStore(ImageStore):
    """Image files, or arrays made on demand: workers decode and crop, the device does the rest by whole batches.

    Files that may be kept in memory are decoded once; they are cropped here.

    Args:
        files: Paths, or uint8 arrays (H, W, C). `PathList.keep` says how many bytes may be kept once decoded.
        device: Where batches are normalized and arrive.
    """

    def __init__(self, files: Stored, device: torch.device) -> None:
        self.files = files
        self.device = device
        self.kept = DecodeCache(files.keep if isinstance(files, PathList) else 0)

    def check(self, transform: BatchTransform) -> BatchTransform:
        transform.check_normalization(len(transform.mean or transform.std or (0, 0, 0)), "channels")
        if transform.size is None:
            raise bad_value("size", None, "the (height, width) to crop image files to")
        longer = max(transform.size)
        if transform.resize is not None and transform.resize < longer:
            raise bad_value("resize", transform.resize, f"at least {longer}, the longer side of size={transform.size}")
        resize = transform.resize or longer
        for view in transform.views:
            view.pad_by(covered(transform.size, resize), transform.size)
        return replace(transform, resize=resize)

    def render(self, requests: Iterable[BatchRequest], transform: BatchTransform) -> Iterator[tuple[Tensor, ...]]:
        assert transform.size is not None
        assert transform.resize is not None
        colors = len(transform.mean or transform.std or (0, 0, 0))
        cover = covered(transform.size, transform.resize)
        # what a `resized` crop needs of a JPEG file depends on its draws, so that there is nothing to keep
        keep = self.kept.has_room(len(self.files) * cover[0] * cover[1] * colors) and not any(
            view.crop == "resized" for view in transform.views
        )
        files = ImageFiles(self.files, transform.views, transform.size, transform.resize, colors, uncut=keep)
        scale, shift = transform.normalizer(255, (-1, 1, 1), self.device)
        for request, cropped in (self._from_kept if keep else self._from_files)(requests, files, transform):
            yield tuple(
                transform.delivered(view.finished(images, draws, scale, shift))
                for view, images, draws in zip(transform.views, cropped, request.draws, strict=True)
            )

    def _from_files(self, requests: Iterable[BatchRequest], files: ImageFiles, transform: BatchTransform) -> Cropped:
        under_way: deque[BatchRequest] = deque()  # the workers are asked for later batches before this one is finished

        def decode_requests() -> Iterator[list[Request]]:
            for request in requests:
                under_way.append(request)
                yield [Request(int(i), rows) for i, rows in zip(request.index, _crops(request), strict=True)]

        for decoded in decoded_batches(files, decode_requests(), transform.workers, self.device.type == "cuda"):
            request = under_way.popleft()
            yield request, self._mirrored(decoded, request, transform)

    def _from_kept(self, requests: Iterable[BatchRequest], files: ImageFiles, transform: BatchTransform) -> Cropped:
        assert transform.size is not None
        for request, canvases in self.kept.batches(requests, files, transform.workers):
            if all(canvas.shape[:2] == files.cover for canvas in canvases):  # of one size: the whole batch at once
                images = torch.from_numpy(channels_first(canvases)).to(self.device)
                drawn = zip(transform.views, request.draws, strict=True)
                yield request, [view.cropped(images, draws, transform.size) for view, draws in drawn]
            else:
                windows = [files.windows(canvas, rows) for canvas, rows in zip(canvases, _crops(request), strict=True)]
                yield request, self._mirrored(torch.stack(windows), request, transform)

    def _mirrored(self, cropped: Tensor, request: BatchRequest, transform: BatchTransform) -> list[Tensor]:
        """One tensor per view from (B, views, C, H, W)."""
        images = cropped.to(self.device, non_blocking=cropped.is_pinned())
        return [
            view.mirrored(images[:, number], draws)
            for number, (view, draws) in enumerate(zip(transform.views, request.draws, strict=True))
        ]


def _crops(request: BatchRequest) -> Draws:
    """The numbers that place the crops, (B, views, 4)."""
    return np.stack([draws[:, CROP] for draws in request.draws], axis=1)
