"""Run folders copied to a URL and taken from it: another machine finds what is finished, and goes on with the rest."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
import time
import uuid
from pathlib import Path

import pytest

from ncsam.comparison import compare
from ncsam.engine import Interrupted, RunConfig, train
from ncsam.engine.trainer import Trainer
from ncsam.jobs import executor as batch
from ncsam.jobs import local, mirror
from ncsam.jobs.executor import ExecutorConfig
from ncsam.jobs.job import Job, Result
from ncsam.jobs.job import do as answer
from ncsam.jobs.mirror import Mirror, mirrored
from ncsam.runs import layout

CONFIG = RunConfig(
    data="digits", noise="symmetric", rate=0.4, epochs=3, model="mlp", optimizer="sam", accelerator="cpu"
)


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}/runs"


def test_a_folder_goes_there_and_back(tmp_path: Path, url: str) -> None:
    found = answer({"name": "a/run", "config": CONFIG.to_dict(), "out": str(tmp_path / "here"), "mirror": url}, 1)
    there = Mirror(url)
    assert there.is_finished("a/run")
    assert not there.is_finished("another")
    assert there.fetch("a/run", tmp_path / "other" / "machine")
    assert not there.fetch("a/run", tmp_path / "other" / "machine")  # what is here is not overwritten
    assert not there.fetch("another", tmp_path / "third")
    for file in ("summary.json", "config.yaml", "metrics.jsonl", "noise.npz", "checkpoints/last.ckpt"):
        assert (tmp_path / "other" / "machine" / file).read_bytes() == (tmp_path / "here" / file).read_bytes()
    assert train(CONFIG, tmp_path / "other" / "machine", console=False) == found["summary"]


def is_copied(there: Mirror, note: Path) -> bool:
    return bool(there.files.cat_file(f"{there.root}/run/checkpoints/last.json") == note.read_bytes())


def test_another_machine_goes_on_from_the_last_checkpoint(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "_POLL_SECONDS", 0.01)
    whole = train(CONFIG.replace(checkpoint_every=10), tmp_path / "whole", console=False)
    there, step, store = Mirror(url), Trainer._step, Mirror.store
    note = tmp_path / "lost" / "checkpoints" / "last.json"

    def lost(self: Trainer, epoch: int, number: int, batch: object) -> None:
        if epoch == 3:  # the machine is gone, once its last checkpoint is copied
            deadline = time.monotonic() + 30
            while not (there.files.exists(f"{there.root}/run/checkpoints/last.ckpt") and is_copied(there, note)):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            raise Interrupted("lost")
        step(self, epoch, number, batch)

    monkeypatch.setattr(Trainer, "_step", lost)
    monkeypatch.setattr(Mirror, "store", lambda *args: None)
    with pytest.raises(Interrupted), mirrored(url, "run", tmp_path / "lost"):
        train(CONFIG.replace(checkpoint_every=10), tmp_path / "lost", console=False)
    monkeypatch.setattr(Mirror, "store", store)
    shutil.rmtree(tmp_path / "lost")
    assert not Mirror(url).is_finished("run")
    begun: list[int] = []
    monkeypatch.setattr(Trainer, "_step", lambda self, epoch, *rest: (begun.append(epoch), step(self, epoch, *rest)))
    with mirrored(url, "run", tmp_path / "elsewhere"):
        again = train(CONFIG.replace(checkpoint_every=10), tmp_path / "elsewhere", console=False)
    assert set(begun) == {3}
    assert {name: again[name] for name in ("best", "last", "memorized")} == {
        name: whole[name] for name in ("best", "last", "memorized")
    }


def test_checkpoints_are_stored_on_the_way(tmp_path: Path, url: str) -> None:
    run = tmp_path / "run"
    train(CONFIG, run, console=False)
    there = Mirror(url)
    there.store_checkpoint("run", run)
    assert not there.is_finished("run")
    there.fetch("run", tmp_path / "copy")
    inside = {
        file.relative_to(tmp_path / "copy").as_posix() for file in (tmp_path / "copy").rglob("*") if file.is_file()
    }
    assert inside == set(layout.RESUME) - {layout.DATA}  # the data is not in memory


def test_finished_runs_are_taken_from_the_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def run_all(jobs: list[Job], workers: int, threads: int, ended: object) -> None:
        for job in jobs:
            done.append(job.name)
            ended(Result(job.name, **answer(job.to_dict(), 1)))  # type: ignore[operator]

    monkeypatch.setattr(local, "run_all", run_all)
    options = {"optimizers": ["sgd"], "seeds": 2, "mirror": (tmp_path / "store").as_uri(), "say": lambda line: None}
    first = compare(CONFIG, tmp_path / "one", **options)
    second = compare(CONFIG, tmp_path / "two", **options)
    assert done == ["ce-sgd-s1", "ce-sgd-s2"]
    assert first == second
    assert (tmp_path / "two" / "ce-sgd-s2" / "metrics.jsonl").is_file()


def test_a_copy_that_failed_is_made_by_the_next_command(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Mirror.store

    def full(*_: object) -> None:
        raise OSError("the store is full")

    monkeypatch.setattr(Mirror, "store", full)
    job = {"name": "run", "config": CONFIG.to_dict(), "out": str(tmp_path / "run"), "mirror": url}
    assert answer(job, 1) == {"summary": None, "error": "the store is full"}
    monkeypatch.setattr(Mirror, "store", store)
    assert not Mirror(url).is_finished("run")
    done = batch.run_jobs([Job("run", CONFIG, tmp_path / "run")], ExecutorConfig(mirror=url), say=lambda line: None)
    assert done.summaries.keys() == {"run"}
    assert Mirror(url).read("run", "summary.json") == (tmp_path / "run/summary.json").read_bytes()


def test_mistakes_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"mirror='nowhere://x'"):
        Mirror("nowhere://x")

    def missing(url: str) -> None:
        raise ImportError("no s3fs")

    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    with pytest.raises(ImportError, match=r'pip install "ncsam\[s3\]"'):
        Mirror("s3://bucket/runs")


class ReadOnly(http.server.SimpleHTTPRequestHandler):
    """A server of files that says nothing."""

    def log_message(self, *_: object) -> None:
        pass


class Forgetful(ReadOnly):
    """Takes everything, and keeps nothing."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.end_headers()

    do_PUT = do_POST  # noqa: N815 - http.server's name


@pytest.mark.parametrize("handler", [ReadOnly, Forgetful])
def test_a_url_that_keeps_no_file_is_refused(tmp_path: Path, handler: type[ReadOnly]) -> None:
    pytest.importorskip("aiohttp")
    serve = functools.partial(handler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/runs"
        with pytest.raises(ValueError, match=rf"^invalid mirror='{url}'"):
            ExecutorConfig(mirror=url).check()
        server.shutdown()


def test_a_mirror_takes_a_file_and_is_left_as_it_was(tmp_path: Path, url: str) -> None:
    for each in (url, str(tmp_path / "store" / "runs")):
        ExecutorConfig(mirror=each).check()
        there = Mirror(each)
        assert there.files.find(str(there.root)) == []
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"mirror='.*/file'"):
        ExecutorConfig(mirror=str(tmp_path / "file")).check()


@pytest.mark.parametrize("wrong", ["ftp://127.0.0.1:1/x", "zip://nowhere.zip"])
def test_a_place_that_cannot_be_opened_is_named(wrong: str) -> None:
    with pytest.raises(ValueError, match=rf"^invalid mirror='{wrong}'"):
        ExecutorConfig(mirror=wrong)
