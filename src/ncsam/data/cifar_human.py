"""CIFAR-10N and CIFAR-100N: the CIFAR pictures under labels that people gave (Wei et al., 2022).

The label files are `CIFAR-10_human.pt` and `CIFAR-100_human.pt` of UCSC-REAL/cifar-10-100n, in CIFAR's own order.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ncsam._errors import bad_value, unknown_name
from ncsam.data.check import check
from ncsam.data.cifar import cifar10, cifar100
from ncsam.data.download import Remote, fetch, find
from ncsam.data.registry import not_found, register
from ncsam.data.types import DataSet, Labels

_URL = "https://github.com/UCSC-REAL/cifar-10-100n/raw/main/data/"
# The beginnings of the SHA-256: more of them is not published. The check of the clean labels does the rest.
_FILES = {
    "cifar10n": Remote(f"{_URL}CIFAR-10_human.pt", "873e69c39cb9b5e9"),
    "cifar100n": Remote(f"{_URL}CIFAR-100_human.pt", "bd2d80409754d420"),
}
#: What one may ask for, and its key in the file.
CIFAR10N_LABELS = {
    "aggre": "aggre_label",
    "rand1": "random_label1",
    "rand2": "random_label2",
    "rand3": "random_label3",
    "worst": "worse_label",
}
_OBTAIN = (
    "Get {file} from github.com/UCSC-REAL/cifar-10-100n; or load('{name}', download=True, accept_licence=True) "
    "fetches it with CIFAR itself, under CC BY-NC 4.0 (no commercial use)."
)


def read_human_labels(path: Path) -> dict[str, Labels]:
    """The arrays of a CIFAR-N file by key, read without unpickling anything but tensors and arrays."""
    import numpy.dtypes  # the classes that numpy 2 pickles a dtype with

    # The published files hold numpy arrays; these four names are what such arrays are made of.
    multiarray = getattr(np, "_core", None) or np.core
    parts: list[Any] = [multiarray.multiarray._reconstruct, np.ndarray, np.dtype, numpy.dtypes.Int64DType]
    parts += [multiarray.multiarray.scalar]
    try:
        with torch.serialization.safe_globals(parts):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise ValueError(f"{path} is not a readable file of labels: {str(error).splitlines()[0]}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not labels by name")
    return {str(key): np.asarray(value).astype(np.int64) for key, value in content.items()}


def _relabelled(
    base: DataSet, name: str, root: Path, key: str, *, download: bool, accept_licence: bool, partial: bool
) -> DataSet:
    remote = _FILES[name]
    folder = root if root.is_dir() else root.parent
    found = find(folder, remote.filename, (name, base.name, "data", Path(base.source).name))
    if found is not None:
        path = found / remote.filename
    elif not download:
        raise not_found(name, folder, remote.filename)
    elif not accept_licence:
        raise bad_value("accept_licence", accept_licence, f"{remote.url} is CC BY-NC 4.0; True says you accept that")
    else:
        path = fetch(remote, folder / name)
    labels = read_human_labels(path)
    for wanted in ("clean_label", key):
        if wanted not in labels:
            raise ValueError(f"{path} has no {wanted!r}; it holds {', '.join(labels)}")
    if not np.array_equal(labels["clean_label"], base.train.labels):
        raise ValueError(
            f"{path}: its clean labels are not those of {base.name} at {base.source}; the order or the files differ"
        )
    return check(
        replace(
            base,
            name=name,
            train=base.train.with_labels(labels[key], labels["clean_label"]),
            notes=(*base.notes, f"observed labels: {key}"),
        ),
        partial=partial,
    )


@register(
    "cifar10n",
    about="CIFAR-10 under human labels: five sets, 9 % to 40 % of them wrong",
    obtain=_OBTAIN.format(file="CIFAR-10_human.pt", name="cifar10n"),
    licence="labels: CC BY-NC 4.0",
)
def cifar10n(
    root: Path, *, labels: str = "worst", download: bool = False, accept_licence: bool = False, partial: bool = False
) -> DataSet:
    """CIFAR-10 with human labels as the observed ones and CIFAR's own as the clean ones.

    Args:
        root: Where CIFAR-10 lies, with `CIFAR-10_human.pt` in the same folder, in `cifar10n/` or in `data/`.
        labels: `aggre` (9.0 % wrong), `rand1` (17.2 %), `rand2` (18.1 %), `rand3` (17.6 %) or `worst` (40.2 %).
        accept_licence: Needed beside `download` to fetch the labels: they are CC BY-NC 4.0.
    """
    if labels not in CIFAR10N_LABELS:
        raise unknown_name("labels of CIFAR-10N", labels, CIFAR10N_LABELS)
    base = cifar10(root, download=download, partial=partial)
    options = {"download": download, "accept_licence": accept_licence, "partial": partial}
    return _relabelled(base, "cifar10n", root, CIFAR10N_LABELS[labels], **options)


@register(
    "cifar100n",
    about="CIFAR-100 under human labels, 40 % of them wrong",
    obtain=_OBTAIN.format(file="CIFAR-100_human.pt", name="cifar100n"),
    licence="labels: CC BY-NC 4.0",
)
def cifar100n(root: Path, *, download: bool = False, accept_licence: bool = False, partial: bool = False) -> DataSet:
    """CIFAR-100 with human labels (40.2 % wrong) as the observed ones and CIFAR's own as the clean ones.

    Args:
        root: Where CIFAR-100 lies, with `CIFAR-100_human.pt` in the same folder, in `cifar100n/` or in `data/`.
        accept_licence: Needed beside `download` to fetch the labels: they are CC BY-NC 4.0.
    """
    base = cifar100(root, download=download, partial=partial)
    options = {"download": download, "accept_licence": accept_licence, "partial": partial}
    return _relabelled(base, "cifar100n", root, "noisy_label", **options)
