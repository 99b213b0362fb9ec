"""Inline SVG of the HTML report: step time, host and GPUs over time, and the heat map of ranks."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess.layout import COMMUNICATION, PHASES, WAIT

from mgpu_doctor.case.device_times import on_one_clock
from mgpu_doctor.case.model import Case, Rank
from mgpu_doctor.formatting import format_seconds
from mgpu_doctor.report import text
from mgpu_doctor.report.job_events import TimelineEvent
from mgpu_doctor.report.redaction.redact import Redactor, no_redaction
from mgpu_doctor.report.verdict import Tone

Floats = npt.NDArray[np.float64]
WIDTH, HEIGHT = 600, 90
GRAPH_COLUMNS = 300
"""Points per curve."""
MOST_GPUS, MOST_HOSTS = 32, 4
LEAST = 2
"""The fewest samples that make a curve."""
MOST_MARKS, LONGEST_MARK = 12, 80
"""The most marks per curve, so that a page of many GPUs stays small; and characters of a mark's
text."""
GRAVE = (Tone.CRITICAL, Tone.WARNING)


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve over time. `at`: seconds since the epoch; `most`: the value at the top."""

    title: str
    at: Floats
    values: Floats
    most: float
    top_label: str
    """The value at the top, with its unit."""
    ranged: bool = False


def render_graphs(
    case: Case, hide: Redactor | None = None, events: Sequence[TimelineEvent] = ()
) -> str:
    """Returns the graphs as markup; empty with fewer than two samples. Severe `events` are vertical
    lines."""
    curves = [*_steps(case), *_host(case), *_gpus(case)]
    if not curves:
        return ""
    start = min(float(curve.at[0]) for curve in curves)
    end = max(float(curve.at[-1]) for curve in curves)
    if not end > start:
        return ""
    hide = hide or no_redaction()
    marks = [event for event in hide(tuple(events)) if event.tone in GRAVE and event.at is not None]
    lines = _marks([mark for mark in marks if start <= (mark.at or 0.0) <= end], start, end)
    drawn = "\n".join(_graph(replace(c, title=hide(c.title)), start, end, lines) for c in curves)
    across = (
        " Vertical lines: first steps of findings, and events marked ! or ✗ below." if lines else ""
    )
    return (
        f'<h2>The whole run</h2>\n<div class="graphs">{drawn}</div>\n'
        f'<p class="soft small">Each from the first recorded moment to the last, '
        f"{escape(format_seconds(end - start))} later. A gap: not sampled.{across}</p>"
    )


def _marks(events: Sequence[TimelineEvent], start: float, end: float) -> str:
    return "".join(_mark(event, start, end) for event in events[:MOST_MARKS])


def _mark(timeline_event: TimelineEvent, start: float, end: float) -> str:
    place = ((timeline_event.at or start) - start) / (end - start) * WIDTH
    label = text.cut(f"{timeline_event.who}: {timeline_event.sentence}", LONGEST_MARK)
    return (
        f'<rect class="event {timeline_event.tone.value}" x="{place:.1f}" y="0" width="2" '
        f'height="{HEIGHT}">'
        f"<title>{escape(label)}</title></rect>"
    )


def _steps(case: Case) -> Iterator[Curve]:
    """Returns the curve of the rank with the most steps: all ranks end their steps together."""
    ranks = [
        rank
        for rank in case.ranks
        if len(rank.steps) >= LEAST and {"end_ns", "wall_ns"} <= {*(rank.steps.dtype.names or ())}
    ]
    if not ranks:
        return
    rank = max(ranks, key=lambda rank: len(rank.steps))
    moments = rank.steps["end_ns"] * 1e-9 + rank.clock_offset
    took = rank.steps["wall_ns"] * 1e-9
    # A warm-up step must not flatten all others.
    most = float(np.quantile(took, 0.99)) * 1.1
    if most > 0:
        yield Curve("time of a step", moments, took, most, format_seconds(most), ranged=True)


def _host(case: Case) -> Iterator[Curve]:
    by_host: dict[str, list[tuple[float, float | None, float | None]]] = {}
    for host_sample in case.host_samples:
        used, total = host_sample.memory_used, host_sample.memory_total
        share = used / total if used is not None and total else None
        cpu = None if host_sample.cpu_percent is None else host_sample.cpu_percent / 100
        by_host.setdefault(host_sample.host or "", []).append((host_sample.at, cpu, share))
    for host, rows in sorted(by_host.items())[:MOST_HOSTS]:
        name = f"host {host}" if host else "host"
        yield from _shares(f"{name}: cores in use", [(moment, cpu) for moment, cpu, _ in rows])
        yield from _shares(f"{name}: memory in use", [(moment, share) for moment, _, share in rows])


def _gpus(case: Case) -> Iterator[Curve]:
    """Returns the GPUs' curves. With several hosts, devices with an unknown host are left out: they
    would be drawn as one."""
    hosts = {rank.host for rank in case.ranks} | {
        host_sample.host or "" for host_sample in case.host_samples
    }
    several = (
        len((hosts | {device_sample.host or "" for device_sample in case.device_samples}) - {""})
        > 1
    )
    busy: dict[tuple[str, int], list[tuple[float, float | None]]] = {}
    memory: dict[tuple[str, int], list[tuple[float, float | None]]] = {}
    for sample in case.device_samples:
        if several and sample.host is None:
            continue
        for device in sample.devices:
            key = (sample.host if several and sample.host else "", device.index)
            used, total = device.memory_used, device.memory_total
            share = used / total if used is not None and total else None
            busy.setdefault(key, []).append((sample.at, device.utilization))
            memory.setdefault(key, []).append((sample.at, share))
    for host, index in sorted(busy)[:MOST_GPUS]:
        name = f"host {host}, GPU {index}" if host else f"GPU {index}"
        yield from _shares(f"{name}: busy", busy[host, index])
        yield from _shares(f"{name}: memory in use", memory[host, index])


def _shares(title: str, rows: Sequence[tuple[float, float | None]]) -> Iterator[Curve]:
    values = np.array([np.nan if value is None else value for _, value in rows])
    if np.isfinite(values).sum() >= LEAST:
        yield Curve(title, np.array([moment for moment, _ in rows]), values, 1.0, "100 %")


def _graph(curve: Curve, start: float, end: float, marks: str) -> str:
    columns = np.minimum(
        (curve.at - start) / (end - start) * GRAPH_COLUMNS, GRAPH_COLUMNS - 1
    ).astype(int)
    drawable = np.isfinite(curve.values) & (columns >= 0)
    columns, values = columns[drawable], np.clip(curve.values[drawable] / curve.most, 0.0, 1.0)
    counts = np.bincount(columns, minlength=GRAPH_COLUMNS)
    sums = np.bincount(columns, values, GRAPH_COLUMNS)
    means = np.divide(sums, counts, out=np.full(GRAPH_COLUMNS, np.nan), where=counts > 0)
    parts = [_lines(_bridged(means, _usual_gap(np.flatnonzero(counts))))]
    if curve.ranged:
        parts.insert(0, _range(columns, values))
    label = f"{curve.title}, at most {curve.top_label} at the top"
    return (
        f'<figure><figcaption class="small">{escape(curve.title)} '
        f'<span class="soft">0 to {escape(curve.top_label)}</span></figcaption>'
        f'<svg class="graph" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{"".join(parts)}{marks}</svg></figure>'
    )


def _usual_gap(columns: npt.NDArray[np.intp]) -> int:
    """Returns the usual number of columns between two samples: a longer distance is a gap."""
    return int(2 * np.median(np.diff(columns))) + 1 if len(columns) > 1 else 1


def _bridged(means: Floats, reach: int) -> Mapping[int, float]:
    """Returns column -> height, with lines between columns at most `reach` apart."""
    filled = np.flatnonzero(np.isfinite(means))
    heights = {int(column): float(means[column]) for column in filled}
    for left, right in zip(filled[:-1].tolist(), filled[1:].tolist(), strict=True):
        if right - left <= reach:
            for column in range(left + 1, right):
                share = (column - left) / (right - left)
                heights[column] = float(means[left] * (1 - share) + means[right] * share)
    return dict(sorted(heights.items()))


def _lines(heights: Mapping[int, float]) -> str:
    runs = groupby(enumerate(heights), key=lambda pair: pair[1] - pair[0])
    elements = []
    for _, run in runs:
        points = [f"{_x(column)},{_y(heights[column])}" for _, column in run]
        if len(points) == 1:
            points.append(points[0])
        elements.append(f'<polyline points="{" ".join(points)}"/>')
    return "".join(elements)


def _range(columns: npt.NDArray[np.int64], values: Floats) -> str:
    """Returns the minimum and maximum of each column."""
    low, high = np.full(GRAPH_COLUMNS, np.inf), np.full(GRAPH_COLUMNS, -np.inf)
    np.minimum.at(low, columns, values)
    np.maximum.at(high, columns, values)
    wide = WIDTH / GRAPH_COLUMNS
    return "".join(
        f'<rect x="{_x(column)}" y="{_y(high[column])}" width="{wide:g}" '
        f'height="{max(0.0, (high[column] - low[column]) * HEIGHT):.1f}"/>'
        for column in np.flatnonzero(np.isfinite(low)).tolist()
    )


def _x(column: int) -> str:
    return f"{column * WIDTH / GRAPH_COLUMNS:g}"


def _y(height: float) -> str:
    return f"{(1 - height) * HEIGHT:.1f}"


ROWS, HEATMAP_COLUMNS = 256, 240
SLOW, FAST, GAP = (0xD5, 0x5E, 0x00), (0x00, 0x72, 0xB2), (0x80, 0x80, 0x80)
GAP_ALPHA = 60

Grid = npt.NDArray[np.float64]
_OWN_PHASES = [i for i in range(len(PHASES)) if i not in (WAIT, COMMUNICATION)]


@dataclass(frozen=True, slots=True)
class HeatMap:
    png: bytes
    rows: int
    columns: int
    ranks_a_row: int
    first_step: int
    last_step: int


def heat_map(ranks: Sequence[Rank]) -> HeatMap | None:
    """Returns the heat map as markup; None if fewer than two steps of two ranks were recorded."""
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
    return HeatMap(
        _png(_pixels(_against_median(grid))), len(grid), columns, ranks_per_row, first, last
    )


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


def _png(pixels: npt.NDArray[np.uint8]) -> bytes:
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
