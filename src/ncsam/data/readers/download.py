"""How a dataset's file is found or fetched: only when asked, checked by its digest, whole or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ncsam._errors import need
from ncsam._files import atomic_path, sha256_of


@dataclass(frozen=True)
class Remote:
    """A file on the web. `sha256` may be a beginning of at least 16 digits where no more of it was published.

    Attributes:
        url: Its last part is the file's name.
        sha256: Hexadecimal digits, in lower case.
        md5: As published; empty if none was.
    """

    url: str
    sha256: str
    md5: str = ""

    @property
    def filename(self) -> str:
        return self.url.rsplit("/", 1)[-1]


def fetch(remote: Remote, folder: Path) -> Path:
    """Download `remote` into `folder` and verify it; a file that is there already is used as it is.

    Args:
        remote: What to download.
        folder: Where to put it.

    Raises:
        ConnectionError: The download failed.
        ValueError: The file has another digest; it is discarded.
    """
    target = folder / remote.filename
    if target.exists():
        return target
    pooch = need("pooch", "data", "downloading a dataset")
    with atomic_path(target) as temporary:
        try:
            pooch.HTTPDownloader(chunk_size=1 << 20, timeout=60)(remote.url, str(temporary), None)
        except OSError as error:  # requests' own errors are OSErrors too
            raise ConnectionError(
                f"{remote.url} could not be downloaded ({error}). Fetch it by other means and put it at {target}"
            ) from error
        verify(temporary, remote)
    return target


def verify(path: Path, remote: Remote) -> None:
    """Raise a `ValueError` unless the file's SHA-256 (and MD5, where one is published) are the known ones.

    Args:
        path: The file that was downloaded.
        remote: With the known digests.
    """
    found = sha256_of(path)
    if len(remote.sha256) < 16 or not found.startswith(remote.sha256):
        raise ValueError(f"{remote.url} has SHA-256 {found}, but {remote.sha256} is the known one; it was discarded")
    if remote.md5:
        with path.open("rb") as file:
            digest = hashlib.md5(usedforsecurity=False)
            while block := file.read(1 << 20):
                digest.update(block)
        if digest.hexdigest() != remote.md5:
            raise ValueError(
                f"{remote.url} has MD5 {digest.hexdigest()}, but {remote.md5} is the published one; it was discarded"
            )


def archive_at(root: Path, name: str, remote: Remote, *, download: bool) -> Path | None:
    """The archive itself if `root` is it, or where it lies in `root` or `root/name`; else, if asked, downloaded.

    Args:
        root: A folder, or the archive.
        name: The dataset's name, and that of the folder for a download.
        remote: Its file name is looked for.
        download: Whether it may be downloaded.

    Returns:
        The path; `None` if it was not found.
    """
    if root.is_file():
        return root if root.name == remote.filename else None
    folder = find(root, remote.filename, (name,))
    if folder is not None:
        return folder / remote.filename
    return fetch(remote, root / name) if download else None


def present(path: Path) -> Path:
    """`path` if it is a file, else one sentence: a dataset that was found lacks a part.

    Args:
        path: A file that the dataset should have.

    Raises:
        FileNotFoundError: It does not exist.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; the dataset is incomplete")
    return path


def find(root: Path, marker: str, folders: Iterable[str]) -> Path | None:
    """The first of `root` and the given folders below it in which the file or folder `marker` lies.

    Args:
        root: Where to look first.
        marker: A relative path.
        folders: Relative to `root`, in the order of looking.
    """
    for folder in (root, *(root / name for name in folders)):
        if (folder / marker).exists():
            return folder
    return None
