"""From stored samples to the tensors a network sees: one class for each way samples are stored.

Each has `check`, which settles and verifies the options once, and `render`, which turns work items into views, lazily
and in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ncsam._errors import bad_value
from ncsam.data.decode import PictureFiles, Request, Stored, channels_first, covered, decoded_batches
from ncsam.data.kept import Kept
from ncsam.data.sampling import Draws, Work
from ncsam.data.types import Inputs, PathList
from ncsam.data.views import CROP, View

# Small batches are rendered several at a time: a call costs as much as some dozens of 32 x 32 pictures do.
_BLOCK_BYTES = 1 << 20

Cropped = Iterator[tuple[Work, list[Tensor]]]  # one uint8 (B, C, H, W) per view, mirrored


@dataclass(frozen=True)
class Look:
    """How samples are to look; the options of `Loader` under the same names."""

    views: tuple[View, ...]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    size: tuple[int, int] | None
    resize: int | None
    dtype: torch.dtype
    channels_last: bool
    workers: int

    def normaliser(self, unit: float, shape: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
        """Scale and shift with `x * scale + shift = (x / unit - mean) / std`."""
        std = np.asarray(self.std or (1.0,), dtype=np.float64)
        shift = -np.asarray(self.mean or (0.0,), dtype=np.float64) / std
        scale, shift = np.broadcast_arrays(1 / (unit * std), shift)
        return tuple(  # type: ignore[return-value]
            torch.from_numpy(values.astype(np.float32)).reshape(shape).to(device) for values in (scale, shift)
        )

    def delivered(self, result: Tensor) -> Tensor:
        """In the type and memory order that were asked for."""
        if self.channels_last and result.ndim == 4:
            return result.to(self.dtype, memory_format=torch.channels_last)
        return result.to(self.dtype)


class Store(Protocol):
    """Stored samples."""

    def check(self, look: Look) -> Look: ...

    def render(self, works: Iterable[Work], look: Look) -> Iterator[tuple[Tensor, ...]]: ...


def open_store(inputs: Inputs, device: torch.device) -> Store:
    """Whatever `Split.inputs` holds, ready to be rendered."""
    if not isinstance(inputs, np.ndarray):
        return Files(inputs, device)
    if inputs.dtype == np.uint8 and inputs.ndim in (3, 4):
        return Pictures(inputs, device)
    if np.issubdtype(inputs.dtype, np.floating) and inputs.ndim >= 2:
        return Features(inputs, device)
    raise bad_value(
        "split.inputs",
        f"{inputs.dtype} array of shape {inputs.shape}",
        "uint8 (N, H, W, C) pictures, float (N, ...) features, or a list of paths",
    )


class Pictures:
    """uint8 pictures of one size, kept as one NCHW tensor on the device and augmented there."""

    def __init__(self, images: npt.NDArray[Any], device: torch.device) -> None:
        channels_at_end = images if images.ndim == 4 else images[..., None]
        self.pixels = torch.from_numpy(np.ascontiguousarray(channels_at_end.transpose(0, 3, 1, 2))).to(device)

    def check(self, look: Look) -> Look:
        _, channels, height, width = self.pixels.shape
        _check_lengths(look, channels, "channels")
        size = look.size or (height, width)
        fits = size[0] <= height and size[1] <= width
        if not fits and any(view.crop != "resized" for view in look.views):
            raise bad_value("size", size, f"at most {(height, width)}, the pictures' own")
        for view in look.views:
            view.pad_by((height, width), size)
        return replace(look, size=size)

    def render(self, works: Iterable[Work], look: Look) -> Iterator[tuple[Tensor, ...]]:
        assert look.size is not None
        scale, shift = look.normaliser(255, (-1, 1, 1), self.pixels.device)
        for block in _blocks(works, max(1, _BLOCK_BYTES // self.pixels[0].numel())):
            index = torch.from_numpy(np.concatenate([work.index for work in block])).to(self.pixels.device)
            pictures = self.pixels.index_select(0, index)
            views = []
            for number, view in enumerate(look.views):
                draws = np.concatenate([work.draws[number] for work in block])
                cropped = view.cropped(pictures, draws, look.size)
                views.append(look.delivered(view.finished(cropped, draws, scale, shift)))
            sizes = [len(work.index) for work in block]
            yield from zip(*(torch.split(rendered, sizes) for rendered in views), strict=True)


def _blocks(works: Iterable[Work], pictures: int) -> Iterator[list[Work]]:
    """Join batches until they hold at least so many pictures."""
    block: list[Work] = []
    for work in works:
        block.append(work)
        if sum(len(member.index) for member in block) >= pictures:
            yield block
            block = []
    if block:
        yield block


class Features:
    """Float features, normalised along the last axis and otherwise left alone: all views are alike."""

    def __init__(self, images: npt.NDArray[Any], device: torch.device) -> None:
        self.values = torch.from_numpy(np.ascontiguousarray(images, dtype=np.float32)).to(device)

    def check(self, look: Look) -> Look:
        _check_lengths(look, self.values.shape[-1], "features along the last axis")
        return look

    def render(self, works: Iterable[Work], look: Look) -> Iterator[tuple[Tensor, ...]]:
        scale, shift = look.normaliser(1, (-1,), self.values.device)
        for work in works:
            index = torch.from_numpy(work.index).to(self.values.device)
            values = self.values.index_select(0, index).mul_(scale).add_(shift)
            yield tuple(look.delivered(values.clone()) for _ in look.views)


class Files:
    """Picture files, or arrays made on demand: workers decode and crop, the device does the rest by whole batches.

    Files that may be kept in memory are decoded once; they are cropped here.
    """

    def __init__(self, images: Stored, device: torch.device) -> None:
        self.images = images
        self.device = device
        self.kept = Kept(images.keep if isinstance(images, PathList) else 0)

    def check(self, look: Look) -> Look:
        _check_lengths(look, len(look.mean or look.std or (0, 0, 0)), "channels")
        if look.size is None:
            raise bad_value("size", None, "picture files have many sizes: give the (height, width) to crop them to")
        longer = max(look.size)
        if look.resize is not None and look.resize < longer:
            raise bad_value("resize", look.resize, f"at least {longer}, the longer side of size={look.size}")
        resize = look.resize or longer
        for view in look.views:
            view.pad_by(covered(look.size, resize), look.size)
        return replace(look, resize=resize)

    def render(self, works: Iterable[Work], look: Look) -> Iterator[tuple[Tensor, ...]]:
        assert look.size is not None
        assert look.resize is not None
        colours = len(look.mean or look.std or (0, 0, 0))
        cover = covered(look.size, look.resize)
        # what a `resized` crop needs of a JPEG file depends on its draws, so that there is nothing to keep
        keep = self.kept.has_room(len(self.images) * cover[0] * cover[1] * colours) and not any(
            view.crop == "resized" for view in look.views
        )
        files = PictureFiles(self.images, look.views, look.size, look.resize, colours, uncut=keep)
        scale, shift = look.normaliser(255, (-1, 1, 1), self.device)
        for work, cropped in (self._from_kept if keep else self._from_files)(works, files, look):
            yield tuple(
                look.delivered(view.finished(pictures, draws, scale, shift))
                for view, pictures, draws in zip(look.views, cropped, work.draws, strict=True)
            )

    def _from_files(self, works: Iterable[Work], files: PictureFiles, look: Look) -> Cropped:
        under_way: deque[Work] = deque()  # the workers are asked for later batches before this one is finished

        def requests() -> Iterator[list[Request]]:
            for work in works:
                under_way.append(work)
                yield [Request(int(i), rows) for i, rows in zip(work.index, _crops(work), strict=True)]

        for decoded in decoded_batches(files, requests(), look.workers, self.device.type == "cuda"):
            work = under_way.popleft()
            yield work, self._mirrored(decoded, work, look)

    def _from_kept(self, works: Iterable[Work], files: PictureFiles, look: Look) -> Cropped:
        assert look.size is not None
        for work, canvases in self.kept.batches(works, files, look.workers):
            if all(canvas.shape[:2] == files.cover for canvas in canvases):  # of one size: the whole batch at once
                pictures = torch.from_numpy(channels_first(canvases)).to(self.device)
                drawn = zip(look.views, work.draws, strict=True)
                yield work, [view.cropped(pictures, draws, look.size) for view, draws in drawn]
            else:
                windows = [files.windows(canvas, rows) for canvas, rows in zip(canvases, _crops(work), strict=True)]
                yield work, self._mirrored(torch.stack(windows), work, look)

    def _mirrored(self, cropped: Tensor, work: Work, look: Look) -> list[Tensor]:
        """One tensor per view from (B, views, C, H, W)."""
        pictures = cropped.to(self.device, non_blocking=cropped.is_pinned())
        return [
            view.mirrored(pictures[:, number], draws)
            for number, (view, draws) in enumerate(zip(look.views, work.draws, strict=True))
        ]


def _crops(work: Work) -> Draws:
    """The numbers that place the crops, (B, views, 4)."""
    return np.stack([draws[:, CROP] for draws in work.draws], axis=1)


def _check_lengths(look: Look, channels: int, what: str) -> None:
    """Mean and std are one number for all channels, or one for each."""
    for name, values in (("mean", look.mean), ("std", look.std)):
        if values is not None and len(values) not in (1, channels):
            raise bad_value(name, values, f"one number, or one for each of the {channels} {what}")
    if look.std is not None and not all(value > 0 for value in look.std):
        raise bad_value("std", look.std, "numbers above 0")
