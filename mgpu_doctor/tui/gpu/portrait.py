"""All that a GPU tells of itself, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from mgpu_doctor.case.clockreasons import HARD, WORDS
from mgpu_doctor.case.gpu import Device, Ecc, MigInstance, NvLink, Pcie
from mgpu_doctor.findings import Culprit, Finding
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.live.gpu import Gpu, Which
from mgpu_doctor.report import text
from mgpu_doctor.report.verdict import Tone
from mgpu_doctor.tui.filter.shown import gpus
from mgpu_doctor.tui.panels import gpucells
from mgpu_doctor.tui.panels.gpus import ranks_on
from mgpu_doctor.tui.panels.infull import hanging
from mgpu_doctor.tui.panels.parts import DIM, ends, gauge
from mgpu_doctor.tui.panels.said import MARKS
from mgpu_doctor.tui.panels.spinning import waiting
from mgpu_doctor.tui.view import View

LABEL = 15
BAR = 20
MOST_LINKS = 32


def lines(frame: Frame, width: int, view: View) -> Sequence[Text]:
    gpu = gpu_of(frame, view)
    among = [one.which for one in gpus(frame)]
    several = len({one.host for one in among}) > 1
    if gpu is None:
        told = _named(view.gpu, several=several) if view.gpu is not None else "The GPU"
        return [Text(f"{told} is not there at this moment.", style="yellow")]
    place = Text(f"{among.index(gpu.which) + 1} of {len(among)}", style=DIM)
    made = [ends(_who(gpu, several=several), place, width)]
    for finding in _findings(frame, gpu, several=several):
        mark, style = MARKS[Tone(finding.severity.value)]
        words = Text.assemble((f"{finding.code}  ", "bold"), text.line(finding.title))
        made += hanging(Text(f"{mark} ", style=style), words, width)
    for row in _facts(frame, gpu):
        made += hanging(row[:LABEL], row[LABEL:], width)
    return made


def gpu_of(frame: Frame, view: View) -> Gpu | None:
    """The GPU that is selected; None where the frame does not have it."""
    return next((one for one in gpus(frame) if one.which == view.gpu), None)


def _named(which: Which, *, several: bool) -> str:
    """With its host, where there are several."""
    on = f" of {text.line(which.host)}" if which.host and several else ""
    return f"GPU {which.number}{on}"


def _who(gpu: Gpu, *, several: bool) -> Text:
    told = [text.line(one) for one in (gpu.device.name, gpu.device.uuid) if one]
    name = _named(gpu.which, several=several)
    return Text.assemble((name, "bold"), ("  " + "  ".join(told), ""))


def _findings(frame: Frame, gpu: Gpu, *, several: bool) -> Sequence[Finding]:
    """A GPU with a rank on it is accused by that rank, any other by its number."""
    here = {one.rank for one in ranks_on(frame).get(gpu.which, ()) if one.rank is not None}
    own = f"GPU {gpu.device.index}"

    def accused(culprit: Culprit) -> bool:
        if culprit.rank is not None:
            return culprit.rank in here
        return culprit.device == own and (not several or culprit.host == gpu.host)

    found = frame.diagnosis.findings if frame.diagnosis else ()
    return [one for one in found if any(map(accused, one.culprits))]


def _facts(frame: Frame, gpu: Gpu) -> Iterator[Text]:
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
    heat = text.UNKNOWN if device.temperature is None else f"{device.temperature:.0f} °C"
    fan = "" if device.fan is None else f", fan at {device.fan:.0%}"
    yield _row("temperature", heat + fan)
    memory_clock = device.memory_clock_mhz
    beside = "" if memory_clock is None else f", memory {memory_clock:.0f} MHz"
    yield _row("clock", _of(device.sm_clock_mhz, device.max_sm_clock_mhz, "MHz") + beside)
    yield _row("held down by", _reasons(device))
    if device.pcie is not None:
        yield _row("PCIe", _pcie(device.pcie))
    if device.nvlinks:
        yield _row("NVLink", _nvlink(device))
        yield from _link_errors(device.nvlinks)
    if device.ecc is not None:
        yield from _ecc(device.ecc)
    for part in device.instances:
        yield _row(
            gpucells.part(part), gpucells.memory(part.memory_used, part.memory_total), _pids(part)
        )


def _row(label: str, *content: str | Text) -> Text:
    return Text.assemble((f"{label:{LABEL}}", DIM), *content)


def _pids(part: MigInstance) -> str:
    many = len(part.pids)
    return f"  {many} process{'' if many == 1 else 'es'}" if many else ""


def _busy(frame: Frame, gpu: Gpu) -> Text:
    device = gpu.device
    busy = device.utilization
    if busy is None:
        why = "in MIG mode NVML tells none" if device.mig else "not told"
        return Text.assemble((f"{text.UNKNOWN}  ", ""), (why, DIM))
    waits = waiting(frame, ranks_on(frame)).get(gpu.which)
    told = gauge(busy, BAR).append(f" {busy:.0%}")
    if waits is not None:
        told.append(f", of which {min(busy, waits):.0%} waits for other ranks", gpucells.ALARM)
    return told


def _memory(device: Device) -> Text:
    if device.unified_memory and device.memory_total is None:
        return Text(gpucells.NO_MEMORY)
    return gpucells.memory(device.memory_used, device.memory_total)


def _of(now: float | None, most: float | None, unit: str) -> str:
    told = (text.UNKNOWN if one is None else f"{one:.0f}" for one in (now, most))
    return " of ".join(told) + f" {unit}"


def _reasons(device: Device) -> Text:
    given = device.clock_reasons
    if given is None:
        return Text(text.UNKNOWN)
    if not given:
        return Text("nothing")
    told = ", ".join(WORDS.get(one, _spelled(one)) for one in given)
    return Text(told, style=gpucells.ALARM if set(given) & set(HARD) else "")


def _pcie(link: Pcie) -> str:
    now = _link(link.generation, link.width)
    most = _link(link.generation_most, link.width_most)
    replays = "" if link.replays is None else f", {link.replays} replays"
    return f"{now} of {most}{_rates(link.sent, link.received)}{replays}"


def _link(generation: int | None, width: int | None) -> str:
    told = [text.UNKNOWN if one is None else str(one) for one in (generation, width)]
    return f"generation {told[0]} x{told[1]}"


def _rates(sent: float | None, received: float | None) -> str:
    if sent is None and received is None:
        return ""
    return f", {text.size(sent)}/s out, {text.size(received)}/s in"


def _nvlink(device: Device) -> Text:
    up = sum(one.up is True for one in device.nvlinks)
    to = sorted({text.line(one.remote) for one in device.nvlinks if one.remote})
    told = f"{up} of {len(device.nvlinks)} links up" + (f", to {' and '.join(to)}" if to else "")
    rates = _rates(device.nvlink_sent, device.nvlink_received)
    down = any(one.up is False for one in device.nvlinks)
    return Text(told, style=gpucells.ALARM if down else "").append(rates, style="")


def _link_errors(links: Sequence[NvLink]) -> Iterator[Text]:
    for link in links[:MOST_LINKS]:
        errors = [f"{many} {_spelled(kind)} errors" for kind, many in link.errors if many]
        state = ["is down"] if link.up is False else []
        if errors or state:
            told = ", ".join([*state, *errors])
            yield _row("", Text(f"link {link.link}: {told}", style=gpucells.ALARM))


def _spelled(name: str) -> str:
    return text.line(name).replace("_", " ")


def _ecc(ecc: Ecc) -> Iterator[Text]:
    def many(known: int | None) -> str:
        return text.UNKNOWN if known is None else str(known)

    yield _row(
        "ECC errors",
        f"{many(ecc.corrected)} corrected, {many(ecc.uncorrected)} not, since the driver was "
        f"loaded; {many(ecc.corrected_ever)} and {many(ecc.uncorrected_ever)} ever",
    )
    told = [] if ecc.remapped is None else [text.count(ecc.remapped, "row") + " remapped"]
    told += ["a remap failed: no spare rows are left"] if ecc.failed else []
    told += ["the GPU must be reset for it"] if ecc.pending else []
    if told:
        grave = ecc.failed or ecc.pending
        yield _row("", Text(", ".join(told), style=gpucells.ALARM if grave else ""))
