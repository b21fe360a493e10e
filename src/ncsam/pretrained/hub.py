"""Models of the Hugging Face hub, or folders in its format: only their configuration, tokenizer and safetensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ncsam._errors import bad_value, need

#: What comes before the name of a model or folder.
PREFIX = "transformers:"
#: Files of a published model that are needed: no code, and no pickles of weights.
_FILES = ("*.json", "*.txt", "*.model", "*.safetensors")


def model_folder(model: str, *, download: bool = True) -> Path:
    """The folder of a model: itself, or where the Hugging Face hub keeps it, after a download if need be.

    Args:
        model: A folder, or a name of the hub.
        download: Whether a model that is not on this machine may be downloaded.

    Raises:
        UsageError: There is no such folder, and no such model here or, if wanted, at the hub.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise bad_value("model", f"{PREFIX}{model}", "a folder with config.json, tokenizer and model.safetensors")
        return folder
    hub = need("huggingface_hub", "text", f"the model '{PREFIX}{model}'")
    failure: Exception | None = None
    for offline in (True, False) if download else (True,):
        try:
            return Path(hub.snapshot_download(model, allow_patterns=list(_FILES), local_files_only=offline))
        except Exception as error:  # the hub has many kinds: no such model, no network, no permission
            failure = error
    reason = next(iter(str(failure).strip().splitlines()), type(failure).__name__)
    wanted = "a folder, or a model that can be downloaded" if download else "a folder, or a model that is downloaded"
    raise bad_value("model", f"{PREFIX}{model}", f"{wanted} ({reason})") from failure


@contextmanager
def without_progress_bars(library: Any) -> Iterator[None]:
    """Hide the progress bars of transformers for a while, unless `HF_HUB_DISABLE_PROGRESS_BARS=0` asks for them.

    Args:
        library: The module `transformers`.
    """
    bars, hub = library.utils.logging, need("huggingface_hub", "text", "models of transformers")
    if not bars.is_progress_bar_enabled() or hub.constants.HF_HUB_DISABLE_PROGRESS_BARS is False:
        yield
        return
    hidden = hub.utils.are_progress_bars_disabled()
    bars.disable_progress_bar()  # those of the hub, too
    try:
        yield
    finally:
        bars.enable_progress_bar()
        if hidden:
            hub.utils.disable_progress_bars()


def load_encoder(folder: Path, *, pretrained: bool) -> Any:
    """Load an encoder from a folder.

    Args:
        folder: A folder with `config.json` and, if `pretrained`, `model.safetensors`.
        pretrained: Whether to load the weights; otherwise they are initialized randomly.

    Raises:
        UsageError: transformers cannot open it without running its code, or it is no encoder.
    """
    library = need("transformers", "text", f"the model {folder.name!r}")
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    name = f"{PREFIX}{folder}"
    try:
        config = library.AutoConfig.from_pretrained(folder, **local)
        if getattr(config, "is_encoder_decoder", False):
            raise bad_value("model", name, "an encoder, not an encoder with a decoder")
        if not pretrained:
            return library.AutoModel.from_config(config, trust_remote_code=False)
        # Only safetensors: a pickle of weights could run code.
        with without_progress_bars(library):
            return library.AutoModel.from_pretrained(folder, use_safetensors=True, dtype=torch.float32, **local)
    except (OSError, ValueError, KeyError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise bad_value("model", name, f"an encoder that transformers can open ({reason})") from error


def load_tokenizer(folder: Path) -> Any:
    """Load a tokenizer from a folder.

    Args:
        folder: A folder with the tokenizer's files.

    Raises:
        UsageError: transformers cannot open it without running its code.
    """
    library = need("transformers", "text", f"the tokenizer of {folder.name!r}")
    try:
        return library.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise bad_value("tokenizer", str(folder), f"a tokenizer that transformers can open ({reason})") from error
