"""CIFAR-10N and CIFAR-100N: the CIFAR images under labels that people gave (Wei et al., 2022).

The label files are `CIFAR-10_human.pt` and `CIFAR-100_human.pt` of UCSC-REAL/cifar-10-100n, in CIFAR's own order.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ncsam._errors import bad_value, unknown_name
from ncsam.data.readers.cifar import cifar10, cifar100
from ncsam.data.readers.download import Remote, fetch, find
from ncsam.data.registry import check, not_found, register
from ncsam.data.types import DataSet
from ncsam.noise.published import KNOWN_FILES, from_file

_URL = "https://github.com/UCSC-REAL/cifar-10-100n/raw/main/data/"
_FILES = {"cifar10n": "CIFAR-10_human.pt", "cifar100n": "CIFAR-100_human.pt"}
CIFAR10N_LABELS = ("aggre", "rand1", "rand2", "rand3", "worst")
_OBTAIN = (
    "Get {file} from github.com/UCSC-REAL/cifar-10-100n; or download=True with the reader's option accept_license=True "
    "downloads it and CIFAR itself, under CC BY-NC 4.0 (no commercial use)."
)


def _relabeled(
    base: DataSet, name: str, root: Path, label: str, *, download: bool, accept_license: bool, partial: bool
) -> DataSet:
    file = _FILES[name]
    remote = Remote(f"{_URL}{file}", KNOWN_FILES[file])
    folder = root if root.is_dir() else root.parent
    found = find(folder, file, (name, base.name, "data", Path(base.source).name))
    if found is not None:
        path = found / file
    elif not download:
        raise not_found(name, folder, file)
    elif not accept_license:
        raise bad_value("accept_license", accept_license, f"True, to accept CC BY-NC 4.0 of {remote.url}")
    else:
        path = fetch(remote, folder / name)
    labels = from_file(path, label=label, clean=base.train.labels, num_classes=base.num_classes, verify=not partial)
    return check(
        replace(
            base,
            name=name,
            train=base.train.with_labels(labels.noisy.copy(), labels.clean.copy()),  # the record's own are read-only
            notes=(*base.notes, f"observed labels: {label}"),
        ),
        partial=partial,
    )


@register(
    "cifar10n",
    about="CIFAR-10 under human labels: five sets, 9 % to 40 % of them wrong",
    obtain=_OBTAIN.format(file=_FILES["cifar10n"], name="cifar10n"),
    license="labels: CC BY-NC 4.0",
)
def cifar10n(
    root: Path, *, labels: str = "worst", download: bool = False, accept_license: bool = False, partial: bool = False
) -> DataSet:
    """CIFAR-10 with human labels as the observed ones and CIFAR's own as the clean ones.

    Args:
        root: Where CIFAR-10 lies, with `CIFAR-10_human.pt` in the same folder, in `cifar10n/` or in `data/`.
        labels: `aggre` (9.0 % wrong), `rand1` (17.2 %), `rand2` (18.1 %), `rand3` (17.6 %) or `worst` (40.2 %).
        download: Whether missing images, and with `accept_license` labels, may be downloaded.
        accept_license: Needed beside `download` to fetch the labels: they are CC BY-NC 4.0.
        partial: Accept other counts, and a label file that is not the published one.
    """
    if labels not in CIFAR10N_LABELS:
        raise unknown_name("labels of CIFAR-10N", labels, CIFAR10N_LABELS)
    base = cifar10(root, download=download, partial=partial)
    return _relabeled(base, "cifar10n", root, labels, download=download, accept_license=accept_license, partial=partial)


@register(
    "cifar100n",
    about="CIFAR-100 under human labels, 40 % of them wrong",
    obtain=_OBTAIN.format(file=_FILES["cifar100n"], name="cifar100n"),
    license="labels: CC BY-NC 4.0",
)
def cifar100n(root: Path, *, download: bool = False, accept_license: bool = False, partial: bool = False) -> DataSet:
    """CIFAR-100 with human labels (40.2 % wrong) as the observed ones and CIFAR's own as the clean ones.

    Args:
        root: Where CIFAR-100 lies, with `CIFAR-100_human.pt` in the same folder, in `cifar100n/` or in `data/`.
        download: Whether missing images, and with `accept_license` labels, may be downloaded.
        accept_license: Needed beside `download` to fetch the labels: they are CC BY-NC 4.0.
        partial: Accept other counts, and a label file that is not the published one.
    """
    base = cifar100(root, download=download, partial=partial)
    return _relabeled(
        base, "cifar100n", root, "noisy_label", download=download, accept_license=accept_license, partial=partial
    )
