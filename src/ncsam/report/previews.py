"""The pictures of suspicious samples, read again from the run's data set, small enough to lie inside a page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ncsam._errors import need
from ncsam.data import DataSet, load
from ncsam.data.upright import upright
from ncsam.engine.runs import Run, Suspect, class_name

if TYPE_CHECKING:
    from PIL.Image import Image

#: Longest side of a picture inside the page, in pixels; and up to which side pixels are shown as squares.
LONGEST, TINY = 160, 64


@dataclass(frozen=True)
class Gallery:
    """The most suspicious samples of a run. `pictures` are data URIs, `None` where a sample has none to show.

    `missing` says why there are no pictures at all, `classes` are the class names where the data set could be read.
    """

    label: str
    run: Run
    suspects: Sequence[Suspect]
    pictures: Sequence[str | None]
    tiny: bool
    classes: Sequence[str] | None
    missing: str | None

    @property
    def really_wrong(self) -> int | None:
        """How many of the samples shown are mislabelled; `None` where the clean labels are not known."""
        if any(suspect.clean is None for suspect in self.suspects):
            return None
        return sum(suspect.clean != suspect.observed for suspect in self.suspects)

    def name(self, label: int) -> str:
        return class_name(self.classes, label)


def gallery(run: Run, label: str, count: int) -> Gallery:
    """The first `count` suspects of a run with their pictures. Data that cannot be read is said, not raised."""
    suspects = run.suspects(count)
    if not suspects:
        return Gallery(label, run, [], [], False, None, None)
    try:
        dataset = dataset_of(run)
    except (OSError, ValueError, ImportError) as error:
        missing = f"The pictures are left out: the data set could not be read again ({error})"
        return Gallery(label, run, suspects, [None] * len(suspects), False, run.classes, missing)
    pictures = [picture(dataset, suspect) for suspect in suspects]
    shown = [p for p in pictures if p is not None]
    nothing = None if shown else f"The samples of {dataset.name} are not pictures, so none are shown."
    tiny = bool(shown) and max(max(p.size) for p in shown) <= TINY
    uris = [None if p is None else data_uri(p) for p in pictures]
    return Gallery(label, run, suspects, uris, tiny, dataset.classes, nothing)


def dataset_of(run: Run) -> DataSet:
    """The run's data set as it lies on disk now; nothing is downloaded."""
    config = run.config
    return _load(str(config.get("data")), config.get("data_root"), repr(config.get("data_options") or {}))


@lru_cache(maxsize=4)
def _load(source: str, root: str | None, options: str) -> DataSet:
    import ast

    return load(source, root, **ast.literal_eval(options))


def picture(dataset: DataSet, suspect: Suspect) -> Image | None:
    """The sample as a small picture; `None` for features, damaged files, and indices the data set does not have."""
    images = dataset.train.inputs
    if not 0 <= suspect.index < len(images):
        return None
    pil: Any = need("PIL.Image", "data", "showing pictures")
    item: Any = images[suspect.index]
    if isinstance(item, Path):
        try:
            with pil.open(item) as file:
                file.draft("RGB", (LONGEST, LONGEST))
                small: Image = upright(file, "RGB")
        except (OSError, SyntaxError, ValueError):
            return None
    else:
        pixels = np.asarray(item)
        if pixels.dtype != np.uint8:
            return None
        small = pil.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    small.thumbnail((LONGEST, LONGEST))
    return small


def data_uri(image: Image) -> str:
    """PNG for small pictures, which it keeps exactly; JPEG for photographs, which it keeps short."""
    kind = "png" if max(image.size) <= TINY else "jpeg"
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **({"quality": 82} if kind == "jpeg" else {"optimize": True}))
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
