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
        ({"split": X}, "split=.* is not allowed: a part of a dataset"),
        ({"batch_size": 0.5}, "batch_size=0.5 is not allowed: a whole number, 1 or larger"),
        ({"batch_size": None}, "batch_size=None is not allowed"),
        ({"seed": "x"}, "seed='x' is not allowed"),
        ({"workers": 10**9}, "workers=1000000000 is not allowed: a whole number from 0 to 1,024"),
        ({"shuffle": "no"}, "shuffle='no' is not allowed: True or False"),
        ({"drop_last": 1}, "drop_last=1 is not allowed: True or False"),
        ({"rank": None}, "rank=None is not allowed"),
        ({"batches": []}, r"unknown batches \[\]"),
        ({"size": 7}, r"size=7 is not allowed: \(height, width\)"),
        ({"size": (0.5, 1)}, r"size=\(0.5, 1\) is not allowed"),
        ({"resize": "x"}, "resize='x' is not allowed"),
        ({"mean": 0.5}, "mean=0.5 is not allowed: a list of numbers, or None"),
        ({"mean": [None]}, "mean=None is not allowed: a finite number"),
        ({"std": np.array(0.5)}, "std=.* is not allowed: a list of numbers"),
        ({"views": np.array(["plain"])}, "views=.* is not allowed: names or recipes of views"),
        ({"dtype": "float32"}, "dtype='float32' is not allowed: a real type such as torch.float32"),
        ({"dtype": torch.int64}, "dtype=torch.int64 is not allowed"),
        ({"device": b"cpu"}, "device=b'cpu' is not allowed: the name of a device"),
        ({"device": "abc"}, "device='abc' is not allowed: the name of a device"),
        ({"device": "cuda:77"}, "device='cuda:77' is not allowed: .* that this machine has"),
        ({"subset": [[1, 2], [3]]}, "subset=.* is not allowed: a list of at least one position"),
        ({"store": 1}, "store=1 is not allowed"),
    ],
)
def test_wrong_options_of_a_loader(options, said):
    with pytest.raises(ValueError, match=said):
        data.Loader(**{"split": DATASET.train, "batch_size": 2, **options})


def test_a_loader_takes_numbers_of_numpy():
    loader = data.Loader(DATASET.train, np.int64(2), seed=np.int64(3), mean=np.zeros(1), std=np.ones(1))
    assert [len(batch) for batch in loader] == [2, 2, 2]
    with pytest.raises(ValueError, match="epoch='x' is not allowed"):
        loader.set_epoch("x")
    with pytest.raises(ValueError, match="start_batch=None is not allowed"):
        loader.iterate(0, None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"classes": "abc"}, "classes='abc' is not allowed: a list of names, as text"),
        ({"classes": {"a": 1}}, "classes=.* is not allowed: a list of names"),
        ({"classes": [1, 2, 3]}, r"classes=\[1, 2, 3\] is not allowed: a list of names"),
        ({"classes": 7}, "classes=7 is not allowed: a list of names"),
        ({"y": None}, "y=None is not allowed: a label for each sample"),
        ({"y": 7}, "labels of type int; expected one label per sample"),
        ({"y": [[1, 2], [3]]}, "labels of type list; expected one label per sample"),
        (
            {"x": [[1.0, 2.0], [3.0]]},
            r"x=\[\[1.0, 2.0\], \[3.0\]\] is not allowed: an array, whose rows are of one length",
        ),
        ({"x": {"a": 1}}, r"every array of a tree needs one row per sample, and these have a \(\)"),
        ({"mean": "abcd"}, "mean='abcd' is not allowed: a list of numbers"),
        ({"std": [True] * 4}, "std=.* is not allowed: finite numbers"),
        ({"mean": [1e300] * 4}, "mean=.* is not allowed: finite numbers"),
        ({"names": [[1, 2], [3]]}, r"names.shape=\(0,\) is not allowed: a name for each of the 6 samples"),
        ({"names_val": ["a"]}, "names_val is given, and there are no such samples"),
        ({"y_test_clean": [1]}, "y_test_clean is given, and there are no such samples"),
        ({"channels_first": "no"}, "channels_first='no' is not allowed: True or False"),
        ({"allow_empty": 1}, "allow_empty=1 is not allowed: True or False"),
        ({"name": {}}, "name={} is not allowed: text"),
    ],
)
def test_wrong_arrays(options, said):
    with pytest.raises(ValueError, match=said):
        data.from_arrays(**{"x": X, "y": Y, **options})


def test_numbers_of_numpy_normalise():
    assert data.from_arrays(X, Y, mean=np.zeros(4, dtype=np.float32), std=[np.float32(1)] * 4).std == (1.0,) * 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"y": None}, "y=None is not allowed: a label for each sample"),
        ({"texts": None}, "texts='NoneType' is not allowed: a sequence of texts"),
        ({"max_length": "256"}, "max_length='256' is not allowed: a whole number, 1 or larger"),
        ({"max_words": 0.5}, "max_words=0.5 is not allowed: a whole number, 1 or larger"),
        ({"tokenizer": 1}, "tokenizer=1 is not allowed: 'words', or the name of a tokenizer"),
        ({"name": b"x"}, "name=b'x' is not allowed: text"),
    ],
)
def test_wrong_texts(options, said):
    with pytest.raises(ValueError, match=said):
        data.from_texts(**{"texts": ["a b", "c", "d"], "y": [0, 1, 0], **options})


def test_what_is_no_dataset():
    for function in (data.check, lambda dataset: data.hold_out(dataset, 0.5)):
        with pytest.raises(ValueError, match="dataset=2 is not allowed: a dataset, as `load` and `from_arrays`"):
            function(2)
    with pytest.raises(ValueError, match="expected=b'x' is not allowed: a number of samples for each split"):
        data.check(DATASET, expected=b"x")
    with pytest.raises(ValueError, match=r"seed=0.5 is not allowed"):
        data.hold_out(DATASET, 0.5, seed=0.5)
    with pytest.raises(ValueError, match=r"into=\[\] is not allowed: one of 'val', 'test'"):
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
    with pytest.raises(ValueError, match=f"{option}=.* is not allowed"):
        data.View(**{option: wrong})
