"""Kinds of data: what is read is what was written, masks are right, and trees reach the network as they are."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from ncsam import data, models
from ncsam._text import shortened
from ncsam._trees import TreeArrays, join_rows, named_leaves, nested, take_rows, tree_map
from ncsam.data.loading.loader import Loader
from ncsam.data.modalities import modality_of, open_store, restored_modality, saved_modality
from ncsam.data.modalities.text import TextList, Words

TEXTS = ["The cat sat.", "A dog, a cat!", "", "Don't sit", "cat cat cat cat cat cat"]


def write_table(path: Path, rows: Sequence[Sequence[object]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows(rows)
    return path


# --- trees


def test_trees_keep_their_form() -> None:
    tree = {"a": torch.arange(6).view(3, 2), "b": [torch.ones(3), (torch.zeros(3, 1),)]}
    rows = take_rows(tree, torch.tensor([2, 0]))
    assert rows["a"].tolist() == [[4, 5], [0, 1]]
    assert isinstance(rows["b"], list)
    assert isinstance(rows["b"][1], tuple)
    assert [name for name, _ in named_leaves(tree)] == ["a", "b.0", "b.1.0"]
    joined = join_rows([tree, rows])
    assert joined["a"].tolist() == [[0, 1], [2, 3], [4, 5], [4, 5], [0, 1]]
    assert [name for name, _ in named_leaves(torch.ones(1))] == [""]
    assert nested({"a": 1, "b.c": 2, "b.d": 3}) == {"a": 1, "b": {"c": 2, "d": 3}}
    assert tree_map(lambda x, y: x + y, [1, {"k": 2}], [10, {"k": 20}]) == [11, {"k": 22}]


def test_the_arrays_of_a_tree_must_be_as_many() -> None:
    with pytest.raises(ValueError, match=r"a \(3,\), b \(2, 2\)"):
        TreeArrays({"a": np.zeros(3), "b": np.zeros((2, 2))})


# --- token sequences


def test_a_vocabulary_has_the_most_frequent_words_first() -> None:
    words = Words.of(TEXTS)
    # cat 8 times; a 2 times; the others once, in the order of the alphabet, of which signs come first
    assert words.words == ("cat", "a", "!", ",", ".", "dog", "don't", "sat", "sit", "the")
    assert words.size == 12
    assert words.encode(["The CAT flew."], 10) == [[11, 2, 1, 6]]
    assert words.encode(["cat a cat"], 2) == [[2, 3]]
    assert Words.of(TEXTS, 1).encode(["a cat"], 5) == [[1, 2]]


def test_batches_of_texts_are_padded_and_masked() -> None:
    texts = TextList(TEXTS, Words.of(TEXTS), 5)
    split = data.Split(texts, np.array([0, 1, 0, 1, 0]))
    (batch,) = Loader(split, 8, shuffle=False).iterate(0)
    ids, mask = batch.views[0]["input_ids"], batch.views[0]["attention_mask"]
    assert mask.sum(dim=1).tolist() == [4, 5, 0, 2, 5]  # the last one is cut from 6 to 5
    assert ids.tolist() == [[11, 2, 9, 6, 0], [3, 7, 5, 3, 2], [0] * 5, [8, 10, 0, 0, 0], [2] * 5]
    assert mask.dtype == torch.bool
    assert not ids[~mask].any()
    one = Loader(split, 1, shuffle=False)
    assert [b.views[0]["input_ids"].shape[1] for b in one.iterate(0)] == [4, 5, 1, 2, 5]
    decoded = [[texts.tokenizer.words[i - 2] for i in row[m].tolist()] for row, m in zip(ids, mask, strict=True)]
    assert decoded[3] == ["don't", "sit"]


def test_padding_does_not_change_the_answer_of_text_mean() -> None:
    torch.manual_seed(0)
    network = models.create("text_mean", 3, tokens=12, width=6, hidden=[5]).double()
    texts = TextList(TEXTS, Words.of(TEXTS))
    split = data.Split(texts, np.zeros(5, dtype=np.int64))
    (together,) = Loader(split, 8, shuffle=False).iterate(0)
    alone = torch.cat([network(batch.views[0]) for batch in Loader(split, 1, shuffle=False).iterate(0)])
    torch.testing.assert_close(network(together.views[0]), alone, rtol=1e-12, atol=1e-14)
    # by hand: the mean of the vectors of "don't" and "sit"; nothing at all of an empty text
    vectors = network.embedding.weight
    expected = network.fc(network.body((vectors[8] + vectors[10]) / 2))
    torch.testing.assert_close(alone[3], expected)
    torch.testing.assert_close(alone[2], network.fc(network.body(torch.zeros(6, dtype=torch.float64))))
    other = {
        **together.views[0],
        "input_ids": together.views[0]["input_ids"].masked_fill(~together.views[0]["attention_mask"], 7),
    }
    assert torch.equal(network(other), network(together.views[0]))
    with pytest.raises(ValueError, match="takes token sequences"):
        network(torch.zeros(2, 6))


def test_a_table_of_texts_is_read_as_it_was_written(tmp_path: Path) -> None:
    rows = [
        ['A, quoted "word"\nand a line', "good", "train"],
        ["bad film", "bad", "train"],
        ["new words", "bad", "test"],
    ]
    for name in ("t.csv", "t.tsv"):
        read = data.load(write_table(tmp_path / name, [["Review", "label", "split"], *rows]))
        assert list(read.train.inputs) == [rows[0][0], rows[1][0]]
        assert list(read.test.inputs) == ["new words"]
        assert read.train.labels.tolist() == [1, 0]
        assert "new" not in read.train.inputs.tokenizer.words  # the vocabulary is of the training rows
        assert read.test.inputs.tokenizer is read.train.inputs.tokenizer
        assert modality_of(read).column == "Review"
        part = read.train.take(np.array([1]))
        assert list(part.inputs) == ["bad film"]


def test_new_texts_need_a_column_of_texts(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("opinion,label\ngood film,a\nbad film,b\n")
    kind = modality_of(data.load(tmp_path / "t.csv", text_column="opinion"))
    (tmp_path / "new.csv").write_text("id,words\n1,fine\n")
    with pytest.raises(ValueError, match=r"new\.csv.*'opinion'"):
        kind.read([tmp_path / "new.csv"])


def test_the_only_other_column_may_be_the_text(tmp_path: Path) -> None:
    read = data.load(write_table(tmp_path / "t.csv", [["headline", "y"], ["rain at noon", 0], ["sun", 1]]))
    assert list(read.train.inputs) == ["rain at noon", "sun"]


def test_long_texts_are_shortened_for_a_page() -> None:
    assert shortened("a  b\nc") == "a b c"
    assert shortened("word " * 100, 20) == "word word word ..."
    assert len(shortened("word " * 100, 200)) <= 200
    assert shortened("x" * 100, 20) == "x" * 17 + "..."  # no space to cut at


def test_a_tokenizer_of_transformers(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    raw = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"[PAD]": 0, "[UNK]": 1, "cat": 2, "dog": 3}, unk_token="[UNK]")
    )
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(
        tmp_path
    )
    read = data.from_texts(["cat dog cow", "dog"], ["a", "b"], tokenizer=str(tmp_path), max_length=2)
    (batch,) = Loader(read.train, 2, shuffle=False).iterate(0)
    assert batch.views[0]["input_ids"].tolist() == [[2, 3], [3, 0]]
    assert batch.views[0]["attention_mask"].tolist() == [[True, True], [True, False]]
    kind = restored_modality(saved_modality(modality_of(read)))
    again = kind.read([write_table(tmp_path / "new.csv", [["text"], ["dog cow"]])])[1]
    assert again.tokenizer.encode(list(again), 9) == [[3, 1]]
    with pytest.raises(ValueError, match="tokenizer="):
        data.from_texts(["a"], ["b"], tokenizer=str(tmp_path / "nothing"))


# --- features


def test_a_table_of_numbers_is_read_as_it_was_written(tmp_path: Path) -> None:
    rows = [
        [7, 1.5, "yes", "x", "true", "2e1", "train"],
        [8, -2, "no", "y", "false", "0", "train"],
        [9, 4, "no", "z", "true", "5", "test"],
    ]
    path = write_table(tmp_path / "t.csv", [["id", "age", "label", "city", "old", "hours", "split"], *rows])
    read = data.load(path)
    assert read.columns == ("age", "old", "hours")
    assert read.train.inputs.tolist() == [[1.5, 1, 20], [-2, 0, 0]]
    assert read.test.inputs.tolist() == [[4, 1, 5]]
    assert read.mean == pytest.approx((-0.25, 0.5, 10))  # of the training rows
    assert read.std == pytest.approx((1.75, 0.5, 10))
    assert read.notes == (
        "columns that were dropped: city (an identifier: 2 different values in 2 rows)",
        "columns that are not used: id",
    )
    names, again = modality_of(read).read([path])
    np.testing.assert_array_equal(again, np.concatenate([read.train.inputs, read.test.inputs]))
    assert names[2] == f"{path}[2]"
    chosen = data.load(path, columns=["hours", "id"])
    assert chosen.train.inputs.tolist() == [[20, 7], [0, 8]]
    assert modality_of(chosen).preview(chosen.train.inputs, 0) == "hours 20, id 7"


def test_the_columns_of_a_table_of_numbers_are_listed(tmp_path: Path) -> None:
    (tmp_path / "wines.csv").write_text("id,alcohol,ash,label\n1,14.23,2.43,a\n2,13.2,2.14,b\n")
    lines = data.describe(data.load(tmp_path / "wines.csv")).splitlines()
    assert lines[-2:] == ["  2 columns of numbers: alcohol, ash", "  note: columns that are not used: id"]
    (tmp_path / "mixed.csv").write_text("city,ash,label\n" + "Oslo,2.43,a\nRome,2.14,b\n" * 2)
    assert "columns of numbers" not in data.describe(data.load(tmp_path / "mixed.csv"))


def test_parquet_has_numbers_and_texts_too(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"a": [1.0, 2.0], "b": [3, 4], "label": ["u", "v"]}), tmp_path / "n.parquet")
    assert data.load(tmp_path / "n.parquet").train.inputs.tolist() == [[1, 3], [2, 4]]
    parquet.write_table(arrow.table({"text": ["one", "two"], "label": [0, 1]}), tmp_path / "t.parquet")
    assert list(data.load(tmp_path / "t.parquet").train.inputs) == ["one", "two"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([["a", "label"], ["nan", "x"], ["inf", "y"]], None),
        ([["a", "b", "label"], ["p", "q", "x"]], "a: every value is 'p'; b: every value is 'q'"),
        ([["id", "label"], ["1", "x"]], "no column of paths or texts"),
        ([["a", "b"], ["1", "2"]], "has no column 'label'"),
    ],
)
def test_tables_that_cannot_be_used_say_why(tmp_path: Path, rows: list[list[str]], message: str | None) -> None:
    path = write_table(tmp_path / "t.csv", rows)
    if message is None:  # words that are no numbers are a text
        assert list(data.load(path).train.inputs) == ["nan", "inf"]
        return
    with pytest.raises(ValueError, match=message):
        data.load(path)


# --- nested arrays


class Items(Dataset[Any]):
    """(dict of tensors, label), or dicts with the label inside."""

    def __init__(self, inside: bool = False, uneven: bool = False) -> None:
        self.inside, self.uneven = inside, uneven

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> Any:
        length = 3 + (self.uneven and i == 4)
        tree = {"ids": torch.arange(length) + i, "more": (np.float64(i / 2), [torch.tensor(i % 2 == 0)])}
        return {**tree, "label": i % 2} if self.inside else (tree, i % 2)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_any_tree_of_a_torch_dataset_arrives_as_it_is(inside: bool, workers: int) -> None:
    read = data.from_dataset(Items(inside))
    assert read.train.labels.tolist() == [0, 1, 0, 1, 0, 1]
    loader = Loader(read.train.take(np.array([5, 2, 0])), 2, shuffle=False, batches="full", workers=workers)
    first, second = loader.iterate(0)
    assert first.views[0]["ids"].tolist() == [[5, 6, 7], [2, 3, 4]]
    assert first.views[0]["ids"].dtype == torch.int64
    assert first.views[0]["more"][0].tolist() == [2.5, 1.0]
    assert first.views[0]["more"][0].dtype == torch.float32
    assert second.views[0]["more"][1][0].tolist() == [True]
    assert first.index.tolist() == [0, 1]


def test_items_of_another_form_are_named() -> None:
    read = data.from_dataset(Items(uneven=True))
    with pytest.raises(ValueError, match=r"sample 4.*int64 4.*sample 0.*int64 3"):
        list(Loader(read.train, 6, shuffle=False).iterate(0))


def test_trees_of_arrays_and_their_npz(tmp_path: Path) -> None:
    x = {"values": np.arange(8.0).reshape(4, 2), "more": {"count": np.array([[1], [2], [3], [4]])}}
    read = data.from_arrays(x, [0, 1, 0, 1])
    np.savez(tmp_path / "x.npz", **{f"x.{name}": leaf for name, leaf in named_leaves(x)}, y=[0, 1, 0, 1])
    again = data.load(tmp_path / "x.npz")
    for dataset in (read, again):
        (batch,) = Loader(dataset.train, 4, shuffle=False).iterate(0)
        assert batch.views[0]["values"].tolist() == x["values"].tolist()
        assert batch.views[0]["values"].dtype == torch.float32
        assert batch.views[0]["more"]["count"].tolist() == x["more"]["count"].tolist()
    kind = restored_modality(saved_modality(modality_of(again)))
    assert kind.form == {"values": "float32 2", "more": {"count": "int64 1"}}
    names, inputs = kind.read([tmp_path / "x.npz"])
    assert names[3].endswith("x.npz[3]")
    assert inputs[3]["more"]["count"].tolist() == [4]
    assert not kind.mixable
    assert data.describe(again).splitlines()[1].endswith("values float32 2, more.count int64 1, in memory")


def test_batches_of_trees_can_be_moved() -> None:
    read = data.from_arrays({"a": np.ones((4, 2), dtype=np.float32)}, [0, 1, 0, 1])
    (batch,) = Loader(read.train, 4).iterate(0)
    assert batch.to("meta").views[0]["a"].device.type == "meta"


# --- all kinds


def one_of_each(tmp_path: Path) -> list[data.DataSet]:
    rng = np.random.default_rng(0)
    return [
        data.from_arrays(rng.integers(0, 255, (6, 8, 8, 3), dtype=np.uint8), [0, 1] * 3),
        data.from_arrays(rng.normal(size=(6, 5)), [0, 1] * 3),
        data.from_texts(["a b", "c d e", "a", "b", "c", "d"], [0, 1] * 3),
        data.from_arrays({"a": rng.normal(size=(6, 5))}, [0, 1] * 3),
    ]


def test_every_kind_survives_being_saved_and_has_an_example(tmp_path: Path) -> None:
    kinds = {modality_of(dataset).name for dataset in one_of_each(tmp_path)}
    assert kinds == set(data.modalities()) - {"rows of a table"}  # these are shown, and never trained on
    for dataset in one_of_each(tmp_path):
        kind = modality_of(dataset)
        torch.save(saved_modality(kind), tmp_path / "kind.pt")
        again = restored_modality(torch.load(tmp_path / "kind.pt", weights_only=True))
        assert again == kind
        (batch,) = Loader(dataset.train, 6, views="plain", **kind.preparation(dataset.train.inputs)).iterate(0)
        shapes = [
            [
                (name, leaf.dtype, leaf.shape[2:] if kind.name == "texts" else leaf.shape[1:])
                for name, leaf in named_leaves(tree)
            ]
            for tree in (batch.views[0], kind.example(6))
        ]
        assert shapes[0] == shapes[1]


def test_views_of_images_are_refused_elsewhere(tmp_path: Path) -> None:
    for dataset in one_of_each(tmp_path)[1:]:
        kind = modality_of(dataset).name
        for view in ("weak", "strong", data.View(flip=0.5)):
            with pytest.raises(ValueError, match=f"views=.*only view of {kind}"):
                Loader(dataset.train, 2, views=view)
        (batch,) = Loader(dataset.train, 6, views=("plain", "plain")).iterate(0)
        assert len(batch.views) == 2


def test_an_array_of_no_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"int32 array of shape \(3,\)"):
        open_store(np.zeros(3, dtype=np.int32), torch.device("cpu"))
