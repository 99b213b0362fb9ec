"""The processes on a GPU: rank, user, container, memory, command line. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mgpu_probes.outside.owner import Owner
from rich.text import Text

from mgpu_doctor.case.gpu import Device
from mgpu_doctor.findings import RankSummary
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.report import text
from mgpu_doctor.tui.filter.shown import pids
from mgpu_doctor.tui.gpu.portrait import gpu_of
from mgpu_doctor.tui.panels.gpus import ranks_on
from mgpu_doctor.tui.panels.parts import DIM, Column, cell
from mgpu_doctor.tui.view import View

COLUMNS = (
    Column("pid", 8, right=True),
    Column("rank", 5, right=True),
    Column("memory", 9, right=True),
    Column("kind", 8),
    Column("user", 10),
    Column("container", 13),
)
IN_A_CONTAINER = "the driver tells the host's pids: users are not known inside a container"
REPLAYED = "of a recording, users and command lines are not known"


@dataclass(frozen=True, slots=True)
class Owners:
    """Whose the processes are; `reason`: why they are not known."""

    of: tuple[Owner, ...] = ()
    reason: str | None = None


def lines(frame: Frame, width: int, view: View, owners: Owners) -> Sequence[Text]:
    gpu = gpu_of(frame, view)
    if gpu is None:
        return []
    device = gpu.device
    listed = pids(device)
    ranks = ranks_on(frame).get(gpu.which, ())
    if not listed and not ranks:
        return [Text("No process is seen on it.", style=DIM)]
    made = [Text(" ").join(cell(one.title, one, DIM) for one in COLUMNS).append("  command", DIM)]
    made += _rows(device, listed, ranks, {one.pid: one for one in owners.of})
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
    """A rank that the driver does not list is there all the same: it names the device itself."""
    of = {rank.pid: rank for rank in ranks if rank.pid is not None}
    uses = {one.pid: one for one in device.processes}
    for pid in dict.fromkeys((*listed, *of)):
        rank, use, owner = of.get(pid), uses.get(pid), owners.get(pid, Owner(pid))
        number = rank.rank if rank is not None else None
        shown = (
            str(pid),
            "-" if number is None else str(number),
            text.size(use.memory) if use is not None else text.UNKNOWN,
            use.kind if use is not None else text.UNKNOWN,
            text.line(owner.user or text.UNKNOWN),
            text.line(owner.container or "-"),
        )
        cells = (cell(one, column) for one, column in zip(shown, COLUMNS, strict=True))
        style = "" if rank is not None else DIM
        yield Text(" ").join(cells).append(f"  {text.line(' '.join(owner.command))}", style=style)
