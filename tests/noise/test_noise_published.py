"""Readers of published label files, on small files of the true format."""

import json
import re
import zipfile

import numpy as np
import pytest
import torch

from ncsam import noise
from ncsam._files import sha256_of
from ncsam.noise import published

CLEAN = np.arange(60) % 10
NOISY = noise.symmetric(CLEAN, 0.4, seed=0).noisy
OTHER = noise.symmetric(CLEAN, 0.2, seed=1).noisy


def cifar10n(as_written=lambda labels: np.array(labels)):
    names = ["clean_label", "worse_label", "aggre_label", "random_label1", "random_label2", "random_label3"]
    return {name: as_written(labels) for name, labels in zip(names, [CLEAN, NOISY, *[OTHER] * 4], strict=True)}


def old_numpy_name(path):
    """Rewrite a torch zip file so that its pickle names numpy 1's modules, as files of 2021 do."""
    with zipfile.ZipFile(path) as archive:
        content = {item.filename: archive.read(item) for item in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in content.items():
            archive.writestr(name, data.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"))


@pytest.mark.parametrize("written_as", ["tensor", "numpy", "old numpy"])
def test_cifar10n(tmp_path, written_as):
    path = tmp_path / "human.pt"
    torch.save(cifar10n(torch.tensor) if written_as == "tensor" else cifar10n(), path)
    if written_as == "old numpy":
        old_numpy_name(path)
        with zipfile.ZipFile(path) as archive:
            pickled = next(archive.read(name) for name in archive.namelist() if name.endswith("data.pkl"))
        assert b"numpy.core.multiarray" in pickled
    for label in ("worst", "worse_label"):
        record = noise.from_file(path, label=label, clean=CLEAN)
        assert (record.noisy == NOISY).all()
        assert (record.clean == CLEAN).all()
        assert record.num_classes == 10
        assert record.recipe == {
            "name": "from_file",
            "file": "human.pt",
            "label": "worse_label",
            "file_sha256": sha256_of(path),
        }
        assert record.seed is None
    assert (noise.from_file(path, label="rand2").noisy == OTHER).all()
    with pytest.raises(ValueError, match=r"label=None.*worse_label, aggre_label"):
        noise.from_file(path)
    with pytest.raises(ValueError, match=r"human.pt 'worst_label'.*'worse_label'"):
        noise.from_file(path, label="worst_label")


def test_cifar100n_has_fine_and_coarse_labels(tmp_path):
    fine = np.arange(200) % 100
    noisy = np.roll(fine, 3)
    columns = {
        "clean_label": fine,
        "noisy_label": noisy,
        "clean_coarse_label": fine // 5,
        "noisy_coarse_label": noisy // 5,
    }
    torch.save(columns, tmp_path / "c100.pt")
    record = noise.from_file(tmp_path / "c100.pt")
    assert (record.noisy == noisy).all()
    assert record.num_classes == 100
    coarse = noise.from_file(tmp_path / "c100.pt", label="noisy_coarse_label")
    assert (coarse.clean == fine // 5).all()
    assert coarse.num_classes == 20


def test_cifarn_numpy_file(tmp_path):
    np.save(tmp_path / "human_ordered.npy", cifar10n())  # a pickled dict in an object array, as published
    record = noise.from_file(tmp_path / "human_ordered.npy", label="aggre", clean=CLEAN)
    assert (record.noisy == OTHER).all()


def test_cal_legacy_torch_file(tmp_path):
    path = tmp_path / "IDN_0.3_C10.pt"
    columns = {"clean_label_train": torch.tensor(CLEAN), "noise_label_train": torch.tensor(NOISY)}
    torch.save(columns, path, _use_new_zipfile_serialization=False)
    assert not zipfile.is_zipfile(path)
    record = noise.from_file(path, clean=torch.tensor(CLEAN))
    assert (record.noisy == NOISY).all()
    assert record.recipe["label"] == "noise_label_train"


def write_json(path, labels):
    path.write_text(json.dumps([int(label) for label in labels]))


def write_npy(path, labels):
    np.save(path, labels)


def write_csv(path, labels):
    rows = [f"{i},{label}" for i, label in enumerate(labels)]
    path.write_text("\n".join([",label_noisy", *rows]) + "\n")


PLAIN = {"0.4_sym.json": write_json, "cifar10-1-0.35.npy": write_npy, "dependent0.4.csv": write_csv}


@pytest.mark.parametrize("name", PLAIN)
def test_files_of_noisy_labels_alone(tmp_path, name):
    path = tmp_path / name
    PLAIN[name](path, NOISY)
    record = noise.from_file(path, clean=CLEAN)
    assert (record.noisy == NOISY).all()
    assert record.rate == (NOISY != CLEAN).mean()
    with pytest.raises(ValueError, match=r"clean=None"):
        noise.from_file(path)
    with pytest.raises(ValueError, match=r"holds 60.*are 59"):
        noise.from_file(path, clean=CLEAN[:-1], num_classes=10)
    PLAIN[name](path, [*NOISY[:-2], 10, 0])
    with pytest.raises(ValueError, match=rf"{re.escape(name)}: noisy\[58\]=10"):
        noise.from_file(path, clean=CLEAN)


def test_labels_written_as_floats_are_read_and_halves_refused(tmp_path):
    write_csv(tmp_path / "a.csv", ["1.0", "0.0", "1"])
    assert noise.from_file(tmp_path / "a.csv", clean=[0, 1, 1]).noisy.tolist() == [1, 0, 1]
    for wrong in ("0.5", "nan", "inf", "cat", ""):
        write_csv(tmp_path / "a.csv", ["1", wrong, "1"])
        with pytest.raises(ValueError, match="line 3: label_noisy="):
            noise.from_file(tmp_path / "a.csv", clean=[0, 1, 1])
    np.save(tmp_path / "b.npy", np.array([0.5, 1.0]))
    with pytest.raises(ValueError, match=r"b\.npy: noisy\.dtype='float64'"):
        noise.from_file(tmp_path / "b.npy", clean=[0, 1])


def test_clean_labels_of_another_order_are_refused(tmp_path):
    torch.save(cifar10n(torch.tensor), tmp_path / "human.pt")
    shuffled = CLEAN.copy()
    shuffled[[4, 7]] = shuffled[[7, 4]]
    with pytest.raises(ValueError, match=r"in 2 of 60.*sample 4 \(4 there, 7 yours\)"):
        noise.from_file(tmp_path / "human.pt", label="worst", clean=shuffled)


def test_checksums(tmp_path, monkeypatch):
    path = tmp_path / "IDN_0.2_C10.pt"
    columns = {"clean_label_train": torch.tensor(CLEAN), "noise_label_train": torch.tensor(NOISY)}
    torch.save(columns, path, _use_new_zipfile_serialization=False)
    with pytest.raises(ValueError, match=r"SHA-256.*12634bf5405a6ae1"):
        noise.from_file(path)
    assert (noise.from_file(path, verify=False).noisy == NOISY).all()

    digest = sha256_of(path)
    monkeypatch.setitem(published.KNOWN_FILES, path.name, digest[:16])
    assert noise.from_file(path).recipe["file_sha256"] == digest
    assert (noise.from_file(path, sha256=digest.upper()).noisy == NOISY).all()
    changed = bytearray(path.read_bytes())
    changed[-8] ^= 1  # one bit of one label
    path.write_bytes(changed)
    with pytest.raises(ValueError, match="damaged or another one"):
        noise.from_file(path)
    with pytest.raises(ValueError, match=digest):
        noise.from_file(path, sha256=digest, verify=False)


def test_the_known_checksums_are_the_published_ones():
    assert len(noise.KNOWN_FILES) == 8
    assert all(len(prefix) == 16 and int(prefix, 16) for prefix in noise.KNOWN_FILES.values())


class Hostile:
    def __init__(self, witness):
        self.witness = witness

    def __reduce__(self):
        return open, (str(self.witness), "w")


@pytest.mark.parametrize("kind", ["zip.pt", "legacy.pt", "dict.npy"])
def test_hostile_pickles_are_refused_and_not_run(tmp_path, kind):
    witness, path = tmp_path / "ran", tmp_path / kind
    columns = {"clean_label": CLEAN, "worse_label": Hostile(witness)}
    if kind == "dict.npy":
        np.save(path, columns)
    else:
        torch.save(columns, path, _use_new_zipfile_serialization=kind == "zip.pt")
    with pytest.raises(ValueError, match=f"{kind} is not a readable"):
        noise.from_file(path, label="worst")
    assert not witness.exists()


@pytest.mark.parametrize("name", ["a.pt", "a.npy", "a.json", "a.csv"])
@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04 broken", b"\x93NUMPY\x01\x00"])
def test_damaged_files_give_one_clear_error(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        noise.from_file(path, clean=CLEAN)


def test_a_header_that_never_closes_is_one_clear_error(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, NOISY)
    path.write_bytes(path.read_bytes().replace(b"}", b" ", 1))
    with pytest.raises(ValueError, match=r"a\.npy.*readable"):
        noise.from_file(path, clean=CLEAN)


def test_the_advice_of_numpy_is_not_passed_on(tmp_path):
    """A header of more than 10,000 characters: numpy suggests to trust the file by `allow_pickle`."""
    header = b"9" * 60_000
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(ValueError, match=r"a\.npy") as raised:
        noise.from_file(tmp_path / "a.npy", clean=CLEAN)
    assert "pickle" not in str(raised.value)


def test_truncated_files_give_one_clear_error(tmp_path):
    torch.save(cifar10n(), tmp_path / "a.pt")
    np.save(tmp_path / "b.npy", cifar10n())
    np.save(tmp_path / "c.npy", NOISY)
    write_json(tmp_path / "d.json", NOISY)
    for path in sorted(tmp_path.iterdir()):
        whole = path.read_bytes()
        for keep in (len(whole) // 3, len(whole) - 9):
            path.write_bytes(whole[:keep])
            with pytest.raises(ValueError, match=path.name):
                noise.from_file(path, clean=CLEAN)


def test_other_content_is_named(tmp_path):
    torch.save([1, 2], tmp_path / "a.pt")
    with pytest.raises(ValueError, match="holds a list"):
        noise.from_file(tmp_path / "a.pt")
    (tmp_path / "a.csv").write_text("label\n1\n")
    with pytest.raises(ValueError, match=r"\['label'\].*label_noisy"):
        noise.from_file(tmp_path / "a.csv", clean=[1])
    (tmp_path / "a.json").write_text('{"a": 1}')
    with pytest.raises(ValueError, match=r"a\.json"):
        noise.from_file(tmp_path / "a.json", clean=[1])
    (tmp_path / "a.pkl").write_bytes(b"")
    with pytest.raises(ValueError, match=r"a\.pkl.*Known: \.csv, \.json, \.npy, \.pt"):
        noise.from_file(tmp_path / "a.pkl")
    with pytest.raises(FileNotFoundError, match=r"nothing.pt does not exist"):
        noise.from_file(tmp_path / "nothing.pt")
