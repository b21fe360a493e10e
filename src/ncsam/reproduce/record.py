"""`reproduce.json` beside the runs: their scale, where the data came from, which versions ran them, what was merged."""

from __future__ import annotations

import json
import platform
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ncsam._checks import choice
from ncsam._errors import bad_value
from ncsam._files import atomic_path, read_json
from ncsam._options import coerce
from ncsam._version import __version__
from ncsam.reproduce.notes import Note
from ncsam.reproduce.scales import SCALES, Setting
from ncsam.reproduce.tables import Table

FILE = "reproduce.json"
_SOURCE = {"data": str, "stand_in": bool, "identity": str}
_MERGED: dict[str, Any] = {"folder": str, "versions": list[Any], "runs": list[str]}


def versions() -> dict[str, str]:
    """What may change a result."""
    return {
        "ncsam": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


@dataclass
class Record:
    """What a folder of cells says of itself.

    scale: the scale of all its cells.
    sources: {dataset: where its samples came from, as `Source.to_dict` has it}.
    versions: those that ran cells here, the first of all first.
    merged: for each merge the folder it came from, its versions, and the names of its runs.
    """

    scale: str
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: list[dict[str, str]] = field(default_factory=list)
    merged: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> Record:
        """Of a folder that `ncsam reproduce` wrote."""
        path = folder / FILE
        if not path.is_file():
            raise bad_value("folder", str(folder), f"one that `ncsam reproduce` wrote, and it holds no {FILE}")
        try:
            return cls._of(read_json(path))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is not the record of a reproduction: {error}") from error

    @classmethod
    def _of(cls, content: dict[str, Any]) -> Record:
        """Of a file's content, all of which has the type it should have."""
        sources = {str(name): _fitting(each, _SOURCE) for name, each in content["sources"].items()}
        merged = [_fitting(each, _MERGED) for each in content["merged"]]
        for each in merged:
            each["versions"] = list(map(_texts, each["versions"]))
        scale = choice("scale", coerce("scale", content["scale"], str), SCALES)
        return cls(scale, sources, list(map(_texts, content["versions"])), merged)

    @classmethod
    def claim(cls, folder: Path, setting: Setting, datasets: Collection[str]) -> Record:
        """The record of a folder, made if there is none; refused if its cells are of another scale or other data."""
        record = cls.read(folder) if (folder / FILE).is_file() else cls(setting.scale)
        if record.scale != setting.scale:
            raise bad_value("out", str(folder), f"its cells are of scale {record.scale}; choose another folder")
        for dataset in sorted(datasets):
            found = setting.source(dataset).to_dict()
            there = record.sources.setdefault(dataset, found)
            if (there["identity"], there["stand_in"]) != (found["identity"], found["stand_in"]):
                raise bad_value("out", str(folder), f"its cells of {dataset} were trained on {there['data']}")
        if versions() not in record.versions:
            record.versions.append(versions())
        record.write(folder)
        return record

    def write(self, folder: Path) -> None:
        with atomic_path(folder / FILE) as temporary:
            temporary.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    def columns(self, table: Table) -> list[str]:
        """Those of a table whose dataset some cell here may be of."""
        return [column.name for column in table.columns if column.dataset in self.sources]

    def notes(self, names: Sequence[str]) -> list[Note]:
        """What a reader of the runs of these names should know."""
        found = []
        if len(self.versions) > 1:
            found.append(Note(f"Cells were run with {' and with '.join(map(spoken, self.versions))}."))
        for each in self.merged:
            count = len(set(names) & set(each["runs"]))
            if count:
                run_by = " and with ".join(map(spoken, each["versions"]))
                found.append(Note(f"{count} runs were merged from {Path(each['folder']).name}, run with {run_by}."))
        return found


def _fitting(given: dict[str, Any], kinds: dict[str, Any]) -> dict[str, Any]:
    """These values, each of its type."""
    return {name: coerce(name, given[name], kind) for name, kind in kinds.items()}


def _texts(given: dict[str, str]) -> dict[str, str]:
    return {name: coerce(name, text, str) for name, text in coerce("versions", given, dict[str, str]).items()}


def spoken(found: dict[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in found.items())
