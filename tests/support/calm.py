"""Whether a machine was left to a job: what others took of its cores meanwhile.

A job's timing says little where a neighbour of the virtual machine or a process of somebody else
took the cores from one rank: such a run is repeated rather than judged.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
DISTURBED = 0.1
"""Cores. Alone on its machine a job shows -0.02 to 0.02 of them."""
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


class Patience:
    """Repeats what was disturbed, up to so many times in all."""

    def __init__(self, repeats: int = REPEATS, clocks: Callable[[], Clocks] = now) -> None:
        self._left = repeats
        self._clocks = clocks

    def __call__(self, act: Callable[[], T]) -> T:
        """What it returns when nothing disturbed it, or else at the last attempt."""
        for attempt in range(TRIES):
            before = self._clocks()
            done = act()
            if others(before, self._clocks()) < DISTURBED or attempt == TRIES - 1 or not self._left:
                break
            self._left -= 1
        return done


calmly = Patience()
