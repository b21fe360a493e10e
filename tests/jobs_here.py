"""Jobs without worker processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ncsam.jobs.job import Job, Result, do


def run_here(jobs: Sequence[Job], workers: int, threads: int, ended: Callable[[Result], None]) -> None:
    """In place of `ncsam.jobs.local.run_all`: one job after another, in this process."""
    for job in jobs:
        ended(Result(job.name, **do(job.to_dict(), 1)))
