"""Everything known about one GPU, and the processes that use it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mgpu_probes.outside.processes import Owner
from rich.text import Text

from mgpu_doctor.case.device_samples import (
    CLOCK_REASONS,
    HARD_CLOCK_REASONS,
    Device,
    Ecc,
    MigInstance,
    NvLink,
    Pcie,
)
from mgpu_doctor.findings import Finding, RankSummary
from mgpu_doctor.formatting import UNKNOWN, format_bytes, format_count
from mgpu_doctor.live.frame import Frame, GpuKey, HostGpu
from mgpu_doctor.report import text
from mgpu_doctor.report.verdict import MARKS, STYLES, Tone
from mgpu_doctor.tui.filter.matching import gpus, pids
from mgpu_doctor.tui.panels import gpu_columns
from mgpu_doctor.tui.panels.finding_list import hanging
from mgpu_doctor.tui.panels.gpu_table import is_accused, ranks_on, waiting_shares
from mgpu_doctor.tui.panels.table_cells import DIM, Column, cell, ends, gauge
from mgpu_doctor.tui.view import View

LABEL = 15
BAR = 20
MOST_LINKS = 32


def gpu_page_lines(frame: Frame, width: int, view: View) -> Sequence[Text]:
    gpu = gpu_of(frame, view)
    among = [gpu.which for gpu in gpus(frame)]
    several = len({gpu.host for gpu in among}) > 1
    if gpu is None:
        title = _named(view.gpu, several=several) if view.gpu is not None else "The GPU"
        return [Text(f"{title} is not there at this moment.", style="yellow")]
    place = Text(f"{among.index(gpu.which) + 1} of {len(among)}", style=DIM)
    made = [ends(_who(gpu, several=several), place, width)]
    for finding in _findings(frame, gpu):
        tone = Tone(finding.severity.value)
        mark, style = MARKS[tone], STYLES[tone]
        words = Text.assemble((f"{finding.code}  ", "bold"), text.line(finding.title))
        made += hanging(Text(f"{mark} ", style=style), words, width)
    for row in _facts(frame, gpu):
        made += hanging(row[:LABEL], row[LABEL:], width)
    return made


def gpu_of(frame: Frame, view: View) -> HostGpu | None:
    """Returns the selected GPU; None if it is not in the frame."""
    return next((gpu for gpu in gpus(frame) if gpu.which == view.gpu), None)


def _named(which: GpuKey, *, several: bool) -> str:
    """With its host, where there are several."""
    on = f" of {text.line(which.host)}" if which.host and several else ""
    return f"GPU {which.number}{on}"


def _who(gpu: HostGpu, *, several: bool) -> Text:
    lines = [text.line(fact) for fact in (gpu.device.name, gpu.device.uuid) if fact]
    name = _named(gpu.which, several=several)
    return Text.assemble((name, "bold"), ("  " + "  ".join(lines), ""))


def _findings(frame: Frame, gpu: HostGpu) -> Sequence[Finding]:
    """Returns the findings about a GPU: those of the job, and its other defects."""
    of_job = frame.diagnosis.findings if frame.diagnosis else ()
    here = [finding for finding in of_job if is_accused(frame, finding, gpu.which)]
    known = {finding.code for finding in here}
    defects = (found for found in frame.hardware if found.code not in known)
    return [*here, *(found for found in defects if is_accused(frame, found, gpu.which))]


def _facts(frame: Frame, gpu: HostGpu) -> Iterator[Text]:
    device = gpu.device
    if device.trouble:
        yield _row("trouble", Text(text.line(device.trouble), style="yellow"))
    slot = [f"PCI {text.line(device.bus_id)}"] if device.bus_id else []
    slot += [f"NUMA node {device.numa_node}"] if device.numa_node is not None else []
    slot += [f"near cores {text.line(device.cores)}"] if device.cores else []
    if slot:
        yield _row("slot", ", ".join(slot))
    yield _row("busy", _busy(frame, gpu))
    if device.memory_busy is not None:
        yield _row("memory busy", gauge(device.memory_busy, BAR), f" {device.memory_busy:.0%}")
    yield _row("memory", _memory(device))
    yield _row("power", _of(device.power_watts, device.power_limit_watts, "W"))
    heat = UNKNOWN if device.temperature is None else f"{device.temperature:.0f} °C"
    fan = "" if device.fan is None else f", fan at {device.fan:.0%}"
    yield _row("temperature", heat + fan)
    memory_clock = device.memory_clock_mhz
    beside = "" if memory_clock is None else f", memory {memory_clock:.0f} MHz"
    yield _row("clock", _of(device.sm_clock_mhz, device.max_sm_clock_mhz, "MHz") + beside)
    yield _row("limited by", _reasons(device))
    if device.pcie is not None:
        yield _row("PCIe", _pcie(device.pcie))
    if device.nvlinks:
        yield _row("NVLink", _nvlink(device))
        yield from _link_errors(device.nvlinks)
    if device.ecc is not None:
        yield from _ecc(device.ecc)
    for part in device.instances:
        yield _row(
            gpu_columns.part(part),
            gpu_columns.memory(part.memory_used, part.memory_total),
            _pids(part),
        )


def _row(label: str, *content: str | Text) -> Text:
    return Text.assemble((f"{label:{LABEL}}", DIM), *content)


def _pids(part: MigInstance) -> str:
    many = len(part.pids)
    return f"  {many} process{'' if many == 1 else 'es'}" if many else ""


def _busy(frame: Frame, gpu: HostGpu) -> Text:
    device = gpu.device
    busy = device.utilization
    if busy is None:
        why = "not available in MIG mode" if device.mig else "not available"
        return Text.assemble((f"{UNKNOWN}  ", ""), (why, DIM))
    waits = waiting_shares(frame, ranks_on(frame)).get(gpu.which)
    shown = gauge(busy, BAR).append(f" {busy:.0%}")
    if waits is not None:
        shown.append(
            f", including {min(busy, waits):.0%} waiting for other ranks", gpu_columns.ALARM
        )
    return shown


def _memory(device: Device) -> Text:
    if device.unified_memory and device.memory_total is None:
        return Text(gpu_columns.NO_MEMORY)
    return gpu_columns.memory(device.memory_used, device.memory_total)


def _of(now: float | None, most: float | None, unit: str) -> str:
    lines = (UNKNOWN if value is None else f"{value:.0f}" for value in (now, most))
    return " of ".join(lines) + f" {unit}"


def _reasons(device: Device) -> Text:
    given = device.clock_reasons
    if given is None:
        return Text(UNKNOWN)
    if not given:
        return Text("nothing")
    shown = ", ".join(CLOCK_REASONS.get(part, _spelled(part)) for part in given)
    return Text(shown, style=gpu_columns.ALARM if set(given) & set(HARD_CLOCK_REASONS) else "")


def _pcie(link: Pcie) -> str:
    now = _link(link.generation, link.width)
    most = _link(link.generation_most, link.width_most)
    replays = "" if link.replays is None else f", {link.replays} replays"
    return f"{now} of {most}{_rates(link.sent, link.received)}{replays}"


def _link(generation: int | None, width: int | None) -> str:
    shown = [UNKNOWN if fact is None else str(fact) for fact in (generation, width)]
    return f"generation {shown[0]} x{shown[1]}"


def _rates(sent: float | None, received: float | None) -> str:
    if sent is None and received is None:
        return ""
    return f", {format_bytes(sent)}/s out, {format_bytes(received)}/s in"


def _nvlink(device: Device) -> Text:
    up = sum(nvlink.up is True for nvlink in device.nvlinks)
    to = sorted({text.line(nvlink.remote) for nvlink in device.nvlinks if nvlink.remote})
    line = f"{up} of {len(device.nvlinks)} links up" + (f", to {' and '.join(to)}" if to else "")
    rates = _rates(device.nvlink_sent, device.nvlink_received)
    down = any(nvlink.up is False for nvlink in device.nvlinks)
    return Text(line, style=gpu_columns.ALARM if down else "").append(rates, style="")


def _link_errors(links: Sequence[NvLink]) -> Iterator[Text]:
    for link in links[:MOST_LINKS]:
        errors = [f"{many} {_spelled(kind)} errors" for kind, many in link.errors if many]
        state = ["is down"] if link.up is False else []
        if errors or state:
            shown = ", ".join([*state, *errors])
            yield _row("", Text(f"link {link.link}: {shown}", style=gpu_columns.ALARM))


def _spelled(name: str) -> str:
    return text.line(name).replace("_", " ")


def _ecc(ecc: Ecc) -> Iterator[Text]:
    def many(known: int | None) -> str:
        return UNKNOWN if known is None else str(known)

    yield _row(
        "ECC errors",
        f"{many(ecc.corrected)} corrected, {many(ecc.uncorrected)} not, since the driver was "
        f"loaded; {many(ecc.corrected_ever)} and {many(ecc.uncorrected_ever)} ever",
    )
    lines = [] if ecc.remapped is None else [format_count(ecc.remapped, "row") + " remapped"]
    lines += ["a remap failed: no spare rows are left"] if ecc.failed else []
    lines += ["GPU reset required"] if ecc.pending else []
    if lines:
        grave = ecc.failed or ecc.pending
        yield _row("", Text(", ".join(lines), style=gpu_columns.ALARM if grave else ""))


COLUMNS = (
    Column("pid", 8, right=True),
    Column("rank", 5, right=True),
    Column("memory", 9, right=True),
    Column("kind", 8),
    Column("user", 10),
    Column("container", 13),
)
IN_A_CONTAINER = "the driver reports the host's pids: inside a container, users are unknown"
REPLAYED = "recordings do not contain users and command lines"


@dataclass(frozen=True, slots=True)
class Owners:
    """The owners of a GPU's processes; `reason`: why they are unknown."""

    of: tuple[Owner, ...] = ()
    reason: str | None = None


def process_lines(frame: Frame, width: int, view: View, owners: Owners) -> Sequence[Text]:
    gpu = gpu_of(frame, view)
    if gpu is None:
        return []
    device = gpu.device
    listed = pids(device)
    ranks = ranks_on(frame).get(gpu.which, ())
    if not listed and not ranks:
        return [Text("No process found on it.", style=DIM)]
    made = [
        Text(" ")
        .join(cell(column.title, column, DIM) for column in COLUMNS)
        .append("  command", DIM)
    ]
    made += _rows(device, listed, ranks, {owner.pid: owner for owner in owners.of})
    if owners.reason:
        made.append(Text(owners.reason, style=DIM))
    for line in made:
        line.truncate(width, overflow="ellipsis")
    return made


def _rows(
    device: Device,
    listed: Sequence[int],
    ranks: Sequence[RankSummary],
    owners: dict[int, Owner],
) -> Iterator[Text]:
    """Returns the processes. A rank that the driver does not list is included, because it reports
    its device itself."""
    of = {rank.pid: rank for rank in ranks if rank.pid is not None}
    uses = {process.pid: process for process in device.processes}
    for pid in dict.fromkeys((*listed, *of)):
        rank, use, owner = of.get(pid), uses.get(pid), owners.get(pid, Owner(pid))
        number = rank.rank if rank is not None else None
        shown = (
            str(pid),
            "-" if number is None else str(number),
            format_bytes(use.memory) if use is not None else UNKNOWN,
            use.kind if use is not None else UNKNOWN,
            text.line(owner.user or UNKNOWN),
            text.line(owner.container or "-"),
        )
        cells = (cell(part, column) for part, column in zip(shown, COLUMNS, strict=True))
        style = "" if rank is not None else DIM
        yield Text(" ").join(cells).append(f"  {text.line(' '.join(owner.command))}", style=style)
