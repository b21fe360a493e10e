"""Datasets as they lie on disk, and your own: `load(name or path)` gives a `DataSet`.

Every reader keeps the observed labels and, where they are known, the clean ones apart; only the observed ones reach
training. `names()` lists the datasets that `load` knows, `describe` prints one on a screen. `Loader` makes batches of
a split: augmented views, observed labels, and the samples' indices.
"""

# Importing a reader's module registers it.
from ncsam.data import (  # noqa: F401
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
from ncsam.data.arrays import from_arrays, from_npz
from ncsam.data.check import check
from ncsam.data.describe import describe
from ncsam.data.files import BadImage, check_images, into_memory
from ncsam.data.folder import from_folder
from ncsam.data.labels import hold_out
from ncsam.data.loader import Batch, Loader
from ncsam.data.registry import Entry, entry, load, names, register
from ncsam.data.shards import from_shards
from ncsam.data.stores import Kind, Store, kind_of, kinds
from ncsam.data.table import from_table
from ncsam.data.texts import from_texts
from ncsam.data.torch_dataset import from_dataset
from ncsam.data.types import UNKNOWN, DataSet, Inputs, Labels, LazyImages, PathList, Split
from ncsam.data.views import View

__all__ = [
    "UNKNOWN",
    "BadImage",
    "Batch",
    "DataSet",
    "Entry",
    "Inputs",
    "Kind",
    "Labels",
    "LazyImages",
    "Loader",
    "PathList",
    "Split",
    "Store",
    "View",
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
    "kind_of",
    "kinds",
    "load",
    "names",
    "register",
]
