"""Names from elsewhere are harmless where they are shown: Markdown, tables, terminals; and messages are sentences."""

import csv
import io
import json
import shutil
import sys

import numpy as np
import pytest
import yaml
from cli_cases import QUICK, call

from ncsam._errors import unexpected
from ncsam._text import markdown, markdown_block, markdown_code, path_cell, printable, table_cell
from ncsam.cli.main import as_failure, main
from ncsam.cli.output import show_table

SCRIPT = "<script>alert(1)</script>"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain Füchse 日本", "plain Füchse 日本"),
        ("a\x1b[31m", r"a\x1b[31m"),
        ("a\nb\rc\td", r"a\nb\rc\td"),
        ("\udcff", r"\xff"),
        ("\u202egnp", r"\u202egnp"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_cannot_be_shown_is_an_escape(text, shown):
    assert printable(text) == shown
    shown.encode("utf-8")


def test_no_cell_is_a_formula():
    for text in ("=1+1", "+1", "-1", "@x", "\t=1", "\r=1"):
        assert table_cell(text).startswith("'")
        assert path_cell(text).startswith("./")
    assert table_cell(-1.5) == -1.5
    assert path_cell("cat/=1.png") == "cat/=1.png"


def test_markdown_means_itself():
    assert markdown(f"{SCRIPT}|`*[x](y)\n") == r"&lt;script&gt;alert(1)&lt;/script&gt;\|\`\*\[x\](y) "
    assert markdown_code("x=1") == "`x=1`"
    assert markdown_code(f"`{SCRIPT}|") == "<code>&#96;&lt;script&gt;alert(1)&lt;/script&gt;&#124;</code>"
    assert markdown_block("a\nb", "sh") == "```sh\na\nb\n```"
    assert "<script" not in markdown_block(f"```\n{SCRIPT}", "sh")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on classes, files and a folder with the worst names."""
    from PIL import Image

    top = tmp_path_factory.mktemp("escapes")
    rng = np.random.default_rng(0)
    data = top / "<script>$x^{"
    for name in ("=cmd|calc", "<script>b"):
        (data / name).mkdir(parents=True)
        for i in range(6):
            Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(data / name / f"<script>{i}.png")
    options = ["--noise", "symmetric", "--rate", 0.3, "--epochs", 1, "--model", "mlp", "--quiet"]
    call("train", data, *options, "--out", top / "<script>run")
    return data, top / "<script>run"


def test_a_report_holds_no_foreign_markup(run):
    _, folder = run
    call("report", folder, "--markdown", "--title", SCRIPT)
    text = (folder / "report.md").read_text()
    assert "<script" not in text
    assert text.count("&lt;script") > 10
    page = (folder / "report.html").read_text()
    assert "<script>run" not in page
    assert SCRIPT not in page


def test_tables_hold_no_formula(run, monkeypatch):
    data, folder = run
    rows = list(csv.DictReader(io.StringIO(call("issues", folder, "--top", 0, "--csv").output)))
    assert {row["given_label"] for row in rows} == {"'=cmd|calc", "<script>b"}
    names = {row["given_label"] for row in json.loads(call("issues", folder, "--top", 0, "--json").output)}
    assert names == {"=cmd|calc", "<script>b"}
    monkeypatch.chdir(data)
    rows = list(csv.DictReader(io.StringIO(call("predict", folder, "=cmd|calc").output)))
    assert all(row["input"].startswith("./=cmd|calc/<script>") for row in rows)
    assert {row["label"] for row in rows} <= {"'=cmd|calc", "<script>b"}


def test_what_a_run_folder_says_is_shown_and_not_obeyed(run, tmp_path, recwarn):
    """Somebody else's words: a reason, a recipe, a heading, the name of the data."""
    theirs = tmp_path / "theirs"
    shutil.copytree(run[1], theirs)
    trust = json.loads((theirs / "label_posterior.json").read_text())
    (theirs / "label_posterior.json").write_text(json.dumps({**trust, "reliable": False, "reason": "\x1b[2J"}))
    assert r"cannot be estimated: \x1b[2J." in call("issues", theirs).output
    recipe = json.loads((theirs / "noise.json").read_text())
    (theirs / "noise.json").write_text(json.dumps({**recipe, "recipe": {"name": "\x1b[2J"}}))
    assert r"\x1b[2J" in call("noise", "inspect", theirs / "noise.npz").output
    head, *rows = (theirs / "label_issues.csv").read_text().splitlines()
    (theirs / "label_issues.csv").write_text("\n".join([f"{head},=1+1", *(f"{row},7" for row in rows)]) + "\n")
    shown = next(csv.reader(io.StringIO(call("issues", theirs, "--csv").output)))
    assert "'=1+1" in shown
    assert "=1+1" not in shown
    config = yaml.safe_load((theirs / "config.yaml").read_text())
    (theirs / "config.yaml").write_text(yaml.safe_dump({**config, "data": "\x1b[2J"}))
    assert "\x1b" not in call("report", theirs, "--markdown", "--out", tmp_path / "r.html").output
    assert not [warning for warning in recwarn if "Glyph" in str(warning.message)]


def test_a_table_of_predictions_holds_no_formula(run, tmp_path):
    pytest.importorskip("pandas", reason="ncsam[tables] is not installed")
    call("export-predictions", run[1], "--table", tmp_path / "t.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "t.csv").read_text())))
    assert {row["given_label"] for row in rows} == {"'=cmd|calc", "<script>b"}
    assert {type(int(row["given_label_id"])) for row in rows} == {int}


def test_an_unforeseen_failure_names_no_type_and_repeats_no_advice():
    error = RuntimeError("Weights only load failed.\n\tset weights_only=False to run arbitrary code")
    assert as_failure(error).message == (
        "unexpected error: Weights only load failed. Set NCSAM_DEBUG=1 to see the traceback"
    )
    assert unexpected(KeyError()).startswith("unexpected error: no message")
    assert "not enough memory" in unexpected(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--devices", "abc"], "devices='abc'"),
        (["--devices", "0"], "devices=0"),
        (["--model-options", "hidden=null"], "hidden=None"),
        (["--method", "mixup", "--method-options", "alpha=abc"], "alpha='abc'"),
        (["--lr", "1e300"], "lr=1e+300"),
        (["--schedule", "steps", "--schedule-options", "gamma=-1"], "gamma=-1.0"),
        (["--schedule", "steps", "--schedule-options", "milestones=half"], "milestones='half'"),
        (["--momentum", "5"], "momentum=5.0"),
        (["--seed", str(10**30)], "invalid "),
        (["--epochs", str(10**30)], "invalid "),
        (["--workers", "100000"], "workers=100000"),
        (["--data-options", "allow_empty=maybe"], "allow_empty='maybe'"),
        (["--noise-options", "distribution=[1"], "unknown option of symmetric"),
    ],
)
def test_a_wrong_value_is_one_sentence_and_nothing_is_written(options, said, tmp_path):
    (tmp_path / "f.npz").write_bytes(b"")
    np.savez(tmp_path / "f.npz", x=np.zeros((8, 2), np.float32), y=[0, 1] * 4)
    output = call("train", tmp_path / "f.npz", *QUICK[:4], "--epochs", 1, *options, "--out", tmp_path / "run", code=2)
    assert said in output.output
    assert output.output.count("Error:") == 1
    assert not (tmp_path / "run").exists()


def test_a_terminal_gets_no_command_from_a_name(tmp_path, capsys):
    """Names of classes and files that would color, clear or rename a terminal: in tables, lists and errors."""
    show_table(["class"], [["a\x1b[2Jb"]])
    assert capsys.readouterr().out.splitlines()[-1] == r"a\x1b[2Jb"
    table = tmp_path / "t.csv"
    (tmp_path / "a\x1b[2J.png").write_bytes(b"no image")
    table.write_text("path,label\na\x1b[2J.png,cat\x1b[31m\na\x1b[2J.png,dog\n")
    for command, code in (("check", 1), ("describe", 0)):
        shown = call("data", command, table, code=code).output
        assert "\x1b" not in shown
        assert r"\x1b[" in shown
    assert "\x1b" not in call("data", "check", tmp_path / "b\x1b[2J.csv", code=2).output


def test_names_that_the_terminal_has_no_letters_for_are_escaped(tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_text("a,label\n1,Füchse\n2,Füchse\n3,日本\n", encoding="utf-8")
    western = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", western)
    main(["data", "describe", str(tmp_path / "t.csv")], standalone_mode=False)
    western.flush()
    assert rb"\u65e5\u672c" in western.buffer.getvalue()
