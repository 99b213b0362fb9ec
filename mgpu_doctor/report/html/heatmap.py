"""Ranks × steps as one small picture: who worked longer than the others, and when.

A rank's own work is its step without waiting and communicating: in a synchronous job the step time
itself is the same everywhere. Orange: longer than the median of the ranks in that step, blue:
shorter, nothing: like the others, grey: no record. Transparent, so that it fits light and dark.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess.layout import COMMUNICATION, PHASES, WAIT

from mgpu_doctor.case.model import Rank

ROWS, COLUMNS = 256, 240
SLOW, FAST, GAP = (0xD5, 0x5E, 0x00), (0x00, 0x72, 0xB2), (0x80, 0x80, 0x80)
GAP_ALPHA = 60

Grid = npt.NDArray[np.float64]
_OWN = [i for i in range(len(PHASES)) if i not in (WAIT, COMMUNICATION)]


@dataclass(frozen=True, slots=True)
class HeatMap:
    png: bytes
    rows: int
    columns: int
    ranks_a_row: int
    first_step: int
    last_step: int


def heat_map(ranks: Sequence[Rank]) -> HeatMap | None:
    """None where fewer than two steps of two ranks were recorded."""
    recorded = [(rank.steps["step"].astype(np.int64), _own(rank)) for rank in ranks]
    ends = [(int(step.min()), int(step.max())) for step, _ in recorded if step.size]
    if len(ends) < 2:
        return None
    first, last = min(start for start, _ in ends), max(end for _, end in ends)
    if last <= first:
        return None
    columns = min(COLUMNS, last - first + 1)
    each = -(-len(ranks) // ROWS)
    lines = [_buckets(step, own, first, last, columns) for step, own in recorded]
    grid = np.stack([_slowest(lines[i : i + each]) for i in range(0, len(lines), each)])
    return HeatMap(_png(_pixels(_against_median(grid))), len(grid), columns, each, first, last)


def _own(rank: Rank) -> Grid:
    phases = rank.steps["phases"][:, _OWN].astype(np.float64)
    own: Grid = np.nansum(phases, axis=1)
    own[np.isnan(phases).all(axis=1) | (own <= 0)] = np.nan
    return own


def _buckets(step: npt.NDArray[np.int64], own: Grid, first: int, last: int, columns: int) -> Grid:
    """Mean own work of the steps that share a column; NaN where there is none."""
    good = np.isfinite(own)
    column = (step[good] - first) * columns // (last - first + 1)
    many = np.bincount(column, minlength=columns)
    total = np.bincount(column, weights=own[good], minlength=columns)
    mean: Grid = np.divide(total, many, out=np.full(columns, np.nan), where=many > 0)
    return mean


def _slowest(lines: Sequence[Grid]) -> Grid:
    """The longest of several ranks that share a row: a slow one must not drown."""
    slowest: Grid = np.fmax.reduce(np.stack(lines))
    return slowest


def _against_median(grid: Grid) -> Grid:
    known = np.isfinite(grid).any(axis=0)
    median = np.full(grid.shape[1], np.nan)
    median[known] = np.nanmedian(grid[:, known], axis=0)
    ratio: Grid = grid / median
    return ratio


def _pixels(ratio: Grid) -> npt.NDArray[np.uint8]:
    """RGBA: the opacity is the binary logarithm of the ratio, full at half and double."""
    pixels = np.zeros((*ratio.shape, 4), np.uint8)
    known = np.isfinite(ratio)
    distance = np.log2(ratio, out=np.zeros_like(ratio), where=known)
    pixels[..., :3] = np.where((distance >= 0)[..., None], SLOW, FAST)
    pixels[..., 3] = np.clip(np.abs(distance), 0, 1) * 255
    pixels[~known] = (*GAP, GAP_ALPHA)
    return pixels


def _png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """The PNG format (W3C, third edition): signature, header, one data chunk, end."""
    height, width = pixels.shape[:2]
    filtered = np.zeros((height, 1 + width * 4), np.uint8)
    filtered[:, 1:] = pixels.reshape(height, -1)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)),
            _chunk(b"IDAT", zlib.compress(filtered.tobytes(), 9)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
