"""The run over time in a report: steps of ranks, step time, host and GPUs on one axis, which the
page's script can zoom."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby

import numpy as np
import numpy.typing as npt

from mgpu_doctor.analysis.steps.warm_up import all_after_warm_up
from mgpu_doctor.case.model import Case
from mgpu_doctor.formatting import UNKNOWN, format_seconds
from mgpu_doctor.report import text
from mgpu_doctor.report.html.step_lanes import LANE_PHASES, render_lanes
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
TICKS = 5
LONGEST_COUNT = 7200.0
"""Seconds between the job's start and the first recorded moment up to which times are counted from
the start: of a later one, the clock says more."""
TOOLS = (
    '<p class="tools small"><button type="button" data-move="in">zoom in</button> '
    '<button type="button" data-move="out">zoom out</button> '
    '<button type="button" data-move="earlier">earlier</button> '
    '<button type="button" data-move="later">later</button> '
    '<button type="button" data-move="whole">whole run</button> '
    '<span class="soft">or drag over a part of it; double-click for the whole run</span></p>'
)
"""Of the page's script, which shows them."""


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


def render_run(
    case: Case,
    culprits: frozenset[int] = frozenset(),
    hide: Redactor | None = None,
    events: Sequence[TimelineEvent] = (),
) -> str:
    """Returns the run over time as markup; empty with fewer than two samples. The steps and
    hosts of `culprits` are among those drawn. Severe `events` are vertical lines."""
    curves = [*_steps(case), *_hosts(case, culprits), *_gpus(case)]
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
    if any((curve.values > curve.most).any() for curve in curves):
        across += " Steps of a warm-up took longer than the top of their chart."
    zero = case.job.started or start
    since_start = 0 <= start - zero <= LONGEST_COUNT
    return (
        f'<h2>The whole run</h2>\n<div class="run" data-start="{start:.6f}" '
        f'data-seconds="{end - start:.6f}" data-zero="{zero if since_start else 0:.6f}" '
        f'data-phases="{" ".join(LANE_PHASES)}">\n{TOOLS}\n'
        f"{render_lanes(case.ranks, culprits, start)}\n{drawn}\n"
        f"{_ticks(start, end, zero if since_start else None)}</div>\n"
        f'<p class="soft small">{"Time since the job started" if since_start else "Times are UTC"}'
        f". A gap: not sampled.{across}</p>"
    )


def _ticks(start: float, end: float, zero: float | None) -> str:
    moments = [start + (end - start) * i / (TICKS - 1) for i in range(TICKS)]
    digits = 2 - math.floor(math.log10(end - start))
    labels = "".join(
        f"<span>{time.strftime('%H:%M:%S', time.gmtime(moment))}</span>"
        if zero is None
        else f"<span>+{format_seconds(round(moment - zero, digits))}</span>"
        for moment in moments
    )
    return (
        '<div class="plot"><span class="label"></span><span class="scale"></span>'
        f'<p class="ticks soft small">{labels}</p></div>'
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
    ranks = [rank for rank in case.ranks if len(rank.steps) >= LEAST]
    if not ranks:
        return
    rank = max(ranks, key=lambda rank: len(rank.steps))
    moments = rank.steps["end_ns"] * 1e-9 + rank.clock_offset
    took = rank.steps["wall_ns"] * 1e-9
    # Steps of the warm-up do not flatten all others; any later one is on the chart.
    steady = all_after_warm_up(rank.steps)
    seconds = steady["wall_ns"] * 1e-9 if len(steady) else took
    most = float(seconds.max()) * 1.05
    if most > 0:
        title = f"time of a step, rank {UNKNOWN if rank.rank is None else rank.rank}"
        yield Curve(title, moments, took, most, format_seconds(most), ranged=True)


def _hosts(case: Case, culprits: frozenset[int]) -> Iterator[Curve]:
    """Returns the curves of a few hosts, those of `culprits` first."""
    by_host: dict[str, list[tuple[float, float | None, float | None]]] = {}
    for host_sample in case.host_samples:
        used, total = host_sample.memory_used, host_sample.memory_total
        share = used / total if used is not None and total else None
        cpu = None if host_sample.cpu_percent is None else host_sample.cpu_percent / 100
        by_host.setdefault(host_sample.host or "", []).append((host_sample.at, cpu, share))
    named = {rank.host for rank in case.ranks if rank.rank in culprits}
    for host, rows in sorted(by_host.items(), key=lambda item: (item[0] not in named, item[0]))[
        :MOST_HOSTS
    ]:
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
    label = f"{curve.title}, from 0 to {curve.top_label}"
    return (
        f'<figure class="plot"><figcaption class="label small">{escape(curve.title)}</figcaption>'
        f'<span class="scale soft small"><span>{escape(curve.top_label)}</span><span>0</span>'
        f'</span><svg class="graph" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" '
        f'role="img" aria-label="{escape(label)}">{"".join(parts)}{marks}</svg></figure>'
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
