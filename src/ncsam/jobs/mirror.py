"""Copies of run folders at a URL: an object store (s3://, gs://), another machine, or another folder, through fsspec.

The run folder itself stays on a local disk: it is locked while it is written, and files are renamed into it and
appended to, which object stores do not support. Its copy is fetched before a run and stored after it. Checkpoints are
stored during the run, so that another machine can resume if this one is lost. `summary.json`, which marks a run as
finished, is stored last.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from ncsam._errors import bad_value, need
from ncsam.runs import layout

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}
_POLL_SECONDS = 5.0  # seconds between checks for a new checkpoint


class Mirror:
    """The copies of runs below a URL, each under its name.

    Args:
        url: any URL that fsspec supports, such as "s3://bucket/runs", or a path.

    Raises:
        UsageError: if fsspec does not support the URL or cannot connect.
        ImportError: if a package for the protocol is missing.
    """

    def __init__(self, url: str) -> None:
        fsspec: Any = need("fsspec", "train", "a mirror of run folders")
        protocol = url.partition("://")[0] if "://" in url else "file"
        try:
            self.files, self.root = fsspec.core.url_to_fs(url)
        except ImportError as error:
            extra = _EXTRAS.get(protocol)
            advice = f' Install it with: pip install "ncsam[{extra}]"' if extra else ""
            raise ImportError(
                f"mirror={url!r} needs a package that could not be imported ({error}).{advice}"
            ) from error
        except Exception as error:  # of many kinds: of an unknown protocol, of a machine that does not answer
            allowed = f"a URL that fsspec knows, such as s3://bucket/runs ({_said(error)})"
            raise bad_value("mirror", url, allowed) from error
        self.url = url

    def check(self) -> None:
        """Check that a small file can be written, read and removed.

        Raises:
            UsageError: if it cannot.
        """
        there, content = self._at("", f".ncsam-{uuid.uuid4().hex}"), b"ncsam"
        try:
            self.files.makedirs(there.rpartition("/")[0], exist_ok=True)
            self.files.pipe_file(there, content)
            if self.files.cat_file(there) != content:
                raise OSError("a file written there was not kept")
            self.files.rm_file(there)
        except Exception as error:  # whatever a network or a store raises
            allowed = f"a place where files can be written, read and removed ({_said(error)})"
            raise bad_value("mirror", self.url, allowed) from error

    def _at(self, name: str, file: str = "") -> str:
        return "/".join(part for part in (str(self.root).rstrip("/"), name, file) if part)

    def is_finished(self, name: str) -> bool:
        """Return whether the copy is that of a finished run.

        Args:
            name: name of the run; "" for the URL itself.
        """
        return bool(self.files.exists(self._at(name, layout.SUMMARY)))

    def read(self, name: str, file: str) -> bytes | None:
        """Read a file of a copy.

        Args:
            name: name of the run; "" for the URL itself.
            file: path inside the run folder.

        Returns:
            Its content, or `None` if there is no such file.
        """
        there = self._at(name, file)
        return bytes(self.files.cat_file(there)) if self.files.exists(there) else None

    def fetch(self, name: str, folder: Path) -> bool:
        """Download a copy, unless the folder exists.

        Args:
            name: name of the run; "" for the URL itself.
            folder: the run folder. It appears only when the download is complete.

        Returns:
            Whether a copy was downloaded.
        """
        there = self._at(name)
        if folder.exists() or not self.files.exists(there):
            return False
        self.files.invalidate_cache()
        prefix = self.files._strip_protocol(there).rstrip("/") + "/"
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".mirror-") as made:
            whole = Path(made) / folder.name
            for file in self.files.find(there):
                inside = PurePosixPath(file.removeprefix(prefix))
                if inside.is_absolute() or ".." in inside.parts:
                    raise bad_value("mirror", file, "files inside the folder of the run only")
                (whole / inside).parent.mkdir(parents=True, exist_ok=True)
                self.files.get_file(file, str(whole / inside))
            if not whole.is_dir():
                return False
            whole.rename(folder)
        return True

    def store(self, name: str, folder: Path) -> None:
        """Upload a run folder, the summary last. Hidden files are skipped.

        Args:
            name: name of the run; "" for the URL itself.
            folder: the run folder.
        """
        inside = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
        kept = [file for file in inside if not PurePosixPath(file).name.startswith(".")]
        self.put(name, folder, sorted(kept, key=lambda file: (file == layout.SUMMARY, file)))

    def store_checkpoint(self, name: str, folder: Path) -> None:
        """Upload the files that another machine needs to resume.

        Args:
            name: name of the run.
            folder: the run folder.
        """
        self.put(name, folder, [file for file in layout.RESUME if (folder / file).is_file()])

    def put(self, name: str, folder: Path, inside: list[str]) -> None:
        """Upload files of a folder, in the given order.

        Args:
            name: name of the run; "" for the URL itself.
            folder: the run folder.
            inside: paths inside the folder.
        """
        for file in inside:
            there = self._at(name, file)
            self.files.makedirs(there.rpartition("/")[0], exist_ok=True)
            self.files.put_file(str(folder / file), there)


def _said(error: Exception) -> str:
    """The message of another library in one line."""
    words = str(getattr(error, "strerror", None) or error)
    return " ".join(words.split())[:200] or "it is not made for that"


@contextlib.contextmanager
def mirrored(url: str, name: str, folder: Path) -> Iterator[None]:
    """Keep a copy of a run: fetch it before, store checkpoints during the run, and store everything at the end.

    Args:
        url: URL of the copies. Empty: nothing is copied.
        name: name of the run.
        folder: the run folder.
    """
    if not url:
        yield
        return
    mirror = Mirror(url)
    mirror.fetch(name, folder)
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(mirror, name, folder, ended), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        if folder.is_dir():
            mirror.store(name, folder)


def _watch(mirror: Mirror, name: str, folder: Path, ended: threading.Event) -> None:
    """Store every new checkpoint until the run has ended. If that fails, it is tried again with the next one."""
    seen: list[int] = []
    while not ended.wait(_POLL_SECONDS):
        with contextlib.suppress(Exception):  # whatever a network raises; the run must not end for it
            names = (layout.LAST, layout.LAST_NOTES)  # written in this order
            parts = [layout.checkpoints(folder) / name for name in names]
            written = [part.stat().st_mtime_ns for part in parts]
            if written != seen:
                mirror.store_checkpoint(name, folder)
                seen = written
