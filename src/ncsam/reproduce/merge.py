"""Other people's cells, taken over where their data, settings and versions are ours."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ncsam._errors import bad_value, need
from ncsam._files import atomic_path, parse_yaml, read_json, read_text
from ncsam.engine import RunConfig
from ncsam.engine.metrics import summarize
from ncsam.reproduce.record import Record, spoken
from ncsam.reproduce.results import METRICS, run_name
from ncsam.reproduce.scales import Setting
from ncsam.reproduce.tables import TABLES, Column, Row
from ncsam.runs.reader import Run

_DECISIVE = ("ncsam", "torch")  # versions that may change what a run computes


def merge(
    out: Path, others: Sequence[Path], *, other_versions: bool = False, say: Callable[[str], None] = print
) -> list[str]:
    """Copy the finished runs of other folders that `out` does not have; their names.

    All is checked before anything is copied: the scale, the data (by name, or the hash of its file), the versions
    (unless `other_versions`), every run's configuration against the cell it claims to be, its labels against those of
    the same column here, and its summary against its own epochs.
    """
    ours = Record.read(out)
    taken: list[str] = []
    for other in others:
        theirs = Record.read(other)
        _compare_records(ours, theirs, other, other_versions)
        wanted = [name for name in _finished(other) if not (out / name / "summary.json").exists()]
        found = [name for name in wanted if not (out / name).exists()]
        for name in found:
            _check(name, out, other, theirs)
        for name in wanted:
            if name not in found:
                say(f"{name}: begun here and not finished, so not taken; remove {out / name} to take it")
        for name in found:
            _copy(other / name, out / name, _source(ours, name))
            say(f"{name}: taken from {other}")
        if found:
            ours.merged.append({"folder": str(other), "versions": theirs.versions, "runs": found})
            ours.sources = {**theirs.sources, **ours.sources}
            ours.write(out)
        taken += found
    return taken


def _compare_records(ours: Record, theirs: Record, other: Path, other_versions: bool) -> None:
    if theirs.scale != ours.scale:
        raise bad_value("folder", str(other), f"cells of scale {ours.scale}, and these are of scale {theirs.scale}")
    for dataset in ours.sources.keys() & theirs.sources.keys():
        here, there = ours.sources[dataset], theirs.sources[dataset]
        if (here["identity"], here["stand_in"]) != (there["identity"], there["stand_in"]):
            raise bad_value(
                "folder", str(other), f"{dataset} from {here['identity']}, and there it is from {there['identity']}"
            )
    if other_versions:
        return
    known = [{name: each[name] for name in _DECISIVE} for each in ours.versions]
    for each in theirs.versions:
        if {name: each.get(name) for name in _DECISIVE} not in known:
            wanted = " or ".join(map(spoken, known))
            raise bad_value(
                "folder",
                str(other),
                f"cells run with {wanted}, and these were with {spoken(each)}; "
                "--other-versions takes them all the same, and the tables say so",
            )


def _finished(folder: Path) -> Iterator[str]:
    for file in sorted(folder.glob("*/*/summary.json")):
        if not file.is_symlink() and file.parent.resolve().is_relative_to(folder.resolve()):
            yield f"{file.parent.parent.name}/{file.parent.name}"


def _cell(name: str) -> tuple[Row, Column, int]:
    """What a run claims to be by its name."""
    seed = name.rpartition("-s")[2]
    if seed.isdecimal():
        for table in TABLES.values():
            for row, column in table.cells:
                if run_name(row, column, int(seed)) == name:
                    return row, column, int(seed)
    raise bad_value("run", name, "the name of a cell of the paper's tables")


def _check(name: str, out: Path, other: Path, theirs: Record) -> None:
    row, column, seed = _cell(name)
    run = Run.read(other / name)
    expected = Setting.of_sources(theirs.scale, theirs.sources).config(row, column, seed)
    changed = expected.conflicts(RunConfig.from_yaml(other / name / "config.yaml"))
    if changed:
        listed = "; ".join(f"{key} is {was!r}, not {wanted!r}" for key, (was, wanted) in changed.items())
        raise bad_value("run", str(other / name), f"the configuration of its cell ({listed})")
    told = summarize(run.metrics)
    differing = [metric for metric in METRICS if told[metric] != run.summary.get(metric)]
    if len(run.metrics) != expected.epochs or differing:
        raise bad_value("run", str(other / name), "its summary is not that of its epochs")
    here = next((found for found in map(_labels, (out / column.folder).glob("*")) if found), None)
    there = _labels(other / name)
    if here and there and here != there:
        raise bad_value("run", str(other / name), "it was trained on other labels than the runs of its column here")


def _labels(run: Path) -> str | None:
    file = run / "checkpoints" / "last.json"
    return read_json(file).get("labels_sha256") if file.is_file() else None


def _source(ours: Record, name: str) -> str | None:
    """ExecutorConfig the data of a run lies here, if anywhere."""
    found = ours.sources.get(_cell(name)[1].dataset)
    return None if found is None else found["data"]


def _copy(source: Path, target: Path, data: str | None) -> None:
    """The ordinary files of a run, whole or not at all; its data are where ours are."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".merge-") as folder:
        made = Path(folder) / target.name
        for file in source.rglob("*"):
            if file.is_file() and not file.is_symlink() and not file.name.startswith("."):
                (made / file.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, made / file.relative_to(source))
        if data is not None:
            _point_to(made / "config.yaml", data)
        made.rename(target)


def _point_to(path: Path, data: str) -> None:
    yaml = need("yaml", "train", "reading a configuration")
    content: dict[str, Any] = parse_yaml(read_text(path), str(path))
    if "of" in (content.get("data_options") or {}):
        content["data_options"]["of"] = data
    else:
        content["data"] = data
    with atomic_path(path) as temporary:
        temporary.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), encoding="utf-8")
