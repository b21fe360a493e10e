"""`noise`, `data`, `presets`, `label issues`, `report`: what they print is what the library says."""

import csv
import io
import json
import subprocess
import sys

import numpy as np
import pytest
from cli_cases import QUICK, call
from PIL import Image

from made_runs import add_classes, make_run
from ncsam import data, noise
from ncsam.engine import preset_names, preset_text
from ncsam.noise import NoisyLabels


def test_noise_is_made_as_the_generator_makes_it(tmp_path):
    out = tmp_path / "labels.npz"
    text = call("noise", "make", "digits", "--noise", "symmetric", "--rate", 0.4, "--seed", 3, "--out", out).output
    record = NoisyLabels.load(out)
    expected = noise.symmetric(data.load("digits").train.labels, 0.4, num_classes=10, seed=3)
    assert record.sha256 == expected.sha256
    assert f"wrong       {int(expected.mask.sum())} ({100 * expected.rate:.2f} %)" in text
    assert call("noise", "inspect", out).output == f"{record}\n"
    about = json.loads(call("noise", "inspect", out, "--json").output)
    np.testing.assert_array_equal(about["transition"], record.transition)
    assert (about["rate"], about["samples"], about["seed"]) == (record.rate, 1438, 3)
    assert json.loads(call("noise", "inspect", tmp_path / "labels.json", "--json").output) == about


def test_noise_that_looks_at_images_gets_them(tmp_path):
    options = ["--noise", "instance", "--rate", 0.3, "--noise-options", "input=unit", "--seed", 2]
    call("noise", "make", "digits", *options, "--out", tmp_path / "idn")
    train = data.load("digits").train
    expected = noise.instance(train.labels, 0.3, inputs=train.inputs, input="unit", num_classes=10, seed=2)
    assert NoisyLabels.load(tmp_path / "idn").sha256 == expected.sha256


def test_a_published_file_is_inspected_with_the_data_sets_labels(tmp_path):
    labels = data.load("digits").train.labels
    (tmp_path / "noisy.json").write_text(json.dumps(((labels + 1) % 10).tolist()))
    assert (
        "wrong       1,438 (100.00 %)" in call("noise", "inspect", tmp_path / "noisy.json", "--data", "digits").output
    )
    assert "holds only noisy ones" in call("noise", "inspect", tmp_path / "noisy.json", code=2).output


def test_a_made_label_file_trains(tmp_path):
    call("noise", "make", "digits", "--noise", "pairflip", "--rate", 0.2, "--out", tmp_path / "p.npz")
    arguments = ["train", "digits", "--label-file", tmp_path / "p.npz", *QUICK[4:], "--quiet", "--out", tmp_path / "r"]
    call(*arguments)
    assert NoisyLabels.load(tmp_path / "r" / "noise").sha256 == NoisyLabels.load(tmp_path / "p.npz").sha256


def test_noise_is_plotted(tmp_path):
    call("noise", "make", "digits", "--noise", "pairflip", "--rate", 0.2, "--out", tmp_path / "p.npz")
    assert call("noise", "plot", tmp_path / "p.npz").output == f"{tmp_path / 'p.png'}\n"
    with Image.open(tmp_path / "p.png") as image:
        assert image.size == (1024, 896)
    call("noise", "plot", tmp_path / "p.npz", "--data", "digits", "--out", tmp_path / "q.png")
    names = call("noise", "plot", tmp_path / "p.npz", "--classes", "a,b", code=2).output
    assert "len(class_names)=2" in names


def test_data_sets_are_listed():
    listed = json.loads(call("data", "list", "--json").output)
    assert [entry["name"] for entry in listed] == data.names()
    assert set(listed[0]) == {"name", "about", "obtain", "license"}
    lines = call("data", "list").output.splitlines()
    assert [line.split()[0] for line in lines[1:]] == data.names()


def test_a_data_set_is_described():
    text = call("data", "describe", "digits", "--classes", "3").output
    assert text.startswith(data.describe(data.load("digits"), 3))
    assert "license: CC BY 4.0" in text


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(3):
            pixels = rng.integers(0, 255, (10, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    return tmp_path / "photos"


def test_a_sound_folder_is_sound_and_a_damaged_image_is_named(folder):
    assert call("data", "check", folder).output.splitlines() == [
        "train: 6 samples, 0 damaged",
        "photos is fine: 2 classes, all with training samples",
    ]
    bad = folder / "dog" / "1.png"
    bad.write_bytes(bad.read_bytes()[:60])
    output = call("data", "check", folder, code=1).output
    assert f"train: {bad}" in output
    assert "Error: 1 images of photos cannot be read" in output


def test_what_a_folder_holds_besides_images_is_named(folder):
    (folder / "dog" / "notes.txt").write_text("x")
    (folder / "cat" / "1.HEIC").write_bytes(b"x")
    (folder / "cat" / ".hidden").write_text("x")
    lines = call("data", "check", folder).output.splitlines()
    assert lines[1] == "not read, because they do not have an image extension: cat/1.HEIC, dog/notes.txt"
    (folder / "bird").mkdir()
    said = call("data", "check", folder, code=2).output
    assert "--data-options allow_empty=true" in said
    assert call("data", "check", folder, "--data-options", "allow_empty=true").exit_code == 0


def test_a_large_photograph_is_no_matter_for_a_warning(folder):
    Image.new("L", (9600, 9600)).save(folder / "dog" / "large.png")
    code = "import sys; from ncsam.cli.main import main; main(sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", code, "data", "check", folder], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "train: 7 samples, 0 damaged" in done.stdout


def test_presets_are_listed_and_shown():
    lines = call("presets").output.splitlines()
    assert [line.split()[0] for line in lines] == preset_names()
    for name in preset_names():
        assert call("presets", "show", name).output == preset_text(name)


def test_label_issues_are_the_runs_own(tmp_path):
    run = make_run(tmp_path / "a")
    add_classes(run, list("abcdefghij"))
    rows = json.loads(call("issues", run, "--json").output)
    assert [row["index"] for row in rows] == [7, 3, 11]
    assert rows[0]["label_quality"] == 0.1
    assert rows[0]["given_label"] in "abcdefghij"
    assert rows[0]["p_wrong"] is None
    read = list(csv.DictReader(io.StringIO(call("issues", run, "--csv", "--top", "2").output)))
    assert [(row["index"], row["suggested_label"]) for row in read] == [
        (str(row["index"]), row["suggested_label"]) for row in rows[:2]
    ]
    table = call("issues", run, "--top", "1").output.splitlines()
    assert table[1].split() == [
        rows[0]["given_label"],
        rows[0]["suggested_label"],
        rows[0]["clean_label"],
        "7",
        "0.100",
    ]
    assert table[2] == "AUROC of label_quality against the clean labels: 0.875"
    assert table[3].startswith("How many of these labels are wrong cannot be estimated")
    assert table[4:] == [f"next: ncsam review {run}; ncsam clean {run} --out cleaned.csv"]


def test_label_issues_of_a_run_without_names_are_numbered(tmp_path):
    run = make_run(tmp_path / "a", known=False)
    rows = json.loads(call("issues", run, "--json", "--top", "1").output)
    assert isinstance(rows[0]["given_label"], int)
    assert call("issues", run, "--top", "1").output.splitlines()[1].split()[0] == str(rows[0]["given_label"])
    assert "exclude each other" in call("issues", run, "--json", "--csv", code=2).output


def test_an_unfinished_run_has_no_label_issues_yet(tmp_path):
    run = make_run(tmp_path / "a", finished=False)
    assert "no label_issues.csv yet" in call("issues", run, code=2).output


def test_report_writes_where_it_says(tmp_path, trained):
    make_run(tmp_path / "a")
    assert call("report", tmp_path).output == f"{tmp_path / 'report.html'}\n"
    out = tmp_path / "pages" / "r.html"
    output = call("report", trained, "--out", out, "--markdown", "--title", "Two epochs", "--images", "5").output
    assert output.splitlines() == [str(out), str(out.with_suffix(".md")), str(out.with_name("r-curves.png"))]
    html = out.read_text()
    assert "<h1>Two epochs</h1>" in html
    assert html.count("data:image/png;base64,") == 5
    summary = json.loads((trained / "summary.json").read_text())
    assert f'<span class="mean">{summary["last"]:.2f}</span>' in html
