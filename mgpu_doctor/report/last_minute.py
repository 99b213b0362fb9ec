"""The last minute of a job that failed, rank by rank, as facts and as text. Pure.

Facts are ordered as they happened; the rank that failed first comes before its consequences.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from mgpu_probes.outside.logs.log_lines import numbered_style, split_line

from mgpu_doctor.case.model import Case, Outcome, Rank, State
from mgpu_doctor.findings import Diagnosis, RankSummary
from mgpu_doctor.formatting import UNKNOWN, format_bytes, format_ranks, format_seconds
from mgpu_doctor.report import text
from mgpu_doctor.report.rank_rows import NO_PHASE, state
from mgpu_doctor.report.verdict import leading

MINUTE = 60.0
LINES, UNLABELLED_LINES = 5, 12
"""Last lines of each rank, and last lines that name no rank."""
CLEARLY_FIRST = 0.5
"""Seconds between the first and the second rank to stop, from which the first is named: ranks that
wait for each other may stop in any order."""
WIDEST = 240
"""Characters of a line."""
SHOWN_OUTCOMES = (Outcome.FAILED, Outcome.HUNG, Outcome.KILLED, Outcome.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Stop:
    """How one rank stopped. Durations are seconds; None: not known."""

    rank: int | None
    host: str
    how: str
    """`SIGKILL`, `exit code 1`, `hung`, …"""
    before_end: float | None
    """From its failure, or else from when it stopped, to the end of the job."""
    step: int | None
    """The last step that it finished."""
    took: float | None
    usual: float | None
    """The median of its steps; `took`: its last step."""
    steps: int | None
    """Steps finished in the last minute."""
    where: str | None
    blocked: float | None
    """How long it was there before the end."""
    resident: int | None
    """Bytes on the host, in the last sample, else at its last step."""
    on_device: int | None
    """Bytes allocated on its device at its last step."""
    printed: tuple[str, ...] = ()
    first: bool = False
    """Whether it failed first, or, if no rank failed, stopped first."""
    failed: bool = False
    culprit: bool = False


@dataclass(frozen=True, slots=True)
class LastMinute:
    """How all ranks stopped."""

    stops: tuple[Stop, ...]
    """The first to stop comes first."""
    printed: tuple[str, ...]
    """Last lines of the console that name no rank."""
    hosts: int

    @property
    def first(self) -> tuple[Stop, ...]:
        return tuple(stop for stop in self.stops if stop.first)

    def newest(self, most: int) -> tuple[Stop, ...]:
        """At most `most` stops, in order: the first, the culprits, then others."""
        if len(self.stops) <= most:
            return self.stops
        marked = [place for place, stop in enumerate(self.stops) if stop.first or stop.culprit]
        rest = [place for place in range(len(self.stops)) if place not in {*marked}]
        return tuple(self.stops[place] for place in sorted([*marked, *rest][:most]))


def find_last_minute(diagnosis: Diagnosis) -> LastMinute | None:
    """How all ranks stopped; None if the job runs or ended well, or if no time is known."""
    case = diagnosis.case
    if case.job.outcome not in SHOWN_OUTCOMES:
        return None
    facts = {(rank.rank, rank.pid): rank for rank in case.ranks}
    pairs = [(summary, facts.get((summary.rank, summary.pid))) for summary in diagnosis.ranks]
    failed_ranks = {(failure.rank, failure.pid) for failure in diagnosis.first_failures}
    ended = diagnosis.latest_ends
    failed = {id(summary) for summary, _ in pairs if (summary.rank, summary.pid) in failed_ranks}
    stopped = {
        id(summary): ended.get((summary.rank, summary.pid), _stopped(rank, id(summary) in failed))
        for summary, rank in pairs
    }
    if all(moment is None for moment in stopped.values()):
        return None
    end = case.job.ended if case.job.ended is not None else case.observed
    printed_lines, unlabelled = _printed(case)
    resident = _resident(case)
    lead = leading(diagnosis)
    blamed = {culprit.rank for culprit in lead.culprits} if lead is not None else set()
    first = failed or _find_first_blocked(stopped)
    pairs.sort(key=lambda pair: (id(pair[0]) not in first, *_order(stopped[id(pair[0])])))
    stops = tuple(
        _stop(
            summary,
            rank,
            stopped[id(summary)],
            end,
            resident.get((rank.host if rank is not None else summary.host, summary.pid)),
            printed=tuple(printed_lines.get(summary.rank, ())),
            first=id(summary) in first,
            failed=id(summary) in failed,
            culprit=summary.rank is not None and summary.rank in blamed,
        )
        for summary, rank in pairs
    )
    return LastMinute(stops, tuple(unlabelled), len({stop.host for stop in stops}))


def _stop(
    summary: RankSummary,
    rank: Rank | None,
    stopped: float | None,
    end: float,
    resident: int | None,
    *,
    printed: tuple[str, ...],
    first: bool,
    failed: bool,
    culprit: bool,
) -> Stop:
    took = on_device = steps = blocked = None
    if rank is not None and len(rank.steps):
        records = rank.steps
        took = float(records["wall_ns"][-1]) * 1e-9
        end_times = records["end_ns"] * 1e-9 + rank.clock_offset
        steps = int(np.count_nonzero(end_times > end - MINUTE))
        on_device = int(records["device_bytes"][-1]) or None
        if resident is None:
            resident = int(records["resident_bytes"][-1]) or None
    if rank is not None and rank.now is not None and 0 < rank.now.since <= end:
        blocked = end - rank.now.since
    return Stop(
        rank=summary.rank,
        host=text.line(summary.host),
        how=f"exit code {summary.exit_code}" if _exited_with_error(summary) else state(summary),
        before_end=None if stopped is None else max(0.0, end - stopped),
        step=summary.last_step,
        took=took,
        usual=summary.step_seconds_median,
        steps=steps,
        where=text.line(summary.where) if summary.where else None,
        blocked=blocked,
        resident=resident,
        on_device=on_device,
        printed=printed,
        first=first,
        failed=failed,
        culprit=culprit,
    )


def _exited_with_error(rank_summary: RankSummary) -> bool:
    return bool(rank_summary.exit_code) and not rank_summary.signal


def _stopped(rank: Rank | None, failed: bool) -> float | None:
    """Returns when the rank stopped: its own failure, else since when it is at its current
    place."""
    if rank is None:
        return None
    if failed and rank.error is not None and rank.error.at is not None:
        return rank.error.at
    if (failed or rank.state is State.EXITED) and rank.ended is not None:
        return rank.ended
    if rank.now is not None and rank.now.since > 0:
        return rank.now.since
    if len(rank.steps) and "end_ns" in (rank.steps.dtype.names or ()):
        return float(rank.steps["end_ns"][-1]) * 1e-9 + rank.clock_offset
    return rank.ended


def _find_first_blocked(stopped: Mapping[int, float | None]) -> set[int]:
    """The first rank that stopped; empty if that is unclear, or unknown for a rank."""
    stop_times = sorted((moment, key) for key, moment in stopped.items() if moment is not None)
    clear = (
        len(stop_times) == len(stopped) > 1 and stop_times[1][0] - stop_times[0][0] >= CLEARLY_FIRST
    )
    return {stop_times[0][1]} if clear else set()


def _order(stopped: float | None) -> tuple[bool, float]:
    return stopped is None, stopped or 0.0


def _resident(case: Case) -> Mapping[tuple[str, int | None], int]:
    """(host, pid) -> newest resident bytes above 0: a zombie has none."""
    memory: dict[tuple[str, int | None], int] = {}
    for sample in case.host_samples:
        for pid, (_, resident) in sample.processes.items():
            if resident:
                memory[sample.host or "", pid] = resident
    return memory


def _printed(case: Case) -> tuple[Mapping[int | None, Sequence[str]], Sequence[str]]:
    """The last console lines by rank, and those that name no rank."""
    lines = case.console.tail
    style = numbered_style(lines)
    alone = case.ranks[0].rank if len(case.ranks) == 1 else None
    local = _ranks_by_local_rank(case.ranks)
    lines_by_rank: dict[int | None, list[str]] = defaultdict(list)
    for line in lines:
        label = split_line(line, style)
        rank = label.rank if label.rank is not None else local.get(label.local_rank, alone)
        lines_by_rank[rank].append(text.cut(text.clean(line).replace("\n", " ").rstrip(), WIDEST))
    unlabelled = lines_by_rank.pop(None, [])[-UNLABELLED_LINES:]
    return {rank: printed[-LINES:] for rank, printed in lines_by_rank.items()}, unlabelled


def _ranks_by_local_rank(ranks: Iterable[Rank]) -> Mapping[int | None, int | None]:
    local_ranks = [rank for rank in ranks if rank.local_rank is not None]
    return (
        {rank.local_rank: rank.rank for rank in local_ranks}
        if len({o.host for o in local_ranks}) == 1
        else {}
    )


TITLE = "The last minute"
HEADS = ("rank", "state", "stopped", "last steps", "where", "memory")


def describe_first_stop(last_minute: LastMinute) -> str:
    """Which rank stopped first, in a sentence or two."""
    first = last_minute.first
    clocks = (
        f" Times are by the clocks of {last_minute.hosts} hosts." if last_minute.hosts > 1 else ""
    )
    if not first:
        return f"Which rank stopped first is unknown.{clocks}"
    numbers = [stop.rank for stop in first if stop.rank is not None]
    subject = format_ranks(numbers) if numbers else "a process that is not a rank"
    when = _format_before_end(first[0].before_end)
    if not first[0].failed:
        blame = "" if any(stop.culprit for stop in first) else "; it is not necessarily the culprit"
        return f"The first rank to stop was {subject}, {when}{blame}.{clocks}"
    return f"{subject.capitalize()} failed first ({first[0].how}), {when}.{clocks}"


def cells(stop: Stop, *, several: bool) -> tuple[str, ...]:
    """The texts below `HEADS`. `several`: the job has several hosts."""
    name = UNKNOWN if stop.rank is None else str(stop.rank)
    if several:
        name = f"{name} {stop.host}"
    notes = [note for note, holds in (("first", stop.first), ("culprit", stop.culprit)) if holds]
    return (
        f"{name} ({', '.join(notes)})" if notes else name,
        stop.how,
        _format_before_end(stop.before_end),
        _steps(stop),
        _where(stop),
        _memory(stop),
    )


def title_output(stop: Stop) -> str:
    """The title of the lines that the rank printed last."""
    subject = "A process" if stop.rank is None else f"Rank {stop.rank}"
    return f"{subject} printed last"


def _format_before_end(seconds: float | None) -> str:
    if seconds is None:
        return "time unknown"
    rounded = round(seconds, 1) if seconds < MINUTE else seconds
    return f"{format_seconds(rounded)} before the end" if rounded else "at the end"


def _steps(stop: Stop) -> str:
    if stop.step is None:
        return "none was finished"
    parts = [f"up to {stop.step}"]
    if stop.took is not None:
        usual = f", usually {format_seconds(stop.usual)}" if stop.usual is not None else ""
        parts.append(f"the last took {format_seconds(stop.took)}{usual}")
    if stop.steps is not None:
        parts.append(f"{stop.steps} in the last minute")
    return "; ".join(parts)


def _where(stop: Stop) -> str:
    if stop.where is None:
        return UNKNOWN
    where = "in no known phase" if stop.where == NO_PHASE else stop.where
    return where if stop.blocked is None else f"{where}, for {format_seconds(stop.blocked)}"


def _memory(stop: Stop) -> str:
    amounts = (
        (f"{format_bytes(stop.on_device)} on the device", stop.on_device),
        (f"{format_bytes(stop.resident)} resident", stop.resident),
    )
    return ", ".join(amount for amount, value in amounts if value is not None) or UNKNOWN
