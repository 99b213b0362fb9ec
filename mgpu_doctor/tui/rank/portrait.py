"""Who a rank is and what it does, against the median rank. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from mgpu_doctor.case.files import Json
from mgpu_doctor.case.model import Rank
from mgpu_doctor.findings import Diagnosis, Finding, RankSummary
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.report import text
from mgpu_doctor.report.rows import state
from mgpu_doctor.report.verdict import Tone
from mgpu_doctor.tui.filter.shown import gpus, used
from mgpu_doctor.tui.panels.infull import hanging
from mgpu_doctor.tui.panels.parts import DIM, ends
from mgpu_doctor.tui.panels.said import MARKS
from mgpu_doctor.tui.rank import spent
from mgpu_doctor.tui.rank.forecast import forecast
from mgpu_doctor.tui.rank.holding import memory
from mgpu_doctor.tui.rank.makeup import peak
from mgpu_doctor.tui.view import View, Who

MOST_GROUPS = 4


def lines(frame: Frame, width: int, view: View) -> Sequence[Text]:
    diagnosis, rank = frame.diagnosis, rank_of(frame, view)
    if diagnosis is None or rank is None:
        return [Text(f"{name(view.rank)} is not there at this moment.", style="yellow")]
    made = [_who(frame, rank), *_doing(diagnosis, rank)]
    known = _facts(frame, rank)
    made += memory(frame, rank, known)
    made += forecast(diagnosis, known)
    blamed = [one for one in diagnosis.findings if _blames(one, rank)]
    suffered = [one for one in diagnosis.findings if one not in blamed and rank.rank in one.victims]
    for finding in blamed:
        made += _accusation(finding, width)
    made += [_suffering(finding) for finding in suffered]
    made += spent.lines(diagnosis, rank, blamed, width)
    made += peak(known, width)
    for line in made:
        line.truncate(width, overflow="ellipsis")
    here = len(diagnosis.ranks)
    place = next(place for place, one in enumerate(diagnosis.ranks) if one is rank) + 1
    return [ends(made[0], Text(f"{place} of {here}", style=DIM), width), *made[1:]]


def rank_of(frame: Frame | None, view: View) -> RankSummary | None:
    """The rank that is selected; None where the frame does not have it."""
    ranks = frame.diagnosis.ranks if frame is not None and frame.diagnosis is not None else ()
    return next((rank for rank in ranks if Who.of(rank) == view.rank), None)


def name(who: Who | None) -> str:
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
        parts.append(f"started {text.count(known.attempt + 1, 'time')}")
    gpus = _gpus(frame, rank)
    parts += [gpus or text.line(rank.device or "")] if gpus or rank.device else []
    return Text.assemble((name(Who.of(rank)), "bold"), ("  " + "  ".join(parts), ""))


def _facts(frame: Frame, rank: RankSummary) -> Rank | None:
    ranks = frame.diagnosis.case.ranks if frame.diagnosis else ()
    return next((one for one in ranks if (one.rank, one.pid) == (rank.rank, rank.pid)), None)


def _gpus(frame: Frame, rank: RankSummary) -> str:
    if frame.diagnosis is None:
        return ""
    place = next(place for place, one in enumerate(frame.diagnosis.ranks) if one is rank)
    on = [gpus(frame)[at].device for at in used(frame).get(place, ())]
    return ", ".join(f"GPU {one.index} ({text.line(one.name or text.UNKNOWN)})" for one in on)


def _doing(diagnosis: Diagnosis, rank: RankSummary) -> Iterator[Text]:
    step = text.UNKNOWN if rank.last_step is None else str(rank.last_step)
    told = Text.assemble((state(rank), "bold"), (f", step {step}", ""))
    if rank.step_seconds_median is not None:
        told.append(f", {text.seconds(rank.step_seconds_median)} a step")
    if rank.where and rank.state != "exited":
        told.append(f", in {text.line(rank.where)}")
    yield told
    birth = next((one.birth for one in diagnosis.case.ranks if one.rank == rank.rank), {})
    groups = _groups(birth.get("groups"))
    if groups:
        yield Text.assemble(("groups ", DIM), ("; ".join(groups), ""))


def _groups(told: Json) -> list[str]:
    """`data: 0-3`, those that have more than a name."""
    listed = [one for one in told if isinstance(one, dict)] if isinstance(told, list) else []
    found = []
    for one in listed[:MOST_GROUPS]:
        members, kind = one.get("ranks"), one.get("kind") or one.get("name")
        numbers = members if isinstance(members, list) else []
        whole = [number for number in numbers if isinstance(number, int)]
        among = "all ranks" if members is None else text.ranks(whole, limit=4)
        found.append(f"{text.cut(text.line(str(kind)), 24)}: {among}")
    more = len(listed) - MOST_GROUPS
    return [*found, f"{more} more"] if more > 0 else found


def _blames(finding: Finding, rank: RankSummary) -> bool:
    return any(
        one.rank == rank.rank if one.rank is not None else one.pid == rank.pid is not None
        for one in finding.culprits
    )


def _accusation(finding: Finding, width: int) -> Iterator[Text]:
    """In full: it is what the page is opened for."""
    mark, style = MARKS[Tone(finding.severity.value)]
    words = Text.assemble((f"{finding.code}  ", "bold"), text.line(finding.title))
    return hanging(Text(f"{mark} ", style=style), words, width)


def _suffering(finding: Finding) -> Text:
    return Text(f"suffers from {finding.code}: {text.line(finding.title)}", style=DIM)
