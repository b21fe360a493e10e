"""MNIST and Fashion-MNIST in their IDX files, compressed or not.

IDX: two zero bytes, a byte for the type (8: unsigned bytes), a byte for the number of dimensions, the dimensions as
big-endian 32-bit numbers, then the values, last dimension fastest (LeCun, Cortes and Burges, the MNIST page).
"""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ncsam.data.readers.archives import truncation_as_error
from ncsam.data.readers.download import Remote, fetch
from ncsam.data.registry import check, not_found, register
from ncsam.data.types import DataSet, Split

_MNIST_URL = "https://storage.googleapis.com/cvdf-datasets/mnist/"
_FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
# SHA-256 of the compressed files as TensorFlow Datasets pins them.
_MNIST_SHA256 = {
    "train_images": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train_labels": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "test_images": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "test_labels": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
_FASHION_SHA256 = {
    "train_images": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train_labels": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "test_images": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "test_labels": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
}
#: Where Debian's package `dataset-fashion-mnist` puts the files.
DEBIAN_FASHION = Path("/usr/share/datasets/fashion-mnist")
FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
_COUNTS = {"train": 60_000, "test": 10_000}


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """An IDX file of unsigned bytes with that many dimensions, after checking its magic number and its length.

    Args:
        path: Compressed by gzip or not.
        dimensions: 1 for labels, 3 for images.

    Raises:
        ValueError: It is no such file, or it is truncated.
    """
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        with truncation_as_error(path):
            content = gzip.decompress(content)
    expected = bytes([0, 0, 8, dimensions])
    if content[:4] != expected:
        raise ValueError(
            f"{path} is not an IDX file of bytes in {dimensions} dimension(s): it begins with 0x{content[:4].hex()}, "
            f"not 0x{expected.hex()}"
        )
    start = 4 + 4 * dimensions
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4))
    wanted = start + math.prod(shape)
    if len(content) != wanted:
        raise ValueError(f"{path} is truncated or damaged: {len(content):,} bytes, but its header says {wanted:,}")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def _read(
    name: str, root: Path, folders: list[Path], remotes: dict[str, Remote], *, download: bool
) -> tuple[Split, Split, str]:
    """The training and test splits, and the folder they came from."""
    paths = {}
    for part, base in _FILES.items():
        spellings = (base, base.replace("-idx", ".idx"))
        candidates = (f / (s + end) for f in folders for s in spellings for end in ("", ".gz"))
        found = next((path for path in candidates if path.is_file()), None)
        if found is None and not download:
            raise not_found(name, root, f"{base}[.gz]")
        paths[part] = found or fetch(remotes[part], root / name)
    splits = {}
    for part in ("train", "test"):
        images = read_idx(paths[f"{part}_images"], 3)
        labels = read_idx(paths[f"{part}_labels"], 1)
        splits[part] = Split(images[..., None].copy(), labels.astype(np.int64))
    return splits["train"], splits["test"], str(paths["train_images"].parent)


def _remotes(url: str, digests: dict[str, str]) -> dict[str, Remote]:
    return {part: Remote(f"{url}{base}.gz", digests[part]) for part, base in _FILES.items()}


@register(
    "mnist",
    about="70,000 gray images of handwritten digits, 28 x 28, 10 classes",
    obtain="download=True downloads it (12 MB).",
    license="CC BY-SA 3.0",
)
def mnist(root: Path, *, download: bool = False, partial: bool = False) -> DataSet:
    """MNIST from its four IDX files in `root`, `root/mnist` or `root/MNIST/raw`; `partial` accepts other counts.

    Args:
        root: The folder of datasets.
        download: Whether missing files may be downloaded.
        partial: Whether other numbers of samples than 60,000 and 10,000 are accepted.

    Raises:
        FileNotFoundError: A file was not found, and may not be downloaded.
    """
    folders = [root, root / "mnist", root / "MNIST" / "raw", root / "raw"]
    train, test, source = _read("mnist", root, folders, _remotes(_MNIST_URL, _MNIST_SHA256), download=download)
    dataset = DataSet("mnist", tuple("0123456789"), train, test, (0.1307,), (0.3081,), (28, 28), source)
    return check(dataset, expected=_COUNTS, partial=partial)


@register(
    "fashion_mnist",
    about="70,000 gray images of clothes, 28 x 28, 10 classes",
    obtain="download=True downloads it (31 MB); Debian's package is dataset-fashion-mnist.",
    license="MIT",
)
def fashion_mnist(root: Path, *, download: bool = False, partial: bool = False) -> DataSet:
    """Fashion-MNIST from its four IDX files in `root`, `root/fashion_mnist`, `root/FashionMNIST/raw` or where Debian's
    package puts them; `partial` accepts other counts.

    Args:
        root: The folder of datasets.
        download: Whether missing files may be downloaded.
        partial: Whether other numbers of samples than 60,000 and 10,000 are accepted.

    Raises:
        FileNotFoundError: A file was not found, and may not be downloaded.
    """
    folders = [root, root / "fashion_mnist", root / "FashionMNIST" / "raw", root / "raw", DEBIAN_FASHION]
    remotes = _remotes(_FASHION_URL, _FASHION_SHA256)
    train, test, source = _read("fashion_mnist", root, folders, remotes, download=download)
    dataset = DataSet("fashion_mnist", FASHION_CLASSES, train, test, (0.2860,), (0.3530,), (28, 28), source)
    return check(dataset, expected=_COUNTS, partial=partial)
