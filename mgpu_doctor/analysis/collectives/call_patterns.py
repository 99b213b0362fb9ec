"""The usual calls of ranks at a place, and ranks whose calls are shifted by some. Pure.

A rank that omits a collective, or makes one too many, pairs all later calls with the wrong ones of
the other ranks; `find_shift` finds where that began.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from mgpu_doctor.analysis.collectives.process_groups import Slot
from mgpu_doctor.case.flight_records import Collective, Flight

Key = Hashable
FAR = 128
"""Largest number of left-out or extra collectives that is searched for."""
WINDOW = 24
"""Collectives after a place by which its explanation is judged."""
MATCHED, UNMATCHED = 0.9, 0.5
"""A shift explains a window where so many of its collectives fit, and without it at most so many
do: a loop may call the same collective several times in a row."""
MOST_PAIRS = 64
"""Rank-dependent pairs of calls that are tried; a job with more of them has no loop."""


@dataclass(frozen=True, slots=True)
class Shift:
    """From `sequence` on, a rank's calls are the others' of `by` numbers later (it left `by` of
    them out) or, where `by` is negative, earlier (it made more)."""

    sequence: int
    by: int
    agreed: int
    """Calls before it that were the others' in everything, their place in the code, too."""
    fitting: int
    """Its calls since then that fit the shift."""
    distinct: int
    """Number of different calls in it."""


@dataclass(slots=True)
class _Alike:
    """Pairs of calls that may be one collective: rank-dependent branches that meet."""

    pairs: set[tuple[Key, Key]] = field(default_factory=set)

    def __call__(self, mine: Key, theirs: Key) -> bool:
        return mine == theirs or (mine, theirs) in self.pairs


def key_of(slot: Slot) -> Key:
    """A call and its place in the code, comparable across hosts: only the last folder counts."""
    return tuple(
        (
            collective.operation,
            collective.inputs if collective.operation != "scatter" else (),
            collective.outputs if collective.operation != "gather" else (),
            collective.dtypes,
            _places(collective.frames),
        )
        for collective in slot
    )


@lru_cache(maxsize=4096)
def _places(frames: tuple[tuple[str, int | None, str], ...]) -> tuple[tuple[str, int | None], ...]:
    return tuple(("/".join(file.rsplit("/", 2)[-2:]), line) for file, line, _ in frames)


def find_shift(mine: Mapping[int, Key], theirs: Mapping[int, Key]) -> Shift | None:
    """Where a rank's calls began to be shifted against the others', by sequence number.

    `theirs` is continued beyond its end by what it always did before. None where nothing, or
    something else, explains the differences.
    """
    alike = _Alike()
    agreed = 0
    for sequence in sorted(mine.keys() & theirs.keys()):
        if mine[sequence] == theirs[sequence]:
            agreed += 1
        elif not alike(mine[sequence], theirs[sequence]):
            shift = _explain(sequence, agreed, mine, theirs, alike)
            if shift is not None or len(alike.pairs) >= MOST_PAIRS:
                return shift
            alike.pairs.add((mine[sequence], theirs[sequence]))
    return None


def _explain(
    sequence: int, agreed: int, mine: Mapping[int, Key], theirs: Mapping[int, Key], alike: _Alike
) -> Shift | None:
    window = _from(mine, sequence)
    expected = _continued(theirs, sequence, FAR + WINDOW)
    if _share(window, expected, alike) > UNMATCHED:
        return None
    for by in range(1, FAR + 1):
        if _share(window, expected[by:], alike) >= MATCHED:
            return Shift(sequence, by, agreed, len(window), len(set(window)))
        later = _from(mine, sequence + by)
        if _share(later, expected, alike) >= MATCHED:
            return Shift(sequence, -by, agreed, len(later), len(set(later)))
    return None


def _from(calls: Mapping[int, Key], sequence: int) -> list[Key]:
    return [calls[k] for k in range(sequence, sequence + WINDOW) if k in calls]


def _share(window: Sequence[Key], expected: Sequence[Key], alike: _Alike) -> float:
    """Share of the window that fits the expected calls."""
    if not window:
        return 0.0
    fitting = sum(alike(mine, other) for mine, other in zip(window, expected, strict=False))
    return fitting / len(window)


def _continued(theirs: Mapping[int, Key], sequence: int, count: int) -> list[Key]:
    """Their calls from `sequence` on, continued by what followed the same call the last time."""
    continued: list[Key] = []
    at = sequence
    while at in theirs and len(continued) < count:
        continued.append(theirs[at])
        at += 1
    if not continued:
        return continued
    last = at - 1
    before = (
        k
        for k in range(last - 1, min(theirs, default=last) - 1, -1)
        if theirs.get(k) == theirs[last] and theirs.get(k - 1) == theirs.get(last - 1)
    )
    earlier = next(before, None)
    if earlier is None:
        return continued
    period = [theirs[k] for k in range(earlier + 1, last + 1) if k in theirs]
    while period and len(continued) < count:
        continued += period
    return continued[:count]


LEAST = 3
"""Times that a call must have followed the same calls to be expected."""
LONGEST = 8
"""Numbers of preceding calls that are tried as a pattern, in this order."""


def habit(calls: Sequence[Key], at: int) -> int | None:
    """Index of the last usual call in this place; None if calls varied or were too rare."""
    for length in range(1, min(LONGEST, at) + 1):
        context = calls[at - length : at]
        alike = [i for i in range(length, at) if calls[i - length : i] == context]
        if len(alike) < LEAST:
            return None
        if len({calls[i] for i in alike}) == 1:
            return alike[-1]
    return None


def is_habit(called: Mapping[int, Key], sequence: int) -> bool:
    """Whether a group's call is the usual one after the calls before it."""
    numbers = range(min(called, default=0), sequence + 1)
    calls = [called.get(number) for number in numbers]
    last = habit(calls, len(calls) - 1)
    return last is not None and calls[last] == calls[-1]


@dataclass(frozen=True, slots=True)
class Step:
    """A call of a rank, in any group, and the usual call in its place."""

    called: Collective
    usual: Collective

    @property
    def strays(self) -> bool:
        """Whether the call is unusual."""
        collective, other = self.called, self.usual
        return collective.group != other.group or key_of(_slot(collective)) != key_of(_slot(other))


def last_known_step(flight: Flight, entry: Collective) -> Step | None:
    """The call itself, or the last one before it, for which the rank's usual call is known: after a
    deviation, later calls are not usual ones. None: the calls varied or were too few."""
    calls = [(collective.group, key_of(_slot(collective))) for collective in flight.collectives]
    at = next((i for i, collective in enumerate(flight.collectives) if collective is entry), -1)
    for i in range(at, max(-1, at - LONGEST), -1):
        last = habit(calls, i)
        if last is not None and (i == at or calls[last] != calls[i]):
            return Step(flight.collectives[i], flight.collectives[last])
        if last is not None:
            return None
    return None


def _slot(collective: Collective) -> Slot:
    return (collective,)
