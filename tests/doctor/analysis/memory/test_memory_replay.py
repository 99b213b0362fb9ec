"""Any order of allocations and frees: nothing overlaps and all bytes are accounted for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mgpu_doctor.analysis.memory.allocator import GRANULE, MIB, Allocator, Block, OutOfMemoryError
from mgpu_doctor.analysis.memory.allocator_replay import minimum_bytes, replay, smallest_capacity
from mgpu_doctor.analysis.memory.expandable_segments import ExpandableAllocator
from mgpu_doctor.analysis.memory.stream import Phase, Stream
from tests.doctor.analysis.memory.allocation_streams import Job, stream_of, taking
from tests.support.seeds import at_most

SIZES = st.one_of(
    st.integers(1, 4096),
    st.integers(1, 2 * MIB),
    st.integers(MIB, 24 * MIB),
    st.sampled_from([512, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, 20 * MIB, 21 * MIB]),
)


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    """Blocks taken, and some of those that are there freed."""
    steps: list[int | tuple[int, int]] = []
    live: list[int] = []
    for number in range(draw(st.integers(0, 40))):
        steps.append((number, draw(SIZES)))
        live.append(number)
        for _ in range(draw(st.integers(0, min(3, len(live))))):
            steps.append(live.pop(draw(st.integers(0, len(live) - 1))))
    return stream_of(*steps)


def chain(allocator: Allocator) -> list[Block]:
    """All blocks, segment by segment, in the order of their links."""
    found = []
    for first in allocator.segments.values():
        block: Block | None = first
        while block is not None:
            found.append(block)
            block = block.following
    return found


def check(allocator: Allocator, live: Sequence[Block]) -> None:
    blocks = chain(allocator)
    for one, other in pairwise(blocks):
        if one.following is other:
            assert other.previous is one
            assert one.address + one.size == other.address
            assert one.taken or other.taken or one.mapped != other.mapped
        else:
            assert one.address + one.size <= other.address
    assert {id(block) for block in blocks if block.taken} == {id(block) for block in live}
    free = {block.address for block in blocks if not block.taken and block.mapped}
    assert free == set(allocator.small.blocks) | set(allocator.large.blocks)
    for pool in (allocator.small, allocator.large):
        assert pool.order == sorted((b.size, b.address) for b in pool.blocks.values())
    assert allocator.allocated == sum(block.size for block in live)
    assert allocator.reserved == sum(block.size for block in blocks if block.mapped)
    assert allocator.reserved % GRANULE == 0


@settings(max_examples=at_most(60))
@given(streams(), st.booleans(), st.integers(10, 60))
def test_no_block_overlaps_another_and_all_bytes_are_accounted(
    stream: Stream, expandable: bool, limit: int
) -> None:
    """Also where memory is so short that what is cached is given back, and requests fail."""
    capacity = limit * MIB
    allocator = ExpandableAllocator(capacity) if expandable else Allocator(capacity)
    held: dict[int, Block] = {}
    for event in stream.events:
        if event.phase is Phase.FORWARD:
            try:
                held[event.block] = allocator.allocate(event.size)  # type: ignore[union-attr]
            except OutOfMemoryError:
                continue
        elif event.block in held:
            allocator.free(held.pop(event.block))
        check(allocator, list(held.values()))
        assert allocator.reserved <= capacity


@settings(max_examples=at_most(60))
@given(streams(), st.booleans())
def test_any_stream_is_replayed(stream: Stream, expandable: bool) -> None:
    free = replay(stream, expandable=expandable)
    assert free.survives
    assert free.retries == 0
    assert minimum_bytes(stream) <= free.peak_allocated <= free.peak_reserved
    levels = list(accumulate(free.charged, initial=0))
    assert max(levels) == free.peak_allocated
    assert sum(segment.size for segment in free.segments) == free.peak_reserved
    assert sum(segment.taken for segment in free.segments) == levels[-1]


@settings(max_examples=at_most(40))
@given(streams(), st.booleans())
def test_the_smallest_capacity_survives_and_a_granule_less_does_not(
    stream: Stream, expandable: bool
) -> None:
    capacity = smallest_capacity(stream, expandable=expandable)
    held = replay(stream, capacity, expandable=expandable)
    assert held.survives
    assert minimum_bytes(stream) <= capacity <= replay(stream, expandable=expandable).peak_reserved
    if capacity:
        less = replay(stream, capacity - GRANULE, expandable=expandable)
        assert less.shortage is not None
        assert less.retries >= 1
        assert less.shortage.allocated <= less.shortage.reserved <= capacity - GRANULE


def test_where_memory_runs_out_is_reported() -> None:
    stream = stream_of((0, 30 * MIB), (1, 30 * MIB), 0, (2, 12 * MIB), (3, 50 * MIB))
    failed = replay(stream, 80 * MIB)
    assert failed.shortage is not None
    assert (failed.shortage.event, failed.shortage.name) == (4, "op 3")
    assert (failed.shortage.wanted, failed.shortage.allocated) == (50 * MIB, 42 * MIB)
    assert failed.shortage.reserved == 60 * MIB
    assert len(failed.charged) == 4


def test_less_than_is_reserved_freely_can_be_enough() -> None:
    """The first block is cached when the second comes; it is given back only where it must be."""
    stream = stream_of((0, 30 * MIB), 0, (1, 40 * MIB))
    assert replay(stream).peak_reserved == 70 * MIB
    assert smallest_capacity(stream) == 40 * MIB
    assert replay(stream, 40 * MIB).retries == 1


def test_a_coarse_search_finds_a_capacity_that_survives() -> None:
    stream = Job().stream()
    exact, coarse = smallest_capacity(stream), smallest_capacity(stream, granule=64 * MIB)
    assert exact <= coarse <= exact + 64 * MIB
    assert replay(stream, coarse).survives


def test_nothing_taken_needs_nothing() -> None:
    assert smallest_capacity(taking()) == 0
    assert smallest_capacity(taking(0)) == 0
    assert replay(taking(), 0).survives
    assert replay(stream_of(7)).peak_reserved == 0


def test_no_number_is_too_large() -> None:
    stream = stream_of((0, 1 << 70), (1, 512))
    assert replay(stream, 80 << 30).shortage is not None
    for expandable in (False, True):
        assert replay(stream, expandable=expandable).peak_allocated == (1 << 70) + 512


def test_a_block_that_is_taken_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="block 3 is taken twice"):
        replay(stream_of((3, 512), (3, 512)))
    assert replay(stream_of((3, 512), 3, (3, 512))).survives
