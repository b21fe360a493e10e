"""The other named datasets, from small files of the true format."""

from __future__ import annotations

import gzip
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ncsam import data
from ncsam.data.readers import idx

RNG = np.random.default_rng(11)


def image(path: Path, color: tuple[int, int, int] = (9, 99, 199), size: tuple[int, int] = (64, 64)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path)


def text(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


# --- digits ---------------------------------------------------------------------------------------------------------


def test_digits_pixels_and_split() -> None:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    read = data.load("digits")
    assert (len(read.train), len(read.test)) == (1438, 359)
    assert read.train.inputs.shape == (1438, 8, 8, 1)
    assert read.train.inputs.dtype == np.uint8
    # Every image is in exactly one split, under its own label, and round(255 v / 16) can be undone.
    levels = np.rint(np.concatenate([read.train.inputs, read.test.inputs])[..., 0] * (16 / 255)).astype(int)
    labels = np.concatenate([read.train.labels, read.test.labels])
    ours = sorted((row.tobytes(), label) for row, label in zip(levels, labels, strict=True))
    theirs = zip(bunch.images.astype(int), bunch.target, strict=True)
    assert ours == sorted((row.tobytes(), label) for row, label in theirs)
    for c, count in enumerate(np.bincount(bunch.target)):
        assert np.sum(read.test.labels == c) == round(0.2 * count)
    scaled = read.train.inputs / 255
    assert read.mean == pytest.approx([scaled.mean()])
    assert read.std == pytest.approx([scaled.std()])
    again = data.load("digits")
    assert np.array_equal(again.test.inputs, read.test.inputs)
    assert not np.array_equal(data.load("digits", seed=1).test.labels, read.test.labels)


def test_digits_as_features() -> None:
    read, images = data.load("digits", as_features=True), data.load("digits")
    assert read.train.inputs.shape == (1438, 64)
    assert read.train.inputs.dtype == np.float32
    assert read.size is None
    assert np.array_equal(np.rint(read.train.inputs * 255).reshape(-1, 8, 8, 1), images.train.inputs)
    assert len(read.mean) == len(read.std) == 64
    assert min(read.std) > 0


# --- MNIST, Fashion-MNIST -------------------------------------------------------------------------------------------

GRAY = RNG.integers(0, 256, (12, 28, 28), dtype=np.uint8)
GRAY_LABELS = np.arange(12) % 10


def idx_files() -> dict[str, bytes]:
    def images(part: np.ndarray) -> bytes:
        return struct.pack(">IIII", 0x803, len(part), 28, 28) + part.tobytes()

    def labels(part: np.ndarray) -> bytes:
        return struct.pack(">II", 0x801, len(part)) + bytes(part.tolist())

    return {
        "train-images-idx3-ubyte": images(GRAY[:10]),
        "train-labels-idx1-ubyte": labels(GRAY_LABELS[:10]),
        "t10k-images-idx3-ubyte": images(GRAY[10:]),
        "t10k-labels-idx1-ubyte": labels(GRAY_LABELS[10:]),
    }


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("dots", [True, False])
def test_idx(tmp_path: Path, name: str, compressed: bool, dots: bool) -> None:
    folder = tmp_path / name
    folder.mkdir()
    for file, content in idx_files().items():
        spelled = file.replace("-idx", ".idx") if dots else file
        (folder / (spelled + ".gz" * compressed)).write_bytes(gzip.compress(content) if compressed else content)
    read = data.load(name, tmp_path, partial=True)
    assert np.array_equal(read.train.inputs, GRAY[:10, :, :, None])
    assert np.array_equal(read.test.inputs, GRAY[10:, :, :, None])
    assert np.array_equal(read.train.labels, GRAY_LABELS[:10])
    assert np.array_equal(read.test.labels, GRAY_LABELS[10:])
    assert read.train.inputs.flags.writeable
    assert read.size == (28, 28)
    with pytest.raises(ValueError, match=f"{name}, split 'train': 10 samples found, 60,000 expected"):
        data.load(name, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: struct.pack(">I", 0x801) + content[4:], "begins with 0x00000801, not 0x00000803"),
        (lambda content: content[:-5], r"truncated or damaged: 7,851 bytes, but its header says 7,856"),
        (lambda content: content + b"x", r"truncated or damaged: 7,857 bytes"),
        (lambda content: content[:9], "truncated or damaged"),
        (lambda content: gzip.compress(content)[:-20], "truncated or damaged"),
    ],
)
def test_damaged_idx(tmp_path: Path, change: object, message: str) -> None:
    for file, content in idx_files().items():
        (tmp_path / file).write_bytes(content)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(change(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(ValueError, match=message):
        data.load("mnist", tmp_path, partial=True)


def test_idx_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"train-images-idx3-ubyte\[.gz\] under"):
        data.load("mnist", tmp_path)


@pytest.mark.skipif(not idx.DEBIAN_FASHION.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_the_real_fashion_mnist(tmp_path: Path) -> None:
    read = data.load("fashion_mnist", tmp_path)
    assert np.bincount(read.train.labels).tolist() == [6000] * 10
    assert np.bincount(read.test.labels).tolist() == [1000] * 10
    assert read.train.labels[:10].tolist() == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]
    mean, square = read.train.inputs.mean(), (read.train.inputs.astype(np.uint16) ** 2).mean()
    assert read.mean == pytest.approx([mean / 255], abs=5e-5)
    assert read.std == pytest.approx([np.sqrt(square - mean**2) / 255], abs=5e-5)


# --- Tiny-ImageNet --------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny-imagenet-200"
    for wnid, level in (("n02", 20), ("n01", 10)):
        for i in (10, 2):
            image(folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", (level, level, level))
        text(folder / "train" / wnid / f"{wnid}_boxes.txt", f"{wnid}_2.JPEG\t0\t0\t63\t63")
    for i, level in enumerate((200, 100, 150)):
        image(folder / "val" / "images" / f"val_{i}.JPEG", (level, level, level))
    annotations = ("val_2.JPEG\tn02\t0\t0\t63\t63", "val_0.JPEG\tn01\t0\t0\t63\t63", "val_1.JPEG\tn02\t1\t1\t2\t2")
    text(folder / "val" / "val_annotations.txt", *annotations)
    text(folder / "words.txt", "n01\tgoldfish, Carassius auratus", "n02\ttench", "n03\tother")
    text(folder / "wnids.txt", "n02", "n01")
    image(folder / "test" / "images" / "test_0.JPEG")
    return tmp_path


def test_tiny_imagenet(tiny: Path) -> None:
    read = data.load("tiny_imagenet", tiny, partial=True)
    base = tiny / "tiny-imagenet-200"
    assert [path.relative_to(base / "train").as_posix() for path in read.train.inputs] == [
        "n01/images/n01_10.JPEG",
        "n01/images/n01_2.JPEG",
        "n02/images/n02_10.JPEG",
        "n02/images/n02_2.JPEG",
    ]
    assert read.train.labels.tolist() == [0, 0, 1, 1]
    assert [path.name for path in read.test.inputs] == ["val_2.JPEG", "val_0.JPEG", "val_1.JPEG"]
    assert read.test.labels.tolist() == [1, 0, 1]
    assert read.classes == ("goldfish", "tench")
    assert not read.train.in_memory
    decoded = data.load("tiny_imagenet", tiny, partial=True, in_memory=True)
    assert decoded.train.inputs.shape == (4, 64, 64, 3)
    assert decoded.train.inputs[:, 5, 5, 0].tolist() == [10, 10, 20, 20]
    assert decoded.test.inputs[:, 9, 9, 2].tolist() == [150, 200, 100]


def test_tiny_imagenet_from_its_zip(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("zipped")
    with zipfile.ZipFile(root / "tiny-imagenet-200.zip", "w") as archive:
        for path in sorted(tiny.rglob("*")):
            archive.write(path, path.relative_to(tiny))
    for _ in range(2):  # unpacked the first time, found the second
        read = data.load("tiny_imagenet", root, partial=True)
        assert read.train.labels.tolist() == [0, 0, 1, 1]
        assert read.test.labels.tolist() == [1, 0, 1]
    assert not [path for path in root.iterdir() if path.name.startswith(".")]


def test_tiny_imagenet_errors(tiny: Path) -> None:
    with pytest.raises(ValueError, match="4 samples found, 100,000 expected"):
        data.load("tiny_imagenet", tiny)
    annotations = tiny / "tiny-imagenet-200" / "val" / "val_annotations.txt"
    content = annotations.read_text()
    annotations.write_text(content + "val_9.JPEG\tn01\t0\t0\t1\t1\n")
    with pytest.raises(FileNotFoundError, match=r"1 of 4 files do not exist: .*val_9.JPEG"):
        data.load("tiny_imagenet", tiny, partial=True)
    annotations.write_text(content + "val_0.JPEG\tn99\t0\t0\t1\t1\n")
    with pytest.raises(ValueError, match=r"line 4.*train/.*'val_0.JPEG\\tn99"):
        data.load("tiny_imagenet", tiny, partial=True)


# --- ANIMAL-10N -----------------------------------------------------------------------------------------------------


def test_animal10n_raw(tmp_path: Path) -> None:
    for name in ("training/9_2.jpg", "training/0_17.jpg", "training/3_1.jpg", "testing/5_4.jpg"):
        image(tmp_path / "animal10n" / name)
    read = data.load("animal10n", tmp_path, partial=True)
    assert [path.name for path in read.train.inputs] == ["0_17.jpg", "3_1.jpg", "9_2.jpg"]
    assert read.train.labels.tolist() == [0, 3, 9]
    assert read.test.labels.tolist() == [5]
    assert read.classes[9] == "Guinea pig"
    assert data.load("animal10n", tmp_path, partial=True, in_memory=True).train.inputs.shape == (3, 64, 64, 3)
    image(tmp_path / "animal10n" / "training" / "cat.jpg")
    with pytest.raises(ValueError, match=r"cat.jpg.*<label>_<id>.jpg"):
        data.load("animal10n", tmp_path, partial=True)
    (tmp_path / "animal10n" / "training" / "cat.jpg").rename(tmp_path / "animal10n" / "training" / "12_3.jpg")
    with pytest.raises(ValueError, match=r"label 12.*sample 1"):
        data.load("animal10n", tmp_path, partial=True)


@pytest.mark.parametrize(("order", "said"), [(">", "big-endian"), ("<", "little-endian")])
def test_animal10n_binary(tmp_path: Path, order: str, said: str) -> None:
    images = RNG.integers(0, 256, (12, 64, 64, 3), dtype=np.uint8)
    labels = [4, 0, 9, 1, 2, 3, 5, 6, 7, 8, 0, 1]

    def records(part: slice) -> bytes:
        whole = b""
        for i in range(12)[part]:
            planes = b"".join(images[i, :, :, c].tobytes() for c in range(3))
            whole += struct.pack(f"{order}II", 40_000 + i, labels[i]) + planes
        return whole

    # Eleven batches: the tenth must come after the second.
    for i in range(11):
        (tmp_path / f"data_batch_{i + 1}.bin").write_bytes(records(slice(i, i + 1)))
    (tmp_path / "test_batch.bin").write_bytes(records(slice(11, 12)))
    read = data.load("animal10n", tmp_path, partial=True)
    assert np.array_equal(read.train.inputs, images[:11])
    assert read.train.labels.tolist() == labels[:11]
    assert np.array_equal(read.test.inputs, images[11:])
    assert read.notes == (f"binary version, {said}",)


def test_animal10n_binary_errors(tmp_path: Path) -> None:
    record = struct.pack(">II", 1, 3) + bytes(3 * 64 * 64)
    (tmp_path / "test_batch.bin").write_bytes(record)
    with pytest.raises(FileNotFoundError, match=r"has no data_batch_\*.bin"):
        data.load("animal10n", tmp_path, partial=True)
    (tmp_path / "data_batch_1.bin").write_bytes(record + record[:-1])
    with pytest.raises(ValueError, match="24,591 bytes are not records of 12,296"):
        data.load("animal10n", tmp_path, partial=True)
    (tmp_path / "data_batch_1.bin").write_bytes(record + struct.pack(">II", 1, 11) + record[8:])
    with pytest.raises(ValueError, match=r"label 11.*range"):
        data.load("animal10n", tmp_path, partial=True)
    with pytest.raises(FileNotFoundError, match=r"animal10n.*https://dm.kaist.ac.kr"):
        data.load("animal10n", tmp_path / "elsewhere")


# --- Food-101, Food-101N --------------------------------------------------------------------------------------------


@pytest.fixture
def food(tmp_path: Path) -> Path:
    base, noisy = tmp_path / "food-101", tmp_path / "Food-101N_release"
    for name in ("apple_pie/1", "apple_pie/2", "waffles/7", "waffles/9"):
        image(base / "images" / f"{name}.jpg", size=(8, 6))
    text(base / "meta" / "classes.txt", "apple_pie", "waffles")
    text(base / "meta" / "train.txt", "waffles/7", "apple_pie/1")
    text(base / "meta" / "test.txt", "waffles/9", "apple_pie/2")
    for name in ("apple_pie/aa.jpg", "apple_pie/bb.jpg", "waffles/cc.jpg"):
        image(noisy / "images" / name, size=(8, 6))
    text(noisy / "meta" / "classes.txt", "class_name", "apple_pie", "waffles")
    text(noisy / "meta" / "imagelist.tsv", "class_name/key", "waffles/cc.jpg", "apple_pie/aa.jpg", "apple_pie/bb.jpg")
    header = "class_name/key\tverification_label"
    text(noisy / "meta" / "verified_train.tsv", header, "apple_pie/bb.jpg\t0", "waffles/cc.jpg\t1")
    text(noisy / "meta" / "verified_val.tsv", header, "apple_pie/aa.jpg\t1")
    return tmp_path


def test_food101(food: Path) -> None:
    read = data.load("food101", food, partial=True)
    assert [path.relative_to(food).as_posix() for path in read.train.inputs] == [
        "food-101/images/waffles/7.jpg",
        "food-101/images/apple_pie/1.jpg",
    ]
    assert read.train.labels.tolist() == [1, 0]
    assert [path.name for path in read.test.inputs] == ["9.jpg", "2.jpg"]
    assert read.classes == ("apple_pie", "waffles")
    with pytest.raises(ValueError, match="2 samples found, 75,750 expected"):
        data.load("food101", food)


def test_food101n(food: Path) -> None:
    read = data.load("food101n", food, partial=True)
    assert [path.name for path in read.train.inputs] == ["cc.jpg", "aa.jpg", "bb.jpg"]
    assert read.train.labels.tolist() == [1, 0, 0]
    assert read.train.clean is None
    assert [path.relative_to(food).as_posix() for path in read.test.inputs] == [
        "food-101/images/waffles/9.jpg",
        "food-101/images/apple_pie/2.jpg",
    ]
    names = [path.name for path in read.train.inputs]
    assert dict(zip(names, read.train.verified.tolist(), strict=True))["bb.jpg"] == 0
    assert read.train.verified.tolist().count(-1) == sum(name not in ("bb.jpg", "cc.jpg") for name in names)
    verified = read.extra["verified_train"]
    assert [path.name for path in verified.inputs] == ["bb.jpg", "cc.jpg"]
    assert verified.labels.tolist() == [0, 1]
    assert verified.clean.tolist() == [data.UNKNOWN, 1]
    assert read.extra["verified_val"].clean.tolist() == [0]
    assert "verified_train         2  image files, 50.00% of the labels wrong" in data.describe(read)
    assert data.load("food101n", food / "Food-101N_release", food101=food / "food-101", partial=True).test is not None


def test_food_errors(food: Path) -> None:
    (food / "Food-101N_release" / "images" / "waffles" / "cc.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"imagelist.tsv: 1 of 3 files do not exist: .*cc.jpg"):
        data.load("food101n", food, partial=True)
    text(food / "food-101" / "meta" / "train.txt", "pizza/7")
    with pytest.raises((ValueError, FileNotFoundError), match="pizza/7"):
        data.load("food101", food, partial=True)
    (food / "food-101" / "meta" / "test.txt").unlink()
    with pytest.raises(FileNotFoundError, match="which Food-101N is tested on"):
        data.load("food101n", food, partial=True)
    with pytest.raises(FileNotFoundError, match=r"kuanghuei.github.io"):
        data.load("food101n", food / "food-101")


# --- Clothing1M -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("annotations", ["", "annotations"])
def test_clothing1m(tmp_path: Path, annotations: str) -> None:
    base = tmp_path / "clothing1M"
    lists = base / annotations
    keys = [f"images/{i}/0{i}/{i}.jpg" for i in range(8)]
    for key in keys:
        image(base / key, size=(8, 6))
    text(lists / "noisy_train_key_list.txt", keys[3], keys[0], keys[1])
    text(lists / "clean_train_key_list.txt", keys[4])
    text(lists / "clean_val_key_list.txt", keys[5])
    text(lists / "clean_test_key_list.txt", keys[7], keys[6])
    text(lists / "noisy_label_kv.txt", f"{keys[0]} 0", f"{keys[1]} 1", f"{keys[3]} 13", f"{keys[5]} 2")
    text(lists / "clean_label_kv.txt", f"{keys[4]} 4", f"{keys[5]} 5", f"{keys[6]} 6", f"{keys[7]} 7")
    read = data.load("clothing1m", tmp_path, partial=True)
    assert [path.relative_to(base).as_posix() for path in read.train.inputs] == [keys[3], keys[0], keys[1]]
    assert read.train.labels.tolist() == [13, 0, 1]
    assert read.val.labels.tolist() == [5]
    assert read.test.labels.tolist() == [7, 6]
    assert read.extra["clean_train"].labels.tolist() == [4]
    both = read.extra["both"]
    assert [path.name for path in both.inputs] == ["5.jpg"]
    assert (both.labels.tolist(), both.clean.tolist()) == ([2], [5])
    assert len(read.classes) == 14
    assert list(read.splits) == ["train", "val", "test", "clean_train", "both"]
    with pytest.raises(ValueError, match="3 samples found, 1,000,000 expected"):
        data.load("clothing1m", tmp_path)
    text(lists / "clean_val_key_list.txt", keys[0])
    with pytest.raises(ValueError, match=r"clean_val_key_list.txt: 1.*'images/0/00"):
        data.load("clothing1m", tmp_path, partial=True)
    text(lists / "clean_label_kv.txt", "images/4.jpg four")
    with pytest.raises(ValueError, match=r"clean_label_kv.txt, line 1"):
        data.load("clothing1m", tmp_path, partial=True)
