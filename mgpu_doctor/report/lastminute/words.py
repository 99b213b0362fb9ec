"""The last minute in words, for every report alike."""

from __future__ import annotations

from mgpu_doctor.report import text
from mgpu_doctor.report.lastminute.facts import MINUTE, LastMinute, Stop
from mgpu_doctor.report.rows import NO_PHASE

TITLE = "The last minute"
HEADS = ("rank", "state", "stopped", "last steps", "where", "memory")


def told(known: LastMinute) -> str:
    """Who stopped first, in a sentence or two."""
    first = known.first
    clocks = f" Times are by the clocks of {known.hosts} hosts." if known.hosts > 1 else ""
    if not first:
        return f"Who stopped first is not known.{clocks}"
    numbers = [one.rank for one in first if one.rank is not None]
    who = text.name_ranks(numbers) if numbers else "a process that is no rank"
    when = _before(first[0].before_end)
    if not first[0].fell:
        blame = "" if any(one.culprit for one in first) else "; it need not be to blame for that"
        return f"The first to stand still was {who}, {when}{blame}.{clocks}"
    return f"First fell {who} ({first[0].how}), {when}.{clocks}"


def cells(stop: Stop, *, several: bool) -> tuple[str, ...]:
    """One for each of `HEADS`. `several`: the job has several hosts."""
    name = text.UNKNOWN if stop.rank is None else str(stop.rank)
    if several:
        name = f"{name} {stop.host}"
    notes = [note for note, holds in (("first", stop.first), ("culprit", stop.culprit)) if holds]
    return (
        f"{name} ({', '.join(notes)})" if notes else name,
        stop.how,
        _before(stop.before_end),
        _steps(stop),
        _where(stop),
        _memory(stop),
    )


def whose(stop: Stop) -> str:
    """Title of what it printed."""
    who = "A process" if stop.rank is None else f"Rank {stop.rank}"
    return f"{who} printed last"


def _before(seconds: float | None) -> str:
    if seconds is None:
        return "nobody knows when"
    shown = round(seconds, 1) if seconds < MINUTE else seconds
    return f"{text.seconds(shown)} before the end" if shown else "at the end"


def _steps(stop: Stop) -> str:
    if stop.step is None:
        return "none was finished"
    parts = [f"up to {stop.step}"]
    if stop.took is not None:
        usual = f", usually {text.seconds(stop.usual)}" if stop.usual is not None else ""
        parts.append(f"the last took {text.seconds(stop.took)}{usual}")
    if stop.steps is not None:
        parts.append(f"{stop.steps} in the last minute")
    return "; ".join(parts)


def _where(stop: Stop) -> str:
    if stop.where is None:
        return text.UNKNOWN
    where = "in no known phase" if stop.where == NO_PHASE else stop.where
    return where if stop.stood is None else f"{where}, for {text.seconds(stop.stood)}"


def _memory(stop: Stop) -> str:
    known = (
        (f"{text.size(stop.on_device)} on the device", stop.on_device),
        (f"{text.size(stop.resident)} resident", stop.resident),
    )
    return ", ".join(words for words, value in known if value is not None) or text.UNKNOWN
