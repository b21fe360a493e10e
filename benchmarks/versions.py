"""Two versions of the package in one run: each in a process of its own, which works when it is told to."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]


def serve(run: Callable[[], object]) -> None:
    """In a worker: run once for every line that is read, and answer with its seconds of wall clock and processor."""
    for _ in sys.stdin:
        wall, processor = time.perf_counter(), time.process_time()
        run()
        print(time.perf_counter() - wall, time.process_time() - processor, flush=True)


@contextmanager
def sources(against: str) -> Iterator[dict[str, Path]]:
    """Where the package of "here" and of the "other" version lies: a commit of this repository, or a folder."""
    with tempfile.TemporaryDirectory() as folder:
        other = Path(against)
        if not other.is_dir():
            archive = subprocess.run(["git", "archive", against, "src"], cwd=ROOT, check=True, stdout=subprocess.PIPE)
            subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
            other = Path(folder) / "src"
        yield {"here": ROOT / "src", "other": other}


def in_turns(
    found: dict[str, Path], commands: dict[str, Sequence[str]], rounds: int
) -> dict[tuple[str, str], list[list[float]]]:
    """Seconds of each command by each version, round after round, after one of each that is not counted."""
    workers = {
        (command, version): subprocess.Popen(
            [sys.executable, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
        )
        for command, words in commands.items()
        for version, source in found.items()
    }
    seconds: dict[tuple[str, str], list[list[float]]] = {key: [] for key in workers}
    try:
        for number in range(rounds + 1):
            for key, worker in workers.items():
                assert worker.stdin is not None
                assert worker.stdout is not None
                worker.stdin.write("go\n")
                worker.stdin.flush()
                answer = [float(word) for word in worker.stdout.readline().split()]
                if number:
                    seconds[key].append(answer)
    finally:
        for worker in workers.values():
            worker.kill()
            worker.wait()
    return seconds
