"""Decisions: one line each, on disk at once, taken back by a further line, joined over reviewers."""

import json
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from review_cases import made_run, queue_order

from ncsam.errors import RunError
from ncsam.issues.table import unreliable
from ncsam.review.clean import cleaned
from ncsam.review.progress import progress
from ncsam.review.queue import Queue, View
from ncsam.review.server import Review
from ncsam.runs.decisions import Decisions
from ncsam.runs.reader import RunFolder


def test_every_decision_is_a_line_and_is_read_back(tmp_path):
    log = Decisions(tmp_path, write=True)
    log.add(4, "accept", None, given_label=0, suggested_label=2, reviewer="Ada")
    log.add(7, "other", 1, given_label=0, suggested_label=2, reviewer="Ada")
    lines = [json.loads(line) for line in (tmp_path / "review.jsonl").read_text().splitlines()]
    assert [(line["index"], line["choice"], line["label"]) for line in lines] == [(4, "accept", 2), (7, "other", 1)]
    log.close()
    again = Decisions(tmp_path)
    assert {index: again.verdict(index).label for index in again.decided()} == {4: 2, 7: 1}
    assert again.reviewers == ["Ada"]


def test_undo_brings_back_what_stood_before(tmp_path):
    log = Decisions(tmp_path, write=True)
    log.add(4, "accept", None, 0, 2, "Ada")
    log.add(4, "keep", None, 0, 2, "Ada")
    assert log.undo("Ben") is None
    assert log.undo("Ada").choice == "keep"
    assert log.verdict(4).label == 2
    assert log.undo("Ada").choice == "accept"
    assert log.verdict(4) is None
    assert log.undo("Ada") is None
    log.close()
    assert len((tmp_path / "review.jsonl").read_text().splitlines()) == 4  # nothing is ever taken out
    assert Decisions(tmp_path).decided() == []


def test_a_line_cut_off_by_a_kill_is_no_decision_and_hurts_no_other(tmp_path):
    log = Decisions(tmp_path, write=True)
    log.add(1, "keep", None, 0, 2, "Ada")
    log.close()
    with (tmp_path / "review.jsonl").open("a") as file:
        file.write('{"index": 2, "choice": "acc')
    log = Decisions(tmp_path, write=True)
    assert log.decided() == [1]
    log.add(3, "accept", None, 0, 2, "Ada")
    log.close()
    assert Decisions(tmp_path).decided() == [1, 3]


def test_a_line_that_is_no_decision_is_refused(tmp_path):
    (tmp_path / "review.jsonl").write_text('{"index": 1}\n')
    with pytest.raises(ValueError, match=r"review.jsonl, line 1"):
        Decisions(tmp_path)


def test_one_writer_at_a_time(tmp_path):
    log = Decisions(tmp_path, write=True)
    with pytest.raises(RunError, match="being reviewed by another"):
        Decisions(tmp_path, write=True)
    assert Decisions(tmp_path).decided() == []  # readers are welcome
    log.close()
    Decisions(tmp_path, write=True).close()


@pytest.mark.parametrize(("choice", "label"), [("other", None), ("keep", 2), ("unsure", 1), ("accept", 0)])
def test_a_choice_and_its_label_agree(tmp_path, choice, label):
    with pytest.raises(ValueError, match=r"label=.*"):
        Decisions(tmp_path, write=True).add(1, choice, label, given_label=0, suggested_label=2, reviewer="Ada")
    with pytest.raises(ValueError, match="unknown choice 'maybe'"):
        Decisions(tmp_path / "b", write=True).add(1, "maybe", None, 0, 2, "Ada")


def test_most_reviewers_decide_and_a_tie_is_disputed(tmp_path):
    log = Decisions(tmp_path, write=True)
    log.add(1, "accept", None, 0, 2, "Ada")
    log.add(1, "keep", None, 0, 2, "Ben")
    assert (log.verdict(1).label, log.verdict(1).disputed) == (None, True)
    log.add(1, "accept", None, 0, 2, "Cy")
    assert (log.verdict(1).label, log.verdict(1).disputed) == (2, False)
    log.add(2, "unsure", None, 0, 2, "Ada")
    assert (log.verdict(2).label, log.verdict(2).disputed) == (None, False)
    log.add(2, "keep", None, 0, 2, "Ben")
    assert log.verdict(2).label == 0


def test_the_queue_filters_orders_and_pages(tmp_path):
    folder = made_run(tmp_path)
    queue, log = Queue(RunFolder.read(folder)), Decisions(folder, write=True)
    order = np.array(queue_order(30))
    assert queue.index.tolist() == order.tolist()

    def indices(**view):
        return queue.index[queue.rows(View.of(view), log)].tolist()

    assert indices() == order.tolist()
    log.add(int(order[0]), "accept", None, int(queue.given_label[0]), int(queue.suggested_label[0]), "Ada")
    log.add(int(order[5]), "keep", None, int(queue.given_label[5]), int(queue.suggested_label[5]), "Ben")
    assert indices() == [i for i in order if i not in (order[0], order[5])]
    assert indices(status="mine", reviewer="Ada") == [i for i in order if i != order[0]]
    assert indices(status="decided") == [order[0], order[5]]
    assert indices(status="accept") == [order[0]]
    assert indices(status="disputed") == []
    assert indices(status="all", given_label=1) == order[queue.given_label == 1].tolist()
    assert indices(status="all", search="ONERROR") == [1]
    rows, total, before = queue.page(View.of({"place": 4, "status": "all"}), log, 3)
    assert (queue.index[rows].tolist(), total, before) == (order[4:7].tolist(), 30, 4)
    rows, _, before = queue.page(View.of({"place": 4, "status": "all"}), log, 3, back=True)
    assert (queue.index[rows].tolist(), before) == (order[1:4].tolist(), 1)
    rows, _, before = queue.page(View.of({"place": 30, "status": "all"}), log, 3)
    assert (queue.index[rows].tolist(), before) == (order[:3].tolist(), 0)
    by_pair = queue.rows(View.of({"order": "pair", "status": "all"}), log)
    pairs = list(
        zip(queue.given_label[by_pair[:10]].tolist(), queue.suggested_label[by_pair[:10]].tolist(), strict=True)
    )
    assert pairs == sorted(pairs, key=lambda pair: -pairs.count(pair))  # the ten doubted ones, pair by pair
    assert [pair["count"] for pair in queue.pairs()] == [4, 3, 3]
    with pytest.raises(ValueError, match="unknown order 'best'"):
        View.of({"order": "best"})
    with pytest.raises(ValueError, match="view 'rho'"):
        View.of({"rho": 1})


@pytest.mark.parametrize("index", ["2", "99"])
def test_a_list_that_does_not_hold_every_sample_once_is_refused(tmp_path, index):
    folder = made_run(tmp_path / "run")
    head, first, *rows = (folder / "label_issues.csv").read_text().splitlines()
    (folder / "label_issues.csv").write_text("\n".join([head, ",".join([index, *first.split(",")[1:]]), *rows]) + "\n")
    with pytest.raises(ValueError, match=r"label_issues.csv.*hold"):
        Queue(RunFolder.read(folder))


def test_what_is_left_learns_from_what_was_found(tmp_path):
    folder = made_run(tmp_path)
    queue, log = Queue(RunFolder.read(folder)), Decisions(folder, write=True)
    posterior = RunFolder.read(folder).posterior
    start = progress(queue, log, posterior)
    assert start["left"] == pytest.approx(10 * 0.9 + 20 * 0.1)
    assert start["expected"] == "Of the next 30 labels, about 11 are wrong; the suggestion is right for about 9."
    for row in range(10):  # all ten doubted labels turn out to be right
        log.add(
            int(queue.index[row]), "keep", None, int(queue.given_label[row]), int(queue.suggested_label[row]), "Ada"
        )
    after = progress(queue, log, posterior)
    assert (after["decided"], after["wrong"], after["right"]) == (10, 0, 10)
    assert after["left"] == pytest.approx(20 * 0.1 * 10 / (9 + 10))
    assert after["sentence"] == "10 of 30 reviewed: 0 wrong, 10 correct. About 1 wrong labels are left."


def test_without_probabilities_the_page_says_why_and_bounds_what_is_left(tmp_path):
    folder = made_run(tmp_path, count=60, probabilities=False)
    queue, log = Queue(RunFolder.read(folder)), Decisions(folder, write=True)
    posterior = RunFolder.read(folder).posterior
    start = progress(queue, log, posterior)
    assert start["left"] is None
    assert start["expected"] == unreliable(posterior)
    for row in range(20):
        choice = "accept" if row % 4 == 0 else "keep"
        log.add(
            int(queue.index[row]), choice, None, int(queue.given_label[row]), int(queue.suggested_label[row]), "Ada"
        )
    assert (
        "At most about 10 wrong labels are left" in progress(queue, log, posterior)["sentence"]
    )  # 5 of 20, of 40 more


def test_vectors_texts_and_the_files_that_features_come_from(tmp_path):
    from PIL import Image

    from ncsam.data.types import Split
    from ncsam.review.samples import Samples

    labels = np.zeros(2, dtype=np.int64)
    vectors = Samples(Split(np.array([[0.5, -1.25], [3.0, 2.0]], dtype=np.float32), labels))
    assert vectors.shown(0) == {"kind": "vector", "values": [0.5, -1.25], "length": 2}
    assert vectors.image(0, 64) is None
    rows = Samples(Split(np.array([[0.5, -1.25], [3.0, 2.0]], dtype=np.float32), labels), ("age", "hours"))
    assert rows.shown(1) == {"kind": "row", "values": [3.0, 2.0], "names": ["age", "hours"], "length": 2}
    texts = Samples(Split(["<b>good</b> film", "bad"], labels))
    assert texts.shown(0) == {"kind": "text", "text": "<b>good</b> film"}
    assert texts.nearest(0, np.array([0, 1]), 4) == [1]
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    named = np.array([str(tmp_path / "a.png"), str(tmp_path / "gone.png")])
    features = Samples(Split(np.ones((2, 3), dtype=np.float32), labels, names=named))
    assert [features.shown(i)["kind"] for i in (0, 1)] == ["image", "vector"]
    assert features.image(0, 64)[1] == "image/png"


plain = st.none() | st.booleans() | st.integers(-3, 40) | st.floats(allow_nan=False) | st.text(max_size=5)
values = st.recursive(plain, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner))
decision = st.fixed_dictionaries(
    {
        "index": st.integers(0, 40) | values,
        "choice": st.sampled_from(["accept", "keep", "other", "unsure", "undo"]) | values,
        "label": st.integers(0, 4) | values,
        "given_label": st.just(0) | values,
        "suggested_label": st.just(1) | values,
        "reviewer": st.sampled_from(["Ada", "Ben"]) | values,
        "time": st.just(1.0) | values,
    }
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(decision | values, max_size=4))
def test_whatever_stands_in_the_file_is_a_decision_or_refused(tmp_path, lines):
    (tmp_path / "review.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    try:
        found = Decisions(tmp_path)
        found.check(30, 3)
    except (ValueError, RunError):
        return
    for index in found.decided():
        assert 0 <= index < 30
        assert found.verdict(index).label in (None, 0, 1, 2)


@pytest.mark.parametrize(("index", "label"), [(30, 1), (2, 3)])
def test_decisions_on_other_data_are_refused(tmp_path, index, label):
    folder = made_run(tmp_path)
    log = Decisions(folder, write=True)
    log.add(index, "other", label, 0, 1, "Ada")
    log.close()
    with pytest.raises(RunError, match="it is of other data"):
        cleaned(folder)
    with pytest.raises(RunError, match="it is of other data"):
        Review(folder)
    Decisions(folder, write=True).close()  # the page that was refused does not hold the file


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_decisions_are_written_to_an_ordinary_file_alone(tmp_path, kind):
    path, other = tmp_path / "review.jsonl", tmp_path / "other"
    other.write_text("mine")
    {"link": lambda: path.symlink_to(other), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}[kind]()
    with pytest.raises(RunError, match=r"review\.jsonl cannot be written"):
        Decisions(tmp_path, write=True)
    assert other.read_text() == "mine"


def test_a_view_that_is_none_is_forgotten(tmp_path):
    folder = made_run(tmp_path)
    for text in ("[" * 100_000, "[1]", '{"place": -1}', '{"status": []}', "\0"):
        (folder / "review_view.json").write_text(text)
        review = Review(folder)
        assert review.view == View()
        review.close()
    (folder / "review_view.json").unlink()
    os.mkfifo(folder / "review_view.json")
    review = Review(folder)
    assert review.view == View()
    review.close()


def test_a_folder_removed_under_the_page_is_said_and_not_made_again(tmp_path):
    folder = made_run(tmp_path)
    review = Review(folder)
    review.decide({"index": 0, "choice": "accept", "reviewer": "Ada"})
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="this decision is not kept"):
        review.decide({"index": 1, "choice": "accept", "reviewer": "Ada"})
    assert review.decisions.decided() == [0]
    with pytest.raises(RunError, match="its folder no longer exists"):
        review.keep_view({"place": 3})
    review.close()
    assert not folder.exists()
    assert Decisions(tmp_path / "elsewhere").decided() == [0]


def test_samples_for_comparison_come_from_the_less_doubted_half(tmp_path):
    queue = Queue(RunFolder.read(made_run(tmp_path)))
    of_class = queue.index[queue.given_label == 1].tolist()  # ten, the worst first
    assert queue.typical(1, 100).tolist() == of_class[:4:-1]
    assert queue.typical(1, 2).tolist() == of_class[:-3:-1]


def test_texts_are_searched_too(tmp_path):
    folder = made_run(tmp_path)
    head, *rows = (folder / "label_issues.csv").read_text().splitlines()
    rows = [f"{row},{'A Lovely film' if number == 4 else 'dull'}" for number, row in enumerate(rows)]
    (folder / "label_issues.csv").write_text("\n".join([f"{head},text", *rows]) + "\n")
    queue, none = Queue(RunFolder.read(folder)), Decisions(folder)
    assert queue.rows(View(search="lovely"), none).tolist() == [4]
