"""What the agents of `preflight` report, parsed: nothing that arrives is used before it is one of
these types. Seconds, bytes and bytes per second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from mgpu_doctor.cluster.engine import Trouble

Positive = Annotated[float, Meta(ge=0, lt=1e18)]
Series = Annotated[tuple[Positive, ...], Meta(max_length=4096)]
Text = Annotated[str, Meta(max_length=500)]


class Contention(Struct, frozen=True):
    """What else a host did during a test. `own`, `others`: cores used by the test, and by all other
    processes of the machine; `throttled`: seconds without CPU quota; `quota`: cores."""

    seconds: Positive
    own: Positive
    others: Positive | None = None
    throttled: Positive | None = None
    quota: Positive | None = None


class Greeting(Struct, frozen=True):
    """A host. `address`: where other hosts reach it; None: unknown."""

    host: Text
    boot: Text | None
    python: Text
    cores: Positive
    processor: Text | None = None
    address: Text | None = None


class Compute(Struct, frozen=True):
    """`speeds`: of one core; `used`: cores that the threads got; both of each repetition."""

    speeds: Series
    used: Series
    cores: Positive
    threads: int
    hash: Text
    contention: Contention

    @property
    def speed(self) -> float | None:
        return median(self.speeds) if self.speeds else None


class Memory(Struct, frozen=True):
    """`speeds`: of all copying threads together, of each repetition."""

    speeds: Series
    threads: int
    contention: Contention

    @property
    def speed(self) -> float | None:
        return median(self.speeds) if self.speeds else None


class Disk(Struct, frozen=True):
    """`latencies`: of reads of `size` bytes at random places of a file that is not in memory."""

    place: Text
    kind: Text | None
    size: int
    latencies: Series
    trouble: Text | None
    contention: Contention | None

    @property
    def speed(self) -> float | None:
        """Reads per second, of the median read."""
        return 1 / max(median(self.latencies), 1e-9) if self.latencies else None


class Link(Struct, frozen=True):
    """The network from one host to another one. `there`, `back`: speeds of each transfer."""

    round_trips: Series = ()
    there: Series = ()
    back: Series = ()
    trouble: Text | None = None
    contention: Contention | None = None

    @property
    def round_trip(self) -> float | None:
        """The fastest tenth: what the network takes, rather than what the processes wait for."""
        times = sorted(self.round_trips)
        return times[len(times) // 10] if times else None


class Gpu(Struct, frozen=True):
    """`used`: bytes in use before the test; `flops` of bf16 products; `memory`: copied on it."""

    index: int
    name: Text
    used: Positive
    flops: Series
    memory: Series
    to_device: Series
    to_host: Series
    trouble: Text | None


class GpuLink(Struct, frozen=True):
    """Copies from one GPU of a host to another one; `trouble`: why they failed."""

    source: int
    target: int
    speeds: Series
    trouble: Text | None = None


class Gpus(Struct, frozen=True):
    """What the host's PyTorch found. `trouble`: why nothing; `no-torch`: no Python there has it."""

    torch: Text | None = None
    runtime: Text | None = None
    devices: Annotated[tuple[Gpu, ...], Meta(max_length=64)] = ()
    links: Annotated[tuple[GpuLink, ...], Meta(max_length=4096)] = ()
    trouble: Text | None = None


class AllReduce(Struct, frozen=True):
    """Seconds of small and of large all-reduces on one rank."""

    torch: Text | None = None
    small: Series = ()
    large: Series = ()
    trouble: Text | None = None


Parsed = TypeVar("Parsed")


def parse(report: Mapping[str, Any], kind: type[Parsed]) -> Parsed | str:
    """The report as this type; else why there is none, a part of a sentence."""
    trouble = report.get("trouble")
    try:
        return msgspec.convert(report, kind, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        return trouble if isinstance(trouble, str) else f"its answer cannot be read ({error})"


@dataclass(frozen=True, slots=True)
class HostTests:
    """What was measured on one host; several rounds if the first one was not clear. `trouble`: why
    it could not be tested; `failures`: test -> why it failed."""

    name: str
    greeting: Greeting | None = None
    trouble: Trouble | None = None
    compute: tuple[Compute, ...] = ()
    memory: tuple[Memory, ...] = ()
    disk: tuple[Disk, ...] = ()
    gpus: Gpus | None = None
    failures: Mapping[str, str] = field(default_factory=dict)

    def with_round(self, test: str, result: Any) -> HostTests:
        """The same with a further round of `compute`, `memory` or `disk`."""
        rounds: dict[str, Any] = {test: (*getattr(self, test), result)}
        return replace(self, **rounds)


@dataclass(frozen=True, slots=True)
class LinkTest:
    """A link between two hosts, by the names that the user gave. `listener`: contention of
    `target`."""

    source: str
    target: str
    link: Link
    listener: Contention | None = None


@dataclass(frozen=True, slots=True)
class CollectiveTest:
    """An all-reduce: host and what its ranks reported."""

    backend: str
    ranks: tuple[tuple[str, AllReduce], ...]


@dataclass(frozen=True, slots=True)
class Preflight:
    """All that was measured. `untested`: test -> why it was left out."""

    hosts: tuple[HostTests, ...]
    links: tuple[LinkTest, ...] = ()
    collective: CollectiveTest | None = None
    untested: Mapping[str, str] = field(default_factory=dict)


def describe(tests: Preflight) -> dict[str, Any]:
    """The figures, ready for JSON: bytes per second, seconds, cores; null where unknown."""
    return {
        "hosts": [_describe_host(host) for host in tests.hosts],
        "links": [
            {
                "source": test.source,
                "target": test.target,
                "there": max(test.link.there, default=None),
                "back": max(test.link.back, default=None),
                "round_trip_seconds": test.link.round_trip,
                "trouble": test.link.trouble,
            }
            for test in tests.links
        ],
        "collective": None
        if tests.collective is None
        else {
            "backend": tests.collective.backend,
            "ranks": [
                {
                    "host": name,
                    "small_seconds": min(rank.small, default=None),
                    "large_seconds": min(rank.large, default=None),
                    "trouble": rank.trouble,
                }
                for name, rank in tests.collective.ranks
            ],
        },
        "untested": dict(tests.untested),
    }


def _describe_host(host: HostTests) -> dict[str, Any]:
    rounds = host.compute or host.memory
    contention = rounds[-1].contention if rounds else None
    return {
        "name": host.name,
        "host": host.greeting.host if host.greeting else None,
        "processor": host.greeting.processor if host.greeting else None,
        "trouble": host.trouble.reason if host.trouble else None,
        "cores": host.compute[-1].cores if host.compute else None,
        "core_speed": max((test.speed or 0.0 for test in host.compute), default=None),
        "memory_speed": max((test.speed or 0.0 for test in host.memory), default=None),
        "read_seconds": min((1 / test.speed for test in host.disk if test.speed), default=None),
        "cores_used_by_others": contention.others if contention else None,
        "torch": host.gpus.torch if host.gpus else None,
        "gpus": msgspec.to_builtins(host.gpus.devices) if host.gpus else [],
        "gpu_links": msgspec.to_builtins(host.gpus.links) if host.gpus else [],
        "failures": dict(host.failures),
    }
