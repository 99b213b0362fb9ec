"""How much memory a rank holds, against what its device or its host has. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from mgpu_doctor.case.allocator import allocator
from mgpu_doctor.case.model import Rank
from mgpu_doctor.findings import RankSummary
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.report import text
from mgpu_doctor.tui.filter.shown import gpus, used
from mgpu_doctor.tui.panels.parts import DIM, EMPTY, FULL, FULLEST, HIGH, gauge
from mgpu_doctor.tui.sorting import memory_of

BAR = 16
OTHERS = "▒"
"""What others hold of the same memory."""


def memory(frame: Frame, rank: RankSummary, known: Rank | None) -> Iterator[Text]:
    """What it holds, and of what; then what its framework made of that, where it tells."""
    own = memory_of(frame)(rank)
    taken, whole, where = _place(frame, rank)
    if own is None and taken is None:
        return
    told = Text.assemble(("memory ", DIM), (text.size(own), "bold"))
    if whole:
        told.append(f" of {text.size(whole)} of {where}  ")
        told.append_text(_bar(own, taken, whole))
        if taken is not None:
            told.append(f"  {text.percent(taken / whole)} in use by all", style=DIM)
    yield told
    of = allocator(known) if known is not None else None
    if of is not None and of.allocated is not None:
        parts = [f"{text.size(of.allocated)} allocated"]
        if of.allocated_peak is not None:
            parts.append(f"{text.size(of.allocated_peak)} at most")
        if of.reserved is not None:
            parts.append(f"{text.size(max(0, of.reserved - of.allocated))} kept unused")
        if of.retries:
            parts.append(f"given back {text.count(of.retries, 'time')} for want of room")
        yield Text(f"       by torch: {', '.join(parts)}", style=DIM)


def _place(frame: Frame, rank: RankSummary) -> tuple[float | None, float | None, str]:
    """Bytes in use by anybody, bytes there are, and of what."""
    diagnosis, host, there = frame.diagnosis, frame.host, gpus(frame)
    placed = used(frame)
    if diagnosis is not None and placed:
        place = next((at for at, one in enumerate(diagnosis.ranks) if one is rank), None)
        on = [there[at].device for at in placed.get(place, ())] if place is not None else []
        totals, taken = [one.memory_total for one in on], [one.memory_used for one in on]
        whole = sum(filter(None, totals)) if on and None not in totals else None
        what = "its GPU" if len(on) == 1 else "its GPUs"
        return (sum(filter(None, taken)) if on and None not in taken else None), whole, what
    if host is None or host.host not in (None, rank.host):
        return None, None, "its host"
    return host.memory_used, host.memory_total, "its host"


def _bar(own: float | None, taken: float | None, whole: float) -> Text:
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
