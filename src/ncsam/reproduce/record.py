"""`reproduce.json`, next to the runs: their scale, where the data came from, and which versions ran them."""

from __future__ import annotations

import json
import platform
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ncsam._arguments import choice, coerce
from ncsam._errors import bad_value
from ncsam._files import atomic_path, read_json
from ncsam._version import __version__
from ncsam.reproduce.notes import Note
from ncsam.reproduce.scales import CHANGES, SCALES, Setting
from ncsam.reproduce.tables import Table
from ncsam.runs import layout

FILE = layout.REPRODUCTION
_SOURCE = {"data": str, "stand_in": bool, "identity": str}


def versions() -> dict[str, str]:
    """Return the versions of the software that may change a result."""
    return {
        "ncsam": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


@dataclass
class Record:
    """The description of a folder of cells.

    Attributes:
        scale: the scale of all its cells.
        sources: where the samples of each dataset came from, as `Source.to_dict` returns it.
        versions: the versions that ran cells here, oldest first.
        changes: how its cells differ from the scale, as `Setting.changes` returns it.
    """

    scale: str
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: list[dict[str, str]] = field(default_factory=list)
    changes: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Record:
        """Read the record of a folder.

        Args:
            folder: a folder that `ncsam reproduce` wrote.

        Raises:
            UsageError: if there is no record.
            ValueError: if the file is not a record.
        """
        path = folder / FILE
        if not path.is_file():
            raise bad_value("folder", str(folder), f"a folder that `ncsam reproduce` wrote; it holds no {FILE}")
        try:
            return cls._of(read_json(path))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is not the record of a reproduction: {error}") from error

    @classmethod
    def _of(cls, content: dict[str, Any]) -> Record:
        """Build a record from a file's content, checking all types."""
        sources = {str(name): _coerced(each, _SOURCE) for name, each in content["sources"].items()}
        scale = choice("scale", coerce("scale", content["scale"], str), SCALES)
        changes = {
            name: coerce(name, content["changes"][name], kind)
            for name, kind in CHANGES.items()
            if name in content["changes"]
        }
        return cls(scale, sources, list(map(_texts, content["versions"])), changes)

    @classmethod
    def claim(cls, folder: Path, setting: Setting, datasets: Collection[str]) -> Record:
        """Read the record of a folder, or create it, and add the current versions.

        Args:
            folder: the folder of the runs.
            setting: the scale and the sources of the datasets.
            datasets: the paper's datasets that will be trained on.

        Raises:
            UsageError: if the cells in the folder are of another scale or other data.
        """
        record = cls.read(folder) if (folder / FILE).is_file() else cls(setting.scale, changes=setting.changes)
        if (record.scale, record.changes) != (setting.scale, setting.changes):
            asked, held = _described(setting.scale, setting.changes), _described(record.scale, record.changes)
            raise bad_value("out", str(folder), f"a folder of cells of {asked}; this one holds {held}")
        for dataset in sorted(datasets):
            found = setting.source(dataset).to_dict()
            there = record.sources.setdefault(dataset, found)
            if (there["identity"], there["stand_in"]) != (found["identity"], found["stand_in"]):
                raise bad_value(
                    "out",
                    str(folder),
                    f"a folder whose cells of {dataset} were trained on {found['data']}; these used {there['data']}",
                )
        if versions() not in record.versions:
            record.versions.append(versions())
        record.write(folder)
        return record

    def write(self, folder: Path) -> None:
        """Write `reproduce.json` atomically.

        Args:
            folder: the folder of the runs.
        """
        with atomic_path(folder / FILE) as temporary:
            temporary.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    def columns(self, table: Table) -> list[str]:
        """Return the columns of a table whose dataset is recorded here.

        Args:
            table: any table.

        Returns:
            Names of columns.
        """
        return [column.name for column in table.columns if column.dataset in self.sources]

    def notes(self) -> list[Note]:
        """Return a note if cells were run with different versions."""
        if len(self.versions) < 2:
            return []
        return [Note(f"Cells were run with {' and with '.join(map(format_versions, self.versions))}.")]


def _described(scale: str, changes: Mapping[str, Any]) -> str:
    return " ".join([f"scale {scale}", *(f"--{name} {value}" for name, value in changes.items())])


def _coerced(given: dict[str, Any], kinds: dict[str, Any]) -> dict[str, Any]:
    """These values, each of its type."""
    return {name: coerce(name, given[name], kind) for name, kind in kinds.items()}


def _texts(given: dict[str, str]) -> dict[str, str]:
    return {name: coerce(name, text, str) for name, text in coerce("versions", given, dict[str, str]).items()}


def format_versions(found: dict[str, str]) -> str:
    """Format versions as "name number, ...".

    Args:
        found: versions by name, from `versions`.
    """
    return ", ".join(f"{name} {number}" for name, number in found.items())
