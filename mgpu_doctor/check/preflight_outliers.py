"""Which host, GPU or link is slower than the others of its kind. Pure.

Everything is compared with the median of the others, by its best round: noise makes a test slow,
never fast. A slow host that was busy with something else is not accused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

from mgpu_doctor.check.preflight_reports import (
    Compute,
    Contention,
    Disk,
    Gpu,
    HostTests,
    LinkTest,
    Memory,
)

SLOWER = {"compute": 0.15, "memory": 0.25, "disk": 0.5, "gpu": 0.10, "gpu-copy": 0.30}
"""Share by which the best round must be slower than the others' median: choices, twice the time of
a read for disks. Those of GPUs have not been tried on any."""
LEAST_READ = 0.5e-3
"""Seconds by which a read must be slower: less is lost in a loader's prefetch."""
BUSY_SHARE, BUSY_CORES = 0.1, 0.25
"""A host is busy if others use this share of its cores, and so many cores at least. Choices: above
what sshd and a monitor take."""
GOT = 0.75
"""Share of the threads below which a host that is otherwise idle is held back. A choice."""
HALF = 0.5
"""A link is slow below this share of the others' median. A choice: pairs within one rack and
across racks often differ by less."""
BUSY_EXPLAINS = 0.1
"""Share of the others' speed below which a busy processor does not explain a slow link."""
SLOW_LINK = 100e6
"""Bytes per second below which a link is slow by itself: less than 1 Gbit/s Ethernet moves."""
LONG_ROUND_TRIP = 5e-3
"""Seconds from which a round trip is long by itself. A choice: each step has several."""
MORE_ROUND_TRIP, LEAST_ROUND_TRIP = 3.0, 0.5e-3
"""Factor and seconds by which a round trip must exceed the others' median."""


@dataclass(frozen=True, slots=True)
class SlowHost:
    """A host that is slower than the others in a test. `busy`: whether something else may be why.
    `others`: cores that other processes used."""

    name: str
    speed: float
    usual: float
    busy: bool
    others: float | None

    @property
    def slower(self) -> float:
        """The share by which it is slower."""
        return 1 - self.speed / self.usual


Result = Compute | Memory | Disk


def find_best(results: Sequence[Result]) -> Result | None:
    """The round with the highest speed."""
    known = [result for result in results if result.speed is not None]
    return max(known, key=lambda result: result.speed or 0.0, default=None)


def is_busy(contention: Contention | None, cores: float) -> bool:
    """Whether other processes used enough of the host to slow a test down."""
    if contention is None or contention.others is None:
        return False
    return contention.others >= max(BUSY_CORES, BUSY_SHARE * cores)


def find_slow_hosts(test: str, hosts: Iterable[HostTests]) -> tuple[SlowHost, ...]:
    """The hosts that are slower than the others in `compute`, `memory` or `disk`."""
    best: dict[str, tuple[HostTests, Result]] = {}
    for host in hosts:
        result = find_best(getattr(host, test))
        if result is not None and not (test == "memory" and _is_throttled(result.contention)):
            best[host.name] = host, result
    if test == "compute" and len({_code(result) for _, result in best.values()}) > 1:
        return ()  # they did different work
    slow = []
    for name, (host, result) in best.items():
        others = [other.speed or 0.0 for key, (_, other) in best.items() if key != name]
        speed = result.speed or 0.0
        usual = median(others) if others else 0.0
        if not usual or speed >= (1 - SLOWER[test]) * usual:
            continue
        if test == "disk" and 1 / speed - 1 / usual < LEAST_READ:
            continue
        cores = host.greeting.cores if host.greeting else 1.0
        contention = result.contention
        busy = is_busy(contention, cores)
        slow.append(SlowHost(name, speed, usual, busy, contention.others if contention else None))
    return tuple(slow)


def _is_throttled(contention: Contention | None) -> bool:
    """Whether a quota stopped the test again and again: others use the caches and the memory
    meanwhile. `find_few_cores` names such a host."""
    if contention is None:
        return False
    return bool(contention.throttled) or (contention.quota is not None and contention.quota < 1)


def _code(result: Result) -> str:
    return result.hash if isinstance(result, Compute) else ""


class Why(Enum):
    """Why a host's processes use fewer cores."""

    QUOTA = "quota"
    AFFINITY = "affinity"
    UNSEEN = "unseen"
    """They got less than they may use, although other processes left the cores idle."""


@dataclass(frozen=True, slots=True)
class FewCores:
    """A host whose processes may use fewer cores than the others', or get fewer."""

    name: str
    cores: float
    usual: float
    why: Why


def find_few_cores(hosts: Iterable[HostTests]) -> tuple[FewCores, ...]:
    """Hosts with at most half of the others' cores, with less than one, or which got much less
    than they may use."""
    hosts = tuple(hosts)
    known = {host.name: host.compute[-1] for host in hosts if host.compute}
    few = list(find_held_back(hosts))
    for name, result in known.items():
        others = [other.cores for key, other in known.items() if key != name]
        usual = median(others) if others else 1.0
        if result.cores < 1 or result.cores <= HALF * usual:
            quota = result.contention.quota
            limited = quota is not None and quota <= result.cores
            why = Why.QUOTA if limited else Why.AFFINITY
            few = [host for host in few if host.name != name]
            few.append(FewCores(name, result.cores, usual, why))
    return tuple(few)


def find_held_back(hosts: Iterable[HostTests]) -> tuple[FewCores, ...]:
    """Hosts which in each round got much fewer cores than they may use, although they were idle."""
    return tuple(
        FewCores(host.name, max(map(_get_used, host.compute)), host.compute[-1].cores, Why.UNSEEN)
        for host in hosts
        if host.compute and all(map(_is_held_back, host.compute))
    )


def _get_used(result: Compute) -> float:
    return max(result.used, default=0.0)


def _is_held_back(result: Compute) -> bool:
    """Whether the threads got few cores while other processes left cores idle."""
    others, used = result.contention.others, _get_used(result)
    if others is None or not result.used:
        return False
    return used < GOT * min(result.threads, result.cores) and used + others < GOT * result.threads


@dataclass(frozen=True, slots=True)
class SlowGpu:
    """A GPU that is slower than the other GPUs of its model. `what`: in which measure."""

    host: str
    gpu: Gpu
    what: str
    speed: float
    usual: float
    busy: bool


GPU_MEASURES: Mapping[str, tuple[str, Callable[[Gpu], Sequence[float]]]] = {
    "matrix products": ("gpu", lambda gpu: gpu.flops),
    "memory": ("gpu", lambda gpu: gpu.memory),
    "copies to it": ("gpu-copy", lambda gpu: gpu.to_device),
    "copies from it": ("gpu-copy", lambda gpu: gpu.to_host),
}
USED_BY_OTHERS = 1 << 30
"""Bytes in use on a GPU from which another process probably works on it. A choice."""


def find_slow_gpus(hosts: Iterable[HostTests]) -> tuple[SlowGpu, ...]:
    """GPUs that are slower than the others of the same model, on all hosts."""
    gpus = [(host.name, gpu) for host in hosts if host.gpus for gpu in host.gpus.devices]
    slow = []
    for what, (kind, read) in GPU_MEASURES.items():
        for name, gpu in gpus:
            same = [other for _, other in gpus if other.name == gpu.name and other is not gpu]
            others = [max(read(other)) for other in same if read(other)]
            if not read(gpu) or not others:
                continue
            speed, usual = max(read(gpu)), median(others)
            if speed < (1 - SLOWER[kind]) * usual:
                slow.append(SlowGpu(name, gpu, what, speed, usual, gpu.used >= USED_BY_OTHERS))
    return tuple(slow)


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A direction of a link that is slow. `source` None: everything that arrives at `target`;
    `target` None: everything that leaves `source`. `usual` None: nothing to compare with."""

    source: str | None
    target: str | None
    speed: float
    usual: float | None
    busy: bool


def find_slow_links(links: Iterable[LinkTest]) -> tuple[SlowLink, ...]:
    """Hosts all of whose transfers in one direction are slow, and other pairs that are slow."""
    speeds: dict[tuple[str, str], float] = {}
    busy: dict[tuple[str, str], bool] = {}
    for test in links:
        for pair, series in (
            ((test.source, test.target), test.link.there),
            ((test.target, test.source), test.link.back),
        ):
            if series:
                speeds[pair], busy[pair] = max(series), _is_loaded(test)
    slow: list[SlowLink] = []
    for end in (0, 1):
        slow += _find_slow_ends(speeds, busy, end)
    named = {(link.source, link.target) for link in slow}
    rest = {
        pair: speed
        for pair, speed in speeds.items()
        if (pair[0], None) not in named and (None, pair[1]) not in named
    }
    for pair, speed in rest.items():
        others = [other for key, other in rest.items() if set(key) != set(pair)]
        usual = median(others) if others else None
        if speed < (HALF * usual if usual else SLOW_LINK):
            excused = _excuses(busy[pair], speed, usual)
            slow.append(SlowLink(pair[0], pair[1], speed, usual, excused))
    return tuple(slow)


def _is_loaded(test: LinkTest) -> bool:
    """Whether a processor, not the network, may have slowed down the test at one of its ends."""
    ends = (test.link.contention, test.listener)
    return any(is_busy(end, 1.0) or _is_throttled(end) for end in ends)


def _find_slow_ends(
    speeds: Mapping[tuple[str, str], float], busy: Mapping[tuple[str, str], bool], end: int
) -> Iterable[SlowLink]:
    """Hosts whose fastest transfer with any of two or more others is slow. `end`: 0 what they
    send, 1 what they receive."""
    best: dict[str, tuple[float, tuple[str, str]]] = {}
    counts: dict[str, int] = {}
    for pair, speed in speeds.items():
        counts[pair[end]] = counts.get(pair[end], 0) + 1
        best[pair[end]] = max(best.get(pair[end], (0.0, pair)), (speed, pair))
    for name, (speed, pair) in best.items():
        others = [other for key, (other, _) in best.items() if key != name]
        if counts[name] < 2 or not others or speed >= HALF * median(others):
            continue
        usual = median(others)
        excused = _excuses(busy[pair], speed, usual)
        source, target = (name, None) if end == 0 else (None, name)
        yield SlowLink(source, target, speed, usual, excused)


def _excuses(busy: bool, speed: float, usual: float | None) -> bool:
    """Whether a busy processor explains a slow transfer."""
    least = BUSY_EXPLAINS * usual if usual else BUSY_EXPLAINS * SLOW_LINK
    return busy and speed >= least


@dataclass(frozen=True, slots=True)
class LongRoundTrip:
    """A pair of hosts whose messages take long."""

    source: str
    target: str
    seconds: float
    usual: float | None
    busy: bool


def find_long_round_trips(links: Iterable[LinkTest]) -> tuple[LongRoundTrip, ...]:
    """Pairs of hosts with a long round trip, by itself or compared with the other pairs."""
    known = [(test, seconds) for test in links if (seconds := test.link.round_trip) is not None]
    found = []
    for test, seconds in known:
        others = [other for key, other in known if key is not test]
        usual = median(others) if len(others) > 1 else None
        much = usual is not None and (
            seconds > MORE_ROUND_TRIP * usual and seconds - usual > LEAST_ROUND_TRIP
        )
        if much or seconds >= LONG_ROUND_TRIP:
            found.append(LongRoundTrip(test.source, test.target, seconds, usual, _is_loaded(test)))
    return tuple(found)
