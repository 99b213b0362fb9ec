"""Hosts that slow down the job: all of their ranks are slow, and no rank elsewhere is. Pure.

What the ranks of a host share is not the fault of one of them. Fixing a single one would save
nothing, because the others of its host are as slow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from mgpu_doctor.analysis.stragglers.persistent_stragglers import Straggler

LEAST_RANKS = 2
"""Compared ranks of a host: of one rank nobody can tell whether it or its host is slow."""
ALIKE = 0.5
"""Share of the largest excess that each rank of the host must have. A choice: ranks that are slow
for one reason are slow by about the same."""


@dataclass(frozen=True, slots=True)
class SlowHost:
    """A host with all of its stragglers, by rank. Seconds are per step, medians over its ranks."""

    host: str
    stragglers: tuple[Straggler, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(straggler.rank for straggler in self.stragglers)

    @property
    def excess(self) -> float:
        """Own work of its ranks in excess of the median of the others."""
        return median(straggler.excess for straggler in self.stragglers)

    @property
    def by_phase(self) -> dict[str, float]:
        """Excess of each phase that was measured on all of its ranks."""
        known = {
            phase: [straggler.by_phase.get(phase) for straggler in self.stragglers]
            for phase in self.stragglers[0].by_phase
        }
        return {
            phase: median(value for value in values if value is not None)
            for phase, values in known.items()
            if None not in values
        }


def find_slow_hosts(
    stragglers: Sequence[Straggler],
    hosts: Mapping[int, str],
    stages: Sequence[Sequence[int]],
) -> tuple[SlowHost, ...]:
    """The slow hosts; empty if there are none, or if other ranks are slow, too. `hosts`: of each
    rank that was compared; `stages`: ranks that do the same work, empty if all do."""
    slow = {straggler.rank: straggler for straggler in stragglers}
    found = []
    for host in sorted({hosts[rank] for rank in slow if rank in hosts}):
        ranks = [rank for rank, name in hosts.items() if name == host]
        if len(ranks) < LEAST_RANKS or not set(ranks) <= slow.keys():
            return ()
        of_host = tuple(slow[rank] for rank in sorted(ranks))
        largest = max(straggler.excess for straggler in of_host)
        if min(straggler.excess for straggler in of_host) < ALIKE * largest:
            return ()
        found.append(SlowHost(host, of_host))
    named = {host.host for host in found}
    for rank in slow:
        equals = next((stage for stage in stages if rank in stage), tuple(hosts))
        if all(hosts.get(other) in named for other in equals):
            return ()  # nobody elsewhere does the same work
    return tuple(found)
