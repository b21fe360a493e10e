"""The report: its numbers, what it does without the data, and that it needs nothing from outside."""

import base64
import csv
import io
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from made_runs import add_classes, add_noise, make_run
from ncsam import data
from ncsam._text import markdown
from ncsam.data import modality_of
from ncsam.report.content import gather, noise_text, write_report
from ncsam.report.html import plain
from ncsam.report.markdown import table
from ncsam.report.sections import _load

VOID = {"meta", "img", "br", "path", "use"}


class Page(HTMLParser):
    """Text by element, attributes that fetch something, and whether every element is closed."""

    def __init__(self, html):
        super().__init__()
        self.open, self.sources, self.cells, self.text = [], [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.sources += [value for name, value in attributes if name in ("src", "href", "xlink:href", "action")]
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_startendtag(self, tag, attributes):
        self.sources += [value for name, value in attributes if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        self.text.append(text)
        if "td" in self.open or "th" in self.open:
            self.cells[-1] += text


@pytest.fixture
def runs(tmp_path):
    for seed in (1, 2):
        add_noise(make_run(tmp_path / "runs" / f"ce-sgd-s{seed}", seed=seed))
    make_run(tmp_path / "runs" / "ce-ncsam-s1", optimizer="ncsam")
    return tmp_path / "runs"


def test_the_page_shows_the_numbers_and_loads_nothing(runs, tmp_path):
    (path,) = write_report([runs], tmp_path / "out" / "report.html", images=3)
    html = path.read_text(encoding="utf-8")
    page = Page(html)
    assert page.open == []
    assert all(source.startswith(("data:", "#")) for source in page.sources)
    assert not re.search(r"url\((?!#)|@import|<script|<link|https?://(?!www\.w3\.org)", html)
    assert "41.50± 0.71" in page.cells  # 41 and 42
    assert "41.00" in page.cells
    assert "0.875" in page.cells
    words = " ".join(page.text)
    assert "digits, 40 % symmetric noise" in words
    assert "test accuracy after the last epoch, percent" in words
    assert "2 of these 3 are mislabeled" in words
    assert "604 of 1,438 labels are wrong, 42.00 %" in words
    assert "ncsam train digits --seed 2 --out ce-sgd-s2" in words
    assert html.count('<figure class="card">') == 4  # accuracy, memorized, loss; gradient norm


def test_no_mark_inside_the_noise(runs):
    report = gather([runs])  # one seed in common: nothing can be said
    assert not any(cell.top for row in report.cells for cell in row)


def test_a_mark_needs_a_paired_test_over_seeds(tmp_path):
    last = {"sgd": [10.0, 50.0, 90.0], "sam": [12.0, 52.1, 91.9], "ncsam": [11.0, 40.0, 95.0]}
    for name, values in last.items():
        for seed, value in enumerate(values, 1):
            folder = make_run(tmp_path / "runs" / f"{name}{seed}", optimizer=name, seed=seed)
            summary = json.loads((folder / "summary.json").read_text())
            (folder / "summary.json").write_text(json.dumps(summary | {"last": value, "memorized": -value}))

    def tops(*names):
        report = gather([tmp_path / "runs" / f"{name}{seed}" for name in names for seed in (1, 2, 3)], images=0)
        return {n: [row[i].top for row in report.cells] for i, n in enumerate(report.columns)}

    # the seeds differ by tens of points, but SAM is 2.0, 2.1 and 1.9 above SGD on the same ones: t = 34.6, p = .0008
    assert tops("sgd", "sam")["last"] == [False, True]
    assert tops("sgd", "sam")["memorized"] == [False, True]  # less is better
    assert tops("sgd", "sam")["seconds"] == [False, False]
    assert tops("sgd", "sam", "ncsam")["last"] == [False, False, False]  # SAM is not clearly above NCSAM


def test_latex(runs, tmp_path):
    page, table = write_report([runs], tmp_path / "r.html", images=0, latex=True)
    text = table.read_text()
    assert (page.name, table.name) == ("r.html", "r.tex")
    assert r"sgd & 2 & $41.50 \pm 0.71$" in text
    assert r"& label\_issues\_auroc &" in text
    assert r"digits, 40 \% symmetric noise" in text
    assert text.count(r"\begin{") == text.count(r"\end{") == 2
    assert write_report([runs], tmp_path / "only.tex") == [tmp_path / "only.tex"]
    (two,) = write_report([runs], tmp_path / "two.tex", metrics=["seconds", "last"])
    assert r"& seeds & seconds & last \\" in two.read_text()
    with pytest.raises(ValueError, match="invalid metrics="):
        write_report([runs], tmp_path / "two.tex", metrics=["first"])


def test_classes(runs, tmp_path):
    # ten classes of ten samples; class c has 10 - c right, the others go to class 0
    test = np.diag(10 - np.arange(10))
    test[:, 0] += np.arange(10)
    held_out = np.zeros((10, 10), dtype=np.int64)
    held_out[3, 5], held_out[3, 3] = 1, 3
    np.savez(runs / "ce-sgd-s1" / "by_class.npz", test=test, held_out=held_out)
    np.savez(runs / "ce-sgd-s2" / "by_class.npz", test=test[::-1, ::-1])
    file = runs / "ce-sgd-s1" / "summary.json"
    found = {"estimate": 0.382, "low": 0.341, "high": 0.42, "coverage": 0.9, "source": "held-out predictions"}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"noise_estimate": found}))
    report = gather([runs], images=0)
    assert [group.label for group in report.groups] == ["ncsam", "sgd"]
    assert report.classes.accuracies[2][0] is None
    assert report.classes.accuracies[2][1].mean == pytest.approx((80 + 30) / 2)  # class 2, and class 7 from the end
    sgd = report.classes.confusions[1]
    assert sgd.shares[3].tolist()[3:6] == [0.75, 0.0, 0.25]
    assert np.isnan(sgd.shares[0, 0])
    flagged = report.groups[1].runs[0].label_issues(2)
    assert {(t.given, t.suggested, t.count) for t in sgd.transitions} == {
        (str(row["given_label"]), str(row["suggested_label"]), 1) for row in flagged.rows()
    }
    html = write_report([runs], tmp_path / "r.html", images=0, markdown=True)
    page = Page(html[0].read_text(encoding="utf-8"))
    assert page.open == []
    assert "about 38 % of the labels are wrong (90 % interval 34 to 42 %, from held-out predictions)" in " ".join(
        page.text
    )
    assert "| 2 | - | 55.0 ± 35.4 |" in html[1].read_text(encoding="utf-8")


def test_images_are_the_samples_themselves(runs):
    report = gather([runs], images=2)
    found = report.galleries[0]
    assert found.tiny
    header, _, content = found.tiles[0].image.partition(",")
    assert header == "data:image/png;base64"
    with Image.open(io.BytesIO(base64.b64decode(content))) as image:
        np.testing.assert_array_equal(np.asarray(image), data.load("digits").train.inputs[7, :, :, 0])
    assert gather([runs], images=0).galleries == []


def test_photographs_are_shown_the_way_up_that_training_sees(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    turned = Image.Exif()
    turned[0x0112] = 6  # to be shown turned by a quarter to the right
    (tmp_path / "a").mkdir()
    Image.fromarray(np.rot90(pixels).copy()).save(tmp_path / "a" / "0.png", exif=turned)
    read = data.load(tmp_path)
    shown = modality_of(read).preview(read.train.inputs, 0)
    np.testing.assert_array_equal(np.asarray(shown), pixels)


def test_without_the_data_it_says_so_and_leaves_the_images_out(tmp_path):
    folder = make_run(tmp_path / "a", data=str(tmp_path / "gone"))
    add_classes(folder, [f"class {c}" for c in range(10)])
    html = write_report([folder], tmp_path / "r.html")[0].read_text()
    assert "The samples are not shown:" in html
    assert "<img" not in html
    given = gather([folder]).galleries[0].tiles[0].row["given_label"]
    assert given.startswith("class ")
    assert f"<s>{given}</s>" in html


def test_features_are_shown_as_numbers(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1500, 9))
    np.savez(tmp_path / "f.npz", x=x, y=np.arange(1500) % 10)
    folder = make_run(tmp_path / "a", data=str(tmp_path / "f.npz"))
    (found,) = gather([folder], images=3).galleries
    first = x[found.tiles[0].row["index"]]
    assert found.tiles[0].text == ", ".join(f"{value:.4g}" for value in first[:8]) + ", ... (9 numbers)"
    assert [tile.image for tile in found.tiles] == [None] * 3
    np.savez(tmp_path / "f.npz", **{"x.a": x, "y": np.arange(1500) % 10})
    _load.cache_clear()
    assert gather([folder]).notes == ["The samples of f are nested arrays, which are not shown."]


def test_unknown_clean_labels_leave_memorization_out(tmp_path):
    folder = make_run(tmp_path / "a", known=False)
    report = gather([folder])
    assert report.columns == ["best", "last", "seconds"]
    assert report.galleries[0].really_wrong is None
    html = write_report([folder], tmp_path / "r.html")[0].read_text()
    assert "The clean labels are not known, so memorization cannot be shown." in html
    assert "are mislabeled" not in html
    assert html.count('<figure class="card">') == 2


def test_names_are_escaped(tmp_path):
    folder = make_run(tmp_path / "<b>&", method="<script>alert(1)</script>")
    add_classes(folder, ["<i>cat</i>"] * 10)
    html = write_report([folder], tmp_path / "r.html", title="<u>")[0].read_text()
    assert "<script" not in html
    assert "<u>" not in html
    assert "&lt;u&gt;" in html


def test_a_stopped_run_is_reported_as_such(tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", optimizer="sam", finished=False)
    report = gather([tmp_path])
    assert report.notes == ["b is not finished: 4 of 4 epochs. It has curves but no summary."]
    assert report.cells[1][0].text == ""


def test_runs_without_an_epoch_are_refused(tmp_path):
    folder = make_run(tmp_path / "a", finished=False)
    (folder / "metrics.jsonl").unlink()
    with pytest.raises(ValueError, match="finished an epoch"):
        gather([folder])
    with pytest.raises(ValueError, match="images=-1"):
        gather([folder], images=-1)


def test_many_classes_are_a_image(tmp_path):
    from ncsam import noise

    folder = make_run(tmp_path / "a")
    noise.symmetric(np.arange(3000) % 30, 0.2, num_classes=30, seed=0).save(folder / "noise.npz")
    html = write_report([folder], tmp_path / "r.html", images=0)[0].read_text()
    assert 'alt="transition matrix"' in html
    assert 'class="matrix"' not in html


def test_the_matrix_shows_the_shares(runs):
    record = gather([runs]).noises[0][1]
    page = Page(write_report([runs], runs / "r.html", images=0)[0].read_text())
    row = ["3", *(f"{share:.2f}" for share in record.transition[3])]
    assert row in [page.cells[i : i + 11] for i in range(len(page.cells))]


def test_markdown_has_the_same_numbers(runs, tmp_path):
    paths = write_report([runs], tmp_path / "r.html", markdown=True, images=3)
    assert [path.name for path in paths] == ["r.html", "r.md", "r-curves.png"]
    text = paths[1].read_text(encoding="utf-8")
    assert "|  | seeds | best | last | memorized | label_issues_auroc | seconds |" in text
    assert "| sgd | 2 | 41.50 ± 0.71 | 41.50 ± 0.71 |" in text
    assert "- last: test accuracy after the last epoch, percent" in text
    assert "(r-curves.png)" in text
    assert "Run ce-sgd-s1. 2 of these 3 are mislabeled." in text
    alone = write_report([runs], tmp_path / "s.md", images=0)
    assert [path.name for path in alone] == ["s.md", "s-curves.png"]


def test_it_says_how_far_to_trust_the_label_issues(runs, tmp_path):
    write_report([runs], tmp_path / "report.html", images=2, markdown=True)
    unknown = "How many of these labels are wrong cannot be estimated"
    assert unknown in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert unknown in (tmp_path / "report.md").read_text(encoding="utf-8")
    for run in runs.iterdir():
        (run / "label_posterior.json").write_text(json.dumps({"reliable": True}))
        with (run / "label_issues.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        for row, p, q in zip(rows, (0.9, 0.8, 0.5), (0.7, 0.6, 0.1), strict=True):
            row |= {"p_wrong": p, "p_suggested": q}
        with (run / "label_issues.csv").open("w", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
    write_report([runs], tmp_path / "report.html", images=2, markdown=True)
    known = "Of the first 3 labels, about 2 are wrong; the suggestion is right for about 1."
    assert known in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert known in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_markdown_tables_escape_bars():
    assert table(["a", "b"], [[markdown("x|y"), markdown("1\n2")]]) == "| a | b |\n| --- | ---: |\n| x\\|y | 1 2 |"


def test_words_for_noise_and_values():
    assert noise_text({"noise": "symmetric", "rate": 0.45}) == "45 % symmetric noise"
    assert noise_text({"noise": "beta_instance"}) == "beta_instance noise"
    assert noise_text({"label_file": "/a/b.pt"}) == "labels of b.pt"
    assert noise_text({"noise": None}) == ""
    assert plain({"a": [1, 2], "b": None}) == "a: 1, 2, b: null"
    assert plain([]) == "none"


def test_a_run_that_knew_verified_labels_says_whose(tmp_path):
    folder = make_run(tmp_path / "a", method="cleannet")
    summary = json.loads((folder / "summary.json").read_text())
    summary["verified"] = {"source": "clean labels of 0.1 of the training samples, drawn by seed 1", "samples": 1293}
    (folder / "summary.json").write_text(json.dumps(summary))
    make_run(tmp_path / "b")
    source = "clean labels of 0.1 of the training samples, drawn by seed 1"
    expected = f"cleannet was told whether 1,293 labels are correct: {source}."
    assert gather([tmp_path], images=0).notes == [expected]


def test_an_auto_run_shows_its_leaderboard_and_estimates(tmp_path):
    folder = make_run(tmp_path / "a", method="auto")
    board = {
        "chosen": {"candidates": ["lda", "<b>"], "noisy_accuracy": 65.71},
        "noise_rate": {"estimate": 0.24, "low": 0.09, "high": 0.39, "source": "held-out predictions"},
        "clean_accuracy": None,
        "candidates": [
            {"name": "<b>", "status": "finished", "noisy_accuracy": 65.0, "standard_error": 1.2, "chosen": True},
            {"name": "svm", "status": "stopped", "noisy_accuracy": None, "standard_error": None, "chosen": False},
        ],
    }
    (folder / "leaderboard.json").write_text(json.dumps(board))
    page = Page(write_report([folder], tmp_path / "r.html", images=0)[0].read_text(encoding="utf-8"))
    words = " ".join(page.text)
    assert page.open == []
    assert "An ensemble of 2 was selected (*): it predicts 65.7 % of the held-out given labels." in words
    assert (
        "Noise rate: about 24 % of the labels are wrong (90 % interval 9 to 39 %, from held-out predictions)." in words
    )
    assert "cannot be estimated without verified labels" in words
    at = page.cells.index("* <b>")
    assert page.cells[at : at + 4] == ["* <b>", "finished", "65.0", "1.2"]
    assert page.cells[at + 4 : at + 8] == ["svm", "stopped", "", ""]
