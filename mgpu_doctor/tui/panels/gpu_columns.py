"""The columns of the GPU table. Pure.

A column without a value for any GPU is left out; a single unknown value is a question mark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.text import Text

from mgpu_doctor.case.device_samples import CLOCK_REASONS, HARD_CLOCK_REASONS, Device, MigInstance
from mgpu_doctor.formatting import UNKNOWN
from mgpu_doctor.report import text
from mgpu_doctor.tui.panels.table_cells import DIM, EMPTY, FULL, Column, assemble, gauge_pieces

GIB = 1 << 30
ALARM = "yellow"
SPINS = "w"
BAR = 7
LOADED = 0.5
"""Utilization, 0..1, from which a narrow PCIe link is reported: links of idle GPUs are narrowed to
save power."""
SHORT = {
    "hw_thermal": "too hot",
    "sw_thermal": "too hot",
    "hw_power_brake": "power brake",
    "hw_slowdown": "slowed down",
}
"""Short forms of `HARD_CLOCK_REASONS` for narrow screens."""
_HARD = frozenset(HARD_CLOCK_REASONS)
HOST = "host"
LONGEST_HOST = 20
NO_MEMORY = "the host's memory"


class Shown(NamedTuple):
    """A device, the share of time 0..1 that its ranks wait, and its host. None: unknown."""

    device: Device
    waits: float | None = None
    host: str | None = None


Cell = Callable[[Shown], str | Text]


def memory(used: int | None, total: int | None) -> Text:
    """Returns memory in use as a bar and in GiB."""
    share = used / total if used is not None and total else None
    in_use = UNKNOWN if used is None else f"{used / GIB:.1f}"
    of = UNKNOWN if total is None else f"{total / GIB:.1f}"
    return assemble(*gauge_pieces(share, 8, alarm=True), (f" {in_use}/{of} GiB", ""))


def short_memory(used: int | None, total: int | None) -> str:
    """Returns memory in use in whole GiB."""
    in_use, of = (None if size is None else size / GIB for size in (used, total))
    return f"{_whole(in_use)}/{_whole(of)}Gi"


def part(instance: MigInstance) -> str:
    """`MIG 2/0`: GPU instance and compute instance."""
    numbers = (instance.gpu_instance, instance.compute_instance)
    return "MIG " + "/".join(UNKNOWN if number is None else str(number) for number in numbers)


def host_cells(hosts: Iterable[str | None], width: int) -> dict[Column, Cell]:
    """Returns the column of host names; None if there are fewer than two hosts."""
    listed = list(hosts)
    if len(listed) < 2:
        return {}
    bare = without_domain([text.line(host or UNKNOWN) for host in listed])
    names = dict(zip(listed, bare, strict=True))
    longest = max(map(cell_len, bare))
    column = Column(HOST, max(len(HOST), min(longest, LONGEST_HOST, width // 8)))
    return {column: lambda shown: text.cut(names[shown.host], column.width)}


def without_domain(names: Sequence[str]) -> list[str]:
    """Returns the host names without their common domain. Addresses stay whole."""
    labels = [name.split(".") for name in names]
    while (
        min(map(len, labels)) > 1
        and len({label[-1] for label in labels}) == 1
        and not labels[0][-1].isdecimal()
    ):
        labels = [label[:-1] for label in labels]
    return [".".join(label) for label in labels]


def _name(shown: Shown) -> Text:
    return Text(text.line(shown.device.name or UNKNOWN).removeprefix("NVIDIA "), style=DIM)


def _utilization(shown: Shown, bar: int = BAR) -> Text:
    device = shown.device
    if device.utilization is None and device.mig:
        return Text("in parts", style=DIM)
    content = UNKNOWN if device.utilization is None else f"{device.utilization:.0%}"
    return assemble(*_bar(device.utilization, shown.waits, bar), (f" {content:>4}", ""))


def _bar(busy: float | None, waits: float | None, bar: int) -> tuple[tuple[str, str], ...]:
    """Returns the pieces of the utilization bar: work, then waiting, then idle."""
    if busy is None or waits is None:
        return gauge_pieces(busy, bar)
    filled = max(0, min(bar, round(busy * bar)))
    spins = min(filled, max(1, round(min(busy, waits) * bar)))
    return (FULL * (filled - spins), "green"), (SPINS * spins, ALARM), (EMPTY * (bar - filled), DIM)


def _memory(shown: Shown) -> str | Text:
    device = shown.device
    if device.unified_memory and device.memory_total is None:
        known = [process.memory for process in device.processes if process.memory is not None]
        return f"{sum(known) / GIB:.1f} GiB of the host's" if known else NO_MEMORY
    return memory(device.memory_used, device.memory_total)


def _short_memory(shown: Shown) -> str:
    device = shown.device
    if device.unified_memory and device.memory_total is None:
        return "shared"
    return short_memory(device.memory_used, device.memory_total)


def _watts(shown: Shown) -> str:
    now, most = shown.device.power_watts, shown.device.power_limit_watts
    return f"{_whole(now)}/{_whole(most)} W"


def _temperature(shown: Shown) -> str:
    known = shown.device.temperature
    return UNKNOWN if known is None else f"{known:.0f} °C"


def _clock(shown: Shown) -> str | Text:
    device = shown.device
    if device.sm_clock_mhz is None:
        return UNKNOWN
    content = f"{device.sm_clock_mhz:.0f} MHz"
    return Text(f"!{content}".rjust(9), style=ALARM) if _is_slowed(device) else content


def _is_slowed(device: Device) -> bool:
    return bool(device.clock_reasons) and not _HARD.isdisjoint(device.clock_reasons or ())


def _reasons(shown: Shown) -> str | Text:
    given = shown.device.clock_reasons
    if given is None:
        return UNKNOWN
    grave = [CLOCK_REASONS[name] for name in CLOCK_REASONS if name in given]
    if _is_slowed(shown.device):
        return Text(f"!{', '.join(grave)}", style=ALARM)
    if grave:
        return ", ".join(grave)
    return Text(text.line(", ".join(given).replace("_", " ")) or "-", style=DIM)


def _fan(shown: Shown) -> str:
    return _percent(shown.device.fan)


def _memory_busy(shown: Shown) -> str:
    return _percent(shown.device.memory_busy)


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share:.0%}"


def _pcie(shown: Shown) -> str | Text:
    link = shown.device.pcie
    if link is None:
        return UNKNOWN
    now, most = (link.generation, link.width), (link.generation_most, link.width_most)
    content = Text(_by(now))
    if _is_narrow(shown.device):
        content = Text(f"!{_by(now)}/{_by(most)}", style=ALARM)
    return content.append(_rates(link.sent, link.received), style="")


def _is_narrow(device: Device) -> bool:
    """Returns whether the PCIe link of a busy GPU is slower than it can be."""
    link = device.pcie
    if link is None or (device.utilization or 0.0) < LOADED:
        return False
    pairs = (link.generation, link.generation_most), (link.width, link.width_most)
    return any(now is not None and most is not None and now < most for now, most in pairs)


def _nvlink(shown: Shown) -> str | Text:
    device = shown.device
    if not device.nvlinks:
        return "-"
    up = sum(link.up is True for link in device.nvlinks)
    down = _is_cut(device)
    content = Text(f"!{up}/{len(device.nvlinks)} up" if down else f"{up} up")
    content.stylize(ALARM if down else "")
    return content.append(_rates(device.nvlink_sent, device.nvlink_received), style="")


def _is_cut(device: Device) -> bool:
    return any(link.up is False for link in device.nvlinks)


def _ecc(shown: Shown) -> str | Text:
    ecc = shown.device.ecc
    if ecc is None:
        return UNKNOWN
    content = f"{_whole(ecc.corrected)}/{_whole(ecc.uncorrected)}"
    if ecc.failed or ecc.pending:
        why = "remap failed" if ecc.failed else "reset due"
        return Text(f"!{content} {why}", style=ALARM)
    return Text(f"!{content}", style=ALARM) if ecc.uncorrected else content


def _has_errors(device: Device) -> bool:
    ecc = device.ecc
    return ecc is not None and bool(ecc.failed or ecc.pending or ecc.uncorrected)


def _by(link: tuple[int | None, int | None]) -> str:
    return "x".join(UNKNOWN if number is None else str(number) for number in link)


def _rates(sent: float | None, received: float | None) -> str:
    """Returns both rates; nothing while neither is known, as before a GPU's second sample."""
    known = sent is not None or received is not None
    return f" {_rate(sent)}/{_rate(received)}" if known else ""


def _rate(known: float | None) -> str:
    """Returns bytes per second in few cells: `1.2Gi`, `24Gi`."""
    value, unit = known or 0.0, ""
    for larger in ("Ki", "Mi", "Gi", "Ti"):
        if value < 1000:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f}{unit}" if unit and value < 9.95 else f"{_whole(known and value)}{unit}"


def _whole(known: float | None) -> str:
    return UNKNOWN if known is None else f"{known:.0f}"


INDEX = Column("gpu", 3, right=True)
HELD = Column("limited by", 22, rank=6)
RATES = " out/in B/s"
UTIL = Column("util", 12)
MEMORY = Column("memory", 24)
CELLS: Mapping[Column, Cell] = {
    INDEX: lambda shown: Text(f"{shown.device.index:3}", style="bold"),
    Column("name", 22, rank=5): _name,
    UTIL: _utilization,
    MEMORY: _memory,
    Column("power", 11, right=True, rank=2): _watts,
    Column("temp", 6, right=True, rank=3): _temperature,
    Column("clock", 9, right=True, rank=4): _clock,
}
WHO = 9
"""Cells for who runs on a GPU in the compact table: `ranks 0-7`."""
COMPACT: Mapping[Column, Cell] = {
    INDEX._replace(width=2): lambda shown: Text(f"{shown.device.index:2}", style="bold"),
    UTIL._replace(width=9): lambda shown: _utilization(shown, 4),
    MEMORY._replace(width=9, right=True): _short_memory,
    Column("temp", 5, right=True): lambda shown: _temperature(shown).replace(" ", ""),
    Column("power", 5, right=True, rank=2): lambda shown: f"{_whole(shown.device.power_watts)} W",
}
"""Columns of the compact table, which has no head: every value has its unit."""
LEAST_COMPACT = sum(column.width + 1 for column in COMPACT if not column.rank) + WHO
_PCIE, _NVLINK = Column(f"PCIe{RATES}", 21, rank=7), Column(f"NVLink{RATES}", 19, rank=8)
_ECC = Column("ECC corr/uncorr", 15, rank=9)
MORE: Sequence[tuple[Column, Cell, Callable[[Device], object]]] = (
    (HELD, _reasons, lambda device: device.clock_reasons),
    (_PCIE, _pcie, lambda device: device.pcie),
    (_NVLINK, _nvlink, lambda device: device.nvlinks),
    (_ECC, _ecc, lambda device: device.ecc),
    (
        Column("mem busy", 8, right=True, rank=10),
        _memory_busy,
        lambda device: device.memory_busy is not None,
    ),
    (Column("fan", 5, right=True, rank=11), _fan, lambda device: device.fan is not None),
)
"""Columns for wide screens, each with the values that a device must report for it to be shown."""
_WARNS: Mapping[Column, Callable[[Device], bool]] = {
    HELD: _is_slowed,
    _PCIE: _is_narrow,
    _NVLINK: _is_cut,
    _ECC: _has_errors,
}
"""Whether a column that is not shown has a warning, whose cell begins with `!`."""


def cells_for(
    devices: Sequence[Device], hosts: Iterable[str | None], width: int, *, compact: bool
) -> dict[Column, Cell]:
    """Returns the columns with a value for any of these devices, for a screen of this width."""
    cells = {column: cell for column, cell, of in MORE if any(of(device) for device in devices)}
    if compact:
        return {**COMPACT, **cells}
    return {INDEX: CELLS[INDEX], **host_cells(hosts, width), **CELLS, **cells}


def alarm(column: Column, draw: Cell, what: Shown) -> str:
    """Returns what a column that does not fit would warn of, in few words; empty if nothing."""
    device, warns = what.device, _WARNS.get(column)
    if warns is None or not warns(device):
        return ""
    content = draw(what)
    shown = content.plain if isinstance(content, Text) else content
    shown = shown.strip().removeprefix("!")
    if column.title.endswith(RATES):
        link, *more = shown.split(" ")
        shown = " ".join([link, *(word for word in more if "/" not in word)])
    if column is HELD:
        return next(
            SHORT[part] for part in HARD_CLOCK_REASONS if part in (device.clock_reasons or ())
        )
    return f"{column.title.split()[0]} {shown}"
