"""Finds training jobs among the processes of this machine, with nothing installed beforehand."""

from mgpu_probes.outside.jobs.find import find, find_all, find_below, unseen
from mgpu_probes.outside.jobs.found import FoundJob, FoundProcess, FoundUntold

__all__ = ["FoundJob", "FoundProcess", "FoundUntold", "find", "find_all", "find_below", "unseen"]
