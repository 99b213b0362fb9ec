"""Where the time of a rank's step goes, beside the ranks that do the same work. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from mgpu_probes.inprocess.layout import PHASES
from rich.style import Style
from rich.text import Text

from mgpu_doctor.findings import Diagnosis, Finding, RankSummary
from mgpu_doctor.report import phases, text
from mgpu_doctor.tui.panels.parts import DIM

LABEL = 14
VALUE = 10
"""Cells of a phase's name, and of a time."""
SAME = 0.005
"""Of the longer one, in which two times differ that are shown as equal."""


def lines(
    diagnosis: Diagnosis, rank: RankSummary, accused: Sequence[Finding], width: int
) -> Iterator[Text]:
    """A line a phase. `accused`: the findings that blame the rank; what one of them measured beyond
    the others is told as it tells it."""
    others = peers(diagnosis, rank)
    usual = {phase: _median(others, phase) for phase in PHASES}
    known = [one for one in PHASES if rank.phases.get(one) or usual[one]]
    if not known:
        yield Text("No step of it was measured.", style=DIM)
        return
    measured = _beyond(accused, rank) if others else {}
    yield _head(others, measured, next((one.since_step for one in accused if one.since_step), None))
    most = max(max(rank.phases.get(one) or 0.0, usual[one] or 0.0) for one in known)
    room = max(0, width - LABEL - (3 if others else 1) * VALUE - 2)
    for phase in known:
        own, look = rank.phases.get(phase), phases.LOOKS[phase]
        colour = DIM if phase == "wait" else Style(color=look.colour)
        shown = Text.assemble((f"{look.letter} ", colour), (f"{phase:{LABEL - 2}}", ""))
        shown.append(f"{text.seconds(own):>{VALUE}}")
        if others:
            more = measured.get(phase, _more(own, usual[phase]))
            shown.append(f"{text.seconds(usual[phase]):>{VALUE}}")
            shown.append(f"{_told(more, own, usual[phase]):>{VALUE}}")
        shown.append("  ").append(look.letter * round((own or 0.0) / most * room), style=colour)
        yield shown


def peers(diagnosis: Diagnosis, rank: RankSummary) -> list[RankSummary]:
    """The other ranks that do the same work: of the same stage of a pipeline, where it is one. A
    parameter server is like nobody."""
    if rank.rank in diagnosis.servers:
        return []
    stage = next((stage for stage in diagnosis.stages if rank.rank in stage), None)
    return [
        one
        for one in diagnosis.ranks
        if one is not rank
        and one.rank not in diagnosis.servers
        and (stage is None or one.rank in stage)
    ]


def _head(others: Sequence[RankSummary], measured: Mapping[str, float], since: int | None) -> Text:
    """Times are medians over all steps; what a finding measured is of the steps since then."""
    head = f"{'phase':{LABEL}}{'this rank':>{VALUE}}"
    if not others:
        return Text(f"{head}  no other rank does the same work", style=DIM)
    told = f"median of {text.count(len(others), 'other rank')}"
    if measured and since:
        told = f"beyond since step {since}: {', '.join(measured)}"
    return Text(f"{head}{'others':>{VALUE}}{'beyond':>{VALUE}}  {told}", style=DIM)


def _beyond(accused: Sequence[Finding], rank: RankSummary) -> Mapping[str, float]:
    """Phase -> seconds beyond the others, as findings measured it."""
    found: dict[str, float] = {}
    for one in (evidence for finding in accused for evidence in finding.evidence):
        phase = one.measure.partition(" beyond ")[0]
        if phase in PHASES and one.where == f"rank {rank.rank}" and isinstance(one.value, float):
            found.setdefault(phase, one.value)
    return found


def _median(ranks: Sequence[RankSummary], phase: str) -> float | None:
    known = [value for rank in ranks if (value := rank.phases.get(phase)) is not None]
    return median(known) if known else None


def _more(own: float | None, usual: float | None) -> float | None:
    return None if own is None or usual is None else own - usual


def _told(more: float | None, own: float | None, usual: float | None) -> str:
    if more is None:
        return text.UNKNOWN
    if abs(more) < SAME * max(own or 0.0, usual or 0.0):
        return "="
    return f"+{text.seconds(more)}" if more > 0 else text.seconds(more)
