"""Fixed-size records of a black box as NumPy arrays: their dtypes and which of them are valid."""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess import layout

Array = npt.NDArray[np.void]

SECONDS = ("phases", "gc_s", "cpu_s")
MOST_SECONDS = 1e9
"""The most seconds of one record and of a machine's monotonic clock: 32 years. Their sums do not
overflow."""
MOST_NS = 10**18
TOGETHER = 16
"""Number of records from which one CRC over all of them is tried first."""

_KINDS = {"Q": "u8", "q": "i8", "I": "u4", "H": "u2", "h": "i2", "f": "f4"}
"""Codes of `struct` -> NumPy's."""


def _format(code: str) -> Any:
    count, kind = code[:-1], _KINDS[code[-1]]
    return (kind, (int(count),)) if count else kind


def _dtype_of(fields: tuple[layout.Field, ...]) -> np.dtype[np.void]:
    named = [
        (field, at)
        for field, at in zip(fields, layout.offsets_of(fields), strict=True)
        if field.name
    ]
    return np.dtype(
        {
            "names": [field.name for field, _ in named],
            "formats": [_format(field.code) for field, _ in named],
            "offsets": [at for _, at in named],
            "itemsize": struct.calcsize(layout.format_of(fields)),
        }
    )


STEP_DTYPE = _dtype_of(layout.STEP_FIELDS)
"""One step record, byte for byte `layout.STEP`."""

DEVICE_DTYPE = _dtype_of(layout.DEVICE_FIELDS)
"""One record of device times, byte for byte `layout.DEVICE`."""

_NUMBER_OF_STEPS_AT = next(
    at
    for field, at in zip(layout.STEP_FIELDS, layout.STEP_OFFSETS, strict=True)
    if field.code == "4x"
)
HISTORY_DTYPE = np.dtype(
    {
        "names": list(STEP_DTYPE.names or ()),
        "formats": [
            np.dtype("u4") if name == "micro_batches" else field[0]
            for name, field in (STEP_DTYPE.fields or {}).items()
        ],
        "offsets": [
            _NUMBER_OF_STEPS_AT if name == "micro_batches" else field[1]
            for name, field in (STEP_DTYPE.fields or {}).items()
        ],
        "itemsize": layout.STEP_SIZE,
    }
)
"""One history record: fields as in `STEP_DTYPE`, sums over `micro_batches` (32 bits) steps."""

EVENT_DTYPE = np.dtype(
    {
        "names": ["seq", "start_ns", "kind", "length", "step", "duration_ns", "value", "text"],
        "formats": ["u8", "i8", "u2", "u2", "u4", "u8", "f8", f"V{layout.EVENT_TEXT_SIZE}"],
        "offsets": [0, 8, 16, 18, 20, 24, 32, 40],
        "itemsize": layout.EVENT_SIZE,
    }
)


def whole(raw: bytes | memoryview, dtype: np.dtype[np.void]) -> Array:
    """Returns `raw` as records, without an incomplete one at its end."""
    return np.frombuffer(raw, dtype, len(raw) // dtype.itemsize)


def join_records(parts: Sequence[Array], dtype: np.dtype[np.void]) -> Array:
    """Returns all records one after the other. (np.concatenate would pack the fields.)"""
    as_bytes = f"V{dtype.itemsize}"  # field by field would take ten times as long
    return np.concatenate([np.empty(0, as_bytes), *(part.view(as_bytes) for part in parts)]).view(
        dtype
    )


def sound(
    raw: bytes | memoryview, dtype: np.dtype[np.void], chosen: npt.NDArray[np.intp]
) -> npt.NDArray[np.intp]:
    """Returns those of the `chosen` records in `raw` whose CRC-32, their last four bytes, is
    right."""
    if _all_sound(raw, dtype, chosen):
        return chosen
    size = dtype.itemsize
    stored = np.frombuffer(raw, "u4", len(raw) // 4)[size // 4 - 1 :: size // 4]
    view = memoryview(raw)
    crc32 = zlib.crc32
    starts = (chosen * size).tolist()
    right = np.fromiter((crc32(view[at : at + size - 4]) for at in starts), np.uint32, len(starts))
    believed: npt.NDArray[np.intp] = chosen[stored[chosen] == right]
    return believed


def _all_sound(
    raw: bytes | memoryview, dtype: np.dtype[np.void], chosen: npt.NDArray[np.intp]
) -> bool:
    """Returns whether adjacent records are intact, by one CRC over all of them. After a record that
    ends with its own CRC, the CRC depends on its initial value, not on the record's content, so the
    same number of intact records of one size always gives the same CRC."""
    count = len(chosen)
    if count < TOGETHER or int(chosen[-1]) - int(chosen[0]) != count - 1:
        return False
    first, size = int(chosen[0]) * dtype.itemsize, dtype.itemsize
    together = zlib.crc32(memoryview(raw)[first : first + count * size])
    return together == _crc_of_whole(count, size)


@lru_cache(maxsize=64)
def _crc_of_whole(count: int, size: int) -> int:
    body = bytes(size - 4)
    record = body + zlib.crc32(body).to_bytes(4, sys.byteorder)
    return zlib.crc32(record * count)


def plausible(records: Array) -> Array:
    """Returns `records` without those with impossible times; impossible phases and seconds become
    NaN.

    A right CRC shows that a record is intact, not that an honest program wrote it.
    """
    # As unsigned numbers, negative times are the largest.
    times = np.maximum(records["end_ns"].view(np.uint64), records["wall_ns"].view(np.uint64))
    return _with_possible_seconds(_selected(records, times <= MOST_NS), SECONDS)


class ImplausibleError(ValueError):
    """Some records have impossible times or seconds, which `plausible` removes."""


def check_plausible(records: Array) -> None:
    """Raises ImplausibleError if `plausible` would change these records."""
    if plausible(records) is not records:
        raise ImplausibleError


def check_values(name: str | int, values: npt.NDArray[Any]) -> None:
    """The same for values of one field of step records, or of the phase with this number."""
    if name in ("end_ns", "wall_ns"):
        possible = not values.size or values.view(np.uint64).max() <= MOST_NS
    else:
        timed = isinstance(name, int) or name in SECONDS
        possible = not timed or _are_possible_seconds(values)
    if not possible:
        raise ImplausibleError


def plausible_device_times(records: Array) -> Array:
    """Returns `records` of device times without those without a step or with impossible times;
    impossible phases and leads become NaN."""
    possible = (records["wall_ns"].view(np.uint64) <= MOST_NS) & (records["step_seq"] > 0)
    return _with_possible_seconds(
        _selected(records, possible), ("phases", "least_lead", "most_lead")
    )


def _selected(records: Array, possible: npt.NDArray[np.bool_]) -> Array:
    kept: Array = records if possible.all() else records[possible]
    return kept


def _with_possible_seconds(records: Array, names: tuple[str, ...]) -> Array:
    own = records
    with np.errstate(invalid="ignore"):
        for name in names if len(records) else ():
            # Contiguous memory is scanned much faster.
            values = np.ascontiguousarray(records[name])
            if not _are_possible_seconds(values):
                own = own.copy() if own is records else own
                own[name][(values < 0) | (values > MOST_SECONDS)] = np.nan
    return own


def _are_possible_seconds(values: npt.NDArray[np.floating[Any]]) -> bool:
    least, most = np.fmin.reduce(values, None), np.fmax.reduce(values, None)
    return not (least < 0 or most > MOST_SECONDS)


def windows(raw: bytes, chosen: npt.NDArray[np.intp]) -> Array:
    """Returns the `chosen` history records in `raw` with their numbers of steps, of which a writer
    may only set the one of 16 bits."""
    history: Array = whole(raw, HISTORY_DTYPE).take(chosen)  # indexing takes three times as long
    short = whole(raw, STEP_DTYPE)["micro_batches"][chosen]
    steps = np.maximum(history["micro_batches"], short)
    history["micro_batches"] = steps
    return history if np.logical_and.reduce(steps) else history[steps > 0]
