"""Small folders are decoded once: what a loader may keep of image files, and where it keeps it.

DecodeCache are the images as `ImageFiles` scales them, before any window is cut. Everything random comes after that, so
kept and freshly read files give the same bits. Worker processes only read; what is kept lies in the loader's process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

import numpy as np

from ncsam.data.images.decode import ImageFiles, Pixels, Request, decoded_batches
from ncsam.data.loading.sampling import BatchRequest
from ncsam.data.types import DataSet, PathList, Split

#: Bytes for all splits of a dataset together: about what a process that trains takes anyway. It holds 350,000
#: images of 32 x 32 pixels, 87,000 of 64 x 64, 5,400 photographs whose shorter side is brought to 256.
BUDGET = 1 << 30


def enable_cache(dataset: DataSet) -> DataSet:
    """The same dataset, whose loaders may keep what they decode: each split has its part of the budget.

    Args:
        dataset: Splits that are not lists of files are left as they are.
    """
    total = sum(len(split) for split in dataset.splits.values())

    def allowed(split: Split | None) -> Split | None:
        if split is None or not isinstance(split.inputs, PathList):
            return split
        files = split.inputs
        return replace(split, inputs=PathList(files.root, files.names, keep=BUDGET * len(split) // total))

    train = allowed(dataset.train)
    assert train is not None
    return replace(dataset, train=train, test=allowed(dataset.test), val=allowed(dataset.val))


class DecodeCache:
    """Scaled images by their position in the split, up to `budget` bytes.

    Args:
        budget: Bytes; 0 keeps nothing.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._used = 0
        self._images: dict[tuple[tuple[int, int], str], dict[int, Pixels]] = {}  # by the size they cover, and mode

    def has_room(self, expected: int) -> bool:
        """Whether so many bytes are allowed. A part of a large folder would save little, so none of it is kept.

        Args:
            expected: Bytes of all scaled images of the split.
        """
        return 0 < expected <= self.budget

    def batches(
        self, requests: Iterable[BatchRequest], files: ImageFiles, workers: int
    ) -> Iterator[tuple[BatchRequest, list[Pixels]]]:
        """Each batch with its uncut images, in order. Workers start at the first file that has to be read.

        Args:
            requests: The batches wanted.
            files: Decodes what is not kept yet; made with `uncut=True`.
            workers: Processes that decode; 0 decodes in this one.
        """
        images = self._images.setdefault((files.cover, files.mode), {})
        requests = iter(requests)
        for request in requests:
            if all(i in images for i in request.index.tolist()):
                yield request, [images[i] for i in request.index.tolist()]
            else:
                yield from self._read(chain([request], requests), files, workers, images)

    def _read(
        self, requests: Iterable[BatchRequest], files: ImageFiles, workers: int, images: dict[int, Pixels]
    ) -> Iterator[tuple[BatchRequest, list[Pixels]]]:
        under_way: deque[tuple[BatchRequest, list[int]]] = deque()
        no_crops = np.empty((len(files.views), 0), dtype=np.float32)

        def decode_requests() -> Iterator[list[Request]]:
            for request in requests:
                missing = [i for i in request.index.tolist() if i not in images]
                under_way.append((request, missing))
                yield [Request(i, no_crops) for i in missing]

        for read in decoded_batches(files, decode_requests(), workers, pin_memory=False):
            request, missing = under_way.popleft()
            new = dict(zip(missing, read, strict=True))
            for i, image in new.items():
                # photographs are longer than the square they cover, so that the last ones may find no room
                if i not in images and self._used + image.nbytes <= self.budget:
                    images[i] = image
                    self._used += image.nbytes
            yield request, [new[i] if i in new else images[i] for i in request.index.tolist()]
