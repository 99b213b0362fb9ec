"""Packs step records and records of device times into bytes. A value that does not fit its field is
clamped, never rejected."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import copysign, inf, nan
from typing import TYPE_CHECKING, Any

from . import layout

if TYPE_CHECKING:
    from .device_clock import DeviceStep

BODY = struct.Struct(layout.STEP.format[:-1])
"""A step record without its CRC."""
DEVICE_BODY = struct.Struct(layout.DEVICE.format[:-1])
"""A record of device times without its CRC."""
U16, U32, U64, I64 = 2**16 - 1, 2**32 - 1, 2**64 - 1, 2**63 - 1
_LARGEST = {"Q": U64, "q": I64, "I": U32, "H": U16, "h": 2**15 - 1}
_LARGEST_SINGLE = 3.4028234e38
"""The largest float32."""


def clamp_single(value: float) -> float:
    """`value`, or the largest float32 of its sign if it does not fit."""
    return copysign(_LARGEST_SINGLE, value) if _LARGEST_SINGLE < abs(value) < inf else value


def clamp_whole(value: Any, low: int, high: int) -> int:
    """`value` as an integer from `low` to `high`; anything that is not a number counts as 0."""
    try:
        return max(low, min(int(value), high))
    except (TypeError, ValueError, OverflowError):  # NaN, infinity, no number at all
        return max(low, min(0, high))


def _clamp_real(value: Any) -> float:
    try:
        return clamp_single(float(value))
    except (TypeError, ValueError, OverflowError):
        return nan


def pack_clamped(
    values: Sequence[Any],
    fields: tuple[layout.Field, ...] = layout.STEP_FIELDS,
    body: struct.Struct = BODY,
) -> bytes:
    """The body of a record some of whose values do not fit. `values`: those of the named `fields`,
    in their order."""
    packed: list[Any] = []
    named = [field for field in fields if field.name]
    for field, value in zip(named, values, strict=True):
        if field.name == "phases":
            seconds = [*map(_clamp_real, value), *[nan] * len(layout.PHASES)]
            packed += seconds[: len(layout.PHASES)]
        elif field.code == "f":
            packed.append(_clamp_real(value))
        else:
            largest = _LARGEST[field.code]
            least = field.least
            if least is None:
                least = -largest if field.code == "q" else 0
            packed.append(clamp_whole(value, least, largest))
    return body.pack(*packed)


def pack_device_step(number: int, step: DeviceStep, *, knows_wait: bool = True) -> bytes:
    """The body of record `number` of device times. Transfer and wait count as not measured if they
    are 0, because the timer may have missed them. `knows_wait`: hooks see all waits of the rank."""
    seconds = [nanoseconds * 1e-9 for nanoseconds in step.phases]
    seconds[layout.COMMUNICATION] = nan
    for phase in (layout.TRANSFER, layout.WAIT):
        if not seconds[phase] or (phase == layout.WAIT and not knows_wait):
            seconds[phase] = nan
    leads = [nan if lead < 0 else lead * 1e-9 for lead in (step.least_lead, step.most_lead)]
    rest = (*leads, step.loss, layout.SKIPPED if step.skipped else 0)
    try:
        return DEVICE_BODY.pack(number, step.record, step.wall, *seconds, *rest)
    except (struct.error, OverflowError):
        values = (number, step.record, step.wall, seconds, *rest)
        return pack_clamped(values, layout.DEVICE_FIELDS, DEVICE_BODY)
