"""Many jobs (training runs, candidates of `auto`) on this machine or on a Ray cluster, with copies at a URL."""

from ncsam.jobs.executor import Done, ExecutorConfig, check_size, run_jobs, split_finished
from ncsam.jobs.job import Job, Result

__all__ = ["Done", "ExecutorConfig", "Job", "Result", "check_size", "run_jobs", "split_finished"]
