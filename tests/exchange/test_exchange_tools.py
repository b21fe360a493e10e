"""Round trips with annotation tools: nothing is lost, and what came back is applied or refused as a whole."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas
import pytest

import ncsam
from ncsam.errors import UsageError
from ncsam.exchange import hugging_face, label_studio, spreadsheet
from ncsam.exchange.answers import Answer, answers_of_columns
from ncsam.issues.table import LabelIssues
from ncsam.review.clean import cleaned
from ncsam.review.imported import imported, take_decisions
from ncsam.runs.decisions import Decisions

sys.path.insert(0, str(Path(__file__).parents[1] / "review"))
from review_cases import CLASSES, made_run

#: Whatever people write: Unicode, several lines, quotes, a formula.
NAMES = ["Katze", "日本", "=1+1", 'two\nlines "quoted"', "<b>&amp;"]


def issues(count: int = 10) -> LabelIssues:
    """Sample i of `count` is labeled i % 5 and suggested the next class; the last comes first."""
    index = np.arange(count)[::-1]
    given = index % 5
    return LabelIssues(
        {
            "index": index,
            "text": np.array([f"line {i}\n{NAMES[i % 5]}" for i in index], dtype=object),
            "given_label": given,
            "predicted_label": (given + 1) % 5,
            "label_quality": np.linspace(0, 1, count),
            "p_wrong": np.full(count, np.nan),
            "is_label_issue": np.linspace(0, 1, count) < 0.5,
            "suggested_label": (given + 1) % 5,
            "p_suggested": np.full(count, np.nan),
        },
        NAMES,
    )


def annotated(tasks: list[dict[str, Any]], said: dict[int, list[tuple[Any, dict[str, str]]]]) -> list[dict[str, Any]]:
    """Tasks as Label Studio exports them: of each index, who said what, in the order of time."""
    exported = []
    for number, task in enumerate(tasks):
        annotations = [
            {
                "id": place,
                "completed_by": who,
                "was_cancelled": False,
                "updated_at": f"2026-01-01T00:00:0{place}.5Z",
                "result": [
                    {"from_name": name, "to_name": "sample", "type": "choices", "value": {"choices": [value]}}
                    for name, value in choices.items()
                ],
            }
            for place, (who, choices) in enumerate(said.get(task["data"]["ncsam_index"], []))
        ]
        exported.append({"id": number, **task, "annotations": annotations})
    return exported


# --- Label Studio


def test_tasks_have_what_label_studios_schema_asks_for(tmp_path: Path) -> None:
    made = issues().to_label_studio(tmp_path / "tasks.json")
    assert json.loads((tmp_path / "tasks.json").read_text(encoding="utf-8")) == made
    assert [task["data"]["ncsam_index"] for task in made] == list(range(9, -1, -1))
    (prediction,) = made[0]["predictions"]
    assert (prediction["model_version"], prediction["score"]) == ("ncsam", 1.0)
    assert prediction["result"] == [
        {"from_name": "label", "to_name": "sample", "type": "choices", "value": {"choices": [NAMES[0]]}}
    ]
    assert made[0]["data"]["text"] == f"line 9\n{NAMES[4]}"
    config = ElementTree.parse(tmp_path / "tasks.xml").getroot()
    label = next(each for each in config.iter("Choices") if each.get("name") == "label")
    assert [each.get("value") for each in label] == NAMES
    names = {each.get("name") for each in config.iter() if each.get("name")}
    assert all(each.get("toName") in names for each in config.iter("Choices"))


@pytest.mark.parametrize("kind", label_studio.KINDS)
def test_a_configuration_shows_every_kind(kind: str) -> None:
    config = ElementTree.fromstring(label_studio.labeling_config(["a", "b"], kind))
    assert {"image": "Image", "text": "Text", "table": "Table"}[kind] in {each.tag for each in config}
    with pytest.raises(UsageError, match="classes"):
        label_studio.labeling_config(["a\x01"], kind)


@pytest.mark.parametrize("kind", label_studio.KINDS)
def test_label_studios_own_library_accepts_what_we_write_and_we_read_what_it_writes(kind: str) -> None:
    library = pytest.importorskip("label_studio_sdk.label_interface", reason="label-studio-sdk is not installed")
    interface = library.LabelInterface(label_studio.labeling_config(NAMES, kind))
    interface.validate()  # of names, references between tags and attributes; raises
    assert list(interface.get_control("label").labels) == NAMES
    sample = {"image": {"image": "/a b/ä.png"}, "text": {"text": "a\nb"}, "table": {"row": {"x": 1, "y": None}}}[kind]
    for row in issues().rows():
        (task,) = label_studio.tasks([row], [sample])
        assert interface.validate_task({"data": task["data"]})  # every variable of the configuration has a value
        assert interface.validate_prediction(task["predictions"][0], return_errors=True) == []
    wrong = {**task["predictions"][0], "result": [{**task["predictions"][0]["result"][0], "value": {"choices": ["?"]}}]}
    assert interface.validate_prediction(wrong, return_errors=True)
    made = interface.generate_sample_annotation()
    said = {each["from_name"]: each["value"]["choices"][0] for each in made["result"]}
    (answer,) = label_studio.read([{**task, "annotations": [made]}])
    assert (answer.index, answer.decision) == (task["data"]["ncsam_index"], said["verdict"])
    label_only = {**made, "result": [each for each in made["result"] if each["from_name"] == "label"]}
    (answer,) = label_studio.read([{**task, "annotations": [label_only]}])
    assert answer.decision == said["label"]


def test_images_are_addressed_below_the_document_root(tmp_path: Path) -> None:
    assert label_studio.image_url("/data/my photos/ä.png", "/data") == "/data/local-files/?d=my%20photos/%C3%A4.png"
    with pytest.raises(UsageError, match="root"):
        label_studio.image_url("/elsewhere/a.png", "/data")


def test_contradictory_partial_and_skipped_annotations() -> None:
    tasks = issues().to_label_studio()
    said = {
        1: [({"id": 3, "email": "ada@x"}, {"label": NAMES[2]}), (7, {"label": NAMES[3]})],
        2: [(7, {"label": NAMES[2]}), (7, {"label": NAMES[4]})],
        3: [(7, {})],
        4: [(7, {"label": NAMES[0], "verdict": "drop"})],
    }
    exported = annotated(tasks, said)
    exported[0]["annotations"] = [{"completed_by": 7, "was_cancelled": True, "result": []}]
    found = {(each.index, each.reviewer, each.decision) for each in label_studio.read(exported)}
    assert found == {
        (1, "ada@x", NAMES[2]),
        (1, "annotator 7", NAMES[3]),
        (2, "annotator 7", NAMES[2]),
        (2, "annotator 7", NAMES[4]),
        (4, "annotator 7", "drop"),
    }
    assert [each.decision for each in label_studio.read(exported) if each.index == 2] == [NAMES[2], NAMES[4]]


def test_json_min() -> None:
    rows = [{"ncsam_index": 3, "label": "b", "annotator": 2, "updated_at": "2026-01-01T00:00:00Z", "given_label": "a"}]
    assert label_studio.read([*rows, {"ncsam_index": 4}]) == [Answer(3, "b", "annotator 2", 1767225600.0, "a")]


@pytest.mark.parametrize(
    "content", ["[", "{}", "[1]", '[{"data": {}}]', '[{"data": {"ncsam_index": -1}}]', "[" * 100000]
)
def test_a_damaged_export_is_one_sentence(content: str, tmp_path: Path) -> None:
    (tmp_path / "export.json").write_text(content)
    with pytest.raises(UsageError):
        label_studio.read(tmp_path / "export.json")


# --- spreadsheets and Hugging Face


def test_a_spreadsheet_keeps_ids_unicode_and_lines(tmp_path: Path) -> None:
    path = tmp_path / "issues.csv"
    issues().to_csv(path)
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["text"] == f"line 9\n{NAMES[4]}"
    assert rows[2]["given_label"] == "'=1+1"
    for row, decision in zip(rows, [*NAMES, "keep", "unsure", "", " ", "drop"], strict=True):
        row["decision"], row["reviewer"] = decision, "Ada"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    found = spreadsheet.read(path)
    assert [(each.index, each.decision) for each in found] == [
        *((9 - i, name) for i, name in enumerate(NAMES)),
        (4, "keep"),
        (3, "unsure"),
        (0, "drop"),
    ]
    assert found[2].given_label == NAMES[2]


def test_a_table_without_its_columns_is_refused() -> None:
    with pytest.raises(UsageError, match="decision"):
        answers_of_columns({"index": [1]}, "x")
    with pytest.raises(UsageError, match="index"):
        answers_of_columns({"index": ["one"], "decision": ["a"]}, "x")


def test_a_hugging_face_dataset_and_back(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    made = issues().to_huggingface()
    assert made.features["given_label"].names == NAMES
    assert made["index"][:] == list(range(9, -1, -1))
    assert made["text"][0] == f"line 9\n{NAMES[4]}"
    decided = made.map(
        lambda row: {"decision": NAMES[row["index"] % 5] if row["index"] < 3 else None, "reviewer": "Ada"}
    )
    expected = [(2, NAMES[2], "Ada"), (1, NAMES[1], "Ada"), (0, NAMES[0], "Ada")]
    assert [(each.index, each.decision, each.reviewer) for each in hugging_face.read(decided)] == expected
    decided.save_to_disk(str(tmp_path / "saved"))
    decided.to_parquet(str(tmp_path / "saved.parquet"))
    for path in (tmp_path / "saved", tmp_path / "saved.parquet"):
        assert [(each.index, each.decision, each.reviewer) for each in hugging_face.read(path)] == expected
    base = datasets.Dataset.from_dict({"text": [f"t{i}" for i in range(10)]})
    added = issues().to_huggingface(base)
    assert added["text"][:] == base["text"][:]
    assert added["given_label"][:] == [i % 5 for i in range(10)]
    with pytest.raises(UsageError, match="dataset"):
        issues().to_huggingface(base.select(range(3)))


def test_datalabs_table_and_back() -> None:
    pytest.importorskip("pandas")
    table = issues().to_datalab()
    assert table.index.tolist() == list(range(10))
    assert table["given_label"].tolist() == [NAMES[i % 5] for i in range(10)]
    back = LabelIssues.from_datalab(table, NAMES)
    for name in ("index", "given_label", "predicted_label", "label_quality", "is_label_issue"):
        np.testing.assert_array_equal(back.numbers(name), issues().numbers(name))
    with pytest.raises(UsageError, match="issues"):
        LabelIssues.from_datalab(table.drop(columns="label_score"))


def test_texts_leave_a_run_with_all_their_lines(tmp_path: Path) -> None:
    table = [(f"{'good' if i % 2 else 'bad'} {i}\n  second \\n line", "ab"[i % 2]) for i in range(20)]
    pandas.DataFrame(table, columns=["text", "label"]).to_csv(tmp_path / "t.csv", index=False)
    run = ncsam.train(tmp_path / "t.csv", model="text_mean", optimizer="sgd", epochs=1, val_share=0.0)
    found = run.find_label_issues()
    found.to_csv(tmp_path / "issues.csv")
    sheet = pandas.read_csv(tmp_path / "issues.csv")
    for index, text in [*zip(sheet["index"], sheet["text"], strict=True)]:
        assert text == table[index][0]
    pytest.importorskip("datasets")
    made = found.to_huggingface()
    assert made["text"][:] == [table[index][0] for index in made["index"][:]]


@pytest.mark.parametrize("rows", [2500, pytest.param(100_000, marks=pytest.mark.stress)])
@pytest.mark.parametrize("tool", ["label-studio", "csv", "huggingface"])
def test_many_rows(tool: str, rows: int, tmp_path: Path) -> None:
    many = issues(rows)
    if tool == "label-studio":
        exported = annotated(many.to_label_studio(), {i: [(1, {"label": NAMES[i % 5]})] for i in range(rows)})
        (tmp_path / "export.json").write_text(json.dumps(exported))
        found = label_studio.read(tmp_path / "export.json")
    elif tool == "csv":
        many.to_csv(tmp_path / "issues.csv")
        table = pandas.read_csv(tmp_path / "issues.csv", dtype=str, keep_default_na=False)
        assert table["text"][0] == f"line {rows - 1}\n{NAMES[4]}"
        table["decision"] = [NAMES[i % 5] for i in table["index"].astype(int)]
        table.to_csv(tmp_path / "issues.csv", index=False)
        found = spreadsheet.read(tmp_path / "issues.csv")
    else:
        pytest.importorskip("datasets")
        table = many.to_huggingface()
        decided = [NAMES[i % 5] for i in table["index"][:]]
        table.remove_columns("decision").add_column("decision", decided).save_to_disk(str(tmp_path / "saved"))
        found = hugging_face.read(tmp_path / "saved")
    assert {each.index: each.decision for each in found} == {i: NAMES[i % 5] for i in range(rows)}


# --- into a run


def test_decisions_reach_the_run_once_and_disputes_stay_open(tmp_path: Path) -> None:
    folder = made_run(tmp_path)
    classes = sorted(CLASSES)
    notes = folder / "checkpoints" / "last.json"
    notes.parent.mkdir()
    notes.write_text(json.dumps({"data": {"classes": classes}}))
    given = [classes.index(CLASSES[i % 3]) for i in range(30)]
    other = [classes[(given[i] + 2) % 3] for i in range(30)]
    words = [other[0], "keep", "accept", "unsure", "drop", other[5]]
    answers = [
        *(Answer(i, word, "ada", 1.0) for i, word in enumerate(words)),
        Answer(5, "keep", "bob", 2.0, classes[given[5]]),
    ]
    source = [{"ncsam_index": a.index, "label": a.decision, "annotator": a.reviewer} for a in answers]
    new = imported(folder, "label-studio", source)
    assert [each.choice for each in new] == ["other", "keep", "accept", "unsure", "drop", "other", "keep"]
    decisions = Decisions(folder, write=True)
    assert take_decisions(decisions, new) == 7
    assert take_decisions(decisions, new) == 0
    decisions.close()
    found = cleaned(folder)
    assert found.labels[:3].tolist() == [(given[0] + 2) % 3, given[1], (given[2] + 1) % 3]
    assert found.labels[5] == given[5]  # disputed
    assert found.dropped.nonzero()[0].tolist() == [4]
    assert len(found.to_frame()) == 29
    for wrong in (
        {"ncsam_index": 30, "label": "keep"},
        {"ncsam_index": 1, "label": "bird"},
        {"ncsam_index": 1, "label": "keep", "given_label": other[1]},
    ):
        with pytest.raises(UsageError):
            imported(folder, "label-studio", [wrong])
