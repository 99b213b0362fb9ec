"""Finds training jobs among the processes of this machine, with nothing installed beforehand."""

from mgpu_probes.outside.jobs.found_jobs import FoundJob, FoundProcess, FoundUntold
from mgpu_probes.outside.jobs.job_discovery import find, find_all, find_below, unseen

__all__ = ["FoundJob", "FoundProcess", "FoundUntold", "find", "find_all", "find_below", "unseen"]
