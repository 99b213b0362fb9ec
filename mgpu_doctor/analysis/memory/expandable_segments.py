"""The caching allocator with `expandable_segments:True`: one growing segment per pool.

Read from CUDACachingAllocator.cpp (torch 2.2 to 2.6: `ExpandableSegment`, `map_block`,
`unmap_block`, `find_expandable_block`). Not validated: no recording with this option was at hand.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from mgpu_doctor.analysis.memory.allocator import (
    LARGE_SEGMENT,
    SMALL_SEGMENT,
    SMALLEST_BLOCK,
    Allocator,
    Block,
    Pool,
)

ADDRESSES = LARGE_SEGMENT << 64
"""Bytes of address space that a segment is given: more than any device has."""


@dataclass(slots=True, eq=False)
class Unmapped:
    """A segment's addresses without device memory behind them. It is mapped in pages."""

    start: int
    page: int
    order: list[int] = field(default_factory=list)
    blocks: dict[int, Block] = field(default_factory=dict)

    def put(self, block: Block) -> None:
        insort(self.order, block.address)
        self.blocks[block.address] = block

    def drop(self, block: Block) -> None:
        del self.order[bisect_left(self.order, block.address)]
        del self.blocks[block.address]

    def whole_pages(self, block: Block) -> tuple[int, int]:
        """The range of pages that no other block shares with it."""
        first = self.start - (self.start - block.address) // self.page * self.page
        end = block.address + block.size
        return first, self.start + (end - self.start) // self.page * self.page


class ExpandableAllocator(Allocator):
    """The same, but a segment grows at its end and gives back whole free pages."""

    def __init__(self, capacity: int | None = None) -> None:
        super().__init__(capacity)
        self.unmapped: dict[bool, Unmapped] = {}
        """Whether the pool is the small one -> its unmapped addresses."""
        for pool, page in ((self.small, SMALL_SEGMENT), (self.large, LARGE_SEGMENT)):
            space = Block(self._next_address, ADDRESSES, pool, mapped=False)
            self._next_address += ADDRESSES
            self.segments[space.address] = space
            self.unmapped[pool.small] = Unmapped(space.address, page)
            self.unmapped[pool.small].put(space)

    def _find_cached(self, pool: Pool, size: int) -> Block | None:
        """A block at the growing end counts as large as it can become."""
        index = pool.find_fit(size)
        if index >= len(pool.order):
            return None
        reach = self._reach(pool, index)
        while index + 1 < len(pool.order) and (other := self._reach(pool, index + 1)) < reach:
            index, reach = index + 1, other
        return pool.pop(index)

    def _reach(self, pool: Pool, index: int) -> int:
        block = pool.blocks[pool.order[index][1]]
        after = block.following
        return block.size + (after.size if after is not None and not after.mapped else 0)

    def _add_segment(self, pool: Pool, size: int) -> Block | None:
        """`try_allocate_expandable_block`: maps pages behind a free block until it is large
        enough."""
        block = self._room(pool, size)
        if not block.mapped:
            mapped = self._map(block, min(block.size, size))
            if mapped is None:
                return None
            block = mapped
        while block.size < size:
            after = block.following
            assert after is not None
            mapped = self._map(after, min(size - block.size, after.size))
            if mapped is None:
                return None
            block = mapped
        pool.drop(block)
        return block

    def _room(self, pool: Pool, size: int) -> Block:
        """`find_expandable_block`: the lowest address from which on enough is not taken."""
        unmapped = self.unmapped[pool.small]
        for address in unmapped.order:
            block = unmapped.blocks[address]
            if block.previous is not None and not block.previous.taken:
                block = block.previous
            room, here = 0, block
            while room < size and not here.taken:
                room += here.size
                if here.following is None:
                    break
                here = here.following
            if room >= size:
                return block
        raise AssertionError("a segment has more addresses than can be taken")

    def _map(self, block: Block, size: int) -> Block | None:
        """`map_block`: puts device memory behind its first pages; None: the device is full."""
        unmapped = self.unmapped[block.pool.small]
        size = -(-size // unmapped.page) * unmapped.page
        if not self._reserve(size):
            return None
        unmapped.drop(block)
        if size < block.size:
            unmapped.put(block.split(size))
        block.mapped = True
        block = self._merge(block)
        block.pool.put(block)
        return block

    def _should_split(self, pool: Pool, rest: int) -> bool:  # noqa: ARG002
        return rest >= SMALLEST_BLOCK

    def _release_cached(self) -> None:
        for pool in (self.large, self.small):
            for block in list(pool.blocks.values()):
                self._unmap(block)

    def _unmap(self, block: Block) -> None:
        """`unmap_block`: what does not fill a page stays mapped and free."""
        unmapped = self.unmapped[block.pool.small]
        first, end = unmapped.whole_pages(block)
        if end <= first:
            return
        block.pool.drop(block)
        if first > block.address:
            rest = block.split(first - block.address)
            block.pool.put(block)
            block = rest
        if end < block.address + block.size:
            block.pool.put(block.split(end - block.address))
        self.reserved -= block.size
        block.mapped = False
        unmapped.put(self._merge(block))

    def _forget(self, block: Block) -> None:
        (block.pool if block.mapped else self.unmapped[block.pool.small]).drop(block)
