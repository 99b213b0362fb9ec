"""Each rule of TensorFlow's allocator, worked by hand; and that nothing overlaps."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_doctor.analysis.memory.allocator import MIB, Block, OutOfMemoryError
from mgpu_doctor.analysis.memory.bfc_allocator import BfcAllocator


@pytest.mark.parametrize(("asked", "taken"), [(1, 256), (256, 256), (257, 512), (1000, 1024)])
def test_sizes_are_rounded_up_to_256_bytes(asked: int, taken: int) -> None:
    allocator = BfcAllocator(64 * MIB, grows=False)
    assert allocator.allocate(asked).size == taken
    assert allocator.allocated == taken


def test_without_growth_all_is_taken_at_once() -> None:
    allocator = BfcAllocator(64 * MIB, grows=False)
    allocator.allocate(256)
    assert allocator.reserved == 64 * MIB
    allocator.allocate(64 * MIB - 256)
    with pytest.raises(OutOfMemoryError):
        allocator.allocate(256)


def test_with_growth_regions_double_and_end_at_the_limit() -> None:
    allocator = BfcAllocator(13 * MIB, grows=True)
    reserved = []
    for _ in range(4):
        allocator.allocate(2 * MIB)
        reserved.append(allocator.reserved // MIB)
    assert reserved == [2, 6, 6, 13]  # 2, 4, and 7 of the next 8


def test_a_large_request_makes_the_region_as_large_as_needed() -> None:
    allocator = BfcAllocator(grows=True)
    allocator.allocate(5 * MIB)
    assert allocator.reserved == 8 * MIB
    allocator.allocate(4 * MIB)
    assert allocator.reserved == 16 * MIB


def test_a_chunk_less_than_twice_too_large_is_given_whole() -> None:
    allocator = BfcAllocator(64 * MIB, grows=False)
    first = allocator.allocate(2 * MIB)
    allocator.allocate(256)  # keeps it from merging with what is free behind
    allocator.free(first)
    kept = allocator.allocate(MIB + 256)
    assert (kept.address, kept.size) == (first.address, 2 * MIB)
    allocator.free(kept)
    split = allocator.allocate(MIB)
    assert (split.address, split.size) == (first.address, MIB)


def test_128_mib_are_split_off_whatever_the_proportion() -> None:
    allocator = BfcAllocator(512 * MIB, grows=False)
    assert allocator.allocate(384 * MIB).size == 384 * MIB
    assert BfcAllocator(511 * MIB, grows=False).allocate(384 * MIB).size == 511 * MIB


def test_free_neighbours_merge() -> None:
    allocator = BfcAllocator(4 * MIB, grows=False)
    blocks = [allocator.allocate(MIB) for _ in range(4)]
    for block in (blocks[0], blocks[2], blocks[1]):
        allocator.free(block)
    assert allocator.allocate(3 * MIB).address == blocks[0].address


def test_regions_of_which_nothing_is_used_are_given_back_for_a_larger_one() -> None:
    allocator = BfcAllocator(8 * MIB, grows=True)
    for block in [allocator.allocate(2 * MIB) for _ in range(3)]:
        allocator.free(block)
    assert allocator.reserved == 6 * MIB
    allocator.allocate(7 * MIB)
    assert (allocator.reserved, allocator.retries) == (8 * MIB, 1)


@given(st.lists(st.tuples(st.integers(1, 9 * MIB), st.booleans()), max_size=60), st.booleans())
def test_nothing_overlaps_and_all_bytes_are_accounted_for(
    steps: list[tuple[int, bool]], grows: bool
) -> None:
    allocator = BfcAllocator(64 * MIB, grows=grows)
    held: list[Block] = []
    for size, frees in steps:
        if frees and held:
            allocator.free(held.pop(size % len(held)))
            continue
        try:
            held.append(allocator.allocate(size))
        except OutOfMemoryError:
            continue
        assert held[-1].size >= size
    spans = sorted((block.address, block.address + block.size) for block in held)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert allocator.allocated == sum(block.size for block in held)
    assert allocator.allocated <= allocator.reserved <= 64 * MIB
