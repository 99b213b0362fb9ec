"""The heat map of a report: ranks by steps, how long each worked against the median rank."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess.layout import COMMUNICATION, PHASES, WAIT

from mgpu_doctor.case.device_times import on_one_clock
from mgpu_doctor.case.model import Rank
from mgpu_doctor.formatting import UNKNOWN
from mgpu_doctor.report import text

ROWS, HEATMAP_COLUMNS = 256, 240
HIGHEST = 360
"""Pixels of the highest map; a row has between 2 and 18 of them."""
LINE = 12
"""Pixels between two names of rows, at least."""
BAND = 180
"""Pixels of the map that a printer keeps on one page. An image is never divided, so a higher map
would leave a part of the page before it empty."""
NAME_WIDTH, LONGEST_NAME = 110, 16
"""Pixels and characters of a row's name."""
SLOW, FAST, GAP = (0xD5, 0x5E, 0x00), (0x00, 0x72, 0xB2), (0x80, 0x80, 0x80)
GAP_ALPHA = 60

Grid = npt.NDArray[np.float64]
_OWN_PHASES = [i for i in range(len(PHASES)) if i not in (WAIT, COMMUNICATION)]


def heat_section(ranks: Sequence[Rank], culprits: frozenset[int]) -> str:
    """Returns the map as markup, with its rows named; empty if there is none. `culprits`: ranks
    whose names stand out."""
    drawn = heat_map(ranks)
    if drawn is None:
        return ""
    height = max(2, min(18, HIGHEST // drawn.rows))
    named = -(-LINE // height)  # rows to a name; a band holds whole ones
    rows = BAND // height // named * named
    bands = (slice(top, min(top + rows, drawn.rows)) for top in range(0, drawn.rows, rows))
    several = (
        f" ({drawn.ranks_a_row} ranks a row: the slowest shows)" if drawn.ranks_a_row > 1 else ""
    )
    return (
        "<h2>Own work, ranks by steps</h2>\n"
        '<div class="heatmap">'
        f"{''.join(_band(ranks, drawn, band, height, culprits) for band in bands)}"
        f'<span></span><p class="ends soft small"><span>step {drawn.first_step}</span>'
        f"<span>step {drawn.last_step}</span></p></div>\n"
        f'<p class="soft small">A row is a rank{several}. Orange: its own work takes longer than '
        "the median rank's, full colour at twice as long; blue: shorter; grey: no record.</p>"
    )


def _band(
    ranks: Sequence[Rank], drawn: HeatMap, band: slice, height: int, culprits: frozenset[int]
) -> str:
    """Returns some rows of the map with their names."""
    data = base64.b64encode(write_png(drawn.pixels[band])).decode()
    return (
        f"{_names(ranks, drawn, band, height, culprits)}"
        f'<img class="heat" height="{height * (band.stop - band.start)}" '
        f'src="data:image/png;base64,{data}" '
        'alt="Ranks by steps: how long each rank worked, against the median of the ranks">'
    )


def _names(
    ranks: Sequence[Rank], drawn: HeatMap, band: slice, height: int, culprits: frozenset[int]
) -> str:
    """Returns the names of rows, as many as there is room for; culprits' always."""
    on_hosts = len({rank.host for rank in ranks}) > 1
    rows = [
        ranks[row * drawn.ranks_a_row : (row + 1) * drawn.ranks_a_row] for row in range(drawn.rows)
    ]
    guilty = {i for i, row in enumerate(rows) if any(rank.rank in culprits for rank in row)}
    every = -(-LINE // height)
    others = {
        i
        for i in range(every // 2, len(rows), every)
        if not guilty & {*range(i - every + 1, i + every)}
    }
    names = []
    for i in sorted(i for i in guilty | others if band.start <= i < band.stop):
        numbers = [UNKNOWN if rank.rank is None else str(rank.rank) for rank in rows[i]]
        name = numbers[0] if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
        if on_hosts and drawn.ranks_a_row == 1:
            name = f"{text.cut(text.line(rows[i][0].host), LONGEST_NAME - 1 - len(name))} {name}"
        kind, mark = (' class="guilty"', "▸ ") if i in guilty else ("", "")
        x, y = NAME_WIDTH - 6, (i - band.start) * height + height / 2
        names.append(f'<text{kind} x="{x}" y="{y:g}">{mark}{escape(name)}</text>')
    size = f'width="{NAME_WIDTH}" height="{height * (band.stop - band.start)}"'
    return f'<svg class="rows" {size} aria-hidden="true">{"".join(names)}</svg>'


@dataclass(frozen=True, slots=True)
class HeatMap:
    """A map in RGBA, a pixel per row and column."""

    pixels: npt.NDArray[np.uint8]
    ranks_a_row: int
    first_step: int
    last_step: int

    @property
    def rows(self) -> int:
        return len(self.pixels)


def heat_map(ranks: Sequence[Rank]) -> HeatMap | None:
    """Returns the heat map; None if fewer than two steps of two ranks were recorded."""
    timed = [on_one_clock(rank) for rank in ranks]
    recorded = [(rank.steps["step"].astype(np.int64), _own_seconds(rank)) for rank in timed]
    step_ranges = [(int(step.min()), int(step.max())) for step, _ in recorded if step.size]
    if len(step_ranges) < 2:
        return None
    first, last = min(start for start, _ in step_ranges), max(end for _, end in step_ranges)
    if last <= first:
        return None
    columns = min(HEATMAP_COLUMNS, last - first + 1)
    ranks_per_row = -(-len(ranks) // ROWS)
    lines = [_buckets(step, own_seconds, first, last, columns) for step, own_seconds in recorded]
    grid = np.stack(
        [_slowest(lines[i : i + ranks_per_row]) for i in range(0, len(lines), ranks_per_row)]
    )
    return HeatMap(_pixels(_against_median(grid)), ranks_per_row, first, last)


def _own_seconds(rank: Rank) -> Grid:
    phases = rank.steps["phases"][:, _OWN_PHASES].astype(np.float64)
    seconds: Grid = np.nansum(phases, axis=1)
    seconds[np.isnan(phases).all(axis=1) | (seconds <= 0)] = np.nan
    return seconds


def _buckets(
    step: npt.NDArray[np.int64], seconds: Grid, first: int, last: int, columns: int
) -> Grid:
    """Returns the mean own work of the steps that share a column; NaN if unknown."""
    valid = np.isfinite(seconds)
    column = (step[valid] - first) * columns // (last - first + 1)
    counts = np.bincount(column, minlength=columns)
    total = np.bincount(column, weights=seconds[valid], minlength=columns)
    mean: Grid = np.divide(total, counts, out=np.full(columns, np.nan), where=counts > 0)
    return mean


def _slowest(lines: Sequence[Grid]) -> Grid:
    """Returns the longest own work of the ranks that share a row, so that a slow rank stays
    visible."""
    slowest: Grid = np.fmax.reduce(np.stack(lines))
    return slowest


def _against_median(grid: Grid) -> Grid:
    measured = np.isfinite(grid).any(axis=0)
    median = np.full(grid.shape[1], np.nan)
    median[measured] = np.nanmedian(grid[:, measured], axis=0)
    ratio: Grid = grid / median
    return ratio


def _pixels(ratio: Grid) -> npt.NDArray[np.uint8]:
    """Returns RGBA pixels: the opacity is the binary logarithm of the ratio, full at half and
    double."""
    pixels = np.zeros((*ratio.shape, 4), np.uint8)
    measured = np.isfinite(ratio)
    distance = np.log2(ratio, out=np.zeros_like(ratio), where=measured)
    pixels[..., :3] = np.where((distance >= 0)[..., None], SLOW, FAST)
    pixels[..., 3] = np.clip(np.abs(distance), 0, 1) * 255
    pixels[~measured] = (*GAP, GAP_ALPHA)
    return pixels


def write_png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Returns a PNG file (W3C, third edition): signature, header, one data chunk, end."""
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
