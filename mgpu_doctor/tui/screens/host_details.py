"""What is known of a host: its connection, cores, memory and traffic, and its findings. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from mgpu_doctor.case.host_samples import Traffic
from mgpu_doctor.findings import Diagnosis, Finding
from mgpu_doctor.formatting import UNKNOWN, format_bytes, format_ranks, format_seconds, format_share
from mgpu_doctor.live.frame import HOST, Frame
from mgpu_doctor.live.host_statuses import HostStatus
from mgpu_doctor.live.rank_map import RankGroup
from mgpu_doctor.report import text
from mgpu_doctor.report.verdict import MARKS, STYLES, Tone
from mgpu_doctor.tui.panels.finding_list import hanging
from mgpu_doctor.tui.panels.host_map import describe_silence
from mgpu_doctor.tui.panels.table_cells import DIM, ends, gauge
from mgpu_doctor.tui.view import View

LABEL = 12
BAR = 20
TRAFFIC: Mapping[str, Mapping[Traffic, str]] = {
    "network": {"sent": "out", "received": "in"},
    "disks": {"read": "read", "written": "written"},
}
SOON = 2.0
"""Seconds since the last message or sample that are not worth a word."""


def name_of(view: View) -> str:
    """Returns the name of the selected host as filters know it."""
    return text.line(view.spot.group) if view.spot else ""


def host_page_lines(frame: Frame, width: int, view: View) -> Sequence[Text]:
    name = name_of(view)
    host = next((host for host in frame.hosts if text.line(host.name) == name), None)
    if host is None or frame.diagnosis is None:
        return [Text(f"Host {name} is not there at this moment.", style="yellow")]
    place = f"{frame.hosts.index(host) + 1} of {len(frame.hosts)}"
    made = [ends(Text(name, style="bold"), Text(place, style=DIM), width)]
    for finding in findings_on(frame.diagnosis, host.name):
        tone = Tone(finding.severity.value)
        words = Text.assemble((f"{finding.code}  ", "bold"), text.line(finding.title))
        made += hanging(Text(f"{MARKS[tone]} ", style=STYLES[tone]), words, width)
    for row in (*_connection(host), *_work(frame, host), *_usage(host)):
        made += hanging(row[:LABEL], row[LABEL:], width)
    return made


def findings_on(diagnosis: Diagnosis, host: str) -> list[Finding]:
    """Returns the findings that blame the host, one of its ranks, or one of its GPUs."""
    ranks = {rank.rank for rank in diagnosis.ranks if rank.host == host and rank.rank is not None}
    return [
        finding
        for finding in diagnosis.findings
        if any(
            culprit.rank in ranks if culprit.rank is not None else culprit.host == host
            for culprit in finding.culprits
        )
    ]


def _row(label: str, *content: str | Text) -> Text:
    return Text.assemble((f"{label:{LABEL}}", DIM), *content)


def _connection(host: HostStatus) -> Iterator[Text]:
    if host.silent:
        yield _row("connection", Text(describe_silence(host), style="bold yellow"))
    elif host.heard is not None:
        age = "" if host.heard < SOON else f", last heard {format_seconds(round(host.heard))} ago"
        yield _row("connection", f"answers{age}")
    if host.ahead is not None and host.clock_error is not None:
        side = "ahead of" if host.ahead > 0 else "behind"
        off = f"{format_seconds(abs(host.ahead))} {side} this machine's"
        put_right = ", corrected" if host.corrected else ""
        yield _row("clock", f"{off}, ± {format_seconds(host.clock_error)}{put_right}")
    if host.lost:
        yield _row("lost", f"{host.lost} step records were overwritten before they arrived")


def _work(frame: Frame, host: HostStatus) -> Iterator[Text]:
    group = _group(frame, host.name)
    ranks = frame.diagnosis.ranks if frame.diagnosis else ()
    if group is None:
        yield _row("ranks", "none has joined")
        return
    numbers = [number for place in group.places if (number := ranks[place].rank) is not None]
    yield _row("ranks", format_ranks(numbers) if numbers else UNKNOWN)
    compared = "not compared with other ranks"
    if group.excess is not None:
        beyond = f"{max(0.0, group.excess) * 100:.0f} %"
        last = format_share(group.last)
        compared = f"worst rank {beyond} beyond the others; last in {last} of the latest steps"
    spent = f"{format_seconds(group.own)} per step, wait {format_seconds(group.wait)}"
    yield _row("work", f"{spent}; {compared}")


def _group(frame: Frame, name: str) -> RankGroup | None:
    groups = frame.map.grouping(HOST).groups if frame.map else ()
    return next((group for group in groups if group.name == name), None)


def _usage(host: HostStatus) -> Iterator[Text]:
    sample = host.sample
    if sample is None:
        yield _row("machine", "not sampled")
        return
    busy = None if sample.cpu_percent is None else sample.cpu_percent / 100
    cores = UNKNOWN if sample.cores is None else str(sample.cores)
    load = UNKNOWN if sample.load1 is None else f"{sample.load1:.1f}"
    yield _row("cores", gauge(busy, BAR), f" {format_share(busy)} of {cores}, load {load}")
    used, total = sample.memory_used, sample.memory_total
    share = used / total if used is not None and total else None
    cache = "" if not sample.memory_cache else f", {format_bytes(sample.memory_cache)} cache"
    of = f" {format_bytes(used)} of {format_bytes(total)}{cache}"
    yield _row("memory", gauge(share, BAR, alarm=True), of)
    for label, ways in TRAFFIC.items():
        rates = [(host.rates.get(way), words) for way, words in ways.items()]
        if any(rate is not None for rate, _ in rates):
            yield _row(label, ", ".join(f"{format_bytes(rate)}/s {word}" for rate, word in rates))
