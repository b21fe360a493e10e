"""Image files, decoded and cropped to one size, by worker processes if asked.

The workers draw nothing: each request carries the random numbers of its crops, so the number of workers cannot change
an image. A file that cannot be decoded comes back as a sentence that names it, and the loader raises that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ncsam._errors import DamagedFileError, need
from ncsam.data.augment.views import View, corners
from ncsam.data.images.exif import exif_transpose, is_upright, open_image
from ncsam.data.loading.sampling import Draws

if TYPE_CHECKING:
    from PIL import Image

Pixels = npt.NDArray[np.uint8]
Stored = Sequence[Path] | Sequence[Pixels]


@dataclass(frozen=True)
class Request:
    """One sample to decode, with the four numbers that place the crop of each view.

    Attributes:
        index: Position of the sample in the split.
        crops: Uniform numbers (views, 4).
    """

    index: int
    crops: Draws


class ImageFiles(Dataset[Any]):
    """Decode a file, or ask for an array made on demand, and cut one uint8 image per view out of it.

    For `"center"` and `"window"` crops the image is first scaled to cover `covered(size, resize)` and no more.
    `colors` is 3 for RGB and 1 for gray. A photograph's own note of which way is up (EXIF) is followed. With `uncut`
    it is the scaled image itself, (height, width, channels), from which `windows` cuts the views later.

    Args:
        images: Paths, or uint8 arrays (H, W) or (H, W, C).
        views: Recipes; only their crops are done here.
        size: (height, width) of a crop.
        resize: Length to which the longer side of `size` is brought before windows are cut; see `covered`.
        colors: 3 or 1.
        uncut: Return scaled images instead of crops.
    """

    def __init__(
        self,
        images: Stored,
        views: tuple[View, ...],
        size: tuple[int, int],
        resize: int,
        colors: int,
        uncut: bool = False,
    ) -> None:
        need("PIL.Image", "data", "decoding image files")
        self.images = images
        self.views = views
        self.size = size
        self.cover = covered(size, resize)
        self.mode = "L" if colors == 1 else "RGB"
        self.uncut = uncut

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, request: Request) -> Tensor | Pixels | str:
        name = f"sample {request.index}"
        try:
            stored = self.images[request.index]
            if isinstance(stored, np.ndarray):
                image = _from_array(stored).convert(self.mode)
            else:
                name = f"{stored} ({name})"
                image = self._decode(stored, request.crops)
            return self._canvas(image) if self.uncut else torch.from_numpy(self._cropped(image, request.crops))
        except FileNotFoundError:
            return f"{name} is not there"
        except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, ValueError, struct.error and more
            return f"{name} cannot be decoded as an image: {error}"

    def _decode(self, path: Path, crops: Draws) -> Image.Image:
        with open_image(path) as file:
            if is_upright(file):
                share = self._share_needed((file.height, file.width), crops)
                # JPEG files can be decoded at 1/2, 1/4 or 1/8 of their size, which is faster; others ignore this.
                file.draft(self.mode, (math.ceil(file.width * share), math.ceil(file.height * share)))
            return exif_transpose(file, self.mode)

    def _cropped(self, image: Image.Image, crops: Draws) -> Pixels:
        canvas: Pixels | None = None
        cropped = []
        for view, draws in zip(self.views, crops, strict=True):
            if view.crop == "resized":
                cropped.append(self._resized(image, view, draws))
            else:
                canvas = self._canvas(image) if canvas is None else canvas
                cropped.append(self._window(canvas, view, draws))
        return channels_first(cropped)

    def windows(self, canvas: Pixels, crops: Draws) -> Tensor:
        """The views of an image that came uncut.

        Args:
            canvas: uint8 (H, W) or (H, W, C), as `uncut` returns it.
            crops: Uniform numbers (views, 4).

        Returns:
            uint8 (views, C, height, width).
        """
        return torch.from_numpy(
            channels_first([self._window(canvas, view, draws) for view, draws in zip(self.views, crops, strict=True)])
        )

    def _share_needed(self, shape: tuple[int, int], crops: Draws) -> float:
        """The smallest scale of the file, at most 1, that no view has to enlarge."""
        shares = [0.0]
        for view, draws in zip(self.views, crops, strict=True):
            if view.crop == "resized":
                _, _, height, width = view.boxes(draws[None], shape)[0]
                shares.append(max(self.size[0] / height, self.size[1] / width))
            else:
                shares.append(max(self.cover[0] / shape[0], self.cover[1] / shape[1]))
        return min(1.0, max(shares))

    def _canvas(self, image: Image.Image) -> Pixels:
        from PIL import Image

        scale = max(self.cover[0] / image.height, self.cover[1] / image.width)
        height = max(self.cover[0], round(image.height * scale))
        width = max(self.cover[1], round(image.width * scale))
        return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))

    def _window(self, canvas: Pixels, view: View, draws: Draws) -> Pixels:
        if view.crop == "center":
            top, left = ((have - want) // 2 for have, want in zip(canvas.shape[:2], self.size, strict=True))
        else:
            # Padded alike whatever the longer side, so that files of all shapes get one treatment.
            rows, columns = view.pad_by(self.cover, self.size)
            edges = ((rows, rows), (columns, columns), (0, 0))[: canvas.ndim]
            canvas = np.pad(canvas, edges, mode="reflect" if view.padding_mode == "reflect" else "constant")
            tops, lefts = corners(draws[None], (canvas.shape[0], canvas.shape[1]), self.size)
            top, left = int(tops[0]), int(lefts[0])
        return canvas[top : top + self.size[0], left : left + self.size[1]]

    def _resized(self, image: Image.Image, view: View, draws: Draws) -> Pixels:
        from PIL import Image

        top, left, height, width = view.boxes(draws[None], (image.height, image.width))[0]
        box = (left, top, min(left + width, image.width), min(top + height, image.height))
        return np.asarray(image.resize(self.size[::-1], Image.Resampling.BILINEAR, box=box))


def covered(size: tuple[int, int], resize: int) -> tuple[int, int]:
    """`size` in proportion, its longer side brought to `resize`: what is left of a file before a window is cut.

    Args:
        size: (height, width) of the windows.
        resize: Length of the longer side, in pixels.
    """
    scale = resize / max(size)
    return round(size[0] * scale), round(size[1] * scale)


def channels_first(images: Sequence[Pixels]) -> Pixels:
    """Images of one size as one (N, C, H, W) array.

    Args:
        images: uint8 (H, W) or (H, W, C) each.
    """
    stacked = np.stack(images)
    count, height, width = stacked.shape[:3]
    planes = stacked if stacked.ndim == 3 else np.ascontiguousarray(stacked.transpose(0, 3, 1, 2))
    return planes.reshape(count, -1, height, width)


def _from_array(pixels: Pixels) -> Image.Image:
    from PIL import Image

    return Image.fromarray(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels)


def decoded_batches(
    files: ImageFiles, requests: Iterable[list[Request]], workers: int, pin_memory: bool
) -> Iterator[Any]:
    """Decode each list of requests, in order: to (B, views, C, H, W) uint8, or to a list of uncut images.

    Args:
        files: What decodes; its `uncut` decides the form of the result.
        requests: The samples of each batch.
        workers: Processes; 0 decodes in this one.
        pin_memory: Whether batches are put into pinned memory, for a faster copy to a GPU.

    Raises:
        DamagedFileError: A sample cannot be decoded.
    """
    batches = DataLoader(
        files,
        batch_sampler=requests,
        num_workers=workers,
        collate_fn=_together if files.uncut else _stack,
        pin_memory=pin_memory,
        generator=torch.Generator(),  # else the DataLoader takes its base seed from the global generator
    )
    for batch in batches:
        if isinstance(batch, str):
            raise DamagedFileError(batch)
        yield batch


def _together(samples: list[Any]) -> list[Any] | str:
    """The samples, or the first complaint."""
    return next((sample for sample in samples if isinstance(sample, str)), samples)


def _stack(samples: list[Tensor | str]) -> Tensor | str:
    """One tensor, or the first complaint."""
    images = _together(samples)
    return images if isinstance(images, str) else torch.stack(images)
