"""Preprocessing of mixed tables, by value."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from datetime import date, datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncsam.data.tables.preprocess import Preprocessing, fit, fit_transform
from ncsam.data.tables.values import columns_of, date_format, date_reader, number, word

pandas = pytest.importorskip("pandas")


class Lengths:
    """An encoder whose embedding is (characters, words)."""

    num_features = 2

    def __init__(self, mark: str = "lengths") -> None:
        self.mark, self.calls = mark, 0

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        self.calls += 1
        return np.array([[len(text), len(text.split())] for text in texts], dtype=np.float32)

    def fingerprint(self) -> str:
        return self.mark


def column(values: Sequence[object], **options: object) -> np.ndarray:
    return fit_transform({"a": values}, **options)[1]


# Numbers


def test_numbers_are_standardized() -> None:
    found = column([1.0, 2.0, 3.0, 6.0])
    np.testing.assert_allclose(found[:, 0], (np.array([1, 2, 3, 6]) - 3) / math.sqrt(3.5), rtol=1e-6)
    assert found.dtype == np.float32


@pytest.mark.parametrize("gap", [None, math.nan, math.inf, -math.inf, "", " NA ", "null", "?", pandas.NA, pandas.NaT])
def test_missing_numbers_are_the_median_with_an_indicator(gap: object) -> None:
    found = column([1, 2, 9, 10, gap])
    filled = np.array([1, 2, 9, 10, 5.5])
    np.testing.assert_allclose(found[:, 0], (filled - filled.mean()) / filled.std(), rtol=1e-6)
    assert found[:, 1].tolist() == [0, 0, 0, 0, 1]


def test_numbers_missing_only_later_are_the_median() -> None:
    fitted = fit({"a": [1.0, 2.0, 3.0]})
    assert fitted.transform({"a": [math.nan, math.inf, "word", 2]}).tolist() == [[0.0]] * 4


def test_a_column_constant_but_for_gaps_is_an_indicator() -> None:
    fitted, found = fit_transform({"a": [7, None, 7, None]})
    assert found.tolist() == [[0], [1], [0], [1]]
    assert fitted.feature_names == ["a is missing"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("1,234.5", 1234.5), ("-1,000,000", -1e6), (" 3 ", 3.0), ("1e3", 1000.0), (True, 1.0), (np.float32(2), 2.0)],
)
def test_numbers_that_are_read(text: object, value: float) -> None:
    assert number(text) == value


@pytest.mark.parametrize("text", ["1,23", "1_000", "007", "inf", "nan", "12a", "", None, [], "\u0661\u0662x"])
def test_what_is_no_number(text: object) -> None:
    assert math.isnan(number(text))


def test_a_few_words_among_numbers_are_missing_values() -> None:
    values = [*[str(38 - i) for i in range(39)], "unknown"]
    fitted, found = fit_transform({"a": values})
    assert fitted.feature_names == ["a", "a is missing"]
    assert found[-1, 1] == 1


def test_mixed_words_and_numbers_are_categories() -> None:
    fitted, found = fit_transform({"a": [1, "x", 1.0, "1", "x", 2.5, 2.5, None]})
    assert fitted.feature_names == ["a = 1", "a = 2.5", "a = x", "a is missing"]
    assert found.argmax(axis=1).tolist() == [0, 2, 0, 0, 2, 1, 1, 3]


def test_huge_numbers_stay_finite() -> None:
    found = column([1e308, -1e308, 0.0, 1e-300])
    assert np.isfinite(found).all()
    assert np.abs(found).max() <= 10


def test_heavy_tails_are_compressed_and_keep_their_order() -> None:
    values = np.exp(np.random.default_rng(0).normal(size=2000) * 3)
    fitted, found = fit_transform({"a": values})
    assert np.abs(found).max() < 6
    order = np.argsort(values)
    assert (np.diff(found[order, 0]) >= 0).all()
    spread = fitted.columns["a"].spread
    deviations = np.abs(values - np.median(values))
    assert spread == pytest.approx(np.median(deviations[deviations > 0]))
    compressed = np.arcsinh((values - np.median(values)) / spread)
    np.testing.assert_allclose(found[:, 0], (compressed - compressed.mean()) / compressed.std(), atol=1e-5)


def test_an_outlier_that_comes_later_is_clipped() -> None:
    assert fit({"a": [1.0, 2.0, 3.0]}).transform({"a": [1e30, -1e30]}).tolist() == [[10], [-10]]


# Truth values


@pytest.mark.parametrize("pair", [(True, False), ("yes", "No"), ("TRUE", "false"), ("t", "f"), (np.True_, np.False_)])
def test_truth_values(pair: tuple[object, object]) -> None:
    true, false = pair
    found = column([true, false, false, true])
    assert found[:, 0].tolist() == [1, -1, -1, 1]


def test_truth_values_with_gaps() -> None:
    found = column([True, None, True, False])
    assert found[:, 1].tolist() == [0, 1, 0, 0]
    assert found[1, 0] == found[0, 0] > found[3, 0]


# Categories


def test_categories_by_frequency_then_name() -> None:
    fitted, found = fit_transform({"a": ["b", "c", "c", "a", "a", "b", "c"]})
    assert fitted.feature_names == ["a = c", "a = a", "a = b"]
    assert found.tolist() == np.eye(3)[[2, 0, 0, 1, 1, 2, 0]].tolist()


def test_the_cap_and_rare_categories_are_others() -> None:
    fitted, found = fit_transform({"a": list("aaabbbccd")}, max_categories=2)
    assert fitted.feature_names == ["a = a", "a = b", "a = (other)"]
    assert found[:, 2].tolist() == [0] * 6 + [1] * 3
    assert fit({"a": list("aabbc")}).feature_names == ["a = a", "a = b", "a = (other)"]


def test_unseen_categories() -> None:
    with_others = fit({"a": list("aabbc")})
    assert with_others.transform({"a": ["new", None, "a"]}).tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0]]
    without = fit({"a": list("aabb")})
    assert without.transform({"a": ["new", "b"]}).tolist() == [[0, 0], [0, 1]]


def test_codes_with_leading_zeros_are_categories() -> None:
    assert fit({"a": ["01", "02", "01", "02"]}).feature_names == ["a = 01", "a = 02"]


def test_one_word_for_a_number() -> None:
    assert word(1) == word(1.0) == word(" 1 ") == word(np.int64(1)) == "1"
    assert word(True) == "True"
    assert word(0.1) == "0.1"


# Dates


def test_dates_are_taken_apart() -> None:
    values = ["2024-01-31", "2024-02-29", "2023-12-25", None]
    fitted, found = fit_transform({"a": values})
    assert fitted.feature_names == [
        "a (timestamp)", "a (year)", "a (month)", "a (day)", "a (weekday)", "a is missing"
    ]  # fmt: skip
    days = np.array([19753, 19782, 19716])
    np.testing.assert_allclose(found[:3, 0], (days - days.mean()) / days.std(), rtol=1e-4)
    weekdays = np.array([2, 3, 0])  # Wednesday, Thursday, Monday
    np.testing.assert_allclose(found[:3, 4], (weekdays - weekdays.mean()) / weekdays.std(), rtol=1e-6)
    assert found[3].tolist() == [0, 0, 0, 0, 0, 1]


def test_unparsable_dates_are_missing() -> None:
    good = [f"2024-03-{day:02d}" for day in range(1, 31)]
    fitted, found = fit_transform({"a": [*good, "2024-13-45"]})
    assert fitted.feature_names == ["a (timestamp)", "a (day)", "a (weekday)", "a is missing"]
    assert found[-1].tolist() == [0, 0, 0, 1]
    assert fitted.transform({"a": ["soon", "31.03.2024"]}).tolist() == [[0, 0, 0, 1]] * 2


@pytest.mark.parametrize(
    ("values", "form"),
    [
        (["01/02/2024", "13/02/2024"], "%d/%m/%Y"),
        (["01/02/2024", "02/13/2024"], "%m/%d/%Y"),
        (["1.2.2024", "13.2.2024"], "%d.%m.%Y"),
        (["2024-02-01", "2024-02-01T10:00:00Z"], "iso"),
        (["3 Feb 2024", "13 Mar 2023"], "%d %b %Y"),
        (["1/2/24 3:05 PM", "2/28/24 11:00 AM"], "%m/%d/%y %I:%M %p"),
    ],
)
def test_the_format_of_dates(values: list[str], form: str) -> None:
    assert date_format(values, 0.95) == form


def test_day_first_is_found_even_if_the_first_values_are_ambiguous() -> None:
    values = ["01/02/2024", "03/04/2024", "25/12/2023", "05/06/2024"]
    assert date_format(values, 0.95) == "%d/%m/%Y"


def test_time_zones_are_utc() -> None:
    read = date_reader("iso")
    assert read("2024-01-01T00:30:00+02:00") == datetime(2023, 12, 31, 22, 30)
    there = datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=-5)))
    assert read(there) == datetime(2024, 1, 1, 5)
    assert read(date(2024, 1, 1)) == datetime(2024, 1, 1)
    assert read(np.datetime64("2024-01-01T07")) == datetime(2024, 1, 1, 7)
    assert read("20240101") is read("2024-W01-1") is read(5) is None


def test_the_hour_counts_where_it_changes() -> None:
    frame = pandas.DataFrame({"a": pandas.to_datetime(["2024-01-01 06:00", "2024-01-01 18:00", None])})
    fitted, found = fit_transform(frame)
    assert fitted.feature_names == ["a (timestamp)", "a (hour)", "a is missing"]
    assert found.tolist() == [[-1, -1, 0], [1, 1, 0], [0, 0, 1]]


# Text


TEXTS = ["the first of several sentences", "another one of them here", None, "and yet another text to read"]


def test_text_is_embedded() -> None:
    encoder = Lengths()
    fitted, found = fit_transform({"a": TEXTS}, text_encoder=encoder)
    assert encoder.calls == 1
    raw = np.array([[30, 5], [24, 5], [28, 6]], dtype=np.float64)
    scale = np.sqrt(np.square(raw - raw.mean(axis=0)).mean())
    np.testing.assert_allclose(found[[0, 1, 3], :2], (raw - raw.mean(axis=0)) / scale, rtol=1e-5)
    assert found[2].tolist() == [0, 0, 1]
    again = Preprocessing.from_dict(json.loads(json.dumps(fitted.to_dict())), text_encoder=Lengths())
    np.testing.assert_array_equal(again.transform({"a": TEXTS}), found)
    assert again.transform({"a": [None, ""]}).tolist() == [[0, 0, 1]] * 2


def test_text_without_an_encoder_is_dropped_and_another_encoder_refused() -> None:
    assert "text encoder" in fit({"a": TEXTS, "b": [1, 2, 3, 5]}).dropped["a"]
    state = fit({"a": TEXTS}, text_encoder=Lengths()).to_dict()
    for other in (None, Lengths("other")):
        with pytest.raises(ValueError, match="text_encoder"):
            Preprocessing.from_dict(state, text_encoder=other).transform({"a": TEXTS})


def test_text_without_spaces() -> None:
    values = [
        "我今天早上去了市场买了很多水果",
        "他们昨天晚上一起看了一部很好的电影",
        "这本书的内容非常有趣值得一读再读",
    ]
    assert fit({"a": values}, text_encoder=Lengths()).columns["a"].kind == "text"


# What is dropped


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([None] * 30, "missing"),
        ([math.nan] * 30, "missing"),
        ([3] * 30, "every value is 3"),
        (["x"] * 30, "every value is 'x'"),
        (["2024-01-01"] * 30, "every value is '2024-01-01'"),
        (list(range(100, 130)), "numbers the rows"),
        ([f"u{i}" for i in range(30)], "identifier"),
        ([math.inf] * 30, "missing"),
        ([[1, 2]] * 30, "type list"),
        ([b"x"] * 30, "type bytes"),
        ([{}] * 30, "type dict"),
    ],
)
def test_columns_of_no_use_are_dropped_with_a_reason(values: list[object], reason: str) -> None:
    fitted = fit({"bad": values, "good": [i % 7 for i in range(30)]})
    assert list(fitted.columns) == ["good"]
    assert reason in fitted.dropped["bad"]
    assert f"bad: {fitted.dropped['bad']}" in fitted.report()


@pytest.mark.parametrize("name", ["id", "user_id", "orderId", "Unnamed: 0", "row"])
def test_different_whole_numbers_called_so_are_identifiers(name: str) -> None:
    values = [17, 3, 99, 42]
    assert name in fit({name: values, "b": [1, 2, 2, 1]}).dropped
    assert "income" in fit({"income": values}).columns
    assert name in fit({name: [17, 3, 17, 42]}).columns


def test_no_column_of_use_is_one_error_that_says_why() -> None:
    with pytest.raises(ValueError, match=r"frame.*a: every.*b: all"):
        fit({"a": [1, 1], "b": [None, None]})


# Frames


@pytest.mark.parametrize("frame", [{}, {"a": []}, pandas.DataFrame(), pandas.DataFrame({"a": []})])
def test_empty_frames(frame: object) -> None:
    with pytest.raises(ValueError, match="frame"):
        fit(frame)


def test_no_new_rows_are_no_features() -> None:
    fitted = fit({"a": [1, 2, 3], "b": list("xyx"), "c": ["2024-01-01", "2024-02-03", "2021-01-01"]})
    empty = fitted.transform({"a": [], "b": [], "c": []})
    assert empty.shape == (0, len(fitted.feature_names))


def test_repeated_names_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"columns=\['a'\]"):
        fit(pandas.DataFrame([[1, 2], [3, 4]], columns=["a", "a"]))
    with pytest.raises(ValueError, match=r"columns=\['1'\]"):
        fit({1: [1, 2], "1": [3, 4]})


def test_lengths_types_and_unknown_names() -> None:
    with pytest.raises(ValueError, match="frame"):
        fit({"a": [1], "b": [1, 2]})
    with pytest.raises(TypeError, match="frame"):
        fit([[1, 2]])
    with pytest.raises(ValueError, match="exclude"):
        fit({"a": [1, 2]}, exclude=["b"])
    with pytest.raises(ValueError, match="max_categories"):
        fit({"a": [1, 2]}, max_categories=0)


def test_columns_are_found_by_name() -> None:
    fitted = fit({"a": [1, 2, 3], "b": list("xyx"), "label": [0, 1, 0]}, exclude=["label"])
    straight = fitted.transform({"a": [2], "b": ["y"]})
    np.testing.assert_array_equal(fitted.transform({"extra": [9], "b": ["y"], "a": [2]}), straight)
    with pytest.raises(ValueError, match="'b'"):
        fitted.transform({"a": [2]})


def test_pandas_and_plain_columns_agree() -> None:
    frame = pandas.DataFrame(
        {
            "int": [1, 2, 3, 4],
            "nullable": pandas.array([1, None, 3, 5], dtype="Int64"),
            "flag": pandas.array([True, None, False, False], dtype="boolean"),
            "string": pandas.array(["x", "y", None, "x"], dtype="string"),
            "category": pandas.Categorical(["u", "v", "u", None]),
            "when": pandas.to_datetime(["2024-01-01", None, "2023-05-05", "2022-02-02"]).tz_localize("UTC"),
        }
    )
    plain = {
        "int": ["1", "2", "3", "4"],
        "nullable": ["1", "", "3", "5"],
        "flag": ["True", "", "False", "False"],
        "string": ["x", "y", "", "x"],
        "category": ["u", "v", "u", ""],
        "when": ["2024-01-01", "", "2023-05-05", "2022-02-02"],
    }
    (one, first), (two, second) = fit_transform(frame), fit_transform(plain)
    assert one.feature_names == two.feature_names
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(one.transform(plain), second)
    np.testing.assert_array_equal(two.transform(frame), first)


def test_the_label_of_a_row_does_not_matter() -> None:
    frame = pandas.DataFrame({"a": [1.0, 2.0, 5.0], "b": list("xyx")}, index=[7, 7, 1])
    np.testing.assert_array_equal(fit(frame).transform(frame), fit_transform(frame.reset_index(drop=True))[1])


# Storing


def test_json_round_trip() -> None:
    rows = 60
    frame = {
        "n": [None if i % 9 == 0 else i * i for i in range(rows)],
        "c": [f"c{i % 5}" for i in range(rows)],
        "d": [(date(2020, 1, 1) + timedelta(days=i)).isoformat() for i in range(rows)],
        "t": [f"row {i} has words and then some {'more ' * (i % 3)}" for i in range(rows)],
        "k": ["same"] * rows,
    }
    fitted, found = fit_transform(frame, text_encoder=Lengths())
    again = Preprocessing.from_dict(json.loads(json.dumps(fitted.to_dict(), allow_nan=False)), text_encoder=Lengths())
    assert again == fitted
    np.testing.assert_array_equal(again.transform(frame), found)
    np.testing.assert_array_equal(fitted.transform(frame), found)
    assert found.shape == (rows, len(fitted.feature_names))
    assert again.report() == fitted.report()


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"columns": [{"name": "a", "kind": "other"}]},
        {"columns": [{"name": "a", "kind": "numeric", "median": 0.0}]},
        {"columns": 5},
        {"rows": "many"},
        {"dropped": None},
    ],
)
def test_damaged_states_are_one_error(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="preprocessing"):
        Preprocessing.from_dict(fit({"a": [1, 2]}).to_dict() | change)
    with pytest.raises(ValueError, match="preprocessing"):
        Preprocessing.from_dict([])  # type: ignore[arg-type]


_CELLS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=30), st.dates(), st.datetimes()
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(_CELLS, _CELLS), min_size=1, max_size=25), st.lists(_CELLS, max_size=5))
def test_any_table_gives_finite_features_or_one_error(rows: list[tuple[object, object]], new: list[object]) -> None:
    frame = {"a": [row[0] for row in rows], "b": [row[1] for row in rows]}
    try:
        fitted, found = fit_transform(frame, text_encoder=Lengths())
    except ValueError as error:
        if "frame" not in str(error):
            raise
        return
    assert found.shape == (len(rows), len(fitted.feature_names))
    assert np.isfinite(found).all()
    assert np.abs(found).max() <= 10
    again = Preprocessing.from_dict(json.loads(json.dumps(fitted.to_dict(), allow_nan=False)), text_encoder=Lengths())
    np.testing.assert_array_equal(again.transform(frame), found)
    assert np.isfinite(again.transform({"a": new, "b": new})).all()


def test_importing_needs_no_pandas() -> None:
    fits = "from ncsam.data.tables.preprocess import fit; fit({'a': [1, 2]})"
    code = f"{fits}; import sys; assert 'pandas' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_columns_of_keeps_cells_that_are_sequences() -> None:
    found = columns_of({"a": [[1, 2], [3, 4]]})
    assert found["a"].shape == (2,)
