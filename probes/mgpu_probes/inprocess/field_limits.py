"""Values that may not fit the fields of a record: clamped, never refused."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import copysign, inf, nan
from typing import Any

from . import layout

BODY = struct.Struct(layout.STEP.format[:-1])
"""A step record without its CRC."""
U16, U32, U64, I64 = 2**16 - 1, 2**32 - 1, 2**64 - 1, 2**63 - 1
_LARGEST = 3.4028234e38
"""The largest float32."""


def single(value: float) -> float:
    """`value` where it fits a float32, else the largest one of its sign."""
    return copysign(_LARGEST, value) if _LARGEST < abs(value) < inf else value


def whole(value: Any, low: int, high: int) -> int:
    try:
        return max(low, min(int(value), high))
    except (TypeError, ValueError, OverflowError):  # NaN, infinity, no number at all
        return max(low, min(0, high))


def real(value: Any) -> float:
    try:
        return single(float(value))
    except (TypeError, ValueError, OverflowError):
        return nan


def clamped(
    times: tuple[int, int, int, int, int],
    phases: Sequence[float],
    numbers: tuple[int, int, int, int, int, int, int],
    reals: tuple[float, float, float],
    place: tuple[int, int],
) -> bytes:
    """A step's body from values that do not fit their fields."""
    number, end_ns, wall_ns, step, flags = times
    samples, tokens, group_seq, collectives, micro_batches, device_bytes, resident = numbers
    loss, gc_s, cpu_s = map(real, reals)
    seconds = [*map(real, phases), *[nan] * len(layout.PHASES)][: len(layout.PHASES)]
    return BODY.pack(
        number,
        end_ns,
        whole(wall_ns, 0, I64),
        whole(step, 0, U32),
        whole(flags, 0, U32),
        *seconds,
        whole(samples, 0, U32),
        whole(tokens, 0, U32),
        loss,
        gc_s,
        whole(group_seq, 0, U32),
        whole(collectives, 0, U16),
        whole(micro_batches, 0, U16),
        cpu_s,
        whole(device_bytes, 0, U64),
        whole(place[0], -1, 2**15 - 1),
        whole(place[1], 0, U16),
        whole(resident, 0, U64),
    )
