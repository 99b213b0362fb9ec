"""A rank's identity, state, findings and phases, compared with the median rank. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from mgpu_probes.inprocess.layout import PHASES
from rich.text import Text

from mgpu_doctor.case.model import Rank
from mgpu_doctor.case.process_metadata import UNKNOWN as UNKNOWN_METADATA
from mgpu_doctor.case.process_metadata import Group
from mgpu_doctor.findings import Diagnosis, Finding, RankSummary
from mgpu_doctor.formatting import UNKNOWN, format_count, format_rank_numbers, format_seconds
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.report import phase_bars, text
from mgpu_doctor.report.device_timing import describe_busy_waiting, describe_timing
from mgpu_doctor.report.rank_rows import state
from mgpu_doctor.report.verdict import MARKS, STYLES, Tone
from mgpu_doctor.tui.filter.matching import gpus, used
from mgpu_doctor.tui.panels.finding_list import hanging
from mgpu_doctor.tui.panels.table_cells import DIM, ends
from mgpu_doctor.tui.screens.rank_memory import forecast_lines, memory_lines, peak_lines
from mgpu_doctor.tui.view import RankKey, View

MOST_GROUPS = 4


def rank_page_lines(frame: Frame, width: int, view: View) -> Sequence[Text]:
    diagnosis, rank = frame.diagnosis, rank_of(frame, view)
    if diagnosis is None or rank is None:
        return [Text(f"{name(view.rank)} is not there at this moment.", style="yellow")]
    made = [_who(frame, rank), *_doing(diagnosis, rank)]
    known = _facts(frame, rank)
    made += memory_lines(frame, rank, known)
    made += forecast_lines(diagnosis, known)
    blamed = [finding for finding in diagnosis.findings if _blames(finding, rank)]
    for finding in blamed:
        made += _finding_in_full(finding, width)
    made += [
        _affected_by(finding)
        for finding in diagnosis.findings
        if finding not in blamed and rank.rank in finding.victims
    ]
    made += phase_lines(diagnosis, rank, blamed, width)
    made += peak_lines(known, width)
    for line in made:
        line.truncate(width, overflow="ellipsis")
    here = len(diagnosis.ranks)
    place = (
        next(place for place, rank_summary in enumerate(diagnosis.ranks) if rank_summary is rank)
        + 1
    )
    return [ends(made[0], Text(f"{place} of {here}", style=DIM), width), *made[1:]]


def rank_of(frame: Frame | None, view: View) -> RankSummary | None:
    """The rank that is selected; None where the frame does not have it."""
    ranks = frame.diagnosis.ranks if frame is not None and frame.diagnosis is not None else ()
    return next((rank for rank in ranks if RankKey.of(rank) == view.rank), None)


def name(who: RankKey | None) -> str:
    if who is None:
        return "No rank"
    return f"rank {who.rank}" if who.rank is not None else f"process {who.pid}"


def _who(frame: Frame, rank: RankSummary) -> Text:
    known = _facts(frame, rank)
    parts = [f"on {text.line(rank.host)}"] if rank.host else []
    parts += [f"pid {rank.pid}"] if rank.pid is not None else ["no process"]
    if known is not None and known.local_rank is not None:
        parts.append(f"local rank {known.local_rank}")
    if known is not None and known.attempt:
        parts.append(f"started {format_count(known.attempt + 1, 'time')}")
    gpus = _gpus(frame, rank)
    parts += [gpus or text.line(rank.device or "")] if gpus or rank.device else []
    return Text.assemble((name(RankKey.of(rank)), "bold"), ("  " + "  ".join(parts), ""))


def _facts(frame: Frame, rank: RankSummary) -> Rank | None:
    ranks = frame.diagnosis.case.ranks if frame.diagnosis else ()
    return next(
        (member for member in ranks if (member.rank, member.pid) == (rank.rank, rank.pid)), None
    )


def _gpus(frame: Frame, rank: RankSummary) -> str:
    if frame.diagnosis is None:
        return ""
    place = next(
        place for place, rank_summary in enumerate(frame.diagnosis.ranks) if rank_summary is rank
    )
    on = [gpus(frame)[at].device for at in used(frame).get(place, ())]
    return ", ".join(f"GPU {place.index} ({text.line(place.name or UNKNOWN)})" for place in on)


def _doing(diagnosis: Diagnosis, rank: RankSummary) -> Iterator[Text]:
    step = UNKNOWN if rank.last_step is None else str(rank.last_step)
    line = Text.assemble((state(rank), "bold"), (f", step {step}", ""))
    if rank.step_seconds_median is not None:
        line.append(f", {format_seconds(rank.step_seconds_median)} per step")
    if rank.where and rank.state != "exited":
        line.append(f", in {text.line(rank.where)}")
    yield line
    if timing := describe_timing(rank):
        yield Text.assemble(("timing ", DIM), (timing, ""))
    if rank.busy_waiting is not None:
        words = describe_busy_waiting(rank.busy_waiting)
        yield Text(f"GPU {rank.busy_waiting.gpu} is {words}", style="yellow")
    recorded = (member.metadata for member in diagnosis.case.ranks if member.rank == rank.rank)
    groups = _groups(next(recorded, UNKNOWN_METADATA).groups)
    if groups:
        yield Text.assemble(("groups ", DIM), ("; ".join(groups), ""))


def _groups(groups: Sequence[Group]) -> list[str]:
    """`data: 0-3`, the first ones and the number of others."""
    shown = []
    for group in groups[:MOST_GROUPS]:
        kind = text.cut(text.line(str(group.kind or group.name)), 24)
        among = "all ranks" if group.ranks is None else format_rank_numbers(group.ranks, limit=4)
        shown.append(f"{kind}: {among}")
    more = len(groups) - MOST_GROUPS
    return [*shown, f"{more} more"] if more > 0 else shown


def _blames(finding: Finding, rank: RankSummary) -> bool:
    return any(
        culprit.rank == rank.rank
        if culprit.rank is not None
        else culprit.pid == rank.pid is not None
        for culprit in finding.culprits
    )


def _finding_in_full(finding: Finding, width: int) -> Iterator[Text]:
    """Code and title of a finding that blames the rank, over as many lines as they need."""
    tone = Tone(finding.severity.value)
    mark, style = MARKS[tone], STYLES[tone]
    words = Text.assemble((f"{finding.code}  ", "bold"), text.line(finding.title))
    return hanging(Text(f"{mark} ", style=style), words, width)


def _affected_by(finding: Finding) -> Text:
    return Text(f"affected by {finding.code}: {text.line(finding.title)}", style=DIM)


LABEL = 16
VALUE = 10
"""Cells of a phase's name, and of a time."""
SAME = 0.005
"""Times that differ by less than this share of the longer one are shown as equal."""


def phase_lines(
    diagnosis: Diagnosis, rank: RankSummary, accused: Sequence[Finding], width: int
) -> Iterator[Text]:
    """One line per phase. `accused`: the findings that blame the rank; where one of them measured
    the difference to the other ranks, the line shows that number."""
    others = peers(diagnosis, rank)
    usual = {phase: _median(others, phase) for phase in PHASES}
    known = [phase for phase in PHASES if rank.phases.get(phase) or usual[phase]]
    if not known:
        yield Text("No step of this rank was measured.", style=DIM)
        return
    measured = _beyond(accused, rank) if others else {}
    yield _head(
        others,
        measured,
        next((finding.since_step for finding in accused if finding.since_step), None),
    )
    most = max(max(rank.phases.get(part) or 0.0, usual[part] or 0.0) for part in known)
    room = max(0, width - LABEL - (3 if others else 1) * VALUE - 2)
    for phase in known:
        own, style = rank.phases.get(phase), phase_bars.PHASE_STYLES[phase]
        letter_style = DIM if phase == "wait" else style.letter_style
        shown = Text.assemble((style.letter, letter_style), (f" {phase:{LABEL - 2}}", ""))
        shown.append(f"{format_seconds(own):>{VALUE}}")
        if others:
            more = measured.get(phase, _more(own, usual[phase]))
            shown.append(f"{format_seconds(usual[phase]):>{VALUE}}")
            shown.append(f"{_format_difference(more, own, usual[phase]):>{VALUE}}")
        yield shown.append("  ").append_text(phase_bars.bar({phase: own or 0.0}, most, room))


def peers(diagnosis: Diagnosis, rank: RankSummary) -> list[RankSummary]:
    """The other ranks that do the same work: in a pipeline, those of the same stage. A parameter
    server has no peers."""
    if rank.rank in diagnosis.servers:
        return []
    stage = next((stage for stage in diagnosis.stages if rank.rank in stage), None)
    return [
        summary
        for summary in diagnosis.ranks
        if summary is not rank
        and summary.rank not in diagnosis.servers
        and (stage is None or summary.rank in stage)
    ]


def _head(others: Sequence[RankSummary], measured: Mapping[str, float], since: int | None) -> Text:
    """Table header. Times are medians over all steps, or from step `since` on where a finding
    measured them."""
    head = f"{'phase':{LABEL}}{'this rank':>{VALUE}}"
    if not others:
        return Text(f"{head}  no other rank does the same work", style=DIM)
    basis = f"median of {format_count(len(others), 'other rank')}"
    if measured and since:
        basis = f"excess from step {since} on: {', '.join(measured)}"
    return Text(f"{head}{'others':>{VALUE}}{'excess':>{VALUE}}  {basis}", style=DIM)


def _beyond(accused: Sequence[Finding], rank: RankSummary) -> Mapping[str, float]:
    """Phase -> seconds beyond the others, as findings measured it."""
    seconds: dict[str, float] = {}
    for evidence in (evidence for finding in accused for evidence in finding.evidence):
        excess = evidence.excess
        if excess and excess.rank == rank.rank and isinstance(evidence.value, float):
            seconds.setdefault(excess.phase, evidence.value)
    return seconds


def _median(ranks: Sequence[RankSummary], phase: str) -> float | None:
    known = [value for rank in ranks if (value := rank.phases.get(phase)) is not None]
    return median(known) if known else None


def _more(own: float | None, usual: float | None) -> float | None:
    return None if own is None or usual is None else own - usual


def _format_difference(more: float | None, own: float | None, usual: float | None) -> str:
    if more is None:
        return UNKNOWN
    if abs(more) < SAME * max(own or 0.0, usual or 0.0):
        return "="
    return f"+{format_seconds(more)}" if more > 0 else format_seconds(more)
