"""Label Studio: tasks with predictions, a labeling configuration, and exported annotations."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from ncsam._errors import bad_value
from ncsam._files import read_text
from ncsam.errors import UsageError
from ncsam.exchange.answers import Answer, seconds

KINDS = ("image", "text", "table")
_INDEX = "ncsam_index"
_LABEL, _VERDICT, _SAMPLE = "label", "verdict", "sample"
_VERDICTS = ("unsure", "drop")


def image_url(path: str, root: str | os.PathLike[str] = "/") -> str:
    """Return the URL under which Label Studio serves a local file.

    Args:
        path: the file.
        root: the folder set as LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT.

    Raises:
        UsageError: if the file is not inside the folder.
    """
    relative = os.path.relpath(os.path.abspath(path), os.path.abspath(root))
    if relative.startswith(".."):
        raise bad_value("root", os.fspath(root), f"a folder that holds {path}")
    return f"/data/local-files/?d={quote(Path(relative).as_posix())}"


def tasks(
    rows: Iterable[Mapping[str, Any]],
    samples: Iterable[Mapping[str, Any]],
    *,
    model_version: str = "ncsam",
    root: str | os.PathLike[str] = "/",
) -> list[dict[str, Any]]:
    """Make one task per label issue, with the suggested label as a prediction.

    The prediction's `score` is the probability that the given label is wrong (1 - label_quality if that cannot be
    estimated), so that Label Studio can sort by it.

    Args:
        rows: label issues, from `LabelIssues.rows()`.
        samples: what each sample is: `image` (a path or a data URI), `text`, or `row` (values by column).
        model_version: name shown next to the predictions.
        root: as in `image_url`.

    Returns:
        The tasks, in the order of `rows`, to be saved as JSON.
    """
    made = []
    for row, sample in zip(rows, samples, strict=True):
        data: dict[str, Any] = {_INDEX: row["index"]}
        if image := sample.get("image"):
            data["image"] = image if str(image).startswith("data:") else image_url(image, root)
        elif "row" in sample:
            data["row"] = {str(name): value for name, value in sample["row"].items()}
            data["text"] = "\n".join(f"{name}: {value}" for name, value in sample["row"].items())
        else:
            data["text"] = sample.get("text", f"sample {row['index']}")
        for name in ("given_label", "suggested_label", "label_quality", "p_wrong"):
            data[name] = row.get(name)
        data["hint"] = f"Given label: {row['given_label']}. Suggested label: {row['suggested_label']}."
        score = row["p_wrong"] if row.get("p_wrong") is not None else 1 - row["label_quality"]
        result: dict[str, Any] = {"from_name": _LABEL, "to_name": _SAMPLE, "type": "choices"}
        result["value"] = {"choices": [row["suggested_label"]]}
        made.append(
            {"data": data, "predictions": [{"model_version": model_version, "score": score, "result": [result]}]}
        )
    return made


def labeling_config(classes: Sequence[str], kind: str) -> str:
    """Return the labeling configuration, in which a class, "unsure" or "drop" is chosen.

    Args:
        classes: class names.
        kind: kind of the tasks: "image", "text" or "table".

    Returns:
        XML.

    Raises:
        UsageError: if the kind is unknown, or a class name is blank or cannot be written as XML.
    """
    if kind not in KINDS:
        raise bad_value("kind", kind, f"one of {', '.join(KINDS)}")
    odd = [name for name in classes if not name.strip() or any(ord(c) < 32 and c not in "\t\n\r" for c in name)]
    if odd:
        raise bad_value("classes", odd[0], "names that XML can hold, and that are not blank")
    shown = {
        "image": f'  <Image name="{_SAMPLE}" value="$image" zoom="true"/>',
        "text": f'  <Text name="{_SAMPLE}" value="$text"/>',
        "table": f'  <Table name="row" value="$row"/>\n  <Text name="{_SAMPLE}" value="$text"/>',
    }[kind]
    names = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in classes)
    verdicts = "\n".join(f'    <Choice value="{name}"/>' for name in _VERDICTS)
    inline = f'toName="{_SAMPLE}" choice="single" showInline="true"'
    return (
        f'<View>\n{shown}\n  <Header value="$hint"/>\n'
        f'  <Choices name="{_LABEL}" {inline}>\n{names}\n  </Choices>\n'
        f'  <Choices name="{_VERDICT}" {inline}>\n{verdicts}\n  </Choices>\n'
        "</View>\n"
    )


def read(source: str | os.PathLike[str] | Sequence[Any]) -> list[Answer]:
    """Read answers from annotations that Label Studio exported.

    Skipped and empty annotations are left out. If a person annotated a task several times, the latest answer comes
    last.

    Args:
        source: a JSON or JSON-MIN file, or its parsed content.

    Returns:
        The answers, in order of time.

    Raises:
        UsageError: if it is neither, or a task was not made by `tasks`.
    """
    where = "annotations"
    content: Any = source
    if isinstance(source, (str, os.PathLike)):
        where = str(source)
        try:
            content = json.loads(read_text(source))
        except (ValueError, RecursionError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"{where} is not readable JSON: it is cut off, damaged or of another kind") from error
    if not isinstance(content, (list, tuple)):
        raise bad_value("annotations", type(content).__name__, "the list of tasks that Label Studio exports as JSON")
    found: list[Answer] = []
    for number, task in enumerate(content):
        found += _answers(task, f"{where}, task {number}")
    return sorted(found, key=lambda each: each.time)


def _answers(task: Any, where: str) -> list[Answer]:
    if not isinstance(task, Mapping):
        raise bad_value("task", task, f"an object ({where})")
    data = task.get("data", task)
    index = data.get(_INDEX) if isinstance(data, Mapping) else None
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < 2**63:
        raise bad_value(_INDEX, index, f"the number that ncsam put into data.{_INDEX} ({where})")
    given = data.get("given_label")
    about = {"given_label": given if isinstance(given, str) else ""}
    if "data" not in task:  # JSON-MIN: one object per annotation
        said = _choice(task.get(_VERDICT)) or _choice(task.get(_LABEL))
        when = seconds(task.get("updated_at"))
        return [Answer(index, said, _person(task.get("annotator")), when, **about)] if said else []
    annotations = task.get("annotations", [])
    if not isinstance(annotations, list) or not all(isinstance(each, Mapping) for each in annotations):
        raise bad_value("annotations", annotations, f"a list of objects ({where})")
    found = []
    for each in annotations:
        said = "" if each.get("was_cancelled") else _said(each.get("result"))
        if said:
            when = seconds(each.get("updated_at") or each.get("created_at"))
            found.append(Answer(index, said, _person(each.get("completed_by")), when, **about))
    return found


def _said(result: Any) -> str:
    """The content of an annotation: the verdict if there is one, else the label; "" if it is not finished."""
    said: dict[str, str] = {}
    for region in result if isinstance(result, list) else []:
        if isinstance(region, Mapping) and isinstance(region.get("value"), Mapping):
            said[str(region.get("from_name"))] = _choice(region["value"])
    return said.get(_VERDICT) or said.get(_LABEL) or ""


def _choice(value: Any) -> str:
    """The single choice in `"cat"`, `["cat"]` or `{"choices": ["cat"]}`; "" for none or several."""
    if isinstance(value, Mapping):
        value = value.get("choices")
    if isinstance(value, list):
        value = value[0] if len(value) == 1 else None
    return value if isinstance(value, str) else ""


def _person(value: Any) -> str:
    if isinstance(value, Mapping):
        value = value.get("email") or value.get("id")
    return f"annotator {value}" if isinstance(value, int) else str(value or "Label Studio")
