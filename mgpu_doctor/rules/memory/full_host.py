"""A host that the job fills nearly to the brim although nothing grows."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_doctor.analysis.capacity.host_memory_pressure import FullHost, find_full_hosts
from mgpu_doctor.analysis.capacity.memory_growth import find_growing_hosts
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.model import Outcome
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_bytes, format_share
from mgpu_doctor.rules.memory.death import fewer_workers, one_copy
from mgpu_doctor.rules.rule import Limit, Limits

FULL = Limit(
    "full",
    0.95,
    "fraction",
    "of the host's memory, or of the control group's limit, that is in use without page cache in "
    "80 % of a minute's samples: from there on a group counts as full in a post-mortem, too.",
)
PRESSED = Limit(
    "pressed",
    0.01,
    "fraction",
    "of the time in which tasks stood still for want of memory (the kernel's PSI, `some`), from "
    "which it is a warning: none do where memory is enough.",
)
BY_JOB = 0.5
"""Share of what is in use that the job's processes must hold: else others fill the host."""
MEASURED = (
    "A host that is full: `memory_used` of the host samples without page cache that the kernel "
    "would drop, against the host's memory or the control group's limit, and what the job's "
    "processes have resident of it."
)
MOST_TOLD = 8


def examine(measures: Measures, limits: Limits) -> Iterable[Finding]:
    """Silent where it grows, as that is told with the time when it is full; and of a job that
    failed, as its post-mortem tells then."""
    case = measures.case
    if case.job.outcome not in (Outcome.RUNNING, Outcome.COMPLETED):
        return
    found = [
        one for one in find_full_hosts(case, limits["full"]) if one.of_job >= BY_JOB * one.used
    ]
    if not found or find_growing_hosts(case, measures.step_seconds, limits["grown"]):
        return
    yield _finding(min(found, key=lambda one: one.total - one.used), limits)


def _finding(one: FullHost, limits: Limits) -> Finding:
    pressed = one.pressure is not None and one.pressure >= limits["pressed"]
    left = max(0, one.total - one.used)
    told = [
        "Nothing grows, but one larger batch, a checkpoint or an evaluation that takes more is "
        "enough for the kernel to kill a process."
    ]
    if one.of_others >= one.of_job / 2:
        told.append(
            f"Worker processes of the job have {format_bytes(one.of_others)} resident (pages that "
            "they "
            "share count for each)."
        )
    if pressed:
        told.append("Tasks already stand still while the kernel looks for memory.")
    return Finding(
        code="oom-risk",
        severity=Severity.WARNING if pressed else Severity.INFO,
        confidence=0.8,
        title=f"The host memory is {format_share(one.used / one.total)} full all the time: "
        f"{format_bytes(left)} of {format_bytes(one.total)} are left",
        cause=" ".join(told),
        evidence=tuple(_evidence(one)),
        fixes=(
            fewer_workers(),
            one_copy(),
            Fix(
                "more-memory",
                "Give the job more host memory",
                "Docker: `--memory=…`; Kubernetes: `resources.limits.memory`; Slurm: `--mem`; "
                "systemd: `MemoryMax=`; or fewer ranks on this host.",
            ),
        ),
    )


def _evidence(one: FullHost) -> Iterable[Evidence]:
    source = f"host samples, the newest of {one.samples}"
    yield Evidence("host memory in use, without page cache", one.used, "bytes", one.total, source)
    if one.pressure is not None:
        what = "share of time in which some task stood still for want of memory"
        yield Evidence(what, one.pressure, "fraction", 0.0, "/proc/pressure/memory")
    for rank, resident in sorted(one.of_ranks.items(), key=lambda told: -told[1])[:MOST_TOLD]:
        yield Evidence(f"resident memory of rank {rank}", resident, "bytes", None, source)
    if one.of_others:
        what = "resident memory of the job's other processes"
        yield Evidence(what, one.of_others, "bytes", None, source)
