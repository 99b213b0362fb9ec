"""Runs the tests of `preflight` on all hosts: one after another on hosts that share a machine, at
once on the others.

A test in which a host looks slow is repeated, so that a moment's noise accuses nobody."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Semaphore
from typing import Any, TypeVar

from mgpu_probes.outside.preflight import torch_speed

from mgpu_doctor.check.preflight_channel import HostLost, PreflightChannel
from mgpu_doctor.check.preflight_outliers import find_held_back, find_slow_hosts
from mgpu_doctor.check.preflight_reports import (
    AllReduce,
    CollectiveTest,
    Compute,
    Contention,
    Disk,
    Gpus,
    Greeting,
    HostTests,
    Link,
    LinkTest,
    Memory,
    Preflight,
    parse,
)
from mgpu_doctor.cluster.engine import Engine, Trouble
from mgpu_doctor.cluster.host_fleet import DESCRIPTORS, MOST_OPENING, OTHER_FILES
from mgpu_doctor.recording.open_files import allow_open_files

LINK_SECONDS = 60.0
"""From the start; no pair of hosts is begun later."""
LAST_START = 65.0
"""Seconds from the start after which no process with torch is started."""
HOST_TEST, LINK_TEST, TORCH_TEST = 30.0, 60.0, 50.0
"""Seconds for one answer."""
ROUNDS = 3
"""Of a test in which a host looks slow."""
LOOPBACK = "127.0.0.1"
Json = dict[str, Any]
Tell = Callable[[str], None]
Parsed = TypeVar("Parsed")


@dataclass(frozen=True, slots=True)
class Options:
    """What to test. `pairs`: links between the hosts, too; `data`: a folder on each host to read
    from; `interface`: the network interface for the links; `python`: the Python with torch."""

    pairs: bool = False
    data: str | None = None
    interface: str | None = None
    python: str | None = None

    def first_line(self) -> Json:
        """The first line for an agent."""
        pythons = [self.python] if self.python else [sys.executable, "python3"]
        return {
            "data": self.data,
            "interface": self.interface,
            "pythons": list(dict.fromkeys(pythons)),
            "torch_program": Path(torch_speed.__file__).read_text("utf-8"),
        }


@dataclass
class _Host:
    """A host while it is tested."""

    tests: HostTests
    channel: PreflightChannel | None = None
    lost: Trouble | None = None
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.tests.name

    @property
    def alive(self) -> bool:
        return self.channel is not None and self.lost is None

    def ask(self, test: str, seconds: float, **given: Any) -> Json | None:
        """The answer; None if the host is lost."""
        if self.channel is None or self.lost is not None:
            return None
        try:
            return self.channel.ask(test, seconds, **given)
        except HostLost as error:
            self.lost = error.trouble
            return None

    def measure(self, test: str, kind: type[Parsed]) -> Parsed | None:
        """The result of a test of this host; None if it failed."""
        report = self.ask(test, HOST_TEST)
        result = parse(report, kind) if report is not None else None
        if isinstance(result, str):
            self.failures[test] = result
            return None
        return result


def run_preflight(hosts: Sequence[str], engine: Engine, options: Options, tell: Tell) -> Preflight:
    """Tests these hosts. What could not be tested is part of the result."""
    began = time.monotonic()
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(max(1, len(hosts))))
        allow_open_files(DESCRIPTORS * len(hosts) + OTHER_FILES)
        tell(f"connecting to {_count(hosts)}")
        first = options.first_line()
        connecting = Semaphore(MOST_OPENING)

        def connect(name: str) -> _Host:
            with connecting:
                return _open(name, engine, first, stack)

        tested = list(pool.map(connect, hosts))
        _refuse_twins(tested)
        session = _Session(tested, pool, tell, began)
        session.test_hosts()
        session.test_devices()
        untested: dict[str, str] = {}
        links: list[LinkTest] = []
        if len(hosts) > 1 and options.pairs:
            links = session.test_links(untested)
        collective = session.test_collective(options, links, untested)
    results = [
        replace(host.tests, trouble=host.lost, failures=dict(host.failures)) for host in tested
    ]
    return Preflight(tuple(results), tuple(links), collective, untested)


def _count(hosts: Sequence[object]) -> str:
    return "this machine" if len(hosts) == 1 else f"{len(hosts)} hosts"


def _open(name: str, engine: Engine, first: Mapping[str, Any], stack: ExitStack) -> _Host:
    """Connects to a host. `stack` closes its channel."""
    host = _Host(HostTests(name))
    try:
        host.channel = PreflightChannel(name, engine, first)
        stack.callback(host.channel.close)
        greeting = parse(host.channel.greet(), Greeting)
    except HostLost as error:
        host.lost = error.trouble
        return host
    if isinstance(greeting, str):
        host.lost = Trouble(greeting, "use one version of mgpu-doctor on all hosts")
    else:
        host.tests = replace(host.tests, greeting=greeting)
    return host


def _refuse_twins(hosts: Iterable[_Host]) -> None:
    """Tests a host that was named twice only once."""
    seen: dict[tuple[str, str | None], str] = {}
    for host in hosts:
        greeting = host.tests.greeting
        if greeting is None or not host.alive:
            continue
        first = seen.setdefault((greeting.host, greeting.boot), host.name)
        if first != host.name:
            host.lost = Trouble(f"it is the same host as {first}", "name it once")


class _Session:
    """The tests, in their order."""

    def __init__(
        self, hosts: Sequence[_Host], pool: ThreadPoolExecutor, tell: Tell, began: float
    ) -> None:
        self._hosts = hosts
        self._pool = pool
        self._tell = tell
        self._began = began

    def test_hosts(self) -> None:
        """Cores, memory and disk of each host."""
        for test, title, kind in (
            ("compute", "cores", Compute),
            ("memory", "memory", Memory),
            ("disk", "disk", Disk),
        ):
            for number in range(ROUNDS):
                again = ", once more" if number else ""
                self._tell(f"testing {title} of {_count(self._hosts)}{again}")
                self._measure(test, kind)
                tests = [host.tests for host in self._hosts]
                held_back = test == "compute" and find_held_back(tests)
                if not find_slow_hosts(test, tests) and not held_back:
                    break

    def _measure(self, test: str, kind: type[Any]) -> None:
        def measure(host: _Host) -> None:
            result = host.measure(test, kind)
            if result is not None:
                host.tests = host.tests.with_round(test, result)

        self._each(measure)

    def test_devices(self) -> None:
        """GPUs, where the host's PyTorch finds any."""
        self._tell(f"testing GPUs of {_count(self._hosts)}")

        def measure(host: _Host) -> None:
            report = host.ask("devices", TORCH_TEST)
            result = parse(report, Gpus) if report is not None else None
            if isinstance(result, str):
                host.failures["devices"] = result
            elif result is not None:
                host.tests = replace(host.tests, gpus=result)

        self._each(measure)

    def _each(self, call: Callable[[_Host], None]) -> None:
        """Calls it for each host that answers: at once for machines, one after another for hosts
        that share one."""
        machines: dict[object, list[_Host]] = {}
        for host in self._hosts:
            if host.alive and host.tests.greeting is not None:
                machines.setdefault(host.tests.greeting.boot or host.name, []).append(host)

        def call_all(hosts: list[_Host]) -> None:
            for host in hosts:
                call(host)

        list(self._pool.map(call_all, machines.values()))

    def test_links(self, untested: dict[str, str]) -> list[LinkTest]:
        """The links between hosts, in rounds in which each host has one partner."""
        usable = [host for host in self._hosts if host.alive and _address(host)]
        results: list[LinkTest] = []
        rounds = list(pair_up(usable))
        for number, pairs in enumerate(rounds):
            if time.monotonic() - self._began > LINK_SECONDS:
                done, wanted = len(results), sum(map(len, rounds))
                untested["links"] = f"{done} of {wanted} pairs of hosts were tested in time"
                break
            self._tell(f"testing links between hosts, round {number + 1} of {len(rounds)}")
            found = self._pool.map(_test_link, pairs)
            results += [result for result in found if result is not None]
        return results

    def test_collective(
        self, options: Options, links: Sequence[LinkTest], untested: dict[str, str]
    ) -> CollectiveTest | None:
        """An all-reduce over all hosts, or between the devices of one."""
        hosts = [host for host in self._hosts if host.alive]
        gpus = [len(host.tests.gpus.devices) if host.tests.gpus else 0 for host in hosts]
        if len(hosts) > 1 and not options.pairs:
            return None
        if not hosts or any(not _has_torch(host) for host in hosts):
            untested["collective"] = "not all hosts have a Python with PyTorch"
            return None
        if time.monotonic() - self._began > LAST_START:
            untested["collective"] = "no time was left"
            return None
        if any(test.link.trouble for test in links):
            untested["collective"] = "hosts cannot reach each other"
            return None
        address = LOOPBACK if len(hosts) == 1 else _address(hosts[0])
        answer = hosts[0].ask("port", HOST_TEST, address=address) or {}
        if not isinstance(answer.get("port"), int):
            untested["collective"] = "no port was free"
            return None
        backend = "nccl" if min(gpus) else "gloo"
        counts = gpus if min(gpus) else [2 if len(hosts) == 1 else 1] * len(hosts)
        brackets = f"[{address}]" if ":" in str(address) else address
        meeting = f"tcp://{brackets}:{answer['port']}"
        self._tell(f"testing an all-reduce over {backend} of {sum(counts)} ranks")
        shared = {
            "test": "collective",
            "backend": backend,
            "world": sum(counts),
            "meeting": meeting,
            "interface": options.interface,
        }

        def run(index: int) -> list[tuple[str, AllReduce]]:
            first = sum(counts[:index])
            ranks = [
                {**shared, "rank": first + local, "local_rank": local}
                for local in range(counts[index])
            ]
            report = hosts[index].ask("collective", TORCH_TEST, ranks=ranks) or {}
            answers = report.get("ranks")
            parsed = [
                parse(item, AllReduce)
                for item in (answers if isinstance(answers, list) else [{"trouble": "it was lost"}])
                if isinstance(item, dict)
            ]
            return [
                (hosts[index].name, AllReduce(trouble=one) if isinstance(one, str) else one)
                for one in parsed
            ]

        found = self._pool.map(run, range(len(hosts)))
        return CollectiveTest(backend, tuple(item for reports in found for item in reports))


def _address(host: _Host) -> str | None:
    return host.tests.greeting.address if host.tests.greeting else None


def _has_torch(host: _Host) -> bool:
    return host.tests.gpus is not None and host.tests.gpus.torch is not None


def pair_up(hosts: Sequence[Parsed]) -> Iterator[list[tuple[Parsed, Parsed]]]:
    """All pairs, in rounds in which nobody is in two pairs (the circle method)."""
    ring: list[Parsed | None] = [*hosts, *([None] if len(hosts) % 2 else [])]
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        yield [(a, b) for a, b in pairs if a is not None and b is not None]
        ring = [ring[0], ring[-1], *ring[1:-1]]


def _test_link(pair: tuple[_Host, _Host]) -> LinkTest | None:
    """Lets the second host listen and the first one connect."""
    source, target = pair
    opened = target.ask("listen", HOST_TEST, address=_address(target))
    if opened is None:
        return None
    if not isinstance(opened.get("port"), int):
        trouble = f"{target.name} cannot listen at {_address(target)}: {opened.get('trouble')}"
        return LinkTest(source.name, target.name, Link(trouble=trouble))
    to = [_address(target), opened["port"], opened.get("token")]
    report = source.ask("link", LINK_TEST, to=to)
    closed = parse((target.ask("close", HOST_TEST) or {}).get("contention") or {}, Contention)
    if report is None:
        return None
    link = parse(report, Link)
    if isinstance(link, str):
        link = Link(trouble=link)
    if link.trouble:
        link = Link(trouble=f"{_address(target)}: {link.trouble}")
    return LinkTest(source.name, target.name, link, None if isinstance(closed, str) else closed)
