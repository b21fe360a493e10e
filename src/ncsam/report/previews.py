"""The samples of label issues as images or texts, read again from the run's data, small enough for a page."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ncsam._named import is_reference
from ncsam.data import DataSet, load
from ncsam.data.modalities import modality_of
from ncsam.engine.task import reader_options, task_of
from ncsam.errors import RunError
from ncsam.runs import layout
from ncsam.runs.reader import RunFolder

if TYPE_CHECKING:
    from PIL.Image import Image

#: Up to this longest side, in pixels, the pixels of an image are shown as squares.
TINY = 64
_CHECKED = 100  # labels whose expectation is stated


@dataclass(frozen=True)
class Tile:
    """One label issue as the report shows it: its row of the table, and an image (a data URI) or a text, if any."""

    row: dict[str, Any]
    image: str | None = None
    text: str | None = None

    @property
    def mislabeled(self) -> bool | None:
        """Whether the label is really wrong; `None` where the clean label is not known."""
        clean = self.row.get("clean_label")
        return None if clean is None else bool(clean != self.row["given_label"])


@dataclass(frozen=True)
class Gallery:
    """The labels of a run that are most likely wrong.

    Attributes:
        label: the group that the run belongs to.
        run: the run folder.
        tiles: the labels shown.
        tiny: whether the images are so small that their pixels are shown as squares.
        classes: the class names, where they are known.
        missing: why no samples are shown; `None` where they are.
        expected: how many of the first 100 labels are probably wrong, or why that cannot be estimated.
    """

    label: str
    run: RunFolder
    tiles: Sequence[Tile]
    tiny: bool = False
    classes: Sequence[str] | None = None
    missing: str | None = None
    expected: str = ""

    @property
    def really_wrong(self) -> int | None:
        """How many of the labels shown are wrong; `None` where the clean labels are not known."""
        known = [tile.mislabeled for tile in self.tiles]
        return None if None in known else sum(map(bool, known))


def gallery(run: RunFolder, label: str, count: int) -> Gallery:
    """The first `count` label issues of a run, with their samples. Unreadable data is reported, not raised."""
    if not (run.folder / layout.LABEL_ISSUES).is_file():
        return Gallery(label, run, [])
    issues = run.label_issues(max(count, _CHECKED))
    expected = issues.head(_CHECKED).expectation("the first")
    try:
        dataset = dataset_of(run)
    except (OSError, ValueError, ImportError, RunError) as error:
        missing = f"The samples are not shown: {error}"
        tiles = [Tile(row) for row in issues.head(count).rows()]
        return Gallery(label, run, tiles, False, run.classes, missing, expected)
    if issues.classes is None:
        issues.classes = list(dataset.classes)
    kind, inputs = modality_of(dataset), dataset.train.inputs
    rows = list(issues.head(count).rows())
    found = [kind.preview(inputs, row["index"]) if row["index"] < len(inputs) else None for row in rows]
    shown = [preview for preview in found if preview is not None and not isinstance(preview, str)]
    nothing = None if any(found) else f"The samples of {dataset.name} are {kind.name}, which are not shown."
    tiles = [
        Tile(row, text=preview) if preview is None or isinstance(preview, str) else Tile(row, image=data_uri(preview))
        for row, preview in zip(rows, found, strict=True)
    ]
    tiny = bool(shown) and max(max(image.size) for image in shown) <= TINY
    return Gallery(label, run, tiles, tiny, issues.classes, nothing, expected)


def dataset_of(run: RunFolder) -> DataSet:
    """The dataset of a run as its user has it, read again, if its labels are still those that the run was trained on.

    Nothing is downloaded and no user code is run.

    Raises:
        RunError: if the labels differ, so that the samples would not be those of the run.
    """
    config = run.config
    if is_reference(config.get("data")):
        raise RunError(f"the data is made by code ({config['data']!r}), which a report does not run")
    task = task_of(run.folder, _read(run))
    labels, then = task.dataset.train.labels, run.labels_sha256
    if then is not None:
        same = then == task.labels_sha256
    else:  # a folder without its checkpoint
        issues = run.label_issues()
        index, given = issues.numbers("index"), issues.numbers("given_label")
        same = bool((index < len(labels)).all()) and np.array_equal(labels[index], given)
    if not same:
        raise RunError(f"the labels of {config.get('data')} are not those the run was trained on")
    return task.original


def _read(run: RunFolder) -> DataSet | None:
    """The data of a run without its label noise; runs on the same data share it."""
    if (run.folder / layout.DATA).is_file():
        return None  # a copy in the run folder, which `task_of` reads
    config = run.config
    options = json.dumps(reader_options(config), sort_keys=True, default=repr)
    return _load(str(config.get("data")), config.get("data_root"), options)


@lru_cache(maxsize=4)
def _load(source: str, root: str | None, options: str) -> DataSet:
    return load(source, root, **json.loads(options))


def data_uri(image: Image) -> str:
    """PNG for small images, which it keeps exactly; JPEG for photographs, which it keeps short."""
    kind = "png" if max(image.size) <= TINY else "jpeg"
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **({"quality": 82} if kind == "jpeg" else {"optimize": True}))
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
