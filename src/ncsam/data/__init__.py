"""Datasets on disk and in memory: `as_dataset(anything)` and `load(name or path)` give a `DataSet`.

Every reader keeps the observed labels and, where they are known, the clean ones apart; only the observed ones reach
training. `names()` lists the datasets that `load` knows, `describe` prints one on a screen. `Loader` makes batches of
a split: augmented views, observed labels, and the samples' indices.
"""

# Importing a reader's module registers it.
from ncsam.data.augment.views import View
from ncsam.data.describe import describe
from ncsam.data.images.files import BadImage, check_images, into_memory
from ncsam.data.loading.loader import Batch, Loader
from ncsam.data.modalities import Modality, Store, modalities, modality_of
from ncsam.data.readers import (  # noqa: F401
    animal10n,
    cifar,
    cifar_human,
    clothing1m,
    digits,
    food,
    idx,
    reduced,
    tiny_imagenet,
)
from ncsam.data.readers.arrays import from_arrays, from_npz
from ncsam.data.readers.folder import from_folder
from ncsam.data.readers.shards import from_shards
from ncsam.data.readers.texts import from_texts
from ncsam.data.readers.torch_dataset import from_dataset
from ncsam.data.registry import Entry, check, entry, load, names, register
from ncsam.data.sources import as_dataset
from ncsam.data.tables.table import from_table
from ncsam.data.types import UNKNOWN, DataSet, Inputs, Labels, LazyImages, PathList, Split, hold_out

__all__ = [
    "UNKNOWN",
    "BadImage",
    "Batch",
    "DataSet",
    "Entry",
    "Inputs",
    "Labels",
    "LazyImages",
    "Loader",
    "Modality",
    "PathList",
    "Split",
    "Store",
    "View",
    "as_dataset",
    "check",
    "check_images",
    "describe",
    "entry",
    "from_arrays",
    "from_dataset",
    "from_folder",
    "from_npz",
    "from_shards",
    "from_table",
    "from_texts",
    "hold_out",
    "into_memory",
    "load",
    "modalities",
    "modality_of",
    "names",
    "register",
]
