"""Blocks of device memory, and the pools of free ones in which the caching allocator looks."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field


class Block:
    """A stretch of a segment: taken or free. `previous` and `following` are its neighbours in the
    segment; `mapped`: whether device memory stands behind it (only expandable segments have
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

    def fitting(self, size: int) -> int:
        """Index in `order` of the smallest block of at least that size; its length: none is."""
        return bisect_left(self.order, (size, 0))

    def pop(self, index: int) -> Block:
        return self.blocks.pop(self.order.pop(index)[1])
