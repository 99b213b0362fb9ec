"""What the peak is made of, and how high each phase gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from mgpu_doctor.analysis.memory.replay import Replay
from mgpu_doctor.analysis.memory.stream import Kind, Phase, Stream, Taken

NAMED = 5
"""So many operators are named."""


@dataclass(frozen=True, slots=True)
class Composition:
    """Bytes that are allocated at the peak; they add up to the replay's peak."""

    phase: Phase | None
    """In which the peak lies; None: nothing was allocated."""
    kinds: Mapping[Kind, int]
    largest: tuple[tuple[str, int], ...]
    """The operators whose blocks hold most of it, with their bytes."""
    phases: Mapping[Phase, int]
    """The peak of each phase that occurs."""

    @property
    def total(self) -> int:
        return sum(self.kinds.values())


def composition(stream: Stream, replayed: Replay) -> Composition:
    """Of as much as was played."""
    charged = replayed.charged
    if not charged:
        return Composition(None, {}, (), {})
    levels = list(accumulate(charged))
    peak = levels.index(max(levels))
    held: dict[int, tuple[Taken, int]] = {}
    for index in range(peak + 1):
        event, size = stream.events[index], charged[index]
        if isinstance(event, Taken):
            if size:
                held[event.block] = event, size
        else:
            held.pop(event.block, None)
    kinds: Counter[Kind] = Counter()
    names: Counter[str] = Counter()
    for taken, size in held.values():
        kinds[taken.kind] += size
        names[taken.name] += size
    phase = stream.events[peak].phase
    return Composition(
        phase, dict(kinds), tuple(names.most_common(NAMED)), _phases(stream, charged)
    )


def _phases(stream: Stream, charged: Sequence[int]) -> dict[Phase, int]:
    """A phase starts with what the one before left, so what is allocated before its events counts,
    too."""
    now = 0
    peaks: dict[Phase, int] = {}
    for event, change in zip(stream.events, charged, strict=False):
        after = now + change
        peaks[event.phase] = max(peaks.get(event.phase, 0), now, after)
        now = after
    return peaks
