"""The first lines of the screen (job and machine), and the titles of panels. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.text import Text

from mgpu_doctor.formatting import UNKNOWN, format_bytes, format_seconds
from mgpu_doctor.live.frame import Frame, Position
from mgpu_doctor.report import text
from mgpu_doctor.report.text import cut, line
from mgpu_doctor.tui.filter.matching import gpus as gpus_of
from mgpu_doctor.tui.panels.table_cells import DIM, assemble, ends, gauge_pieces
from mgpu_doctor.tui.view import Order, View

if TYPE_CHECKING:
    from mgpu_doctor.findings import Finding

LATE = 0.5
"""Seconds from which the screen says that it is not up to date."""
BARS = ((120, 24), (100, 12), (76, 6), (0, 0))
"""Screen width in columns -> cells of a replay's bar."""
CLOCK_FROM = 100
MOST_DEFECTS = 3
"""Defective GPUs that are named: with the job they fit into the height of the panel."""


def header_lines(frame: Frame, width: int, _view: View) -> list[Text]:
    title = Text.assemble(
        ("mgpu-doctor", "bold"), ("  ", ""), (text.line(frame.source), "bold cyan")
    )
    if frame.others:
        title.append(f"  +{frame.others} more (j)", style=DIM)
    made = [ends(title, _clock(frame, width), width)]
    if frame.diagnosis is None:
        hints = (frame.hint or "").splitlines()
        made += _hardware(frame, width)
        return made + [ends(Text(text.line(line)), Text(""), width) for line in hints]
    from mgpu_doctor.tui.panels import job_summary  # not needed on a machine without a job

    return [
        *made,
        *job_summary.job_lines(frame.going, frame.diagnosis, width),
        job_summary.verdict_line(frame.diagnosis, width),
        *_hardware(frame, width),
    ]


def _hardware(frame: Frame, width: int) -> list[Text]:
    """Returns a line for each defective GPU, unless the verdict on the job is about its defect."""
    defects = [finding for finding in frame.hardware if not _is_verdict(frame, finding)]
    if not defects:
        return []
    from mgpu_doctor.tui.panels.finding_list import finding_line

    shown = [finding_line(finding, width) for finding in defects[:MOST_DEFECTS]]
    more = len(defects) - len(shown)
    return [*shown, *([Text(f"  … and {more} more", style=DIM)] if more else [])]


def _is_verdict(frame: Frame, defect: Finding) -> bool:
    """Returns whether the verdict on the job is about all GPUs with this defect."""
    from mgpu_doctor.tui.panels.gpu_table import is_accused

    lead = frame.diagnosis.findings[0] if frame.diagnosis and frame.diagnosis.findings else None
    if lead is None or lead.code != defect.code:
        return False
    defective = [gpu.which for gpu in gpus_of(frame) if is_accused(frame, defect, gpu.which)]
    return bool(defective) and all(is_accused(frame, lead, which) for which in defective)


def _clock(frame: Frame, width: int) -> Text:
    at = time.strftime("%H:%M:%S", time.localtime(frame.at))
    if frame.replay is not None:
        return _position(frame.replay, at, width)
    late = f"screen {frame.late:.1f} s behind  " if frame.late >= LATE else ""
    return assemble((late, "bold yellow"), (at, ""))


def _position(replay: Position, at: str, width: int) -> Text:
    """Returns the replay's position. The narrowest screen shows it without the time of day."""
    passed, span = replay.at - replay.start, replay.end - replay.start
    cells = next(cells for least, cells in BARS if width >= least)
    done = round(cells * max(0.0, min(1.0, passed / max(1e-9, span))))
    speed = f"x{replay.speed:g}"
    sign = speed if not replay.paused else "paused" if replay.speed == 1 else f"paused {speed}"
    return Text.assemble(
        (f"replay {sign} ", "bold magenta"),
        ("━" * done, "magenta"),
        ("─" * (cells - done), DIM),
        (f" {format_seconds(passed)} of {format_seconds(span)}", ""),
        (f"  {at}" if width >= CLOCK_FROM else "", DIM),
    )


def host_lines(frame: Frame, width: int, _view: View) -> list[Text]:
    if len(frame.hosts) > 1:
        return []  # the map has a row for each
    host = frame.host
    if host is None:
        return [Text("host  not sampled", style=DIM)]
    bar = max(3, min(20, (width - 72) // 2))
    busy = None if host.cpu_percent is None else host.cpu_percent / 100
    used, total = host.memory_used, host.memory_total
    share = used / total if used is not None and total else None
    shown = assemble(
        ("host  cpu ", ""),
        *gauge_pieces(busy, bar),
        (" ?   " if busy is None else f" {host.cpu_percent:3.0f} %", ""),
        ("  memory ", ""),
        *gauge_pieces(share, bar, alarm=True),
        (f" {format_bytes(used)} of {format_bytes(total)}", ""),
    )
    shown.style = DIM
    cores = UNKNOWN if host.cores is None else str(host.cores)
    load = UNKNOWN if host.load1 is None else f"{host.load1:.1f}"
    return [ends(shown, Text(f"load {load} on {cores} cores", style=DIM), width)]


Title = Callable[[Frame, View], str]

PLAIN = View()
BACKWARDS = " · reversed"
LONGEST_HOST = 30
OLD = 2.5
"""Seconds from which the age of the data is shown, or this many intervals if that is longer. 2.5,
not 2: data that is updated with every other frame would show its age on and off."""


def gpus_title(frame: Frame, _view: View = PLAIN) -> str:
    return _aged(_whose(frame), frame.gpus_age, frame)


def gpu_title(frame: Frame, _view: View = PLAIN) -> str:
    return _aged("GPU", frame.gpus_age, frame)


def ranks_title(frame: Frame, view: View = PLAIN) -> str:
    order = "" if view.order is Order.RANK else f" · by {view.order.value}"
    return _aged("Ranks", frame.ranks_age, frame) + order + (BACKWARDS if view.reversed else "")


def rank_title(frame: Frame, _view: View = PLAIN) -> str:
    return _aged("Rank", frame.ranks_age, frame)


def steps_title(frame: Frame, _view: View = PLAIN) -> str:
    return _aged("Steps", frame.ranks_age, frame)


def map_title(frame: Frame, view: View = PLAIN) -> str:
    title = _aged(f"Ranks by {view.by}", frame.ranks_age, frame)
    return title if view.worst_first else f"{title} · by name"


def processes_title(_frame: Frame, view: View = PLAIN) -> str:
    order = view.process_order.value
    return f"Processes · by {order}{BACKWARDS if view.processes_reversed else ''}"


def findings_title(frame: Frame, _view: View = PLAIN) -> str:
    return _aged("Findings", frame.age, frame)


def _aged(name: str, age: float, frame: Frame) -> str:
    return f"{name}, {age:.0f} s ago" if age > OLD * max(1.0, frame.interval) else name


def _whose(frame: Frame) -> str:
    """Returns the title of the GPU table, with the host if there are several."""
    hosts = {gpu.host for gpu in gpus_of(frame)}
    ranks = frame.diagnosis.ranks if frame.diagnosis is not None else ()
    of_job = {rank.host for rank in ranks}
    if len(hosts) > 1:
        among = f" of {len(hosts | of_job)}" if of_job - hosts else ""
        return f"GPUs of {len(hosts)}{among} hosts"
    host = next(iter(hosts), frame.devices.host if frame.devices is not None else None)
    several = bool(frame.elsewhere) or len(of_job) > 1
    return f"GPUs of {cut(line(host), LONGEST_HOST)}" if host and several else "GPUs"
