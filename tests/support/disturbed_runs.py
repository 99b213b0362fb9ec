"""Whether a machine was left to a job: what others took of its cores meanwhile.

A job's timing says little if a neighbour of the virtual machine, or somebody else's process, took
the cores from one rank: such a run is repeated rather than judged. Two measures show it. The cores
that others took on average over the run cover all that /proc/stat accounts for. Heartbeats show
what an average hides: a core that stood still for a fraction of a second, accounted for or not.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")
DISTURBED = 0.1
"""Cores. Alone on its machine a job shows -0.02 to 0.02 of them."""
STOLEN = 0.2
"""Seconds that one core stood still within a second. Alone, a job shows less than 0.05."""
BEAT = 0.02
WINDOW = 1.0
TRIES = 3
REPEATS = 6
"""In one run of the tests: on a machine that is never calm they would take three times as long."""


@dataclass(frozen=True)
class Clocks:
    """Seconds since some start: of all cores together, of this process and its children, of the
    wall."""

    taken: float
    own: float
    wall: float


def others(before: Clocks, after: Clocks) -> float:
    """Cores which neither this process nor children that have ended took, on average."""
    taken, own = after.taken - before.taken, after.own - before.own
    return (taken - own) / max(after.wall - before.wall, 1e-9)


def now() -> Clocks:
    """Read from /proc/stat (proc(5)); the hypervisor's steal counts as taken."""
    user, nice, system, _, _, irq, softirq, steal, *_ = (
        int(one) for one in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    ticks = user + nice + system + irq + softirq + steal
    own = os.times()
    return Clocks(
        ticks / os.sysconf("SC_CLK_TCK"),
        own.user + own.system + own.children_user + own.children_system,
        time.monotonic(),
    )


class Pulse:
    """The seconds by which the wake-ups on one core came late."""

    def __init__(self) -> None:
        self.worst = 0.0
        """The most within `WINDOW` seconds."""
        self._recent: deque[tuple[float, float]] = deque()
        self._sum = 0.0

    def beat(self, asked: float, woken: float) -> None:
        """Notes a wake-up that was asked for at one time and came at another."""
        late = woken - asked
        self._recent.append((woken, late))
        self._sum += late
        while self._recent[0][0] < woken - WINDOW:
            self._sum -= self._recent.popleft()[1]
        self.worst = max(self.worst, self._sum)


class Heartbeats:
    """A thread on each core that sleeps for `BEAT` seconds at a time and notes how late it wakes.

    It has real-time priority where that is allowed, so that only what takes the whole core away
    delays it: the hypervisor, or a neighbour with real-time priority.
    """

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._pulses = {core: Pulse() for core in sorted(os.sched_getaffinity(0))}
        self._threads = [
            threading.Thread(target=self._beat, args=each, daemon=True)
            for each in self._pulses.items()
        ]

    def __enter__(self) -> "Heartbeats":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def stolen(self) -> float:
        """The seconds that the worst core stood still within `WINDOW` seconds."""
        return max(pulse.worst for pulse in self._pulses.values())

    def _beat(self, core: int, pulse: Pulse) -> None:
        os.sched_setaffinity(threading.get_native_id(), {core})
        with suppress(OSError):
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_FIFO, os.sched_param(1))
        while not self._ended.is_set():
            asked = time.monotonic() + BEAT
            time.sleep(BEAT)
            pulse.beat(asked, time.monotonic())


class Patience:
    """Repeats what was disturbed, up to so many times in all."""

    def __init__(
        self,
        repeats: int = REPEATS,
        clocks: Callable[[], Clocks] = now,
        heartbeats: Callable[[], Heartbeats] = Heartbeats,
    ) -> None:
        self._left = repeats
        self._clocks = clocks
        self._heartbeats = heartbeats

    def __call__(self, act: Callable[[], T]) -> T:
        """What it returns when nothing disturbed it, or else at the last attempt."""
        for attempt in range(TRIES):
            before = self._clocks()
            with self._heartbeats() as heartbeats:
                done = act()
            disturbed = others(before, self._clocks()) >= DISTURBED or heartbeats.stolen() >= STOLEN
            if not disturbed or attempt == TRIES - 1 or not self._left:
                break
            self._left -= 1
        return done


calmly = Patience(0 if "PYTEST_XDIST_WORKER" in os.environ else REPEATS)
"""Tests that run beside others hold on a busy machine: nothing is gained by running them again."""
