"""TensorFlow's allocator of GPU memory, simulated: best fit with coalescing, one device.

`allocator_replay` replays a step's allocations in it. Every rule follows bfc_allocator.cc of
xla/tsl, whose functions are named below. Without memory growth TensorFlow reserves one region of
its whole share; with it, regions that double.
"""

from __future__ import annotations

from mgpu_doctor.analysis.memory.allocator import MIB, Allocator, Block, OutOfMemoryError, Pool

SMALLEST_CHUNK = 256
"""kMinAllocationSize: all sizes are rounded up to its multiples."""
FIRST_REGION = 2 * MIB
"""Size of the first region with memory growth; each further one is twice as large."""
WASTE = 128 * MIB
"""kMaxInternalFragmentation: a chunk that is less than twice too large is only split if as much
would be left over."""


class BfcAllocator(Allocator):
    """`capacity`: bytes, None: unlimited; `grows`: memory growth is on, which it must be then."""

    def __init__(self, capacity: int | None = None, *, grows: bool) -> None:
        super().__init__(capacity)
        self._pool = Pool(small=False)
        self._next_region = FIRST_REGION if grows or capacity is None else capacity

    def allocate(self, asked: int) -> Block:
        """`AllocateRawInternal`: a free chunk, else a chunk of a new region, if need be after
        unused regions are released. Raises OutOfMemoryError."""
        size = max(SMALLEST_CHUNK, _whole(asked + SMALLEST_CHUNK - 1))
        block = self._find_cached(self._pool, size)
        if block is None and not self._extend(size):
            self._release_cached()
            self.retries += 1
            if not self._extend(size):
                raise OutOfMemoryError(size)
        block = block or self._find_cached(self._pool, size)
        assert block is not None
        if block.size >= 2 * size or block.size - size >= WASTE:
            self._pool.put(block.split(size))
        block.taken = True
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def _extend(self, size: int) -> bool:
        """`Extend`: reserves a region for `size` bytes; False if the capacity does not allow it."""
        left = None if self.capacity is None else _whole(self.capacity - self.reserved)
        if left is not None and size > left:
            return False
        doubled = False
        while size > self._next_region:
            self._next_region, doubled = 2 * self._next_region, True
        wanted = self._next_region if left is None else min(self._next_region, left)
        if not doubled:
            self._next_region *= 2
        self._reserve(wanted)
        block = self.segments[self._next_address] = Block(self._next_address, wanted, self._pool)
        self._next_address += wanted
        self._pool.put(block)
        return True

    def _release_cached(self) -> None:
        """`DeallocateFreeRegions`: releases the regions that are not in use."""
        for block in list(self._pool.blocks.values()):
            if block.previous is None and block.following is None:
                self._pool.drop(block)
                del self.segments[block.address]
                self.reserved -= block.size


def _whole(size: int) -> int:
    return size // SMALLEST_CHUNK * SMALLEST_CHUNK
