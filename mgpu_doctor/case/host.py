"""The facts of one host as frozen dataclasses: what a live screen needs where there is no job.

Times are seconds; memory is bytes; what is unknown is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mgpu_doctor.case.fact import Fact


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Task(Fact):
    """What the scheduler did to one process. Seconds since the process began; None: unknown."""

    parent: int | None = None
    state: str | None = None
    """Of its main thread at that moment: R runs or is ready, S sleeps, D sleeps and cannot be
    woken (mostly for a disk), T is stopped."""
    threads: int | None = None
    age: float | None = None
    ran: float | None = None
    """Its main thread was on a core."""
    queued: float | None = None
    """Its main thread stood ready and had no core."""
    all_queued: float | None = None
    """The same of its threads together, the first 33 of them at most."""
    cores: frozenset[int] | None = None
    """Where its main thread may run."""
    limits: tuple[str, ...] | None = None
    """Control groups above it that have a CPU quota: names in `HostSample.groups`."""
    faults: int | None = None
    """Pages that the kernel had to give it anew (minor faults), all threads together."""
    kernel: float | None = None
    """All its threads together were in the kernel."""
    room: int | None = None
    """Bytes that its own limits of memory (`ulimit -v`, `-d`) leave it, where it has any."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Group(Fact):
    """A control group whose CPU time is limited."""

    quota: float | None
    """Cores' worth of time."""
    throttled: float | None
    """Seconds so far, of all cores together, in which it had threads to run and no quota left."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class HostSample(Fact):
    at: float
    cpu_percent: float | None
    """Of all cores together, 0..100."""
    cores: int | None
    load1: float | None
    memory_used: int | None
    memory_total: int | None
    processes: Mapping[int, tuple[float, int]] = field(default_factory=dict)
    """pid -> (CPU seconds so far, resident bytes)."""
    host: str | None = None
    tasks: Mapping[int, Task] = field(default_factory=dict)
    """By pid; empty in most samples of a long run."""
    groups: Mapping[str, Group] = field(default_factory=dict)
    busy: float | None = None
    """Seconds since boot in which cores worked, of all cores together, like the next two."""
    iowait: float | None = None
    """Idle while a disk was waited for."""
    steal: float | None = None
    """Taken by the hypervisor for other machines."""
    pressure: Mapping[str, float] = field(default_factory=dict)
    """`cpu`, `io`, `memory` -> seconds so far in which some task stood still for want of it."""
    memory_cache: int | None = None
    """How much of `memory_used` is page cache that the kernel would drop for want of room."""
