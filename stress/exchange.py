"""Damaged answers of other tools and damaged audits, and the commands that read them."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path

from ncsam.auditing.findings import finding
from ncsam.issues.table import LabelIssues
from ncsam.runs.findings import save_findings
from ncsam.runs.reader import RunFolder
from stress import places
from stress.harness import Draw, pick
from stress.places import line
from stress.run_folders import Case
from stress.strategies import damage

_FINDINGS = [
    finding("outlier", 4.5, split="train", index=3, evidence="<b>far</b>", related=("train 1", "test 10000")),
    finding("conflicting_duplicate", 0.9, split="train", index=5, related=("train 6",)),
    finding("overlapping_classes", 0.6, index=0, target=1, name="0 / 1"),
    finding("leaking_column", 1.0, name="=1+1"),
]


@cache
def _issues() -> LabelIssues:
    return RunFolder.read(places.finished()).label_issues()


def answers(draw: Draw, top: Path) -> Case:
    """A file that came back from a tool: valid, then damaged."""
    run = Path(shutil.copytree(places.finished(), top / "theirs"))
    tool = pick(draw, "label-studio", "csv", "huggingface")
    said = pick(draw, "0", "2", "keep", "drop", "")
    rows = [{**row, "decision": said, "reviewer": "Ada"} for row in _issues().rows()]
    if tool == "label-studio":
        file = top / "export.json"
        tasks = _issues().to_label_studio()
        for task, row in zip(tasks, rows, strict=True):
            result = [{"from_name": "label", "value": {"choices": [row["decision"]]}}]
            task["annotations"] = [{"completed_by": {"email": "ada@x"}, "result": result, "updated_at": "2026-01-01"}]
        file.write_text(json.dumps(tasks))
    elif tool == "csv":
        file = top / "issues.csv"
        lines = [f"{row['index']},{row['given_label']},{row['decision']},Ada" for row in rows]
        file.write_text("\n".join(["index,given_label,decision,reviewer", *lines]) + "\n")
    else:
        import pyarrow
        import pyarrow.parquet

        file = top / "issues.parquet"
        names = ("index", "given_label", "decision", "reviewer")
        pyarrow.parquet.write_table(pyarrow.table({name: [row[name] for row in rows] for name in names}), file)
    what = damage(draw, file)
    call = f"clean {{run}} --from {tool} {file} " + pick(draw, "--dry-run", "--out {top}/c.npz")
    return line(call, top, run=run), f"{tool}, {what}"


def audit(draw: Draw, top: Path) -> Case:
    """A run folder whose audit is damaged."""
    run = Path(shutil.copytree(places.finished(), top / "theirs"))
    save_findings(run, _FINDINGS, ["a note"])
    what = damage(draw, run / "audit.json")
    checks = ",".join(each.check for each in _FINDINGS)
    calls = [f"clean {{run}} --findings {checks} --out {{top}}/c.npz", f"clean {{run}} --findings {checks} --dry-run"]
    call = pick(draw, *calls, "report {run} --out {top}/r.html", "review {run} --no-open")
    return line(call, top, run=run), f"audit, {what}"


def sent(draw: Draw, top: Path) -> Case:
    """A damaged run folder whose label issues go to a tool."""
    run = Path(shutil.copytree(places.finished(), top / "theirs"))
    what = damage(draw, run / pick(draw, "label_issues.csv", "label_posterior.json", "config.yaml"))
    tool, out = pick(draw, ("label-studio", "t.json"), ("csv", "i.csv"), ("huggingface", "hf"), ("datalab", "d.npz"))
    return line(f"issues {{run}} --to {tool} --out {{top}}/{out}", top, run=run), f"to {tool}, {what}"


def audited(draw: Draw, top: Path) -> Case:
    """An audit of a damaged table: texts, columns, or several annotators."""
    file = top / "table.csv"
    heads = {"text,label": "a text {i},{c}", "user,age,label": "u{i},{i},{c}", "text,ada,bob": "item {i},{c},{c}"}
    head = pick(draw, *heads)
    rows = [heads[head].format(i=i, c="xy"[i % 2]) for i in range(24)]
    file.write_text("\n".join([head, *rows]) + "\n")
    what = damage(draw, file)
    return line(f"audit {file} --quiet --backbone none --out {{top}}/out", top), f"audit of {head}, {what}"


#: Kinds of what goes to other tools, comes back, or is audited.
EXCHANGE = {"answers": answers, "sent": sent, "audit": audit, "audited": audited}
