"""Optimizer states made smaller, or moved away."""

from __future__ import annotations

from mgpu_doctor.analysis.memory.distributed import updates
from mgpu_doctor.analysis.memory.edits import resized
from mgpu_doctor.analysis.memory.stream import Kind, Stream, Taken

LEAST_IN_EIGHT_BITS = 4096 * 4
"""bitsandbytes leaves states of fewer than 4096 numbers in 32 bits (`min_8bit_size`)."""
BLOCK = 256
"""So many 8-bit numbers share a 32-bit scale."""


def fused(stream: Stream) -> Stream:
    """The temporaries of the update are gone."""
    return resized(stream, lambda taken: 0 if scratch(taken) else taken.size)


def in_eight_bits(stream: Stream) -> Stream:
    """States of a byte a number instead of four, and their scales. The update runs weight by
    weight in one kernel, so that the temporaries of its phase are gone."""

    def size(taken: Taken) -> int:
        if taken.kind is not Kind.OPTIMIZER or taken.size < LEAST_IN_EIGHT_BITS:
            return 0 if scratch(taken) else taken.size
        numbers = taken.size // 4
        return numbers + numbers // BLOCK * 4

    return resized(stream, size)


def on_the_host(stream: Stream) -> Stream:
    """States and update are on the CPU: neither takes memory of the device."""
    return resized(stream, lambda taken: 0 if updates(taken) else taken.size)


def scratch(taken: Taken) -> bool:
    """Whether it is a temporary of the update."""
    return updates(taken) and taken.kind is not Kind.OPTIMIZER
