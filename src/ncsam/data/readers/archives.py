"""Archives opened with care: nothing is written outside the folder, and a folder appears whole or not at all."""

from __future__ import annotations

import gzip
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Literal

from ncsam._files import refuse_special


class _Member(tarfile.TarInfo):
    """A member whose size is not below zero: Python before 3.11.14 would read the same header for ever."""

    def _block(self, count: int) -> int:
        if count < 0:
            raise tarfile.ReadError("a member has a size below zero")
        blocks: int = super()._block(count)  # type: ignore[misc]
        return blocks


def open_tar(path: Path, mode: Literal["r", "r:"] = "r") -> tarfile.TarFile:
    """A tar file for reading; `r:` is one that is not compressed.

    Args:
        path: The archive.
        mode: `r` accepts any compression, which it finds out by itself.

    Raises:
        UsageError: It is a pipe or a device.
    """
    refuse_special(path)
    return tarfile.open(path, mode, tarinfo=_Member)


@contextmanager
def truncation_as_error(path: Path) -> Iterator[None]:
    """Turn the many ways in which a cut archive fails into one sentence.

    Args:
        path: The archive, for the message.

    Raises:
        ValueError: The archive is truncated or damaged.
    """
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, EOFError, zlib.error) as error:
        reason = str(error).split("\n")[0]
        raise ValueError(f"{path} is truncated or damaged ({reason}); delete it and fetch it again") from error


def read_members(archive: Path, keep: Callable[[str], bool]) -> dict[str, bytes]:
    """The contents of a tar file's ordinary files whose base name `keep` accepts, by base name.

    Args:
        archive: A tar file, compressed or not.
        keep: Is given the base name of each file.

    Raises:
        ValueError: The archive is truncated or damaged.
    """
    found = {}
    with truncation_as_error(archive), open_tar(archive) as tar:
        for member in tar:
            name = PurePosixPath(member.name).name
            if member.isfile() and keep(name):
                content = tar.extractfile(member)
                assert content is not None  # so for every ordinary file
                found[name] = content.read()
    return found


def extract(archive: Path, folder: Path) -> Path:
    """Unpack a .zip or .tar(.gz) as `folder`; refuse members that would land elsewhere.

    An archive that holds one folder of that very name becomes it, without a level between. Links and devices are
    refused as well: no dataset needs them. The work is done in a temporary folder beside `folder`; the result is
    renamed when everything is there.

    Args:
        archive: Its content, not its name, decides which kind it is.
        folder: Must not exist yet.

    Returns:
        `folder`.

    Raises:
        FileExistsError: The folder exists.
        ValueError: The archive is damaged, or holds a member that is refused.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} is there already; remove it to unpack {archive} again")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        with truncation_as_error(archive):
            for name, source in _zip_files(archive) if _is_zip(archive) else _tar_files(archive):
                target = temporary / _inside(name, archive)
                target.parent.mkdir(parents=True, exist_ok=True)
                with source, target.open("wb") as file:
                    shutil.copyfileobj(source, file, 1 << 20)
        temporary.chmod(0o755)  # mkdtemp is private; the final folder is an ordinary one
        within = list(temporary.iterdir())
        try:
            (within[0] if [path.name for path in within] == [folder.name] else temporary).rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster, and the folder is there
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _is_zip(archive: Path) -> bool:
    with archive.open("rb") as file:
        return file.read(2) == b"PK"  # zipfile.is_zipfile looks at the end, which a cut archive has lost


def _inside(name: str, archive: Path) -> PurePosixPath:
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
        raise ValueError(f"{archive} was not unpacked: its member {name!r} would be written outside the folder")
    return path


def _tar_files(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with open_tar(archive) as tar:
        for member in tar:
            if member.isdir():
                continue
            source = tar.extractfile(member) if member.isfile() else None
            if source is None:
                raise ValueError(f"{archive} was not unpacked: its member {member.name!r} is a link or a device")
            yield member.name, source


def _zip_files(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(archive) as file:
        for info in file.infolist():
            if info.is_dir():
                continue
            if stat.S_ISLNK(info.external_attr >> 16):
                raise ValueError(f"{archive} was not unpacked: its member {info.filename!r} is a link or a device")
            yield info.filename, file.open(info)
