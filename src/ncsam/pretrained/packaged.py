"""Files of weights that ship inside a pip package: found without importing the package, and verified."""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from ncsam._files import sha256_of


class MissingWeightsError(ImportError):
    """The package that holds the weights is not installed."""


class DamagedWeightsError(ValueError):
    """The file of weights is not the one that was published."""


@dataclass(frozen=True)
class PackagedFile:
    """One file of an installed package, pinned by its SHA-256.

    Attributes:
        package: Name under which the package is imported.
        path: Path of the file inside the package's folder.
        sha256: Hexadecimal SHA-256 of the published file.
        extra: The extra of ncsam that installs the package.
    """

    package: str
    path: str
    sha256: str
    extra: str

    @property
    def install(self) -> str:
        """The command that installs the package."""
        return f'pip install "ncsam[{self.extra}]"'

    def find(self) -> Path | None:
        """The file, or `None` if the package is not installed or lacks it. Nothing is imported."""
        try:
            spec = importlib.util.find_spec(self.package)
        except (ValueError, ImportError):  # a half-imported package without a spec
            return None
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            if (found := Path(folder) / self.path).is_file():
                return found
        return None

    def verified(self) -> Path:
        """The file, after a check of its content.

        Raises:
            MissingWeightsError: The package is not installed.
            DamagedWeightsError: The file is not the published one.
        """
        found = self.find()
        if found is None:
            raise MissingWeightsError(f"the weights need {self.package!r}, which is not installed: {self.install}")
        status = found.stat()
        digest = _digest(str(found), status.st_size, status.st_mtime_ns)
        if digest != self.sha256:
            raise DamagedWeightsError(
                f"{found.name} of {self.package!r} has the SHA-256 {digest[:16]}..., expected {self.sha256[:16]}...; "
                f"reinstall it with: {self.install}"
            )
        return found


@functools.lru_cache(maxsize=16)
def _digest(path: str, size: int, modified: int) -> str:
    """SHA-256 of a file, computed once for each version of it."""
    return sha256_of(path)
