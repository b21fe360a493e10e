"""Arguments of loaders, splits, views and readers of arrays that are of the wrong kind, each in one sentence."""

import numpy as np
import pytest
import torch

from ncsam import data

X, Y = np.zeros((6, 4), dtype=np.float32), np.arange(6) % 3
DATASET = data.from_arrays(X, Y)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"split": X}, "split=.*"),
        ({"batch_size": 0.5}, "batch_size=0.5"),
        ({"batch_size": None}, "batch_size=None"),
        ({"seed": "x"}, "seed='x'"),
        ({"workers": 10**9}, "workers=1000000000"),
        ({"shuffle": "no"}, "shuffle='no'"),
        ({"drop_last": 1}, "drop_last=1"),
        ({"rank": None}, "rank=None"),
        ({"batches": []}, r"unknown batches \[\]"),
        ({"size": 7}, r"size=7"),
        ({"size": (0.5, 1)}, r"size=\(0.5, 1\)"),
        ({"resize": "x"}, "resize='x'"),
        ({"mean": 0.5}, "mean=0.5"),
        ({"mean": [None]}, "mean=None"),
        ({"std": np.array(0.5)}, "std=.*"),
        ({"views": np.array(["plain"])}, "views=.*"),
        ({"dtype": "float32"}, "dtype='float32'"),
        ({"dtype": torch.int64}, "dtype=torch.int64"),
        ({"device": b"cpu"}, "device=b'cpu'"),
        ({"device": "abc"}, "device='abc'"),
        ({"device": "cuda:77"}, "device='cuda:77'"),
        ({"subset": [[1, 2], [3]]}, "subset=.*"),
        ({"store": 1}, "store=1"),
    ],
)
def test_wrong_options_of_a_loader(options, said):
    with pytest.raises(ValueError, match=said):
        data.Loader(**{"split": DATASET.train, "batch_size": 2, **options})


def test_a_loader_takes_numbers_of_numpy():
    loader = data.Loader(DATASET.train, np.int64(2), seed=np.int64(3), mean=np.zeros(1), std=np.ones(1))
    assert [len(batch) for batch in loader] == [2, 2, 2]
    with pytest.raises(ValueError, match="epoch='x'"):
        loader.set_epoch("x")
    with pytest.raises(ValueError, match="start_batch=None"):
        loader.iterate(0, None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"classes": "abc"}, "classes='abc'"),
        ({"classes": {"a": 1}}, "classes=.*"),
        ({"classes": [1, 2, 3]}, r"classes=\[1, 2, 3\]"),
        ({"classes": 7}, "classes=7"),
        ({"y": None}, "y=None"),
        ({"y": 7}, "labels of type int; expected one label per sample"),
        ({"y": [[1, 2], [3]]}, "labels of type list; expected one label per sample"),
        (
            {"x": [[1.0, 2.0], [3.0]]},
            r"x=\[\[1.0, 2.0\], \[3.0\]\]",
        ),
        ({"x": {"a": 1}}, r"every array of a tree needs one row per sample, and these have a \(\)"),
        ({"mean": "abcd"}, "mean='abcd'"),
        ({"std": [True] * 4}, "std=.*"),
        ({"mean": [1e300] * 4}, "mean=.*"),
        ({"names": [[1, 2], [3]]}, r"names.shape=\(0,\)"),
        ({"names_val": ["a"]}, "names_val is given, and there are no such samples"),
        ({"y_test_clean": [1]}, "y_test_clean is given, and there are no such samples"),
        ({"channels_first": "no"}, "channels_first='no'"),
        ({"allow_empty": 1}, "allow_empty=1"),
        ({"name": {}}, "name={}"),
    ],
)
def test_wrong_arrays(options, said):
    with pytest.raises(ValueError, match=said):
        data.from_arrays(**{"x": X, "y": Y, **options})


def test_numbers_of_numpy_normalize():
    assert data.from_arrays(X, Y, mean=np.zeros(4, dtype=np.float32), std=[np.float32(1)] * 4).std == (1.0,) * 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"y": None}, "y=None"),
        ({"texts": None}, "texts='NoneType'"),
        ({"max_length": "256"}, "max_length='256'"),
        ({"max_words": 0.5}, "max_words=0.5"),
        ({"tokenizer": 1}, "tokenizer=1"),
        ({"name": b"x"}, "name=b'x'"),
    ],
)
def test_wrong_texts(options, said):
    with pytest.raises(ValueError, match=said):
        data.from_texts(**{"texts": ["a b", "c", "d"], "y": [0, 1, 0], **options})


def test_what_is_no_dataset():
    for function in (data.check, lambda dataset: data.hold_out(dataset, 0.5)):
        with pytest.raises(ValueError, match="dataset=2"):
            function(2)
    with pytest.raises(ValueError, match="expected=b'x'"):
        data.check(DATASET, expected=b"x")
    with pytest.raises(ValueError, match=r"seed=0.5"):
        data.hold_out(DATASET, 0.5, seed=0.5)
    with pytest.raises(ValueError, match=r"into=\[\]"):
        data.hold_out(DATASET, 0.5, into=[])


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("flip", [1.0]),
        ("cutout", None),
        ("cutout", "x"),
        ("cutout", 10**9),
        ("padding", True),
        ("scale", 0.5),
        ("scale", (0.5, None)),
        ("ratio", (0.5, float("inf"))),
        ("operations", 10**9),
        ("operations", 0.5),
        ("magnitude", "x"),
        ("jitter", None),
        ("policy", 1),
        ("choices", "equalize"),
    ],
)
def test_wrong_views(option, wrong):
    with pytest.raises(ValueError, match=f"{option}=.*"):
        data.View(**{option: wrong})
