"""The first divergence of ranks' collectives, by flight-recorder dumps. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from mgpu_doctor.analysis.collectives.circles import circles, newest_dumps
from mgpu_doctor.analysis.collectives.divergence import Divergence
from mgpu_doctor.analysis.collectives.pairs import pairs
from mgpu_doctor.analysis.collectives.parting import first_clash, silent_shift
from mgpu_doctor.analysis.collectives.standstill import apart, behind, in_ring, undumped
from mgpu_doctor.analysis.collectives.waits import Wait, find_waits
from mgpu_doctor.case.flights import Flight


def diverged(flights: Iterable[Flight]) -> Divergence | None:
    """The first divergence; None where there is none, or where it may be mere delay.

    Dumps of several ranks are never made at one moment: that one rank is some calls ahead of
    another means nothing until it has waited longer than it usually does.
    """
    newest = newest_dumps(flights)
    if len(newest) < 2:
        return None
    around = circles(newest)
    waits = find_waits((*around, *pairs(newest)))
    clashes = [found for circle in around if (found := first_clash(circle)) is not None]
    if clashes:
        return _with_waits(min(clashes, key=_created), waits)
    standing = in_ring(waits) or behind(waits) or undumped(around, waits) or apart(around, waits)
    if standing is not None:
        return standing
    return next((found for circle in around if (found := silent_shift(circle)) is not None), None)


def _created(found: Divergence) -> float:
    expected = found.expected
    return float("inf") if expected is None or expected.created is None else expected.created


def _with_waits(found: Divergence, waits: Sequence[Wait]) -> Divergence:
    inside = [wait for wait in waits if wait.circle.group == found.group]
    seconds = [wait.seconds for wait in inside if wait.lasting and wait.seconds is not None]
    return replace(
        found,
        waiting=tuple(sorted({wait.rank for wait in waits})),
        seconds=max(seconds, default=None),
        stands=any(wait.lasting for wait in inside),
    )
