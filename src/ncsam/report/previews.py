"""Suspicious samples as pictures or texts, read again from the run's dataset, small enough to lie inside a page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from ncsam._named import is_reference
from ncsam.data import DataSet, load
from ncsam.data.stores import kind_of
from ncsam.engine.runs import Run, Suspect, class_name
from ncsam.engine.suspect_table import trust_sentence
from ncsam.engine.task import reader_options

if TYPE_CHECKING:
    from PIL.Image import Image

#: Up to this longest side, in pixels, the pixels of a picture are shown as squares.
TINY = 64


@dataclass(frozen=True)
class Gallery:
    """The most suspicious samples of a run. `pictures` are data URIs and `texts` words; `None` where there is none.

    `missing` says why there is nothing to show at all, `classes` are the class names where the dataset could be read,
    `trust` is how many of the first 100 are probably wrong, or why that cannot be known.
    """

    label: str
    run: Run
    suspects: Sequence[Suspect]
    pictures: Sequence[str | None]
    texts: Sequence[str | None]
    tiny: bool
    classes: Sequence[str] | None
    missing: str | None
    trust: str = ""

    @property
    def really_wrong(self) -> int | None:
        """How many of the samples shown are mislabelled; `None` where the clean labels are not known."""
        if any(suspect.clean is None for suspect in self.suspects):
            return None
        return sum(suspect.clean != suspect.observed for suspect in self.suspects)

    def name(self, label: int) -> str:
        return class_name(self.classes, label)


def gallery(run: Run, label: str, count: int) -> Gallery:
    """The first `count` suspects of a run, with what there is to show. Data that cannot be read is said, not raised."""
    suspects = run.suspects(count)
    if not suspects:
        return Gallery(label, run, [], [], [], False, None, None)
    trust = trust_sentence(run.suspect_rows(100), run.trust, "the first")
    try:
        dataset = dataset_of(run)
    except (OSError, ValueError, ImportError) as error:
        missing = f"The samples are not shown: the dataset could not be read again ({error})"
        none = [None] * len(suspects)
        return Gallery(label, run, suspects, none, none, False, run.classes, missing, trust)
    kind, inputs = kind_of(dataset), dataset.train.inputs
    found = [kind.preview(inputs, s.index) if 0 <= s.index < len(inputs) else None for s in suspects]
    texts = [preview if isinstance(preview, str) else None for preview in found]
    pictures = [None if isinstance(preview, str) else preview for preview in found]
    shown = [picture for picture in pictures if picture is not None]
    nothing = None if shown or any(texts) else f"The samples of {dataset.name} are {kind.name}, which are not shown."
    tiny = bool(shown) and max(max(picture.size) for picture in shown) <= TINY
    uris = [None if picture is None else data_uri(picture) for picture in pictures]
    return Gallery(label, run, suspects, uris, texts, tiny, dataset.classes, nothing, trust)


def dataset_of(run: Run) -> DataSet:
    """The run's dataset as it lies on disk now; nothing is downloaded."""
    config = run.config
    if is_reference(config.get("data")):
        raise ValueError(f"{config['data']!r} is code, which no report runs")
    return _load(str(config.get("data")), config.get("data_root"), repr(reader_options(config)))


@lru_cache(maxsize=4)
def _load(source: str, root: str | None, options: str) -> DataSet:
    import ast

    return load(source, root, **ast.literal_eval(options))


def data_uri(image: Image) -> str:
    """PNG for small pictures, which it keeps exactly; JPEG for photographs, which it keeps short."""
    kind = "png" if max(image.size) <= TINY else "jpeg"
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **({"quality": 82} if kind == "jpeg" else {"optimize": True}))
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
