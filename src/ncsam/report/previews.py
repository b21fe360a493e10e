"""Suspicious samples as images or texts, read again from the run's dataset, small enough to lie inside a page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from ncsam._named import is_reference
from ncsam.data import DataSet, load
from ncsam.data.modalities import modality_of
from ncsam.engine.task import reader_options
from ncsam.issues.table import trust_sentence
from ncsam.runs.reader import LabelIssue, Run, class_name

if TYPE_CHECKING:
    from PIL.Image import Image

#: Up to this longest side, in pixels, the pixels of an image are shown as squares.
TINY = 64


@dataclass(frozen=True)
class Gallery:
    """The most suspicious samples of a run. `images` are data URIs and `texts` words; `None` where there is none.

    `missing` says why there is nothing to show at all, `classes` are the class names where the dataset could be read,
    `trust` is how many of the first 100 are probably wrong, or why that cannot be known.
    """

    label: str
    run: Run
    label_issues: Sequence[LabelIssue]
    images: Sequence[str | None]
    texts: Sequence[str | None]
    tiny: bool
    classes: Sequence[str] | None
    missing: str | None
    trust: str = ""

    @property
    def really_wrong(self) -> int | None:
        """How many of the samples shown are mislabeled; `None` where the clean labels are not known."""
        if any(label_issue.clean is None for label_issue in self.label_issues):
            return None
        return sum(label_issue.clean != label_issue.observed for label_issue in self.label_issues)

    def name(self, label: int) -> str:
        return class_name(self.classes, label)


def gallery(run: Run, label: str, count: int) -> Gallery:
    """The first `count` label issues of a run, with what there is to show. Unreadable data is reported, not raised."""
    label_issues = run.label_issues(count)
    if not label_issues:
        return Gallery(label, run, [], [], [], False, None, None)
    trust = trust_sentence(run.issue_rows(100), run.trust, "the first")
    try:
        dataset = dataset_of(run)
    except (OSError, ValueError, ImportError) as error:
        missing = f"The samples are not shown: the dataset could not be read again ({error})"
        none = [None] * len(label_issues)
        return Gallery(label, run, label_issues, none, none, False, run.classes, missing, trust)
    kind, inputs = modality_of(dataset), dataset.train.inputs
    found = [kind.preview(inputs, s.index) if 0 <= s.index < len(inputs) else None for s in label_issues]
    texts = [preview if isinstance(preview, str) else None for preview in found]
    images = [None if isinstance(preview, str) else preview for preview in found]
    shown = [image for image in images if image is not None]
    nothing = None if shown or any(texts) else f"The samples of {dataset.name} are {kind.name}, which are not shown."
    tiny = bool(shown) and max(max(image.size) for image in shown) <= TINY
    uris = [None if image is None else data_uri(image) for image in images]
    return Gallery(label, run, label_issues, uris, texts, tiny, dataset.classes, nothing, trust)


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
    """PNG for small images, which it keeps exactly; JPEG for photographs, which it keeps short."""
    kind = "png" if max(image.size) <= TINY else "jpeg"
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **({"quality": 82} if kind == "jpeg" else {"optimize": True}))
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
