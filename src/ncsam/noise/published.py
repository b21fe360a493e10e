"""Readers for published files of noisy labels: no code in them is run, everything is checked."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value, unknown_name
from ncsam._files import load_pickled_arrays, read_text, sha256_of
from ncsam.noise.inputs import Labels, as_array, as_labels, resolve_num_classes
from ncsam.noise.record import NoisyLabels

#: The first 16 hexadecimal digits of the SHA-256 of published files, by file name: CIFAR-N (UCSC-REAL/cifar-10-100n)
#: and the instance-dependent labels of CAL (UCSC-REAL/CAL).
KNOWN_FILES = {
    "CIFAR-10_human.pt": "873e69c39cb9b5e9",
    "CIFAR-100_human.pt": "bd2d80409754d420",
    "IDN_0.2_C10.pt": "12634bf5405a6ae1",
    "IDN_0.4_C10.pt": "bf623f6ef235ce65",
    "IDN_0.6_C10.pt": "f789e2e39357c1c1",
    "IDN_0.2_C100.pt": "71bd5ae0f15d63e7",
    "IDN_0.4_C100.pt": "3517256c19a63370",
    "IDN_0.6_C100.pt": "f3bb66e8b9a2dd66",
}

#: Which clean column belongs to which noisy one, in files that hold several.
_CLEAN_OF = {
    "noise_label_train": "clean_label_train",
    "noisy_coarse_label": "clean_coarse_label",
}

#: CIFAR-N's own command-line names for its columns.
_ALIASES = {
    "aggre": "aggre_label",
    "worst": "worse_label",
    "rand1": "random_label1",
    "rand2": "random_label2",
    "rand3": "random_label3",
    "noisy100": "noisy_label",
}


def from_file(
    path: str | os.PathLike[str],
    *,
    label: str | None = None,
    clean: npt.ArrayLike | None = None,
    num_classes: int | None = None,
    sha256: str | None = None,
    verify: bool = True,
) -> NoisyLabels:
    """Read a published file of noisy labels.

    | published by | file | holds | `clean` |
    |---|---|---|---|
    | CIFAR-10N, CIFAR-100N | `.pt`, or `.npy` (order of TensorFlow Datasets) | several columns | in the file |
    | CAL | `IDN_{rate}_C{classes}.pt` | one noisy column | in the file |
    | DivideMix and followers | `.json`, a list | noisy labels | yours |
    | PLC (PMD noise) | `.npy`, whole numbers | noisy labels | yours |
    | Chen et al. (IDN) | `.csv` with a column `label_noisy` | noisy labels | yours |

    Args:
        path: The file.
        label: Which column, if there are several: for CIFAR-10N "aggre", "worst", "rand1", "rand2", "rand3" or the
            file's own names; for CIFAR-100N the fine labels, or "noisy_coarse_label".
        clean: Your dataset's labels, in its order. Required if the file has none; if it has, the two must agree, which
            shows that file and dataset are in the same order.
        num_classes: C; by default inferred from the clean labels, which must use every class.
        sha256: The expected checksum, all 64 digits or the first ones; by default that of `KNOWN_FILES`, if any.
        verify: False skips the known checksum.

    Returns:
        The clean and noisy labels.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is damaged, has another checksum, or belongs to other data.
    """
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist: expected a published file of noisy labels")
    if file.suffix not in _READERS:
        raise unknown_name(f"kind of label file ({file.name})", file.suffix, _READERS)
    digest = sha256_of(file)
    expected = (sha256 or (KNOWN_FILES.get(file.name) if verify else None) or "").lower()
    if not digest.startswith(expected):
        raise ValueError(f"{file} has SHA-256 {digest}, but {expected} is expected: the file is damaged or another one")
    columns = _READERS[file.suffix](file)
    name = _choose_column(file, columns, label)
    noisy = _column(file, name, columns[name])
    true_name = _CLEAN_OF.get(name, "clean_label")
    true = _column(file, true_name, columns[true_name]) if true_name in columns else None
    true = _agreed_clean(file, true, None if clean is None else as_labels(clean, "clean"), len(noisy))
    size = resolve_num_classes(true, num_classes, "clean")
    resolve_num_classes(noisy, size, f"{file.name}: {name}")
    return NoisyLabels(
        true, noisy, size, {"name": "from_file", "file": file.name, "label": name, "file_sha256": digest}
    )


def _choose_column(file: Path, columns: dict[str, Any], label: str | None) -> str:
    noisy = [name for name in columns if not name.startswith("clean")]
    if label is not None:
        name = _ALIASES.get(label, label)
        if name not in noisy:
            raise unknown_name(f"label column of {file.name}", label, noisy)
        return name
    if "noisy_label" in noisy:
        return "noisy_label"
    if len(noisy) != 1:
        raise bad_value("label", None, f"one of {', '.join(noisy)}, the columns of {file.name}")
    return noisy[0]


def _column(file: Path, name: str, values: Any) -> Labels:
    try:
        return as_labels(as_array(values, name).reshape(-1), f"{file.name}: {name}")
    except TypeError as error:
        raise ValueError(f"{file}: {name} is not a list of labels: {error}") from error


def _agreed_clean(file: Path, inside: Labels | None, given: Labels | None, count: int) -> Labels:
    clean = inside if inside is not None else given
    if clean is None:
        raise bad_value("clean", None, f"your dataset's labels, because {file.name} holds only noisy ones")
    for labels, where in ((inside, f"clean labels in {file.name}"), (given, "labels in clean")):
        if labels is not None and len(labels) != count:
            raise ValueError(f"{file} holds {count} noisy labels, but there are {len(labels)} {where}")
    if inside is not None and given is not None:
        wrong = np.flatnonzero(inside != given)
        if len(wrong):
            first = int(wrong[0])
            raise ValueError(
                f"{file} belongs to other data or another order: its clean labels differ from yours in {len(wrong)} "
                f"of {count} places, first at sample {first} ({inside[first]} there, {given[first]} yours)"
            )
    return clean


def _read_torch(file: Path) -> dict[str, Any]:
    """A dict of tensors or of numpy arrays; any other object is refused."""
    import torch

    rebuild = np.zeros(0).__reduce__()[0]  # numpy's private function that rebuilds an array
    # An old file says numpy.core where numpy 2 says numpy._core; each part is allowed under both names.
    parts: list[Any] = [np.ndarray, np.dtype, type(np.dtype(np.int64)), type(np.dtype(np.int32))]
    parts += [(rebuild, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    try:
        with torch.serialization.safe_globals(parts):
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged archive or pickle makes torch raise
        raise ValueError(
            f"{file} is not a readable torch file of labels: it is damaged, or holds more than tensors and arrays"
        ) from error
    return _as_columns(file, content)


def _read_numpy(file: Path) -> dict[str, Any]:
    """Plain whole numbers (PMD), or a pickled dict of arrays (CIFAR-N), which is read without running anything."""
    try:
        with file.open("rb") as stream:
            version = np.lib.format.read_magic(stream)
            header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            _, _, dtype = header(stream)
            if dtype.hasobject:
                return _as_columns(file, load_pickled_arrays(stream).item())
        return {"noisy": np.load(file, allow_pickle=False)}
    except (OSError, MemoryError):
        raise
    except Exception as error:  # whatever a spoiled header makes numpy raise; one that never closes, a TokenError
        raise ValueError(f"{file} is not a readable numpy file of labels: it is damaged, or holds no array") from error


def _read_json(file: Path) -> dict[str, Any]:
    try:
        return {"noisy": json.loads(read_text(file))}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not readable JSON: {error}") from error


def _read_csv(file: Path) -> dict[str, Any]:
    try:
        with io.StringIO(read_text(file), newline="") as stream:
            rows = csv.DictReader(stream)
            if "label_noisy" not in (rows.fieldnames or ()):
                raise ValueError(f"its columns are {rows.fieldnames}; one named label_noisy is expected")
            return {"noisy": [_whole(row["label_noisy"], rows.line_num) for row in rows]}
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{file} is not a readable CSV of labels: {error}") from error


def _whole(text: str | None, line: int) -> int:
    """A label written as 3 or as 3.0, which data frames do."""
    try:
        value = float(text or "")
        if value.is_integer():
            return int(value)
    except ValueError:
        pass
    raise ValueError(f"line {line}: label_noisy={text!r} is not a whole number")


def _as_columns(file: Path, content: Any) -> dict[str, Any]:
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ValueError(f"{file} holds a {type(content).__name__}; a dict of label columns is expected")
    return content


_READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    ".pt": _read_torch,
    ".npy": _read_numpy,
    ".json": _read_json,
    ".csv": _read_csv,
}
