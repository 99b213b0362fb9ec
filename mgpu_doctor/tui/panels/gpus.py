"""The GPUs: a line each, or one sentence why there are none."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from mgpu_doctor.case.gpu import Device
from mgpu_doctor.findings import RankSummary
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.report import text
from mgpu_doctor.tui.filter.shown import pids, shown, told, used
from mgpu_doctor.tui.panels.parts import DIM, NOTE, Column, cell, ends, fitting, gauge
from mgpu_doctor.tui.view import View

GIB = 1 << 30
UTIL, MEMORY = "util", "memory"
COLUMNS = (
    Column("gpu", 3, right=True),
    Column("name", 22, rank=5),
    Column(UTIL, 12),
    Column(MEMORY, 26),
    Column("power", 12, right=True, rank=2),
    Column("temp", 6, right=True, rank=3),
    Column("clock", 9, right=True, rank=4),
)
WHO = 14
"""Cells kept for who runs on a device."""


def lines(frame: Frame, width: int, view: View) -> list[Text]:
    sample = frame.devices
    if sample is None:
        return [Text("No GPU seen: devices were not sampled", style=DIM)]
    if not sample.devices:
        return [Text(f"No GPU seen: {text.line(sample.trouble or 'none found')}", style=DIM)]
    columns = fitting(COLUMNS, width, WHO)
    head = Text(" ").join(cell(column.title, column, DIM) for column in columns)
    head.append(" used by", style=DIM)
    left = shown(frame, view.filter).devices
    ranks = _ranks_on(frame)
    made = [head, *(_line(device, columns, ranks.get(device.index, ()), width) for device in left)]
    if view.filter is not None:
        note = told(len(left), len(sample.devices), "GPU", view.filter)
        made.insert(0, Text(text.cut(note, width), style=NOTE))
    return made


def _line(device: Device, columns: list[Column], ranks: Sequence[RankSummary], width: int) -> Text:
    if device.trouble is not None and _silent(device):
        name = f" {text.line(device.name)}" if device.name else ""
        mark, style = ("?", DIM) if "not supported" in device.trouble else ("✗", "bold red")
        lost = Text.assemble(
            (f"{device.index:3} ", "bold"), (f"{mark} ", style), (text.line(device.trouble), style)
        )
        return ends(lost, Text(name, style=DIM), width)
    cells: dict[str, str | Text] = {
        "gpu": Text(f"{device.index:3}", style="bold"),
        "name": Text(_short(device.name), style=DIM),
        UTIL: _utilization(device),
        MEMORY: _memory(device),
        "power": _watts(device),
        "temp": text.UNKNOWN if device.temperature is None else f"{device.temperature:.0f} °C",
        "clock": text.UNKNOWN if device.sm_clock_mhz is None else f"{device.sm_clock_mhz:.0f} MHz",
    }
    shown = Text(" ").join(cell(cells[column.title], column) for column in columns)
    shown.append(f" {_who(device, ranks)}")
    if device.trouble:
        shown.append(f"  {text.line(device.trouble)}", style="yellow")
    shown.truncate(width, overflow="ellipsis")
    return shown


def _silent(device: Device) -> bool:
    return all(
        value is None
        for value in (
            device.utilization,
            device.memory_used,
            device.power_watts,
            device.temperature,
        )
    )


def _short(name: str | None) -> str:
    return text.line(name or text.UNKNOWN).removeprefix("NVIDIA ")


def _utilization(device: Device) -> Text:
    told = text.UNKNOWN if device.utilization is None else f"{device.utilization:.0%}"
    return gauge(device.utilization, 7).append(f" {told:>4}")


def _memory(device: Device) -> Text:
    used, total = device.memory_used, device.memory_total
    share = used / total if used is not None and total else None
    in_use = text.UNKNOWN if used is None else f"{used / GIB:.1f}"
    of = text.UNKNOWN if total is None else f"{total / GIB:.1f}"
    return gauge(share, 8, alarm=True).append(f" {in_use}/{of} GiB")


def _watts(device: Device) -> str:
    now = text.UNKNOWN if device.power_watts is None else f"{device.power_watts:.0f}"
    limit = text.UNKNOWN if device.power_limit_watts is None else f"{device.power_limit_watts:.0f}"
    return f"{now}/{limit} W"


def _ranks_on(frame: Frame) -> dict[int, list[RankSummary]]:
    """Index of a device -> the ranks that compute on it."""
    found: dict[int, list[RankSummary]] = {}
    if frame.diagnosis is not None and frame.devices is not None:
        for place, on in used(frame).items():
            for at in on:
                found.setdefault(frame.devices.devices[at].index, []).append(
                    frame.diagnosis.ranks[place]
                )
    return found


def _who(device: Device, ranks: Sequence[RankSummary]) -> str:
    ours = [rank.rank for rank in ranks if rank.rank is not None]
    numbered = {rank.pid for rank in ranks if rank.rank is not None}
    others = [pid for pid in pids(device) if pid not in numbered]
    parts = [text.name_ranks(ours)] if ours else []
    parts += [f"pid {others[0]}"] if len(others) == 1 else []
    parts += [f"{len(others)} processes"] if len(others) > 1 else []
    return ", ".join(parts) or "-"
