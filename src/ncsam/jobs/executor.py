"""Many runs, each in its folder: what is finished is read, the rest is done by local workers or on a Ray cluster."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ncsam._checks import choice, positive
from ncsam._errors import bad_value
from ncsam.engine import RunError
from ncsam.jobs.local import Job, Result, available_cores, run_all, threads_each
from ncsam.jobs.mirror import Mirror
from ncsam.jobs.ray_cluster import check_cluster, parse_resources
from ncsam.jobs.ray_cluster import run_all as run_on_ray
from ncsam.runs.layout import read_summary

#: Runs of one command. More would be years of training, and are a mistyped number of seeds.
MOST_RUNS = 10_000


def check_size(seeds: int | Sequence[int], combinations: int) -> None:
    """Refuse more runs than can be meant, before they are counted one by one."""
    runs = combinations * (seeds if isinstance(seeds, int) else len(seeds))
    if runs > MOST_RUNS:
        allowed = f"at most {MOST_RUNS:,} runs, and with {combinations:,} combinations these would be {runs:,}"
        raise bad_value("seeds", seeds, allowed)


@dataclass(frozen=True)
class ExecutorConfig:
    """ExecutorConfig runs are done, and how many at a time.

    Args:
        workers: how many runs at a time, each in a process with OMP_NUM_THREADS threads, or else an equal share of
            the cores; small networks have one. By default two where there are two cores or more.
        on: "local" processes, or tasks on a "ray" cluster (see `ncsam.jobs.ray_cluster`).
        resources: what each run needs on Ray, such as "gpu=1,cpu=4".
        mirror: URL of copies of the run folders, such as "s3://bucket/runs" (see `ncsam.jobs.mirror`).
    """

    workers: int | None = None
    on: Literal["local", "ray"] = "local"
    resources: str = ""
    mirror: str = ""

    def __post_init__(self) -> None:
        if self.workers is not None:
            positive("workers", self.workers)
        choice("on", self.on, ("local", "ray"))
        if self.resources and self.on != "ray":
            raise bad_value("resources", self.resources, "only on ray")
        parse_resources(self.resources)
        if self.mirror:
            Mirror(self.mirror)

    def check(self) -> None:
        """Refuse a cluster that does not answer and a mirror that takes no file, before anything is trained."""
        if self.on == "ray":
            check_cluster()
        if self.mirror:
            Mirror(self.mirror).check()

    @property
    def at_a_time(self) -> int:
        return min(2, available_cores()) if self.workers is None else self.workers


@dataclass
class Done:
    """The summaries of the runs that are finished, and what went wrong with the others, by their names."""

    summaries: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


def look(jobs: Sequence[Job]) -> tuple[Done, list[Job]]:
    """What is there already, and what is still to do."""
    done, waiting = Done(), []
    for job in jobs:
        try:
            finished = read_summary(job.out, job.config)
        except RunError as error:
            done.errors[job.name] = str(error)
            continue
        if finished is None:
            waiting.append(job)
        else:
            done.summaries[job.name] = finished
    return done, waiting


def run_jobs(
    jobs: Sequence[Job],
    where: ExecutorConfig,
    say: Callable[[str], None] = print,
    after_each: Callable[[Done], object] = lambda done: None,
) -> Done:
    """Do what is not finished yet. `say` takes a line for each run that ends; `after_each` sees all that is done."""
    mirror = Mirror(where.mirror) if where.mirror else None
    if mirror is not None:
        jobs = [dataclasses.replace(job, mirror=where.mirror) for job in jobs]
        for job in jobs:
            if not job.out.exists() and mirror.is_finished(job.name):
                mirror.fetch(job.name, job.out)
    done, waiting = look(jobs)
    if mirror is not None:
        for job in jobs:  # a copy that failed, or a mirror that was named later
            if job.name in done.summaries and not mirror.is_finished(job.name):
                mirror.store(job.name, job.out)
    places = {job.name: job.out for job in waiting}
    workers = where.at_a_time
    say(f"{len(jobs)} runs, {len(done.summaries)} of them finished; {min(workers, max(1, len(waiting)))} at a time")
    began = time.monotonic()

    def ended(result: Result) -> None:
        if result.summary is None:
            done.errors[result.name] = result.error or "unknown"
        else:
            done.summaries[result.name] = result.summary
            if mirror is not None:  # it may have been done on another machine
                mirror.fetch(result.name, places[result.name])
        count = len(done.summaries) + len(done.errors)
        say(f"[{count}/{len(jobs)}] {result.name}: {_outcome(result)}  ({time.monotonic() - began:.0f} s)")
        after_each(done)

    if where.on == "ray":
        run_on_ray(waiting, workers, parse_resources(where.resources), ended)
    else:
        run_all(waiting, workers, threads_each(workers), ended)
    return done


def _outcome(result: Result) -> str:
    if result.summary is None:
        return f"failed: {result.error}"
    name = next((name for name in ("last5", "last") if result.summary[name] is not None), None)
    return "finished" if name is None else f"{name} {result.summary[name]:.2f} %"
