"""Finds training jobs among the processes of this machine, with nothing installed beforehand."""

from mgpu_probes.outside.jobs.job_discovery import find, find_all, find_below, unseen
from mgpu_probes.outside.jobs.running_jobs import JobProcess, RunningJob, UnreadSource

__all__ = ["JobProcess", "RunningJob", "UnreadSource", "find", "find_all", "find_below", "unseen"]
