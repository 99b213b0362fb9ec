"""Repeats a run during which other processes or virtual machines used the cores.

The timing of such a job says little, so it is repeated rather than judged. Two measures show the
disturbance: the cores that others used on average, by /proc/stat; and heartbeats, which also show
what an average hides and /proc/stat may not count: a core that stopped for a fraction of a second.
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
MOST_CORES = 0.1
"""Cores used by others, on average, from which a run counts as disturbed. A job that is alone on
its machine shows -0.02 to 0.02."""
MOST_STOLEN = 0.2
"""Seconds that one core stopped within `WINDOW`, from which a run counts as disturbed. A job that
is alone shows less than 0.05."""
BEAT = 0.02
"""Seconds between two heartbeats."""
WINDOW = 1.0
"""Seconds."""
TRIES = 3
"""Runs of one job at most."""
REPEATS = 6
"""Repetitions at most in one run of the tests, which a busy machine would otherwise make three
times as long."""


@dataclass(frozen=True)
class Clocks:
    """Clocks in seconds: busy time of all cores, CPU time of this process and its ended children,
    wall time."""

    taken: float
    own: float
    wall: float


def cores_of_others(before: Clocks, after: Clocks) -> float:
    """Cores used by others than this process and its ended children, on average."""
    taken, own = after.taken - before.taken, after.own - before.own
    return (taken - own) / max(after.wall - before.wall, 1e-9)


def read_clocks() -> Clocks:
    """The clocks now, from /proc/stat (proc(5)); time stolen by the hypervisor counts as busy."""
    user, nice, system, _, _, irq, softirq, steal, *_ = (
        int(ticks) for ticks in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    ticks = user + nice + system + irq + softirq + steal
    own = os.times()
    return Clocks(
        ticks / os.sysconf("SC_CLK_TCK"),
        own.user + own.system + own.children_user + own.children_system,
        time.monotonic(),
    )


class WakeUpDelays:
    """How late the heartbeats of one core were, seconds."""

    def __init__(self) -> None:
        self.worst = 0.0
        """The largest sum of delays within `WINDOW`."""
        self._recent: deque[tuple[float, float]] = deque()
        self._sum = 0.0

    def beat(self, asked: float, woken: float) -> None:
        """Notes a heartbeat that was due at `asked` and came at `woken`, both in seconds."""
        late = woken - asked
        self._recent.append((woken, late))
        self._sum += late
        while self._recent[0][0] < woken - WINDOW:
            self._sum -= self._recent.popleft()[1]
        self.worst = max(self.worst, self._sum)


class Heartbeats:
    """One thread per core that sleeps for `BEAT` seconds at a time and notes how late it wakes.

    The threads have real-time priority if allowed, so that only the loss of the whole core delays
    them: to the hypervisor, or to another process with real-time priority.
    """

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._pulses = {core: WakeUpDelays() for core in sorted(os.sched_getaffinity(0))}
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
        """The seconds that the worst core stopped within `WINDOW`."""
        return max(pulse.worst for pulse in self._pulses.values())

    def _beat(self, core: int, pulse: WakeUpDelays) -> None:
        os.sched_setaffinity(threading.get_native_id(), {core})
        with suppress(OSError):
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_FIFO, os.sched_param(1))
        while not self._ended.is_set():
            asked = time.monotonic() + BEAT
            time.sleep(BEAT)
            pulse.beat(asked, time.monotonic())


class RepeatDisturbed:
    """Calls a function, and again if it was disturbed: at most `TRIES` times each, and `repeats`
    times in all."""

    def __init__(
        self,
        repeats: int = REPEATS,
        clocks: Callable[[], Clocks] = read_clocks,
        heartbeats: Callable[[], Heartbeats] = Heartbeats,
    ) -> None:
        self._left = repeats
        self._clocks = clocks
        self._heartbeats = heartbeats

    def __call__(self, act: Callable[[], T]) -> T:
        """The result of the first undisturbed call, or of the last one."""
        for attempt in range(TRIES):
            before = self._clocks()
            with self._heartbeats() as heartbeats:
                done = act()
            disturbed = (
                cores_of_others(before, self._clocks()) >= MOST_CORES
                or heartbeats.stolen() >= MOST_STOLEN
            )
            if not disturbed or attempt == TRIES - 1 or not self._left:
                break
            self._left -= 1
        return done


repeat_disturbed = RepeatDisturbed(0 if "PYTEST_XDIST_WORKER" in os.environ else REPEATS)
"""Under xdist nothing is repeated: tests that run in parallel must pass on a busy machine
anyway."""
