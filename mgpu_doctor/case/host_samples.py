"""Samples of a host: its CPUs and memory, and the processes of the job, from `host.jsonl`.

Times are seconds; memory is bytes; what is unknown is None.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from mgpu_doctor.case.lenient_json import (
    Json,
    Moment,
    Name,
    Text,
    Whole,
    line_decoder,
    reader,
)

MOST_CORES = 8192
"""Most cores that Linux supports."""
Pid = Annotated[int, Meta(ge=0, lt=10**11)]
Address = Annotated[str, Meta(max_length=45)]
Most = Meta(max_length=4096)
"""Most processes of a host."""
TaskState = Literal["R", "S", "D", "T", "t", "Z", "X", "x", "I", "P", "K", "W"]
"""As /proc/PID/stat (proc(5)) has it."""
Resource = Literal["cpu", "io", "memory"]
Traffic = Literal["read", "written", "received", "sent"]
"""Of disks, and of network interfaces."""


class Cores(frozenset[int]):
    """A set of CPU core numbers."""

    @classmethod
    def from_json(cls, listed: Json) -> "Cores":
        """The cores in a list as the kernel writes it, `0-3,8`. Raises ValueError."""
        cores = parse_cores(listed) if isinstance(listed, str) and len(listed) <= 500 else None
        if cores is None:
            raise ValueError("not a list of cores")
        return cores


@lru_cache(64)
def parse_cores(listed: str) -> Cores | None:
    """The cores in a list as the kernel writes it, `0-3,8`; None if it is not one."""
    cores: set[int] = set()
    for part in listed.split(","):
        first, _, last = part.partition("-")
        low, high = first.strip(), (last or first).strip()
        if not (low.isdecimal() and high.isdecimal() and len(low) < 6 and len(high) < 6):
            return None
        cores.update(range(int(low), min(int(high), MOST_CORES - 1) + 1))
    return Cores(cores) or None


class Task(msgspec.Struct, frozen=True):
    """Scheduler counters of one process. Seconds since it started; None: unknown."""

    parent: Whole | None = None
    state: TaskState | None = None
    """Of its main thread at that moment: R runs or is ready, S sleeps, D sleeps and cannot be
    woken (mostly for a disk), T is stopped."""
    threads: Whole | None = None
    age: float | None = None
    ran: float | None = None
    """Seconds that its main thread was on a core."""
    queued: float | None = None
    """Seconds that its main thread was ready and waited for a core."""
    all_queued: float | None = None
    """The same for its threads together, the first 33 at most."""
    cores: Cores | None = None
    """Cores on which its main thread may run."""
    limits: Annotated[tuple[Name, ...], Meta(max_length=16)] | None = None
    """Control groups above it that have a CPU quota: names in `HostSample.groups`."""
    faults: Whole | None = None
    """Pages that the kernel had to map for it (minor faults), all threads together."""
    kernel: float | None = None
    """Seconds that all its threads together spent in the kernel."""
    room: Whole | None = None
    """Bytes left by its own memory limits (`ulimit -v`, `-d`), if it has any."""


class Group(msgspec.Struct, frozen=True):
    """A control group whose CPU time is limited."""

    quota: float | None = None
    """The quota in cores."""
    throttled: float | None = None
    """Seconds so far, of all cores together, in which it had threads to run and no quota left."""


class TcpLink(msgspec.Struct, frozen=True):
    """What the ranks of a host sent to an address of another one by TCP; sums over their sockets so
    far, and what the kernel measured (mgpu_probes.outside.tcp_links)."""

    sent: Whole | None = None
    """Bytes."""
    resent: Whole | None = None
    """Bytes of them that had been lost."""
    busy: float | None = None
    """Seconds with data on its way."""
    held: float | None = None
    """Seconds of them in which the receiver took no more."""
    round_trip: float | None = None
    """The shortest of about the last five minutes."""
    smoothed: float | None = None
    """The mean of the newest round trips."""
    rate: float | None = None
    """Bytes per second that arrived while there was more to send."""


class HostSample(msgspec.Struct, frozen=True):
    at: Moment
    cpu_percent: float | None = None
    """Use of all cores together, 0..100."""
    cores: Whole | None = None
    load1: float | None = None
    memory_used: Whole | None = None
    memory_total: Whole | None = None
    processes: Annotated[Mapping[Pid, tuple[float, Whole]], Most] = msgspec.field(
        default_factory=dict
    )
    """pid -> (CPU seconds so far, resident bytes)."""
    host: Annotated[str, Meta(max_length=64)] | None = None
    tasks: Annotated[Mapping[Pid, Task], Most] = {}
    """Pid -> scheduler counters; empty in most samples of a long run."""
    groups: Annotated[Mapping[Text, Group], Meta(max_length=1024)] = msgspec.field(
        default_factory=dict
    )
    busy: float | None = None
    """Busy seconds since boot, of all cores together, like the next two."""
    iowait: float | None = None
    """Idle seconds while waiting for a disk."""
    steal: float | None = None
    """Seconds that the hypervisor gave to other machines."""
    pressure: Mapping[Resource, float] = {}
    """`cpu`, `io`, `memory` -> seconds so far in which some task was stalled on it."""
    traffic: Mapping[Traffic, Whole] = {}
    """Bytes since boot."""
    memory_cache: Whole | None = None
    """Bytes of `memory_used` that are page cache, which the kernel would drop if needed."""
    addresses: Annotated[tuple[Address, ...], Meta(max_length=64)] = ()
    """Of this host, in the connections of the job."""
    links: Annotated[Mapping[Address, TcpLink], Meta(max_length=64)] = msgspec.field(
        default_factory=dict
    )
    """Address of another host -> connections to it; empty in most samples of a long run."""


decode_host_sample = line_decoder(HostSample)
"""A line of host.jsonl; None where it cannot be read or has no time."""
read_host_sample = reader(HostSample)
"""The same of parsed JSON."""
