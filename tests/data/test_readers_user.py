"""People's own data: folders, tables, arrays, torch datasets, and the labels in them."""

from __future__ import annotations

import csv
import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

from ncsam import data
from ncsam.data.images.exif import infer_image_size
from ncsam.data.loading.loader import Loader
from ncsam.data.readers.arrays import statistics
from ncsam.data.readers.torch_dataset import as_image
from ncsam.data.types import encode_labels, stratified

RNG = np.random.default_rng(5)


def image(path: Path, level: int = 50, size: tuple[int, int] = (6, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (level, level, level)).save(path)


# --- folders --------------------------------------------------------------------------------------------------------


def test_folder_of_classes(tmp_path: Path) -> None:
    for name in (
        "dog/b.png",
        "dog/a.JPG",
        "cat/deep/z.png",
        "cat/y.png",
        "cat/notes.txt",
        ".hidden/x.png",
        "dog/.t.png",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("") if name.endswith("txt") else image(path)
    read = data.load(tmp_path)
    assert read.classes == ("cat", "dog")
    assert [path.relative_to(tmp_path).as_posix() for path in read.train.inputs] == [
        "cat/deep/z.png",
        "cat/y.png",
        "dog/a.JPG",
        "dog/b.png",
    ]
    assert read.train.labels.tolist() == [0, 0, 1, 1]
    assert read.test is None
    assert read.size == (4, 6)
    assert data.load(tmp_path, size=(8, 8)).size == (8, 8)
    assert read.name == tmp_path.name


@pytest.mark.parametrize(
    ("others", "val", "test"), [(("val",), None, 1), (("test",), None, 1), (("val", "test"), 1, 1)]
)
def test_folder_with_splits(tmp_path: Path, others: tuple[str, ...], val: int | None, test: int | None) -> None:
    image(tmp_path / "train" / "a" / "1.png", 10)
    image(tmp_path / "train" / "b" / "2.png", 20)
    for name in others:
        image(tmp_path / name / "b" / f"{name}.png", 30)
    read = data.load(str(tmp_path), in_memory=True)
    assert read.train.inputs[:, 0, 0, 0].tolist() == [10, 20]
    assert read.size == (4, 6)
    assert (None if read.val is None else len(read.val)) == val
    assert len(read.test) == test
    assert read.test.labels.tolist() == [1]
    assert ("the images of val/ serve as the test split" in read.notes) == (others == ("val",))


def test_folder_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no subfolders; expected one per class"):
        data.load(tmp_path)
    image(tmp_path / "train" / "a" / "1.png")
    (tmp_path / "train" / "empty").mkdir()
    with pytest.raises(ValueError, match=r"1 of 2.*sample: 1 \('empty'\)"):
        data.load(tmp_path)
    assert data.load(tmp_path, allow_empty=True).num_classes == 2
    image(tmp_path / "test" / "new" / "1.png")
    with pytest.raises(ValueError, match="class folders"):
        data.load(tmp_path, allow_empty=True)
    image(tmp_path / "train" / "a" / "2.png", size=(9, 9))
    with pytest.raises(ValueError, match=r"2.png.*shape \(9, 9, 3\), .*1.png of \(4, 6, 3\)"):
        data.load(tmp_path / "train", allow_empty=True, in_memory=True)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([(9, 7)], (7, 9)),  # (width, height), as Pillow counts
        ([(224, 200)] * 3, (200, 224)),
        ([(640, 480)] * 3, (224, 224)),  # photographs, all alike
        ([(300, 100)] * 3, (100, 100)),
        ([(40, 30), (20, 60), (26, 26)], (26, 26)),  # shorter sides 30, 20, 26
        ([(40, 30), (20, 60), (26, 26), (500, 400)], (28, 28)),
        ([(20, 30)] * 40 + [(1000, 900)] * 100, (224, 224)),
        ([(32, 32)] * 100 + [(1000, 900)] * 40, (32, 32)),
    ],
)
def test_usual_size(tmp_path: Path, sizes: list[tuple[int, int]], expected: tuple[int, int]) -> None:
    paths = [tmp_path / f"{i}.png" for i in range(len(sizes))]
    for path, size in zip(paths, sizes, strict=True):
        Image.new("1", size).save(path)
    assert infer_image_size(paths) == expected


def test_usual_size_reads_headers_only_the_right_way_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for orientation, suffix in ((6, "jpg"), (8, "png"), (5, "jpg")):
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.new("RGB", (30, 20)).save(tmp_path / f"{orientation}.{suffix}", exif=exif)
    Image.new("RGB", (20, 30)).save(tmp_path / "upright.png")
    (tmp_path / "damaged.png").write_bytes(b"no image")
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda _: pytest.fail("pixels were read"))
    assert infer_image_size(sorted(tmp_path.iterdir())) == (30, 20)


def test_images_of_one_size_reach_the_network_as_they_are(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (5, 10, 7, 3), dtype=np.uint8)
    for i, each in enumerate(pixels):
        (tmp_path / f"{i % 2}").mkdir(exist_ok=True)
        Image.fromarray(each).save(tmp_path / f"{i % 2}" / f"{i}.png")
    read = data.load(tmp_path)
    assert read.size == (10, 7)
    (batch,) = Loader(read.train, 5, views="plain", size=read.size, shuffle=False).iterate(0)
    shown = (batch.views[0] * 255).round().permute(0, 2, 3, 1).numpy()
    assert np.array_equal(shown, pixels[[0, 2, 4, 1, 3]])


def test_in_memory_and_from_files_are_the_same_way_up(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (2, 6, 9, 3), dtype=np.uint8)
    gray = RNG.integers(0, 2**16, (6, 9), dtype=np.uint16)
    turned = Image.Exif()
    turned[0x0112] = 6  # to be shown turned by a quarter to the right
    (tmp_path / "a").mkdir()
    Image.fromarray(pixels[0]).save(tmp_path / "a" / "0.png")
    Image.fromarray(np.rot90(pixels[1]).copy()).save(tmp_path / "a" / "1.png", exif=turned)
    Image.fromarray(gray).save(tmp_path / "a" / "2.png")
    read = data.load(tmp_path, in_memory=True).train.inputs
    assert np.array_equal(read[:2], pixels)
    assert np.array_equal(read[2], (gray >> 8)[..., None].repeat(3, -1))
    (batch,) = Loader(data.load(tmp_path).train, 3, views="plain", size=(6, 9), shuffle=False).iterate(0)
    assert np.array_equal((batch.views[0] * 255).round().permute(0, 2, 3, 1).numpy(), read)


# --- tables ---------------------------------------------------------------------------------------------------------

ROWS = [("x/1.png", "dog", "cat"), ("x/2.png", "cat", "cat"), ("3.png", "dog", "dog"), ("4.png", "cat", "dog")]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for name, _, _ in ROWS:
        image(tmp_path / name)
    return tmp_path


def table(path: Path, header: list[str], rows: list[tuple[object, ...]], delimiter: str = ",") -> Path:
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        columns = {name: list(column) for name, column in zip(header, zip(*rows, strict=True), strict=True)}
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    else:
        with path.open("w", newline="") as file:
            csv.writer(file, delimiter=delimiter).writerows([header, *rows])
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
@pytest.mark.parametrize("header", [["path", "label", "clean_label"], ["Filename", "Noisy_Label", "true_label"]])
def test_table(images: Path, suffix: str, header: list[str]) -> None:
    read = data.load(table(images / f"mine{suffix}", header, ROWS, "\t" if suffix == ".tsv" else ","))
    assert [path.relative_to(images).as_posix() for path in read.train.inputs] == [row[0] for row in ROWS]
    assert read.classes == ("cat", "dog")
    assert read.train.labels.tolist() == [1, 0, 1, 0]
    assert read.train.clean.tolist() == [0, 0, 1, 1]
    assert read.name == "mine"
    assert "50.00% of the labels wrong" in data.describe(read)


def test_table_with_splits_own_names_and_class_order(images: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("tables")
    rows = [(str(images / "x/1.png"), "dog", "train"), ("x/2.png", "cat", "Training"), ("3.png", "cat", "valid")]
    path = table(elsewhere / "t.csv", ["where", "what", "part"], rows)
    options = {"path_column": "where", "label_column": "what", "split_column": "part", "images": images}
    read = data.load(path, classes=["dog", "cat"], **options)
    assert read.train.labels.tolist() == [0, 1]
    assert read.test.labels.tolist() == [1]
    assert [p.name for p in read.train.inputs] == ["1.png", "2.png"]
    assert read.val is None
    assert read.train.clean is None


def test_table_of_class_numbers(images: Path) -> None:
    rows = [(row[0], number) for row, number in zip(ROWS, (2, 0, 1, 2), strict=True)]
    for suffix in (".csv", ".parquet"):
        read = data.load(table(images / f"n{suffix}", ["path", "label"], rows))
        assert read.train.labels.tolist() == [2, 0, 1, 2]
        assert read.classes == ("0", "1", "2")
    assert data.load(images / "n.csv", classes=["a", "b", "c"]).classes == ("a", "b", "c")


@pytest.mark.parametrize(
    ("header", "rows", "options", "message"),
    [
        (
            ["path", "weight"],
            [("3.png", "1")],
            {},
            r"has no column 'label' \(nor noisy_label, .*\): pass label_column=NAME; columns: path, weight$",
        ),
        (
            ["path", "label"],
            [("3.png", "a")],
            {"label_column": "what"},
            "label_column='what'",
        ),
        (["path", "label"], [], {}, "has no rows"),
        (["path", "label"], [("3.png",)], {}, "line 2: 1 fields, but the header has 2"),
        (["path", "label"], [("3.png", " ")], {}, r"sample 0 has no label \(1 such"),
        (["path", "label"], [("3.png", "a"), ("4.png", "b")], {"classes": ["a"]}, "not among classes: 'b'"),
        (["path", "label"], [("3.png", "1"), ("4.png", "2")], {}, r"1 of 3 classes have no training sample: 0 \('0'\)"),
        (["path", "label"], [("3.png", "0"), ("4.png", "5")], {"classes": ["a", "b"]}, "label 5 of sample 1 is out of"),
        (["path", "label"], [("3.png", "0"), ("4.png", "-1")], {}, "label -1 of sample 1 is out of range"),
        (["path", "label", "split"], [("3.png", "a", "later")], {}, "row 0 has split 'later'; allowed are train"),
        (["path", "label", "split"], [("3.png", "a", "test")], {}, "no row belongs to the split 'train'"),
    ],
)
def test_table_errors(
    images: Path, header: list[str], rows: list[tuple[object, ...]], options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        data.load(table(images / "t.csv", header, rows), **options)


def test_table_missing_files(images: Path) -> None:
    rows = [(f"{i}.png", "a") for i in range(3, 20)]
    path = table(images / "t.csv", ["path", "label"], rows)
    with pytest.raises(FileNotFoundError, match=r"t.csv: 15 of 17 files do not exist: .*5.png.*\.\.\. \(15 in all\)"):
        data.load(path)
    parquet = table(images / "t.parquet", ["path", "label"], [("3.png", "a"), (None, "b")])
    with pytest.raises(ValueError, match="row 1 has no path"):
        data.load(parquet)
    parquet.write_bytes(parquet.read_bytes()[:-9])
    with pytest.raises(ValueError, match="is not a readable Parquet file"):
        data.load(parquet)


# --- arrays and npz -------------------------------------------------------------------------------------------------

IMAGES = RNG.integers(0, 256, (6, 5, 7, 3), dtype=np.uint8)


def test_arrays() -> None:
    read = data.from_arrays(IMAGES, [0, 1, 2, 0, 1, 2], y_clean=[0, 1, 1, 0, 1, 2], x_test=IMAGES[:2], y_test=[2, 1])
    assert np.array_equal(read.train.inputs, IMAGES)
    assert read.train.clean.tolist() == [0, 1, 1, 0, 1, 2]
    assert read.test.labels.tolist() == [2, 1]
    assert read.size == (5, 7)
    scaled = IMAGES.astype(np.float64) / 255
    assert read.mean == pytest.approx(scaled.mean(axis=(0, 1, 2)))
    assert read.std == pytest.approx(scaled.std(axis=(0, 1, 2)))
    first = data.from_arrays(IMAGES.transpose(0, 3, 1, 2), [0] * 6, channels_first=True)
    assert np.array_equal(first.train.inputs, IMAGES)
    assert data.from_arrays(IMAGES[..., 0], [0] * 6).train.inputs.shape == (6, 5, 7, 1)


def test_features() -> None:
    x = RNG.normal(size=(8, 3))
    x[:, 2] = 4.0
    read = data.from_arrays(x, ["b", "a"] * 4)
    assert read.train.inputs.dtype == np.float32
    assert read.classes == ("a", "b")
    assert read.train.labels.tolist() == [1, 0] * 4
    assert read.size is None
    assert read.mean == pytest.approx(x.mean(axis=0), rel=1e-6)
    assert read.std == pytest.approx([*x.std(axis=0)[:2], 1.0], rel=1e-6)
    assert len(statistics(x.astype(np.float32).reshape(2, 2, 6))[0]) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: data.from_arrays(IMAGES.astype(int), [0] * 6), "x.dtype='int64'"),
        (
            lambda: data.from_arrays(IMAGES.transpose(0, 3, 1, 2), [0] * 6),
            r"channels_first=True is for \(N, C, H, W\)",
        ),
        (lambda: data.from_arrays(IMAGES, [0] * 5), "6 inputs for 5 labels"),
        (lambda: data.from_arrays(IMAGES, [0] * 6, y_clean=[0]), "1 clean labels for 6 labels"),
        (lambda: data.from_arrays(IMAGES, [0] * 6, x_test=IMAGES), "x_test and y_test go together"),
        (
            lambda: data.from_arrays(IMAGES, [0, 1, 2, 3, 4, 9], classes=list("abcde")),
            "label 9 of sample 5 is out of range",
        ),
        (lambda: data.from_arrays(IMAGES, [0.5] * 6), "label 0.5 of sample 0 is not a whole number"),
        (lambda: data.from_arrays(IMAGES, [np.nan] * 6), "label nan of sample 0 is not a whole number"),
        (lambda: data.from_arrays(IMAGES, [[0]] * 6), r"labels of shape \(6, 1\)"),
        (lambda: data.from_arrays(np.full((2, 2), np.inf), [0, 1]), "x holds values that are not finite"),
        (lambda: data.from_arrays(IMAGES, [0, 0, 2, 2, 2, 2]), r"classes have no training sample: 1 \('1'\)"),
        (lambda: data.from_arrays(IMAGES[:0], []), "the training split is empty"),
    ],
)
def test_array_errors(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]


def test_npz(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    extra = {"y_clean": np.array([1, 1, 0, 0, 1, 1]), "x_val": IMAGES[:1], "y_val": np.array([1])}
    np.savez(path, images=IMAGES, labels=np.array([0, 1] * 3), classes=np.array(["no", "yes"]), **extra)
    read = data.load(path)
    assert np.array_equal(read.train.inputs, IMAGES)
    assert read.train.labels.tolist() == [0, 1] * 3
    assert read.train.clean.tolist() == [1, 1, 0, 0, 1, 1]
    assert read.val.labels.tolist() == [1]
    assert read.classes == ("no", "yes")
    assert read.name == "mine"
    assert data.load(path, name="other", mean=[0, 0, 0]).mean == (0, 0, 0)
    with pytest.raises(ValueError, match=r"'nam'.*'name'"):
        data.load(path, nam="x")
    np.savez(path, images=IMAGES)
    with pytest.raises(ValueError, match=r"no array named y or labels"):
        data.load(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="truncated or damaged"):
        data.load(path)


@pytest.mark.parametrize("shape", [(-1,), (2**62, 2**62), (3, 5)])
def test_an_array_that_is_not_what_its_header_says_is_named(tmp_path: Path, shape: tuple[int, ...]) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue() + b"1234")
    with pytest.raises(ValueError, match=r"a\.npz.*'x'"):
        data.load(tmp_path / "a.npz")


def test_npz_does_not_unpickle(tmp_path: Path) -> None:
    path = tmp_path / "objects.npz"
    np.savez(path, x=IMAGES, y=np.array([{"a": 1}] * 6, dtype=object))
    with pytest.raises(ValueError, match="holds arrays of Python"):
        data.load(path)


# --- torch datasets ------------------------------------------------------------------------------------------------


class Counting(Dataset):
    """Items that count how often they are decoded."""

    def __init__(self, make: object, labels: list[int], targets: bool) -> None:
        self.make, self.items, self.decoded = make, labels, 0
        if targets:
            self.targets = torch.tensor(labels)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[object, int]:
        self.decoded += 1
        return self.make(index), self.items[index]  # type: ignore[operator]


MAKERS = {
    "PIL": lambda i: Image.fromarray(IMAGES[i]),
    "array": lambda i: IMAGES[i],
    "uint8 tensor": lambda i: torch.from_numpy(IMAGES[i]).permute(2, 0, 1),
    "ToTensor": lambda i: torch.from_numpy(IMAGES[i]).permute(2, 0, 1) / 255,
}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("targets", [True, False])
def test_dataset_decodes_only_when_asked(kind: str, targets: bool) -> None:
    source = Counting(MAKERS[kind], [0, 1, 2, 0, 1, 2], targets)
    read = data.from_dataset(source, clean=[0] * 6)
    if targets:
        assert source.decoded <= 2  # the first, to learn what the items are
    assert read.train.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert read.train.clean.tolist() == [0] * 6
    assert read.size == (5, 7)
    for i in range(6):
        assert np.array_equal(read.train.inputs[i], IMAGES[i])
    part = read.train.take(np.array([4, 2]))
    assert np.array_equal(part.inputs[0], IMAGES[4])
    assert part.labels.tolist() == [1, 2]
    assert np.array_equal(part.inputs[1:][0], IMAGES[2])
    assert np.array_equal(data.into_memory(part).inputs, IMAGES[[4, 2]])
    assert "decoded on demand" in data.describe(read)
    if kind != "array":
        return
    again = pickle.loads(pickle.dumps(read.train.inputs.take(np.array([3])).order))
    assert again.tolist() == [3]


def test_dataset_with_data_or_samples(tmp_path: Path) -> None:
    class InMemory(Counting):
        data = IMAGES
        classes = ("zero", "one", "two")

    source = InMemory(None, [0, 1, 2, 0, 1, 2], True)
    read = data.from_dataset(source, test=source)
    assert source.decoded == 0
    assert np.array_equal(read.train.inputs, IMAGES)
    assert read.classes == ("zero", "one", "two")
    assert read.test.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert read.mean == pytest.approx((IMAGES / 255).mean(axis=(0, 1, 2)))

    class Folder(Counting):
        samples = tuple((str(tmp_path / f"{i}.png"), i % 2) for i in range(4))

    read = data.from_dataset(Folder(None, [0, 1, 0, 1], True))
    assert read.train.inputs[3] == tmp_path / "3.png"
    assert read.size == (224, 224)  # no file is there to be asked
    image(tmp_path / "2.png", size=(9, 7))
    assert data.from_dataset(Folder(None, [0, 1, 0, 1], True)).size == (7, 9)


def test_floats_are_rounded_to_the_nearest_level() -> None:
    image = as_image(torch.tensor([[[0.0, 0.4 / 255, 0.6 / 255, 254.7 / 255, 1.0]]]))
    assert image[0, :, 0].tolist() == [0, 0, 1, 255, 255]


def test_dataset_of_vectors_and_errors() -> None:
    x = torch.arange(12.0).reshape(4, 3)
    read = data.from_dataset(TensorDataset(x, torch.tensor([0, 1, 1, 0])))
    assert np.array_equal(read.train.inputs, x.numpy())
    assert read.train.labels.tolist() == [0, 1, 1, 0]
    normalized = Counting(lambda i: torch.from_numpy(IMAGES[i]).permute(2, 0, 1) / 255 - 0.5, [0] * 6, True)
    with pytest.raises(ValueError, match=r"floats must be in \[0, 1\]"):
        data.from_dataset(normalized)
    with pytest.raises(ValueError, match="dataset="):
        data.from_dataset(TensorDataset(x[:0], x[:0, 0]))


# --- labels ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(["ant", "bee", "cow 1", "10", "9"]), min_size=1).filter(lambda v: set(v) - {"10", "9"}))
def test_encoding_can_be_undone(names: list[str]) -> None:
    (numbers,), classes = encode_labels([names], where="here")
    assert [classes[i] for i in numbers] == names
    assert list(classes) == sorted(set(names))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.floats(0.05, 0.95), st.integers(0, 9))
def test_stratified_counts(values: list[int], fraction: float, seed: int) -> None:
    labels = np.array(values)
    kept, held = stratified(labels, fraction, seed)
    assert sorted([*kept, *held]) == list(range(len(labels)))
    assert list(held) == sorted(held)
    for c in set(values):
        assert np.sum(labels[held] == c) == round(fraction * values.count(c))


def test_hold_out() -> None:
    whole = data.load("digits")
    read = data.hold_out(whole, 0.1, seed=3)
    expected = sum(round(0.1 * count) for count in np.bincount(whole.train.labels).tolist())
    assert (len(read.train), len(read.val), len(read.test)) == (1438 - expected, expected, 359)
    both = np.concatenate([read.train.inputs, read.val.inputs]).reshape(1438, -1)
    assert sorted(map(bytes, both)) == sorted(map(bytes, whole.train.inputs.reshape(1438, -1)))
    with pytest.raises(ValueError, match="into='test'"):
        data.hold_out(whole, 0.1, into="test")
    with pytest.raises(ValueError, match="fraction=1"):
        data.hold_out(whole, 1)
    with pytest.raises(ValueError, match="into='train'"):
        data.hold_out(whole, 0.1, into="train")


@pytest.mark.parametrize(
    ("columns", "classes", "numbers", "names"),
    [
        (
            [[1, 0, 1]],
            ["1", "0"],
            [[1, 0, 1]],
            ("1", "0"),
        ),  # numbers are class numbers
        ([["1", "0"]], ["1", "0"], [[0, 1]], ("1", "0")),  # text that names classes is names
        ([["1", "0"]], None, [[1, 0]], ("0", "1")),
        ([["b", "a", "10"], ["10", "10", "10"]], None, [[2, 1, 0], [0, 0, 0]], ("10", "a", "b")),
        ([[True, False]], None, [[1, 0]], ("0", "1")),
        ([np.array([2.0, 0.0]), ["one", "two"]], ["zero", "one", "two"], [[2, 0], [1, 2]], ("zero", "one", "two")),
        ([[0, 1], None], ["a", "b", "c"], [[0, 1], None], ("a", "b", "c")),
    ],
)
def test_numbers_and_names(columns: list, classes: list | None, numbers: list, names: tuple[str, ...]) -> None:
    found, called = encode_labels(columns, classes, where="here")
    assert [None if column is None else column.tolist() for column in found] == numbers
    assert called == names


def test_clean_labels_must_be_classes() -> None:
    with pytest.raises(ValueError, match=r"'train'.*label -1.*sample 1"):
        data.from_arrays(IMAGES[:2], [0, 1], y_clean=[0, -1])


def test_an_npz_may_name_the_file_behind_each_row_of_features(tmp_path):
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    files = np.array(["a/1.jpg", "a/2.jpg", "b/3.jpg", "b/4.jpg"])
    np.savez(tmp_path / "f.npz", x=x, y=[0, 0, 1, 1], paths=files, x_test=x[:1], y_test=[0], paths_test=files[:1])
    found = data.load(tmp_path / "f.npz")
    assert [found.train.path(i) for i in range(4)] == files.tolist()
    assert found.train.take(np.array([3, 1])).path(0) == "b/4.jpg"
    assert found.train.with_labels(found.train.labels, None).path(2) == "b/3.jpg"
    assert found.test is not None
    assert found.test.path(0) == "a/1.jpg"
    np.savez(tmp_path / "short.npz", x=x, y=[0, 0, 1, 1], paths=files[:3])
    with pytest.raises(ValueError, match=r"names\.shape=\(3,\).*each of the 4"):
        data.load(tmp_path / "short.npz")


def test_sizes_and_means_may_be_lists_as_a_configuration_has_them(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        Image.new("RGB", (20, 30)).save(tmp_path / label / "0.png")
    found = data.load(tmp_path, size=[16, 12], mean=[0.5, 0.4, 0.3], std=[1.0, 1.0, 1.0])
    assert (found.size, found.mean, found.std) == ((16, 12), (0.5, 0.4, 0.3), (1.0, 1.0, 1.0))
    assert data.modality_of(found).size == (16, 12)
