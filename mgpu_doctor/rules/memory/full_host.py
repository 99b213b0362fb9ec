"""A host whose memory the job nearly fills all the time, although nothing grows."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_doctor.analysis.capacity.host_memory_pressure import FullHost, find_full_hosts
from mgpu_doctor.analysis.capacity.memory_growth import find_growing_hosts
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.model import Outcome
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_bytes, format_share
from mgpu_doctor.rules.memory.host_oom import fewer_workers, one_copy
from mgpu_doctor.rules.rule import Limit, Limits

FULL = Limit(
    "full",
    0.95,
    "fraction",
    "share of the host's memory, or of the control group's limit, in use without page cache in "
    "80 % of the samples of a minute. Post-mortems use the same share.",
)
PRESSED = Limit(
    "pressed",
    0.01,
    "fraction",
    "share of the time in which tasks were stalled on memory (the kernel's PSI, `some`), from "
    "which on it is a warning. With enough memory there are no such stalls.",
)
SHARE_OF_JOB = 0.5
"""Least share of the used memory that belongs to the job; otherwise others fill the host."""
MOST_RANKS = 8
"""Ranks whose memory is listed as evidence."""
MEASURED = (
    "A full host: `memory_used` of the host samples without page cache that the kernel would drop, "
    "compared with the host's memory or the control group's limit, and the resident memory of the "
    "job's processes."
)
MORE_MEMORY = Fix(
    "more-memory",
    "Give the job more host memory",
    "Docker: `--memory=…`; Kubernetes: `resources.limits.memory`; Slurm: `--mem`; systemd: "
    "`MemoryMax=`; or fewer ranks on this host.",
)


def find_full_host(measures: Measures, limits: Limits) -> Iterable[Finding]:
    """`oom-risk` of the fullest host. Silent if memory grows, or if the job failed: other findings
    cover both."""
    case = measures.case
    if case.job.outcome not in (Outcome.RUNNING, Outcome.COMPLETED):
        return
    hosts = [
        host
        for host in find_full_hosts(case, limits["full"])
        if host.of_job >= SHARE_OF_JOB * host.used
    ]
    if hosts and not find_growing_hosts(case, measures.step_seconds, limits["grown"]):
        yield _report(min(hosts, key=lambda host: host.total - host.used), limits)


def _report(host: FullHost, limits: Limits) -> Finding:
    is_pressed = host.pressure is not None and host.pressure >= limits["pressed"]
    free = format_bytes(max(0, host.total - host.used))
    sentences = [
        "Nothing grows, but one larger batch, a checkpoint or an evaluation that needs more is "
        "enough for the kernel to kill a process."
    ]
    if host.of_others >= host.of_job / 2:
        sentences.append(
            f"Worker processes of the job hold {format_bytes(host.of_others)} (shared pages count "
            "for each of them)."
        )
    if is_pressed:
        sentences.append("Tasks are already stalled while the kernel reclaims memory.")
    return Finding(
        code="oom-risk",
        severity=Severity.WARNING if is_pressed else Severity.INFO,
        confidence=0.8,
        title=f"The host memory is {format_share(host.used / host.total)} full all the time: "
        f"{free} of {format_bytes(host.total)} are free",
        cause=" ".join(sentences),
        evidence=tuple(_evidence(host)),
        fixes=(fewer_workers(), one_copy(), MORE_MEMORY),
    )


def _evidence(host: FullHost) -> Iterable[Evidence]:
    source = f"host samples, the newest of {host.samples}"
    yield Evidence("host memory in use, without page cache", host.used, "bytes", host.total, source)
    if host.pressure is not None:
        measure = "share of time in which a task was stalled on memory"
        yield Evidence(measure, host.pressure, "fraction", 0.0, "/proc/pressure/memory")
    largest = sorted(host.of_ranks.items(), key=lambda item: -item[1])[:MOST_RANKS]
    for rank, resident in largest:
        yield Evidence(f"resident memory of rank {rank}", resident, "bytes", None, source)
    if host.of_others:
        measure = "resident memory of the job's other processes"
        yield Evidence(measure, host.of_others, "bytes", None, source)
