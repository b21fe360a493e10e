"""Whether an optional library can be used: not installed, installed but broken, or fine; and where its weights are."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

_TIMEOUT = 3.0  # seconds
_OFFLINE = ("NCSAM_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_HUB = "https://huggingface.co/"
_TORCH = "https://download.pytorch.org/models/"


@dataclass(frozen=True)
class Status:
    """Result of importing an optional library.

    Attributes:
        library: Name under which it is imported.
        installed: Whether it is installed, even if it cannot be imported.
        problem: Why it cannot be used, in one sentence; empty if it can.
    """

    library: str
    installed: bool
    problem: str

    @property
    def usable(self) -> bool:
        return not self.problem


@functools.cache
def status(library: str) -> Status:
    """Try to import a library. The result is cached, so a failed import is not tried twice.

    Args:
        library: Name under which it is imported, such as "timm".
    """
    try:
        installed = importlib.util.find_spec(library) is not None
    except (ValueError, ImportError):  # a half-imported package without a spec
        installed = True
    if not installed:
        return Status(library, False, f"{library} is not installed")
    try:
        importlib.import_module(library)
    except Exception as error:  # a torchvision built for another torch raises RuntimeError, OSError or AttributeError
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        return Status(
            library, True, f"{library} is installed but does not import ({reason}); reinstall it to fit torch"
        )
    return Status(library, True, "")


@dataclass(frozen=True)
class Published:
    """A model of timm or torchvision with published weights.

    Attributes:
        library: "timm" or "torchvision".
        model: Its name there.
        file: torchvision's file of weights; timm's are found by the model's name.
        size: Pixels a side of its training images.
    """

    library: str
    model: str
    file: str
    size: int

    @property
    def name(self) -> str:
        return f"{self.library}:{self.model}"

    @property
    def url(self) -> str:
        return (
            _TORCH + self.file if self.library == "torchvision" else f"{_HUB}timm/{self.model}/resolve/main/{self.file}"
        )

    def cached(self) -> bool:
        """Whether the weights are on this machine already."""
        if self.library == "torchvision":
            import torch

            return (Path(torch.hub.get_dir()) / "checkpoints" / self.file).is_file()
        if not status("huggingface_hub").usable:
            return False
        from huggingface_hub import try_to_load_from_cache

        return isinstance(try_to_load_from_cache(f"timm/{self.model}", self.file), str)


@functools.cache
def reachable(url: str) -> bool:
    """Whether a file can be downloaded: one HEAD request, through the proxy if one is set, and none in offline mode.

    Args:
        url: Address of the file.
    """
    if any(os.environ.get(name, "").lower() not in ("", "0", "false", "no") for name in _OFFLINE):
        return False
    request = urllib.request.Request(url, method="HEAD", headers={"User-Agent": "ncsam"})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
            return int(answer.status) < 400
    except (urllib.error.URLError, OSError, ValueError):
        return False
