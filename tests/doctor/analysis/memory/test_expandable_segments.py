"""Segments that grow: pages are mapped behind the last block, and given back when free."""

from __future__ import annotations

import pytest

from mgpu_doctor.analysis.memory.allocator import MIB, OutOfMemoryError
from mgpu_doctor.analysis.memory.expandable_segments import ExpandableAllocator


def test_a_segment_grows_by_pages_of_its_pool() -> None:
    allocator = ExpandableAllocator()
    first = allocator.allocate(MIB)
    assert allocator.reserved == 2 * MIB
    large = allocator.allocate(12 * MIB)
    assert allocator.reserved == 22 * MIB
    assert allocator.allocate(MIB).address == first.address + MIB
    assert allocator.allocate(30 * MIB).address == large.address + 12 * MIB
    assert allocator.reserved == 62 * MIB


def test_a_free_block_at_the_end_grows_instead_of_a_new_one_being_made() -> None:
    allocator = ExpandableAllocator()
    block = allocator.allocate(20 * MIB)
    start = block.address
    allocator.free(block)
    assert allocator.allocate(60 * MIB).address == start
    assert allocator.reserved == 60 * MIB


def test_the_end_counts_as_large_as_it_can_become() -> None:
    allocator = ExpandableAllocator()
    hole, between, last = (allocator.allocate(size * MIB) for size in (40, 20, 20))
    allocator.free(hole)
    allocator.free(last)
    assert allocator.allocate(20 * MIB).address == hole.address
    assert between.taken


def test_blocks_are_split_to_the_last_512_bytes_in_either_pool() -> None:
    allocator = ExpandableAllocator()
    block = allocator.allocate(20 * MIB - 512)
    assert block.size == 20 * MIB - 512
    assert allocator.large.order == [(512, block.address + block.size)]


def test_whole_free_pages_are_given_back_and_mapped_again() -> None:
    allocator = ExpandableAllocator(capacity=80 * MIB)
    first, hole, last = (allocator.allocate(size * MIB) for size in (10, 50, 20))
    allocator.free(hole)
    allocator.allocate(2 * MIB)
    assert allocator.reserved == 80 * MIB
    assert allocator.allocate(MIB).size == MIB
    assert allocator.retries == 1
    assert allocator.reserved == 42 * MIB
    assert allocator.allocate(27 * MIB).address == first.address + 12 * MIB
    assert allocator.reserved == 62 * MIB
    assert last.taken


def test_memory_runs_out_where_no_page_is_free() -> None:
    allocator = ExpandableAllocator(capacity=40 * MIB)
    allocator.allocate(30 * MIB)
    with pytest.raises(OutOfMemoryError):
        allocator.allocate(30 * MIB)
    assert allocator.retries == 1
    assert allocator.allocate(10 * MIB).size == 10 * MIB
