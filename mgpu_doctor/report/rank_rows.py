"""The rows of the rank table: a few ranks one by one, a thousand folded into groups. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from mgpu_probes.inprocess.layout import PHASES

from mgpu_doctor.case.device_times import RunAhead
from mgpu_doctor.case.process_metadata import PhaseClock
from mgpu_doctor.findings import Diagnosis, Evidence, RankSummary, Severity
from mgpu_doctor.formatting import UNKNOWN, format_count, format_signal
from mgpu_doctor.report import text
from mgpu_doctor.report.verdict import leading, named_ranks

TRACED = "traced"
NO_PHASE = "other"
"""The phase that does not say where a rank was."""


@dataclass(frozen=True, slots=True)
class Row:
    label: str
    host: str
    state: str
    step: int | None
    seconds: float | None
    phases: Mapping[str, float | None]
    where: str | None
    """The last activity of a rank of a stopped job, shown instead of its phases; else None."""
    culprit: bool
    clock: PhaseClock | None = None
    """What measured the phases; for a group, only if it is the same for all."""
    run_ahead: RunAhead | None = None
    """How far the host was ahead; of a group, medians."""


def rows(diagnosis: Diagnosis, limit: int) -> tuple[Row, ...]:
    """One row per rank. Beyond `limit` ranks: those that the headline names and those in an unusual
    state (at most `limit`), then one row of medians per state for all others."""
    table = _rows(diagnosis, limit)
    if diagnosis.case.subject.kind != "trace":
        return table
    # A trace does not show what a rank is doing now.
    return tuple(
        replace(row, state=TRACED if row.state == "running" else row.state) for row in table
    )


def _rows(diagnosis: Diagnosis, limit: int) -> tuple[Row, ...]:
    lead = leading(diagnosis)
    halted = lead is not None and lead.severity is Severity.CRITICAL
    blamed = {(c.rank, c.pid) for c in lead.culprits} if lead else set()
    ranks = {rank for rank, _ in blamed if rank is not None}

    def guilty(rank: RankSummary) -> bool:
        return rank.rank in ranks if rank.rank is not None else (None, rank.pid) in blamed

    if len(diagnosis.ranks) <= limit:
        return tuple(_row_of_rank(rank, guilty(rank), halted) for rank in diagnosis.ranks)
    states: dict[str, list[RankSummary]] = {}
    for rank in diagnosis.ranks:
        states.setdefault(state(rank), []).append(rank)
    usual = max(states.values(), key=len)
    named = ranks | named_ranks(diagnosis)
    listed = [rank for rank in diagnosis.ranks if guilty(rank) or rank.rank in named][:limit]
    first = {id(rank) for rank in listed}
    listed += [
        rank
        for group in states.values()
        if group is not usual
        for rank in group
        if id(rank) not in first
    ][: limit - len(listed)]
    alone = {id(rank) for rank in listed}
    folded = (
        _row_of_group([rank for rank in group if id(rank) not in alone], halted)
        for group in states.values()
    )
    return tuple(
        _row_of_rank(rank, guilty(rank), halted) for rank in diagnosis.ranks if id(rank) in alone
    ) + tuple(row for row in folded if row)


def state(rank: RankSummary) -> str:
    """`running`, `exited 1`, `SIGKILL`, …"""
    if rank.signal:
        return format_signal(rank.signal)
    word = getattr(rank.state, "value", rank.state)
    return f"{word} {rank.exit_code}" if rank.exit_code else str(word)


def _is_stopped(rank: RankSummary) -> bool:
    return rank.state not in {"running", "exited"} or bool(rank.exit_code)


def _row_of_rank(rank: RankSummary, guilty: bool, halted: bool) -> Row:
    return Row(
        label=UNKNOWN if rank.rank is None else str(rank.rank),
        host=text.line(rank.host),
        state=state(rank),
        step=rank.last_step,
        seconds=rank.step_seconds_median,
        phases=rank.phases,
        where=text.line(rank.where)
        if halted and rank.where and rank.where != NO_PHASE and _is_stopped(rank)
        else None,
        culprit=guilty,
        clock=rank.clock,
        run_ahead=rank.run_ahead,
    )


def _row_of_group(group: Sequence[RankSummary], halted: bool) -> Row | None:
    if not group:
        return None
    first = _row_of_rank(group[0], False, halted)
    places = {rank.where for rank in group}
    clocks = {rank.clock for rank in group}
    hosts = {rank.host for rank in group}
    return Row(
        label=f"{len(group)} others",
        host=first.host if len(hosts) == 1 else format_count(len(hosts), "host"),
        state=first.state,
        step=min((rank.last_step for rank in group if rank.last_step is not None), default=None),
        seconds=_median(rank.step_seconds_median for rank in group),
        phases={name: _median(rank.phases.get(name) for rank in group) for name in PHASES},
        where=first.where if len(places) == 1 else None,
        culprit=False,
        clock=first.clock if len(clocks) == 1 else None,
        run_ahead=_median_lead([rank.run_ahead for rank in group if rank.run_ahead is not None]),
    )


def _median_lead(leads: Sequence[RunAhead]) -> RunAhead | None:
    least, most = _median(lead.least for lead in leads), _median(lead.most for lead in leads)
    return None if least is None else RunAhead(least, most)


def _median(values: Iterable[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return median(measured) if measured else None


HEADS = ("measure", "value", "against", "where", "source")


def evidence_table(evidence: Sequence[Evidence]) -> tuple[list[str], list[list[str]]]:
    """Returns heads and rows, as untrusted text."""
    rows = [
        (
            item.measure,
            text.quantity(item.value, item.unit),
            "" if item.baseline is None else text.quantity(item.baseline, item.unit),
            item.where or "",
            item.source,
        )
        for item in evidence
    ]
    used = [place for place in range(len(HEADS)) if any(row[place] for row in rows)]
    return [HEADS[place] for place in used], [[row[place] for place in used] for row in rows]
