"""The table of GPUs with their MIG instances, or one sentence why no GPU is shown. Pure.

A kernel that waits in a collective counts as busy. How much of a GPU's utilization is waiting is
known for ranks that have been in one collective for seconds, and for ranks whose phases were timed
on the device; a host clock says nothing about a device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from mgpu_doctor.case.device_samples import Device, MigInstance
from mgpu_doctor.formatting import UNKNOWN, format_ranks
from mgpu_doctor.live.frame import Frame, GpuKey, HostGpu
from mgpu_doctor.report import text
from mgpu_doctor.tui.filter.matching import format_left, gpus, kept_by, pids, shown, used
from mgpu_doctor.tui.panels import gpu_columns
from mgpu_doctor.tui.panels.gpu_columns import HOST, INDEX, MEMORY, UTIL, Cell, Shown
from mgpu_doctor.tui.panels.table_cells import (
    DIM,
    NOTE,
    Column,
    Rows,
    assemble,
    begun,
    cell,
    ends,
    fitting,
    join_parts,
    sentence,
)
from mgpu_doctor.tui.view import View

if TYPE_CHECKING:
    from mgpu_doctor.case.model import Now, Rank
    from mgpu_doctor.findings import Finding, RankSummary


WHO = 14
"""Cells reserved for who runs on a device."""
UNLISTED = "processes"
"""A device's trouble: its processes could not be read."""
LEGEND = UTIL._replace(title="util w=waits")


GAP = 2
"""Cells between two GPUs in one line."""


def _made_of(frame: Frame, width: int, view: View) -> tuple[object, ...]:
    """Returns the inputs of the table. With many GPUs not every frame has new samples."""
    return (
        frame.devices,
        frame.elsewhere,
        frame.diagnosis,
        frame if view.filter else None,
        width,
        view,
    )


def gpu_lines(frame: Frame, width: int, view: View) -> Sequence[Text]:
    """Returns the table with a line for each GPU."""
    return _tables(frame, width, view)[0]


def compact_lines(frame: Frame, width: int, view: View) -> Sequence[Text]:
    """Returns the table without its head and with several GPUs in a line, column by column; those
    of several hosts have a line each."""
    return _tables(frame, width, view)[1]


@kept_by(_made_of)
def _tables(frame: Frame, width: int, view: View) -> tuple[Sequence[Text], Sequence[Text]]:
    """Returns the usual and the compact table. A row is made when it is drawn."""
    there = gpus(frame)
    if not there:
        return (sentence(f"No GPU seen: {_none(frame)}", width),) * 2
    ranks = ranks_on(frame)
    waits = waiting_shares(frame, ranks)
    left = shown(frame, view.filter).gpus
    common = _common([gpu.device for gpu in there])
    notes = [
        (format_left(len(left), len(there), "GPU", view.filter) if view.filter else "", NOTE),
        (_bare(frame), DIM),
        (f"All GPUs: {common}" if common else "", gpu_columns.ALARM),
    ]
    head = [Text(text.cut(words, width), style=style) for words, style in notes if words]
    rows = rows_of(left)

    def make(sheet: _Sheet, place: int) -> Text:
        gpu, part = rows[place]
        on = ranks.get(gpu.which, ())
        if part is not None:
            return sheet.part(part, on)
        made = sheet.row(Shown(gpu.device, waits.get(gpu.which), gpu.host), on)
        if gpu.which == view.gpu:
            made.stylize("reverse", 0, sheet.number_width)
        return made

    marked = (place for place, (row, part) in enumerate(rows) if row.which == view.gpu and not part)
    chosen = next(marked, None)
    sheet = _Sheet.fit(there, width, common)
    titles = sheet.head(spins=bool(waits))
    usual = Rows([*head, titles], len(rows), partial(make, sheet), chosen)
    beside = _beside(len(rows), width)
    if beside == 1 or len({gpu.host for gpu in there}) > 1:
        return usual, usual
    lines, cells = math.ceil(len(rows) / beside), _cells(width, beside)
    small, column = _Sheet.fit(there, cells, common, compact=True), Column("", cells)

    def join(line: int) -> Text:
        return join_parts(
            (cell(make(small, place), column) for place in range(len(rows))[line::lines]), GAP
        )

    return usual, Rows(head, lines, join, None if chosen is None else chosen % lines)


def _beside(rows: int, width: int) -> int:
    """Returns how many GPUs the compact table has in a line."""
    return max(1, min(rows, (width + GAP) // (gpu_columns.LEAST_COMPACT + GAP)))


def _cells(width: int, beside: int) -> int:
    return (width + GAP) // beside - GAP


def row_at(line: int, at: int, rows: int, width: int) -> int:
    """Returns the row of the compact table at this cell of a line below its head; `rows` if there
    is none."""
    beside = _beside(rows, width)
    lines = math.ceil(rows / beside)
    return line + at // (_cells(width, beside) + GAP) * lines if line < lines else rows


def rows_of(gpus: Sequence[HostGpu]) -> list[tuple[HostGpu, MigInstance | None]]:
    """Returns what each row shows: a GPU, or one of its MIG instances."""
    return [(gpu, part) for gpu in gpus for part in (None, *gpu.device.instances)]


def _bare(frame: Frame) -> str:
    """Returns which of several hosts show no GPUs, and why; empty if every host shows some."""
    samples = [sample for sample in (frame.devices, *frame.elsewhere) if sample is not None]
    without = [sample for sample in samples if not sample.devices]
    if len(without) == 1:
        host = text.line(without[0].host or UNKNOWN)
        return f"No GPU seen on {host}: {text.line(without[0].trouble or 'none found')}"
    return f"No GPU seen on {len(without)} of {len(samples)} hosts" if without else ""


def _none(frame: Frame) -> str:
    """Returns why no GPU is shown."""
    if frame.devices is None:
        return "devices were not sampled"
    return text.line(frame.devices.trouble or "none found")


class _Sheet(NamedTuple):
    """The table's columns at a given width."""

    cells: Mapping[Column, Cell]
    hidden: Mapping[Column, Cell]
    """Columns that only wide screens have. Narrow screens show them only as warnings."""
    width: int
    whose: Set[Column]
    """Columns that name the GPU; always shown."""
    common: str
    """The trouble that all GPUs share, which no row repeats; empty if none."""
    compact: bool
    """Whether several GPUs share a line."""

    @classmethod
    def fit(
        cls, gpus: Sequence[HostGpu], width: int, common: str, *, compact: bool = False
    ) -> _Sheet:
        devices = [gpu.device for gpu in gpus]
        hosts = dict.fromkeys(gpu.host for gpu in gpus)
        known = gpu_columns.cells_for(devices, hosts, width, compact=compact)
        fit = fitting((*known,), width, gpu_columns.WHO if compact else WHO)
        hidden = {column: draw for column, draw in known.items() if column not in fit}
        cells = {column: known[column] for column in fit}
        whose = {column for column in fit if column.title in (INDEX.title, HOST)}
        return cls(cells, hidden, width, whose, common, compact)

    @property
    def gap(self) -> str:
        """Returns what is left of a warning."""
        return " " if self.compact else "  "

    @property
    def number_width(self) -> int:
        """Returns the cells of the GPU's number."""
        return next(iter(self.cells)).width

    def head(self, *, spins: bool) -> Text:
        columns = [LEGEND if spins and cell is UTIL else cell for cell in self.cells]
        made = join_parts(cell(column.title, column, DIM) for column in columns)
        return made.append(" used by", style=DIM)

    def row(self, what: Shown, ranks: Sequence[RankSummary]) -> Text:
        device = what.device
        if device.trouble is not None and _silent(device):
            return self._silent_row(what, ranks)
        parts = [cell(draw(what), column) for column, draw in self.cells.items()]
        made = join_parts([*parts, assemble((_users(device, ranks, compact=self.compact), ""))])
        warned = (gpu_columns.alarm(column, draw, what) for column, draw in self.hidden.items())
        alarms = [words for words in warned if words]
        if alarms and self._left(made) < 1:
            made.truncate(self.width - len(self.gap) - 1, overflow="ellipsis")
        for words in alarms:
            shown = begun(words, self._left(made), least=1) or "!"
            made.append(f"{self.gap}{shown}", gpu_columns.ALARM)
        trouble = "" if self.common else _trouble(device)
        if trouble and (words := begun(trouble, self._left(made))):
            made.append(f"{self.gap}{words}", style=gpu_columns.ALARM)
        made.truncate(self.width, overflow="ellipsis")
        return made

    def _left(self, made: Text) -> int:
        """Returns the cells left for words at the end of the row; the GPU's page shows
        everything."""
        return self.width - made.cell_len - len(self.gap)

    def part(self, part: MigInstance, ranks: Sequence[RankSummary]) -> Text:
        """Returns the row of a MIG instance. NVML reports its memory and processes, nothing
        else."""
        own = [rank for rank in ranks if rank.pid in part.pids]
        memory = gpu_columns.short_memory if self.compact else gpu_columns.memory
        known: dict[str, str | Text] = {
            INDEX.title: Text("└".rjust(self.number_width), style=DIM),
            UTIL.title: gpu_columns.part(part),
            MEMORY.title: memory(part.memory_used, part.memory_total),
        }
        made = join_parts(cell(known.get(column.title, ""), column) for column in self.cells)
        made.append(f" {_who(part.pids, own, compact=self.compact)}")
        made.truncate(self.width, overflow="ellipsis")
        return made

    def _silent_row(self, what: Shown, ranks: Sequence[RankSummary]) -> Text:
        device = what.device
        name = f" {text.line(device.name)}" if device.name and not self.compact else ""
        why = device.trouble or ""
        mark, style = ("?", DIM) if "not supported" in why else ("✗", "bold red")
        numbers = [rank.rank for rank in ranks if rank.rank is not None]
        reason = "" if self.common else text.line(why)
        ran = f"{format_ranks(numbers)} ran on it" if numbers else ""
        whose = (
            cell(draw(what), column) for column, draw in self.cells.items() if column in self.whose
        )
        made = Text.assemble(
            *(part for rank in whose for part in (rank, " ")),
            (f"{mark} ", style),
            (reason, style),
            ", " if reason and ran else "",
            ran,
        )
        return ends(made, Text(name, style=DIM), self.width)


def _common(devices: Sequence[Device]) -> str:
    """Returns the trouble that all of several devices share."""
    lines = {_trouble(device) for device in devices}
    return lines.pop() if len(lines) == 1 < len(devices) else ""


def _silent(device: Device) -> bool:
    known = (device.utilization, device.memory_used, device.power_watts, device.temperature)
    return all(value is None for value in known)


def _trouble(device: Device) -> str:
    """Returns the trouble that the row itself does not show."""
    why = text.line(device.trouble) if device.trouble else ""
    return "" if device.mig and why in ("MIG mode", "MIG mode; not supported: utilization") else why


def ranks_on(frame: Frame) -> dict[GpuKey, list[RankSummary]]:
    """Returns GPU -> the ranks that compute on it."""
    by_gpu: dict[GpuKey, list[RankSummary]] = {}
    if frame.diagnosis is not None:
        there = gpus(frame)
        for place, on in used(frame).items():
            for at in on:
                by_gpu.setdefault(there[at].which, []).append(frame.diagnosis.ranks[place])
    return by_gpu


def is_accused(frame: Frame, finding: Finding, which: GpuKey) -> bool:
    """Returns whether a finding is about a GPU: about its ranks, or itself if it has none."""
    ranks = {rank.rank for rank in ranks_on(frame).get(which, ()) if rank.rank is not None}
    several = len({gpu.host for gpu in gpus(frame)}) > 1
    return any(
        culprit.rank in ranks
        if culprit.rank is not None
        else culprit.device == f"GPU {which.number}" and (not several or culprit.host == which.host)
        for culprit in finding.culprits
    )


def _users(device: Device, ranks: Sequence[RankSummary], *, compact: bool) -> str:
    if device.instances:
        return "-"
    listed = pids(device)
    hidden = not listed and not ranks and UNLISTED in (device.trouble or "")
    return UNKNOWN if hidden else _who(listed, ranks, compact=compact)


def _who(listed: Sequence[int], ranks: Sequence[RankSummary], *, compact: bool) -> str:
    """Returns who uses a device: ranks, then the pids of other processes, as in `rank 3, pid
    91`; `compact`: counts instead of a long list."""
    ours = [rank.rank for rank in ranks if rank.rank is not None]
    numbered = {rank.pid for rank in ranks if rank.rank is not None}
    others = [pid for pid in listed if pid not in numbered]
    named = format_ranks(ours) if ours else ""
    if compact and len(named) > gpu_columns.WHO:
        named = f"{len(ours)} ranks"
    processes = "pids" if compact else "processes"
    parts = [named] if ours else []
    parts += [f"pid {others[0]}"] if len(others) == 1 else []
    parts += [f"{len(others)} {processes}"] if len(others) > 1 else []
    return ", ".join(parts) or "-"


STANDS = 5.0
"""Seconds in one collective after which all of the device's activity counts as waiting."""
LEAST = 0.1
"""Share of a step below which waiting is not marked."""
WAITS = ("waiting", "hung")
"""States of a rank."""


def waiting_shares(
    frame: Frame, ranks_on: Mapping[GpuKey, Sequence[RankSummary]]
) -> dict[GpuKey, float]:
    """Returns GPU -> share of time, 0..1, that its ranks wait for others. A GPU is listed only if
    this is known for every process on it. `ranks_on`: the ranks on each GPU."""
    if frame.diagnosis is None:
        return {}
    facts = {(rank.rank, rank.pid): rank for rank in frame.diagnosis.case.ranks}
    by_gpu = {}
    for gpu in gpus(frame):
        ranks = ranks_on.get(gpu.which, ())
        if not ranks or len(pids(gpu.device)) > len(ranks):
            continue  # another process may be computing on it
        shares = [_share(rank, facts.get((rank.rank, rank.pid)), frame.at) for rank in ranks]
        known = [share for share in shares if share is not None]
        if len(known) == len(ranks) and min(known) >= LEAST:
            by_gpu[gpu.which] = min(known)
    return by_gpu


def _share(rank_summary: RankSummary, rank: Rank | None, at: float) -> float | None:
    if rank is None:
        return None
    if rank_summary.state in WAITS and _stands(rank.now, at):
        return 1.0
    # not needed on a machine without a job
    from mgpu_doctor.case.process_metadata import PhaseClock
    from mgpu_doctor.report import phase_bars

    if rank.metadata.clock is not PhaseClock.DEVICE:
        return None

    spent = phase_bars.measured_phases(rank_summary.phases)
    total = sum(spent.values())
    return spent.get("wait", 0.0) / total if total else None


def _stands(now: Now | None, at: float) -> bool:
    return now is not None and now.phase == "wait" and at - now.since >= STANDS
