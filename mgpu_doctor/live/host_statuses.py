"""The hosts of a job: when each was last heard, and its newest sample. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mgpu_doctor.case.model import Case, State

if TYPE_CHECKING:
    from mgpu_doctor.case.host_samples import HostSample, Traffic
    from mgpu_doctor.cluster.host_channel import HostState

SILENT = 3.0
"""Seconds from which the silence of a connected host is shown; its agent sends every second."""
HOST_GONE = 30.0
"""Seconds without a sample after which a host of a recording counts as silent."""
HOST_LATE = 3.0
"""The same in multiples of its usual spacing, if that is more: long recordings are thinned out."""
ALIVE = (State.RUNNING, State.WAITING)
UNANSWERED = "it has not answered yet"


@dataclass(frozen=True, slots=True, eq=False)
class HostStatus:
    """A host that has ranks of the job, or was asked for some. None: unknown."""

    name: str
    """Its own name, which its ranks report; if it never answered, the user's name for it."""
    heard: float | None = None
    """Seconds since its last message, or, in a recording, since its last sample."""
    silent: bool = False
    """Whether that is too long ago: what is shown of it is old."""
    trouble: str | None = None
    """Why it is not seen, part of a sentence."""
    sample: HostSample | None = None
    rates: Mapping[Traffic, float] = field(default_factory=dict)
    """Bytes per second between its last two samples."""
    ahead: float | None = None
    """Seconds by which its clock is ahead of this machine's, at most `clock_error` more or less."""
    clock_error: float | None = None
    corrected: float = 0.0
    """Seconds by which its times were put back."""
    lost: int = 0
    """Step records that were overwritten before they arrived."""


def list_hosts(case: Case, states: Sequence[HostState] = ()) -> tuple[HostStatus, ...]:
    """Returns the hosts that have ranks, in the order of ranks, then those that are not seen.
    `states`: of the connected hosts; empty: the samples alone tell how old the data are. Ranks
    whose host has no connection of its name are as old as the one heard last that has no ranks."""
    alive: dict[str, bool] = {}
    for rank in case.ranks:
        alive[rank.host] = alive.get(rank.host, False) or rank.state in ALIVE
    samples = _newest_two(case.host_samples, alive)
    known = {state.node or state.name: state for state in states}
    # Ranks in containers have other names than the hosts that report them.
    others = [_of_channel(state, ()) for name, state in known.items() if name not in alive]
    reporters = [host for host in others if host.heard is not None]

    def find(name: str) -> HostStatus:
        newest = samples.get(name, ())
        if name in known:
            return _of_channel(known[name], newest)
        if not reporters:
            return _of_samples(name, newest, case.observed, alive=alive[name])
        latest = min(reporters, key=lambda host: host.heard or 0.0)
        return replace(latest, name=name, sample=newest[-1] if newest else None)

    hosts = [find(name) for name in alive]
    return (*hosts, *(host for host in others if host.trouble))


def _of_channel(state: HostState, newest: Sequence[HostSample]) -> HostStatus:
    from mgpu_doctor.cluster.host_channel import Link

    broken = state.link is not Link.LIVE
    reason = state.trouble.reason if state.trouble else UNANSWERED
    return HostStatus(
        name=state.node or state.name,
        heard=state.age,
        silent=broken or (state.age is not None and state.age >= SILENT),
        trouble=reason if broken else None,
        sample=newest[-1] if newest else None,
        rates=_rates(newest),
        ahead=state.ahead,
        clock_error=state.clock_error,
        corrected=state.corrected,
        lost=state.lost,
    )


def _of_samples(name: str, newest: Sequence[HostSample], now: float, *, alive: bool) -> HostStatus:
    """`alive`: whether a rank of it has not ended; without one nothing samples the host."""
    if not newest:
        return HostStatus(name)
    spacing = newest[-1].at - newest[0].at
    age = max(0.0, now - newest[-1].at)
    silent = alive and age >= max(HOST_GONE, HOST_LATE * spacing)
    return HostStatus(name, age if alive else None, silent, sample=newest[-1], rates=_rates(newest))


def _newest_two(samples: Sequence[HostSample], hosts: Iterable[str]) -> dict[str, list[HostSample]]:
    """Returns the last two samples of each host, if it has two. `samples`: oldest first."""
    newest: dict[str, list[HostSample]] = {host: [] for host in hosts}
    missing = len(newest)
    for sample in reversed(samples):
        found = newest.get(sample.host or "")
        if found is not None and len(found) < 2:
            found.insert(0, sample)
            missing -= len(found) == 2
            if not missing:
                break
    return newest


def _rates(newest: Sequence[HostSample]) -> dict[Traffic, float]:
    if len(newest) < 2 or newest[1].at <= newest[0].at:
        return {}
    before, after = newest
    return {
        way: (now - before.traffic[way]) / (after.at - before.at)
        for way, now in after.traffic.items()
        if way in before.traffic and now >= before.traffic[way]  # less: it was restarted
    }
