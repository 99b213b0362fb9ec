"""Each rule of torch's caching allocator, worked by hand."""

from __future__ import annotations

import pytest

from mgpu_doctor.analysis.memory.allocator import (
    LARGE_SEGMENT,
    MIB,
    Allocator,
    Block,
    OutOfMemoryError,
    round_size,
    segment_size,
)


def end(block: Block) -> int:
    return block.address + block.size


@pytest.mark.parametrize(
    ("asked", "taken"), [(1, 512), (512, 512), (513, 1024), (MIB, MIB), (MIB + 1, MIB + 512)]
)
def test_sizes_are_rounded_up_to_512_bytes(asked: int, taken: int) -> None:
    assert round_size(asked) == taken


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
        (21 * MIB, 22 * MIB),
    ],
)
def test_segments_come_in_three_sizes(size: int, segment: int) -> None:
    assert segment_size(size) == segment
    allocator = Allocator()
    allocator.allocate(size)
    assert allocator.reserved == segment


def test_small_and_large_requests_live_in_pools_of_their_own() -> None:
    allocator = Allocator()
    allocator.free(allocator.allocate(5 * MIB))
    allocator.allocate(MIB)
    assert allocator.reserved == 22 * MIB
    allocator.allocate(MIB + 1)
    assert allocator.reserved == 22 * MIB


def test_small_blocks_are_split_to_the_last_512_bytes() -> None:
    allocator = Allocator()
    first = allocator.allocate(MIB)
    second = allocator.allocate(MIB - 512)
    third = allocator.allocate(512)
    assert [second.address, third.address] == [end(first), end(second)]
    assert allocator.reserved == 2 * MIB
    assert not allocator.small.order


def test_a_large_block_keeps_a_rest_of_a_mebibyte_or_less() -> None:
    allocator = Allocator()
    block = allocator.allocate(11 * MIB)
    assert block.size == allocator.allocated == 12 * MIB
    allocator.free(block)
    block = allocator.allocate(11 * MIB - 512)
    assert block.size == 11 * MIB - 512
    assert allocator.large.order == [(MIB + 512, end(block))]


def test_the_smallest_block_that_fits_is_used_and_of_equals_the_lowest() -> None:
    allocator = Allocator()
    sizes = (40, 14, 30, 14)
    blocks = [allocator.allocate(size * MIB) for size in sizes]
    addresses = [block.address for block in blocks]
    for block in reversed(blocks):
        allocator.free(block)
    assert allocator.allocate(14 * MIB).address == addresses[1]
    assert allocator.allocate(14 * MIB).address == addresses[3]
    assert allocator.allocate(14 * MIB).address == addresses[2]
    assert allocator.allocate(14 * MIB).address == addresses[2] + 14 * MIB
    assert allocator.reserved == 98 * MIB


@pytest.mark.parametrize(
    ("order", "parts"), [((0, 1, 2), 2), ((2, 1, 0), 1), ((0, 2, 1), 2), ((1, 0, 2), 2)]
)
def test_free_neighbours_become_one_block(order: tuple[int, ...], parts: int) -> None:
    allocator = Allocator()
    blocks = [allocator.allocate(4 * MIB) for _ in range(3)]
    start = blocks[0].address
    allocator.free(blocks[order[0]])
    allocator.free(blocks[order[1]])
    assert len(allocator.large.order) == parts
    allocator.free(blocks[order[2]])
    assert allocator.large.order == [(LARGE_SEGMENT, start)]
    assert allocator.segments[start].size == LARGE_SEGMENT


def test_blocks_of_different_segments_never_become_one() -> None:
    allocator = Allocator()
    blocks = [allocator.allocate(20 * MIB) for _ in range(2)]
    for block in blocks:
        allocator.free(block)
    assert len(allocator.large.order) == 2
    allocator.allocate(40 * MIB)
    assert allocator.reserved == 80 * MIB


def test_what_is_cached_is_given_back_before_memory_runs_out() -> None:
    allocator = Allocator(capacity=64 * MIB)
    allocator.allocate(4 * MIB)
    allocator.free(allocator.allocate(30 * MIB))
    allocator.free(allocator.allocate(512))
    assert allocator.retries == 0
    allocator.allocate(40 * MIB)
    assert allocator.retries == 1
    assert allocator.reserved == 60 * MIB
    assert len(allocator.segments) == 2


def test_a_segment_of_which_a_part_is_taken_is_not_given_back() -> None:
    allocator = Allocator(capacity=40 * MIB)
    first, second = allocator.allocate(9 * MIB), allocator.allocate(9 * MIB)
    allocator.free(first)
    with pytest.raises(OutOfMemoryError) as failed:
        allocator.allocate(22 * MIB)
    assert failed.value.wanted == 22 * MIB
    assert allocator.retries == 1
    assert allocator.reserved == 20 * MIB
    allocator.free(second)
    assert allocator.allocate(40 * MIB).size == 40 * MIB


def test_the_peaks_stay_when_memory_is_freed() -> None:
    allocator = Allocator()
    allocator.free(allocator.allocate(30 * MIB))
    allocator.allocate(10 * MIB)
    assert (allocator.allocated, allocator.peak_allocated) == (10 * MIB, 30 * MIB)
    assert (allocator.reserved, allocator.peak_reserved) == (30 * MIB, 30 * MIB)
