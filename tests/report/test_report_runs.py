"""Run folders read back, grouped by configuration, averaged over seeds."""

import json
import statistics

import pytest

from made_runs import add_noise, make_run
from ncsam._statistics import Spread
from ncsam.errors import DamagedFileError, UsageError
from ncsam.report.figures import group_runs, warmup_epochs
from ncsam.runs.reader import RunFolder, find_runs


def test_a_run_is_read_whole(tmp_path):
    run = RunFolder.read(make_run(tmp_path / "a", optimizer="sam", seed=3))
    record = add_noise(run.folder)
    assert run.finished
    assert run.seed == 3
    assert run.curve("test_accuracy") == {1: 13.0, 2: 23.0, 3: 33.0, 4: 43.0}
    assert run.curve("telemetry.grad_norm") == {1: 1.0, 2: 0.5, 3: pytest.approx(1 / 3), 4: 0.25}
    assert run.curve("val_accuracy") == {}
    assert run.curve("telemetry.nothing") == {}
    assert run.metric_names["last"] == "test accuracy after the last epoch, percent"
    assert run.noise.sha256 == record.sha256
    (first,) = run.label_issues(1).rows()
    assert (first["index"], first["label_quality"], first["p_wrong"]) == (7, 0.1, None)
    assert first["given_label"] == (first["clean_label"] + 1) % 10
    assert run.label_issues().numbers("times_flipped").tolist() == [3, 3, 3]
    assert run.label_issues().numbers("is_label_issue").tolist() == [True, True, False]


def test_the_command_is_the_runs_the_comparisons_or_one_that_repeats_it(tmp_path):
    run = RunFolder.read(make_run(tmp_path / "a"))
    assert run.command == "ncsam train digits --seed 1 --out a"
    run.config.pop("command")
    assert run.command == f"ncsam train --config {tmp_path / 'a' / 'config.yaml'}"
    (tmp_path / "command.txt").write_text("ncsam compare digits\n")
    assert run.command == "ncsam compare digits"


def test_warmup_is_the_configurations_own(tmp_path):
    def warmup(name, **config):
        return warmup_epochs(RunFolder.read(make_run(tmp_path / name, finished=False, **config)))

    assert warmup("a", optimizer="sgd", warmup=0.5) == 0
    assert warmup("c", optimizer="sam", warmup=0.5) == 2
    assert warmup("d", optimizer="sam", warmup="auto") == 0  # not over yet
    folder = make_run(tmp_path / "e", optimizer="sam", warmup="auto")
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "warmup_epochs": 3}))
    assert warmup_epochs(RunFolder.read(folder)) == 3


def test_nothing_is_a_value_and_what_is_not_finite_is_none(tmp_path):
    folder = make_run(tmp_path / "a")
    values = ["0.0", "null", "NaN", "2.5"]
    lines = [f'{{"epoch": {e}, "test_accuracy": {value}}}\n' for e, value in enumerate(values, start=1)]
    (folder / "metrics.jsonl").write_text("".join(lines))
    assert RunFolder.read(folder).curve("test_accuracy") == {1: 0.0, 4: 2.5}


def test_a_stopped_run_has_curves_and_a_cut_line_is_forgiven(tmp_path):
    folder = make_run(tmp_path / "a", finished=False)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 5, "test_acc')
    run = RunFolder.read(folder)
    assert not run.finished
    assert len(run.metrics) == 4
    with pytest.raises(UsageError, match=r"label_issues\.csv"):
        run.label_issues()


def test_damaged_files_are_named(tmp_path):
    folder = make_run(tmp_path / "a")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join([lines[0], "{broken", lines[1]]))
    with pytest.raises(DamagedFileError, match=r"metrics\.jsonl, line 2"):
        RunFolder.read(folder)
    (folder / "metrics.jsonl").write_text("[1]\n")
    with pytest.raises(DamagedFileError, match=r"metrics\.jsonl, line 1"):
        RunFolder.read(folder)
    (folder / "metrics.jsonl").write_text(lines[0])
    (folder / "summary.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"summary\.json holds"):
        RunFolder.read(folder)
    (folder / "label_issues.csv").write_text("index,label\n3,4\n")
    (folder / "summary.json").unlink()
    with pytest.raises(ValueError, match=r"label_issues\.csv.*'given_label'"):
        RunFolder.read(folder).label_issues()
    (folder / "config.yaml").write_text("true: 0.3\n")
    with pytest.raises(ValueError, match=r"config.yaml holds True"):
        RunFolder.read(folder)
    (folder / "config.yaml").write_text("rho: {a: 1, 2: 3}\n")
    with pytest.raises(ValueError, match=r"config.yaml holds 2"):
        RunFolder.read(folder)
    (folder / "config.yaml").write_text("data_options: abc\n")
    with pytest.raises(ValueError, match=r"config.yaml: invalid data_options="):
        RunFolder.read(folder)
    (folder / "config.yaml").write_text("seed: one\n")
    with pytest.raises(ValueError, match=r"config.yaml: invalid seed="):
        _ = RunFolder.read(folder).seed
    (folder / "config.yaml").write_text("epochs: {a: 1}\n")
    with pytest.raises(ValueError, match=r"config.yaml: invalid epochs="):
        _ = RunFolder.read(folder).epochs
    (folder / "config.yaml").write_text("a: [")
    with pytest.raises(ValueError, match=r"config\.yaml is not YAML"):
        RunFolder.read(folder)


HEAD = "index,given_label,predicted_label,label_quality,p_wrong,is_label_issue,suggested_label,p_suggested"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("0,1,2,0.5,,0,2,,7", "line 2, has not 8 fields as the header has"),
        ("0,1,2,0.5", "line 2, has not 8 fields"),
        ("0,1,2,0.5,0.5,1,2,", "p_wrong and p_suggested are both known, or neither is"),
        ("-5,1,2,0.5,,0,2,", "invalid index=-5"),
        ("9999999999999999999,1,2,0.5,,0,2,", "'index'"),
        ("0,1.5,2,0.5,,0,2,", "'given_label'"),
        ("0,1,2,x,,0,2,", "'label_quality'"),
        (f"0,1,2,{'9' * 200_000},,0,2,", "is not a row of a table: field larger than"),
    ],
)
def test_a_label_issue_that_no_run_writes_is_named(tmp_path, line, said):
    folder = make_run(tmp_path / "a")
    (folder / "label_issues.csv").write_text(f"{HEAD}\n{line}\n")
    with pytest.raises(ValueError, match=said):
        RunFolder.read(folder).label_issues()


def test_annotators_and_commands_of_any_bytes_are_read(tmp_path):
    folder = make_run(tmp_path / "a")
    (folder / "annotators.csv").write_bytes(b"annotator,answers,accuracy\n\xff,3,0.5\n")
    run = RunFolder.read(folder)
    assert run.annotators == [{"annotator": r"\xff", "answers": "3", "accuracy": "0.5"}]
    (folder / "annotators.csv").write_text("annotator,answers,accuracy\nada,3\n")
    with pytest.raises(ValueError, match=r"annotators\.csv, line 2.*not 3"):
        run.annotators  # noqa: B018
    run.config.pop("command")
    (tmp_path / "command.txt").write_bytes(b"ncsam \xff\n")
    assert run.command == r"ncsam \xff"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"verified": "all"}, "verified='all'"),
        ({"verified": {"samples": "3", "source": "mine"}}, r"verified\.samples='3'"),
        ({"verified": {"samples": 3}}, r"verified\.source=None"),
        ({"metric_names": "abc"}, "metric_names='abc'"),
        ({"noise_estimate": 3}, "noise_estimate=3"),
        ({"noise_estimate": {}}, r"noise_estimate\.estimate=None"),
        ({"noise_estimate": {"estimate": 0.1, "low": "a", "high": 1}}, r"noise_estimate\.low='a'"),
        ({"verified": {}}, r"verified\.samples=None"),
        ({"metric_names": {"last": 3}}, r"metric_names\.last=3"),
        ({"warmup_epochs": float("inf")}, "warmup_epochs=inf"),
    ],
)
def test_a_summary_of_other_types_is_named(tmp_path, changes, said):
    folder = make_run(tmp_path / "a")
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, **changes}))
    with pytest.raises(ValueError, match=said):
        RunFolder.read(folder)


def test_names_of_classes_are_a_list(tmp_path):
    folder = make_run(tmp_path / "a")
    (folder / "checkpoints").mkdir(exist_ok=True)
    for data, said in (
        (3, "data=3"),
        ({"classes": "ab"}, "classes='ab'"),
    ):
        (folder / "checkpoints/last.json").write_text(json.dumps({"data": data}))
        with pytest.raises(ValueError, match=rf"last\.json: .*{said}"):
            RunFolder.read(folder).classes  # noqa: B018


def test_what_is_no_run_folder_is_said(tmp_path):
    with pytest.raises(ValueError, match=r"no config\.yaml"):
        RunFolder.read(tmp_path)
    with pytest.raises(ValueError, match="this one does not exist"):
        RunFolder.read(tmp_path / "nowhere")


def test_runs_are_found_below_a_folder_in_the_order_of_the_comparison(tmp_path):
    for name in ("a", "b", "c"):
        make_run(tmp_path / name)
    assert [run.folder.name for run in find_runs([tmp_path])] == ["a", "b", "c"]
    (tmp_path / "comparison.json").write_text(json.dumps([{"runs": ["c", "a"]}, {"runs": ["b"]}]))
    assert [run.folder.name for run in find_runs([tmp_path])] == ["c", "a", "b"]
    assert [run.folder.name for run in find_runs([tmp_path / "b", tmp_path])] == ["b", "c", "a"]


def test_groups_differ_in_more_than_seeds_and_machine(tmp_path):
    make_run(tmp_path / "a", seed=1, workers=0)
    make_run(tmp_path / "b", seed=2, workers=4)
    make_run(tmp_path / "c", seed=1, optimizer="sam")
    groups = group_runs(find_runs([tmp_path]))
    assert [(group.label, len(group.runs)) for group in groups] == [("sgd", 2), ("sam", 1)]
    both = groups[0]
    assert both.spread("last") == Spread(41.5, pytest.approx(statistics.stdev([41, 42])), 2)
    assert [(p.epoch, p.mean) for p in both.curve("test_accuracy")] == [(1, 11.5), (2, 21.5), (3, 31.5), (4, 41.5)]
    assert {round(p.std, 6) for p in both.curve("test_accuracy")} == {round(0.5**0.5, 6)}
    assert groups[1].curve("test_accuracy")[0].std is None


def test_labels_say_what_differs_and_no_more(tmp_path):
    def labels(name, *configs):
        for number, config in enumerate(configs):
            make_run(tmp_path / name / str(number), **config)
        return [group.label for group in group_runs(find_runs([tmp_path / name]))]

    assert labels("one", {}) == ["ce, sgd"]
    assert labels("two", {"optimizer": "sam", "rho": 0.1}, {"optimizer": "sgd", "rho": 0.2}) == ["sam", "sgd"]
    stronger = [{"optimizer": o, "rho": r, "flip_ratio": f} for o, r, f in [("sam", 0.1, 0.2), ("ncsam", 0.5, 0.4)]]
    assert labels("radii", {"rho": 0.7}, *stronger) == ["sgd", "sam, rho 0.1", "ncsam, rho 0.5"]
    control = labels("warm", {"optimizer": "sam"}, {"optimizer": "sam", "warmup": 0.25})
    assert control == ["ce, sam", "ce, sam, warmup 0.25"]
    assert labels("own", {}, {"method": "mixup", "method_options": {"alpha": 8}}) == ["ce", "mixup"]
    mixed = [{"method": "mixup", "method_options": {"alpha": a}} for a in (1, 8)]
    assert labels("mixed", *mixed) == ["mixup, sgd, alpha 1", "mixup, sgd, alpha 8"]
    radii = labels("three", {"optimizer": "sam", "rho": 0.1, "lr": 0.5}, {"optimizer": "sam", "rho": 0.2, "lr": 0.5})
    assert radii == ["ce, sam, rho 0.1", "ce, sam, rho 0.2"]
    assert labels("four", {"rate": 0.2}, {"rate": 0.4, "method": "mixup"}) == ["rate 0.2, ce", "rate 0.4, mixup"]
