"""Finds ranks whose sequence of collectives is shifted against the other ranks'. Pure.

A rank that omits a collective, or calls an extra one, pairs all its later calls with the wrong
calls of the other ranks. `find_shift` finds where that began. `collective_mismatch` uses it to name
the rank.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from mgpu_doctor.analysis.collectives.process_groups import Slot
from mgpu_doctor.case.flight_records import Collective, Flight

Key = Hashable
FAR = 128
"""Largest number of omitted or extra collectives that is searched for."""
WINDOW = 24
"""Number of collectives by which a supposed shift is judged."""
MATCHED, UNMATCHED = 0.9, 0.5
"""Shares of a window's collectives. A shift is accepted if at least the first share fits with it
and at most the second share without it: a loop may call the same collective several times in a
row."""
MOST_PAIRS = 64
"""Rank-dependent pairs of calls that are tried; a job with more of them has no loop."""


@dataclass(frozen=True, slots=True)
class Shift:
    """From `sequence` on, a rank's calls equal the others' calls `by` numbers later (it omitted
    `by` calls); a negative `by`: earlier (it made extra calls)."""

    sequence: int
    by: int
    agreed: int
    """Calls before it that equal the others' calls, including their places in the code."""
    fitting: int
    """The rank's calls after it that fit the shift."""
    distinct: int
    """Number of different calls in it."""


@dataclass(slots=True)
class _Alike:
    """Pairs of different calls that form one collective: calls from rank-dependent branches."""

    pairs: set[tuple[Key, Key]] = field(default_factory=set)

    def __call__(self, call: Key, other: Key) -> bool:
        return call == other or (call, other) in self.pairs


def key_of(slot: Slot) -> Key:
    """A call and its place in the code, comparable across hosts: of paths only the last folder and
    the file name count."""
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


def find_shift(rank_calls: Mapping[int, Key], other_calls: Mapping[int, Key]) -> Shift | None:
    """The shift of a rank's calls against the calls of the others, both by sequence number; None if
    there is no difference or no shift explains it.

    The others' calls are continued beyond their end by repeating their last period.
    """
    alike = _Alike()
    agreed = 0
    for sequence in sorted(rank_calls.keys() & other_calls.keys()):
        if rank_calls[sequence] == other_calls[sequence]:
            agreed += 1
        elif not alike(rank_calls[sequence], other_calls[sequence]):
            shift = _explain(sequence, agreed, rank_calls, other_calls, alike)
            if shift is not None or len(alike.pairs) >= MOST_PAIRS:
                return shift
            alike.pairs.add((rank_calls[sequence], other_calls[sequence]))
    return None


def _explain(
    sequence: int,
    agreed: int,
    rank_calls: Mapping[int, Key],
    other_calls: Mapping[int, Key],
    alike: _Alike,
) -> Shift | None:
    window = _from(rank_calls, sequence)
    expected = _continued(other_calls, sequence, FAR + WINDOW)
    if _share(window, expected, alike) > UNMATCHED:
        return None
    for by in range(1, FAR + 1):
        if _share(window, expected[by:], alike) >= MATCHED:
            return Shift(sequence, by, agreed, len(window), len(set(window)))
        later = _from(rank_calls, sequence + by)
        if _share(later, expected, alike) >= MATCHED:
            return Shift(sequence, -by, agreed, len(later), len(set(later)))
    return None


def _from(calls: Mapping[int, Key], sequence: int) -> list[Key]:
    return [calls[k] for k in range(sequence, sequence + WINDOW) if k in calls]


def _share(window: Sequence[Key], expected: Sequence[Key], alike: _Alike) -> float:
    """Share of the window that fits the expected calls."""
    if not window:
        return 0.0
    fitting = sum(alike(call, other) for call, other in zip(window, expected, strict=False))
    return fitting / len(window)


def _continued(other_calls: Mapping[int, Key], sequence: int, count: int) -> list[Key]:
    """The calls from `sequence` on, continued by what followed the last call at its previous
    occurrence."""
    continued: list[Key] = []
    at = sequence
    while at in other_calls and len(continued) < count:
        continued.append(other_calls[at])
        at += 1
    if not continued:
        return continued
    last = at - 1
    before = (
        k
        for k in range(last - 1, min(other_calls, default=last) - 1, -1)
        if other_calls.get(k) == other_calls[last]
        and other_calls.get(k - 1) == other_calls.get(last - 1)
    )
    earlier = next(before, None)
    if earlier is None:
        return continued
    period = [other_calls[k] for k in range(earlier + 1, last + 1) if k in other_calls]
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
