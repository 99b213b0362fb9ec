"""The machine in one line: CPU, memory, load."""

from __future__ import annotations

from rich.text import Text

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.report import text
from mgpu_doctor.tui.panels.parts import DIM, ends, gauge
from mgpu_doctor.tui.view import View


def lines(frame: Frame, width: int, _view: View) -> list[Text]:
    host = frame.host
    if host is None:
        return [Text("host  not sampled", style=DIM)]
    bar = max(3, min(20, (width - 72) // 2))
    shown = Text("host  ", style=DIM)
    shown.append("cpu ")
    shown.append_text(gauge(None if host.cpu_percent is None else host.cpu_percent / 100, bar))
    shown.append(" ?   " if host.cpu_percent is None else f" {host.cpu_percent:3.0f} %")
    shown.append("  memory ")
    used, total = host.memory_used, host.memory_total
    share = used / total if used is not None and total else None
    shown.append_text(gauge(share, bar, alarm=True))
    shown.append(f" {text.size(used)} of {text.size(total)}")
    cores = text.UNKNOWN if host.cores is None else str(host.cores)
    load = text.UNKNOWN if host.load1 is None else f"{host.load1:.1f}"
    return [ends(shown, Text(f"load {load} on {cores} cores", style=DIM), width)]
