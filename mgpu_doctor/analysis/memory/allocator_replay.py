"""A step's allocations played through a simulated allocator: peaks, failures, composition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from mgpu_doctor.analysis.memory.allocator import (
    GRANULE,
    Allocator,
    Block,
    OutOfMemoryError,
    round_size,
)
from mgpu_doctor.analysis.memory.bfc_allocator import BfcAllocator
from mgpu_doctor.analysis.memory.expandable_segments import ExpandableAllocator
from mgpu_doctor.analysis.memory.memory_plan import Framework
from mgpu_doctor.analysis.memory.stream import Allocated, Kind, Phase, Stream


@dataclass(frozen=True, slots=True)
class Shortage:
    """Where memory runs out. `event`: index in the stream; the rest in bytes."""

    event: int
    phase: Phase
    name: str
    wanted: int
    allocated: int
    reserved: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Device memory as the allocator holds it; `taken`: bytes of it in use."""

    address: int
    size: int
    taken: int


@dataclass(frozen=True, slots=True)
class Replay:
    """Bytes throughout. `retries`: how often all that was cached had to be given back first, which
    stops the device. `shortage`: None where everything found room."""

    peak_allocated: int
    peak_reserved: int
    retries: int
    shortage: Shortage | None
    segments: tuple[Segment, ...]
    """Segments at the end, or when memory ran out."""
    charged: Sequence[int]
    """Change of allocated bytes by each replayed event, rounding included."""

    @property
    def survives(self) -> bool:
        return self.shortage is None


def replay(
    stream: Stream,
    capacity: int | None = None,
    *,
    expandable: bool = False,
    framework: Framework = Framework.TORCH,
) -> Replay:
    """`capacity`: bytes that the allocator may reserve. What was never taken cannot be freed: such
    events, and empty blocks, change nothing."""
    allocator = _allocator(capacity, expandable, framework)
    live_blocks: dict[int, Block] = {}
    charged: list[int] = []
    shortage = None
    for index, event in enumerate(stream.events):
        if isinstance(event, Allocated):
            if event.block in live_blocks:
                raise ValueError(f"block {event.block} is taken twice (event {index})")
            if event.size <= 0:
                charged.append(0)
                continue
            try:
                block = live_blocks[event.block] = allocator.allocate(event.size)
            except OutOfMemoryError as error:
                state = (error.wanted, allocator.allocated, allocator.reserved)
                shortage = Shortage(index, event.phase, event.name, *state)
                break
            charged.append(block.size)
        elif (freed := live_blocks.pop(event.block, None)) is not None:
            charged.append(-freed.size)
            allocator.free(freed)
        else:
            charged.append(0)
    return Replay(
        allocator.peak_allocated,
        allocator.peak_reserved,
        allocator.retries,
        shortage,
        _segments(allocator),
        charged,
    )


def smallest_capacity(
    stream: Stream,
    *,
    expandable: bool = False,
    granule: int = GRANULE,
    framework: Framework = Framework.TORCH,
) -> int:
    """Bytes that the allocator needs at least: with as much it survives, retries allowed, with
    `granule` bytes less it does not. (Giving back what is cached changes what fits where, so a
    capacity further below may survive by luck: nothing to build on.)"""
    granule = -(-max(granule, GRANULE) // GRANULE) * GRANULE
    fails = (minimum_bytes(stream) - 1) // granule
    most = replay(stream, expandable=expandable, framework=framework).peak_reserved
    survives = -(-most // granule)
    while survives - fails > 1:
        middle = (survives + fails) // 2
        capacity = middle * granule
        if replay(stream, capacity, expandable=expandable, framework=framework).survives:
            survives = middle
        else:
            fails = middle
    return min(survives * granule, most)


def _allocator(capacity: int | None, expandable: bool, framework: Framework) -> Allocator:
    if framework is Framework.TENSORFLOW:
        return BfcAllocator(capacity, grows=False)
    return ExpandableAllocator(capacity) if expandable else Allocator(capacity)


def _segments(allocator: Allocator) -> tuple[Segment, ...]:
    segments = []
    for address, first in allocator.segments.items():
        size = taken = 0
        block: Block | None = first
        while block is not None:
            size += block.size * block.mapped
            taken += block.size * block.taken
            block = block.following
        segments.append(Segment(address, size, taken))
    return tuple(segments)


def minimum_bytes(stream: Stream) -> int:
    """The most bytes in use at once, by an allocator that wastes nothing but its rounding: what no
    capacity below can hold."""
    now = most = 0
    live_sizes: dict[int, int] = {}
    for event in stream.events:
        if isinstance(event, Allocated):
            if event.size > 0:
                live_sizes[event.block] = round_size(event.size)
                now += live_sizes[event.block]
                most = max(most, now)
        else:
            now -= live_sizes.pop(event.block, 0)
    return most


NAMED = 5
"""Most operators that are named."""


@dataclass(frozen=True, slots=True)
class Composition:
    """Bytes that are allocated at the peak; they add up to the replay's peak."""

    phase: Phase | None
    """The phase of the peak; None: nothing was allocated."""
    kinds: Mapping[Kind, int]
    largest: tuple[tuple[str, int], ...]
    """The operators whose blocks hold most of it, with their bytes."""
    phases: Mapping[Phase, int]
    """The peak of each phase that occurs."""

    @property
    def total(self) -> int:
        return sum(self.kinds.values())


def find_composition(stream: Stream, replayed: Replay) -> Composition:
    """Peak of the replayed part."""
    charged = replayed.charged
    if not charged:
        return Composition(None, {}, (), {})
    levels = list(accumulate(charged))
    peak = levels.index(max(levels))
    live_allocations: dict[int, tuple[Allocated, int]] = {}
    for index in range(peak + 1):
        event, size = stream.events[index], charged[index]
        if isinstance(event, Allocated):
            if size:
                live_allocations[event.block] = event, size
        else:
            live_allocations.pop(event.block, None)
    kinds: Counter[Kind] = Counter()
    names: Counter[str] = Counter()
    for taken, size in live_allocations.values():
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
