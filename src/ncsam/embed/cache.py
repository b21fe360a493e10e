"""Features kept on disk by the content that they were computed from, so that no image or text is embedded twice.

A key is the SHA-256 of the backbone, its weights, the version of the preprocessing and the content of the samples.
Nothing is invalidated: whatever changes gives another key.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value
from ncsam._files import atomic_path, read_array, sha256_of
from ncsam.data.registry import data_root

Floats = npt.NDArray[np.float32]

#: Environment variable that names another folder.
VARIABLE = "NCSAM_CACHE"
#: Samples of one file: what is lost when a run is killed, and what is recomputed when a sample changes.
CHUNK = 1024
_FORMAT = 1


def default_folder() -> Path:
    """`$NCSAM_CACHE`, else where downloaded datasets are kept: `$NCSAM_DATA` or `~/.cache/ncsam`."""
    chosen = os.environ.get(VARIABLE)
    return Path(chosen).expanduser() if chosen else data_root()


def text_hash(text: str) -> str:
    """SHA-256 of a text. Lone surrogates, which UTF-8 cannot encode, are hashed as they are.

    Args:
        text: Any string.
    """
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def array_hash(array: npt.NDArray[np.generic]) -> str:
    """SHA-256 of an array's type, shape and values.

    Args:
        array: Any array of numbers.
    """
    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def file_hash(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file's content; its name and modification time do not matter.

    Args:
        path: The file.
    """
    return sha256_of(path)


@dataclass(frozen=True)
class Source:
    """What computes features.

    Attributes:
        backbone: Name of the backbone, such as "lite0".
        weights: SHA-256 of its weights.
        preprocessing: Version of everything between the sample and the backbone: size, crop, normalization, precision.
    """

    backbone: str
    weights: str
    preprocessing: str

    def key(self, samples: Iterable[str]) -> str:
        """The cache key of the features of these samples, in this order: a hexadecimal SHA-256.

        Args:
            samples: The hash of each sample.
        """
        digest = hashlib.sha256()
        for part in (f"ncsam features {_FORMAT}", self.backbone, self.weights, self.preprocessing, *samples):
            digest.update(len(part).to_bytes(8, "little"))  # so that no two lists of parts read the same
            digest.update(part.encode())
        return digest.hexdigest()


class FeatureCache:
    """A folder of `.npy` files that several processes may share: each is written whole under its final name.

    Args:
        folder: Where the files lie. Default: `default_folder()`.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = (default_folder() if folder is None else Path(folder)) / "features"

    def path(self, key: str) -> Path:
        """The file that holds the features of a key; it may not exist.

        Args:
            key: As `Source.key` returns it.
        """
        return self.folder / key[:2] / f"{key}.npy"

    def get(self, key: str, rows: int) -> Floats | None:
        """Read the features of a key.

        Args:
            key: As `Source.key` returns it.
            rows: Expected number of rows.

        Returns:
            The features (rows, F), float32; `None` if they are not cached or the file is damaged.
        """
        path = self.path(key)
        try:
            found = read_array(path)
        except (OSError, ValueError):
            return None
        if found.dtype != np.float32 or found.ndim != 2 or len(found) != rows:
            return None
        with suppress(OSError):  # marks it as used, for `prune`; a folder may be read-only
            os.utime(path)
        return found.astype(np.float32, copy=False)

    def put(self, key: str, features: Floats) -> None:
        """Write features to the cache. If the folder cannot be written, it warns and continues.

        Args:
            key: As `Source.key` returns it.
            features: The features (rows, F).
        """
        try:
            with atomic_path(self.path(key)) as temporary, temporary.open("wb") as file:
                np.save(file, np.ascontiguousarray(features, dtype=np.float32), allow_pickle=False)
        except OSError as error:
            warnings.warn(f"features were not cached in {self.folder}: {error}", stacklevel=2)

    def rows(
        self,
        source: Source,
        samples: Sequence[str],
        compute: Callable[[int, int], Floats],
        *,
        chunk: int = CHUNK,
        done: Callable[[int], None] = lambda count: None,
    ) -> Floats:
        """The features of all samples, in order; only chunks that are not there are computed, and kept at once.

        Args:
            source: What computes the features.
            samples: The hash of each sample.
            compute: `compute(start, stop)` returns the features (stop - start, F) of these samples.
            chunk: Samples of one file.
            done: Called with the number of samples whose features are there.

        Raises:
            ValueError: There are no samples, or `compute` returned another number of rows.
        """
        if not samples:
            raise bad_value("samples", samples, "at least one sample")
        found = []
        for start in range(0, len(samples), chunk):
            stop = min(start + chunk, len(samples))
            key = source.key(samples[start:stop])
            features = self.get(key, stop - start)
            if features is None:
                features = np.asarray(compute(start, stop), dtype=np.float32)
                if features.ndim != 2 or len(features) != stop - start:
                    raise bad_value("compute", features.shape, f"features of {stop - start} samples")
                self.put(key, features)
            found.append(features)
            done(stop)
        return np.concatenate(found)

    def size(self) -> int:
        """Bytes of all files."""
        return sum(size for _, size, _ in self._files())

    def prune(self, most_bytes: int) -> int:
        """Remove the least recently used files until the cache fits into `most_bytes`.

        Args:
            most_bytes: Largest total size to keep, in bytes.

        Returns:
            The number of files removed.
        """
        files = sorted(self._files())
        total = sum(size for _, size, _ in files)
        removed = 0
        for _, size, path in files:
            if total <= most_bytes:
                break
            with suppress(OSError):  # another process removed it
                path.unlink()
                removed += 1
            total -= size
        return removed

    def _files(self) -> list[tuple[int, int, Path]]:
        """(time of last use, bytes, path) of each file."""
        found = []
        for path in self.folder.glob("??/*.npy"):
            with suppress(OSError):
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_size, path))
        return found
