"""The feature cache: keys, reuse, damage, several processes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from ncsam.embed.cache import FeatureCache, Source, array_hash, default_folder, file_hash, text_hash
from processes import context

SOURCE = Source("lite0", "ab" * 32, "v1 128")


def features(start: int, stop: int) -> np.ndarray:
    return np.arange(start * 3, stop * 3, dtype=np.float32).reshape(-1, 3)


def test_a_key_is_the_hash_of_its_parts() -> None:
    digest = hashlib.sha256()
    for part in ("ncsam features 1", "lite0", "ab" * 32, "v1 128", "x", "yz"):
        digest.update(len(part).to_bytes(8, "little") + part.encode())
    assert SOURCE.key(["x", "yz"]) == digest.hexdigest()


def test_keys_differ_wherever_the_features_could() -> None:
    keys = {
        SOURCE.key(["x", "yz"]),
        SOURCE.key(["yz", "x"]),
        SOURCE.key(["xy", "z"]),
        SOURCE.key(["xyz"]),
        SOURCE.key([]),
        Source("lite1", SOURCE.weights, SOURCE.preprocessing).key(["x", "yz"]),
        Source("lite0", "cd" * 32, SOURCE.preprocessing).key(["x", "yz"]),
        Source("lite0", SOURCE.weights, "v1 160").key(["x", "yz"]),
        Source("lite0v", SOURCE.weights, "1 128").key(["x", "yz"]),
    }
    assert len(keys) == 9


def test_hashes_of_samples(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"abc")
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert file_hash(tmp_path / "a.txt") == text_hash("abc") == known
    assert text_hash("\ud800") != text_hash("\ud801")
    flat = np.arange(6, dtype=np.uint8)
    hashes = {array_hash(flat), array_hash(flat.reshape(2, 3)), array_hash(flat.astype(np.int64))}
    assert len(hashes) == 3
    assert array_hash(flat.reshape(2, 3).T) == array_hash(np.ascontiguousarray(flat.reshape(2, 3).T))


def test_only_what_is_missing_is_computed(tmp_path: Path) -> None:
    cache, calls = FeatureCache(tmp_path), []

    def compute(start: int, stop: int) -> np.ndarray:
        calls.append((start, stop))
        return features(start, stop)

    samples = [str(i) for i in range(10)]
    seen: list[int] = []
    first = cache.rows(SOURCE, samples, compute, chunk=4, done=seen.append)
    assert calls == [(0, 4), (4, 8), (8, 10)]
    assert seen == [4, 8, 10]
    np.testing.assert_array_equal(first, features(0, 10))
    np.testing.assert_array_equal(cache.rows(SOURCE, samples, compute, chunk=4), first)
    assert len(calls) == 3
    cache.rows(SOURCE, [*samples, "10"], compute, chunk=4)  # appended: only the last chunk changes
    assert calls[3:] == [(8, 11)]


def test_a_killed_run_keeps_finished_chunks(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path)

    def killed(start: int, stop: int) -> np.ndarray:
        if start == 4:
            raise KeyboardInterrupt
        return features(start, stop)

    with pytest.raises(KeyboardInterrupt):
        cache.rows(SOURCE, list("abcdefgh"), killed, chunk=4)
    calls = []
    cache.rows(SOURCE, list("abcdefgh"), lambda a, b: (calls.append(a), features(a, b))[1], chunk=4)
    assert calls == [4]
    assert not list(tmp_path.rglob(".*"))


@pytest.mark.parametrize("damage", ["truncated", "empty", "other shape", "other type", "pickle"])
def test_a_damaged_file_is_computed_again(tmp_path: Path, damage: str) -> None:
    cache = FeatureCache(tmp_path)
    cache.rows(SOURCE, ["a", "b"], features)
    path = cache.path(SOURCE.key(["a", "b"]))
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-4])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "pickle":
        np.save(path, np.array([{}, {}], dtype=object), allow_pickle=True)
    else:
        np.save(path, np.zeros((3, 3), np.float32) if damage == "other shape" else np.zeros((2, 3)))
    np.testing.assert_array_equal(cache.rows(SOURCE, ["a", "b"], features), features(0, 2))
    assert cache.get(SOURCE.key(["a", "b"]), 2) is not None


def test_wrong_results_and_no_samples_are_errors(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path)
    with pytest.raises(ValueError, match="compute"):
        cache.rows(SOURCE, ["a", "b"], lambda start, stop: features(0, 1))
    with pytest.raises(ValueError, match="samples"):
        cache.rows(SOURCE, [], features)
    assert cache.size() == 0


@pytest.mark.skipif(os.name != "posix", reason="permissions")
def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "features").write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="not cached"):
        found = FeatureCache(tmp_path).rows(SOURCE, ["a"], features)
    np.testing.assert_array_equal(found, features(0, 1))


def test_prune_removes_the_least_recently_used(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path)
    for place, key in enumerate(["aa" * 32, "bb" * 32, "cc" * 32]):
        cache.put(key, features(0, 2))
        os.utime(cache.path(key), ns=(place, place))
    assert cache.get("aa" * 32, 2) is not None  # now the most recent one
    one = cache.size() // 3
    assert cache.prune(2 * one) == 1
    assert cache.get("bb" * 32, 2) is None
    assert cache.get("aa" * 32, 2) is not None
    assert cache.prune(0) == 2
    assert cache.size() == 0


def test_the_folder_by_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCSAM_CACHE", str(tmp_path))
    assert default_folder() == tmp_path
    assert FeatureCache().folder == tmp_path / "features"
    monkeypatch.delenv("NCSAM_CACHE")
    monkeypatch.setenv("NCSAM_DATA", str(tmp_path / "data"))
    assert default_folder() == tmp_path / "data"


def _work(folder: str, seed: int) -> float:
    cache = FeatureCache(folder)
    total = 0.0
    for round_ in range(20):
        rows = cache.rows(SOURCE, [f"{round_}", f"{seed % 2}"], lambda a, b: np.full((b - a, 500), 1.0, np.float32))
        total += float(rows.sum())
    return total


def test_several_processes_share_a_folder(tmp_path: Path) -> None:
    with context().Pool(3) as pool:
        assert pool.starmap(_work, [(str(tmp_path), seed) for seed in range(6)]) == [20 * 1000.0] * 6
    assert len(list(tmp_path.rglob("*.npy"))) == 40
    assert not list(tmp_path.rglob(".*"))
