"""A rank's memory on its page: what it holds, the forecast, and what its peak consists of. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from mgpu_doctor.analysis.capacity.long_batches import find_long_batches
from mgpu_doctor.analysis.capacity.peak_makeup import CACHE, REST, PeakMakeup, find_makeup
from mgpu_doctor.analysis.steps.recent_steps import recent
from mgpu_doctor.case.model import Outcome, Rank
from mgpu_doctor.findings import Diagnosis, RankSummary
from mgpu_doctor.formatting import format_bytes, format_count, format_share
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.report import text
from mgpu_doctor.report.phase_bars import bar_cells
from mgpu_doctor.rules.memory.leaks import GROWN
from mgpu_doctor.tui.filter.matching import gpus, used
from mgpu_doctor.tui.panels.table_cells import DIM, EMPTY, FULL, FULLEST, HIGH, gauge
from mgpu_doctor.tui.rank_order import memory_of

BAR = 16
OTHERS = "▒"
"""Bytes that others use of the same memory."""


def memory_lines(frame: Frame, rank: RankSummary, known: Rank | None) -> Iterator[Text]:
    """Yields the memory in use and its place; then the framework's own figures, if it reports
    them."""
    own = memory_of(frame)(rank)
    taken, whole, where = _place(frame, rank)
    if own is None and taken is None:
        return
    shown = Text.assemble(("memory ", DIM), (format_bytes(own), "bold"))
    if whole:
        shown.append(f" of {format_bytes(whole)} of {where}  ")
        shown.append_text(_held_bar(own, taken, whole))
        if taken is not None:
            shown.append(f"  {format_share(taken / whole)} in use by all", style=DIM)
    yield shown
    of = known.metadata.device_memory if known is not None else None
    if of is not None and of.allocated is not None:
        parts = [f"{format_bytes(of.allocated)} allocated"]
        if of.allocated_peak is not None:
            parts.append(f"{format_bytes(of.allocated_peak)} at most")
        if of.reserved is not None:
            parts.append(f"{format_bytes(max(0, of.reserved - of.allocated))} unused cache")
        if of.retries:
            parts.append(f"cache flushed {format_count(of.retries, 'time')} to make room")
        yield Text(f"       by torch: {', '.join(parts)}", style=DIM)


def _place(frame: Frame, rank: RankSummary) -> tuple[float | None, float | None, str]:
    """Returns bytes in use by all processes, total bytes, and the place."""
    diagnosis, host, there = frame.diagnosis, frame.host, gpus(frame)
    placed = used(frame)
    if diagnosis is not None and placed:
        place = next(
            (at for at, rank_summary in enumerate(diagnosis.ranks) if rank_summary is rank), None
        )
        on = [there[at].device for at in placed.get(place, ())] if place is not None else []
        totals, taken = (
            [device.memory_total for device in on],
            [device.memory_used for device in on],
        )
        whole = sum(filter(None, totals)) if on and None not in totals else None
        what = "its GPU" if len(on) == 1 else "its GPUs"
        return (sum(filter(None, taken)) if on and None not in taken else None), whole, what
    if host is None or host.host not in (None, rank.host):
        return None, None, "its host"
    return host.memory_used, host.memory_total, "its host"


def _held_bar(own: float | None, taken: float | None, whole: float) -> Text:
    if own is None or taken is None:
        return gauge(taken / whole if taken is not None else None, BAR, alarm=True)
    mine = min(BAR, round(own / whole * BAR))
    others = max(0, min(BAR, round(taken / whole * BAR)) - mine)
    style = "green" if taken < HIGH * whole else "yellow" if taken < FULLEST * whole else "red"
    return Text.assemble(
        (FULL * mine, style),
        (OTHERS * others, DIM),
        (EMPTY * (BAR - mine - others), DIM),
    )


CODES = ("oom-risk", "leak-device", "leak-host")


def forecast_lines(diagnosis: Diagnosis, known: Rank | None) -> Iterator[Text]:
    """Yields the forecast for all ranks (findings about this rank are shown elsewhere), and the
    largest batch that will fit if peaks grow with batches."""
    for finding in diagnosis.findings:
        if finding.code in CODES and not finding.culprits:
            yield Text(f"       {text.line(finding.title)}", style="yellow")
    if known is None or diagnosis.case.job.outcome is not Outcome.RUNNING:
        return
    for where in ("device", "host"):
        if not known.metadata.memory_peaks.history(where):
            continue
        for batch in find_long_batches(recent(diagnosis.case), where, GROWN.default):
            if batch.rank.rank == known.rank:
                yield Text(
                    f"       {format_bytes(batch.line.peak(batch.largest))} of the {where} by the "
                    f"largest batch so far ({batch.largest:,.0f} {batch.unit}); up to "
                    f"{batch.fits:,.0f} fit",
                    style=DIM,
                )


INDENT = 7
WIDEST = 100
"""The most cells of the bar: a wider one shows no more."""
LOOKS = {
    "weights": ("W", "#ffffff on #0072b2"),
    "gradients": ("G", "#ffffff on #d55e00"),
    "optimizer": ("O", "#ffffff on #009e73"),
    "buckets": ("B", "#000000 on #cc79a7"),
    REST: ("A", "#000000 on #e69f00"),
    CACHE: ("·", DIM),
}
"""Letter and style, so that it can be read without colours, and on any background."""
WORDS = {
    ("device", REST): "activations and the rest",
    ("host", REST): "activations, Python and the rest",
    ("device", CACHE): "unused cache",
}


def peak_lines(rank: Rank | None, width: int) -> Iterator[Text]:
    """Yields a bar and the meaning of its letters, or why there is none."""
    if rank is None:
        return
    made = find_makeup(rank)
    if isinstance(made, str):
        yield Text(f"The composition of its peak memory is unknown: {made}.", style=DIM)
        return
    where = "its GPU" if made.where == "device" else "its process"
    yield Text.assemble(
        ("peak   ", DIM), (format_bytes(made.peak), "bold"), f" of {where} at most, made of"
    )
    yield _peak_bar(made, min(WIDEST, width - INDENT))
    yield from _legend(made, width)


def _peak_bar(made: PeakMakeup, width: int) -> Text:
    bar = Text(" " * INDENT)
    sizes = list(made.parts.values())
    wide = bar_cells([float(size) for size in sizes], float(sum(sizes)), width)
    for name, count in zip(made.parts, wide, strict=True):
        letter, style = LOOKS[name]
        bar.append(letter * count, style=style)
    return bar


def _legend(made: PeakMakeup, width: int) -> Iterator[Text]:
    """Yields the legend, with as many entries per line as fit."""
    line = Text(" " * INDENT)
    for name, size in made.parts.items():
        letter, style = LOOKS[name]
        words = WORDS.get((made.where, name), name)
        entry = Text.assemble((letter, style), f" {words} {format_bytes(size)}")
        if line.cell_len > INDENT and line.cell_len + 2 + entry.cell_len > width:
            yield line
            line = Text(" " * INDENT)
        if line.cell_len > INDENT:
            line.append("  ")
        line.append_text(entry)
    yield line
