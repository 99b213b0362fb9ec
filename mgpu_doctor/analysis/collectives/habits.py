"""What a rank, or all of them, have always called at a place before. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mgpu_doctor.analysis.collectives.circles import Slot
from mgpu_doctor.analysis.collectives.shifts import Key, key_of
from mgpu_doctor.case.flights import Collective, Flight

LEAST = 3
"""Times that one call must always have followed others before, for it to be expected."""
LONGEST = 8
"""Calls before a place that are looked at, the fewest first that were always followed alike."""


def habit(calls: Sequence[Key], at: int) -> int | None:
    """Where what always came in this place was called last; None where it varied or was seldom."""
    for length in range(1, min(LONGEST, at) + 1):
        context = calls[at - length : at]
        alike = [i for i in range(length, at) if calls[i - length : i] == context]
        if len(alike) < LEAST:
            return None
        if len({calls[i] for i in alike}) == 1:
            return alike[-1]
    return None


def is_habit(called: Mapping[int, Key], sequence: int) -> bool:
    """Whether a group's call is what always came after those before it."""
    numbers = range(min(called, default=0), sequence + 1)
    calls = [called.get(number) for number in numbers]
    found = habit(calls, len(calls) - 1)
    return found is not None and calls[found] == calls[-1]


@dataclass(frozen=True, slots=True)
class Step:
    """A call of a rank, in whatever group, and what it had always called there before."""

    called: Collective
    usual: Collective

    @property
    def strays(self) -> bool:
        """Whether it is another call than usual."""
        one, other = self.called, self.usual
        return one.group != other.group or key_of(_slot(one)) != key_of(_slot(other))


def last_known_step(flight: Flight, entry: Collective) -> Step | None:
    """The call itself, or the last before it, of which the rank's habit is known: where it has
    strayed, nothing that follows is habit. None: it varied, or was too seldom."""
    calls = [(one.group, key_of(_slot(one))) for one in flight.collectives]
    at = next((i for i, one in enumerate(flight.collectives) if one is entry), -1)
    for i in range(at, max(-1, at - LONGEST), -1):
        found = habit(calls, i)
        if found is not None and (i == at or calls[found] != calls[i]):
            return Step(flight.collectives[i], flight.collectives[found])
        if found is not None:
            return None
    return None


def _slot(one: Collective) -> Slot:
    return (one,)
