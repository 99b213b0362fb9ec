"""What the user selected on the screen: sort order, filter, rank, GPU, finding."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from mgpu_doctor.live.frame import HOST, GpuKey

if TYPE_CHECKING:
    from mgpu_doctor.case.device_samples import Device
    from mgpu_doctor.findings import RankSummary
    from mgpu_doctor.tui.filter.language import Filter


class Order(str, Enum):
    """How ranks are sorted."""

    RANK = "rank"
    OWN = "own work"
    WAIT = "wait"
    STEP = "step"
    MEMORY = "memory"
    STATE = "state"
    HOST = "host"


class ProcessOrder(str, Enum):
    """How processes are sorted."""

    GPU = "GPU"
    """By the first GPU that they use; others after them, by CPU."""
    GPU_MEMORY = "GPU memory"
    CPU = "cpu"
    MEMORY = "memory"
    AGE = "age"
    PID = "pid"
    USER = "user"
    TREE = "tree"
    """Children below their parents."""


class RankKey(NamedTuple):
    """A rank, whatever its row. `pid`: only if its number is unknown."""

    rank: int | None
    host: str
    pid: int | None = None

    @classmethod
    def of(cls, rank: RankSummary) -> RankKey:
        return cls(rank.rank, rank.host, rank.pid if rank.rank is None else None)


class Spot(NamedTuple):
    """A place on the map of ranks. `rank`: None: the group itself."""

    group: str
    rank: RankKey | None = None


class View(NamedTuple):
    """What the user selected; panels draw a frame according to it."""

    order: Order = Order.RANK
    finding: int = 0
    """Which finding is selected."""
    filter: Filter | None = None
    """Which ranks and GPUs are shown; None: all."""
    reversed: bool = False
    """Whether the order is reversed; unknown values stay last."""
    rank: RankKey | None = None
    """Which rank is selected; None: none yet."""
    gpu: GpuKey | None = None
    """Which GPU is selected; None: none yet."""
    by: str = HOST
    """How the map groups the ranks."""
    worst_first: bool = True
    """Whether the map is sorted by how bad a group is; else by its name."""
    spot: Spot | None = None
    """What is selected on the map; None: nothing yet."""
    alone: bool = False
    """Whether the map takes the place of the other tables."""
    process: int | None = None
    """The pid of the selected process; None: none yet."""
    process_order: ProcessOrder = ProcessOrder.GPU
    processes_reversed: bool = False


class Row(NamedTuple):
    """A rank on a GPU, or either of them alone: what a filter is applied to."""

    rank: RankSummary | None = None
    device: Device | None = None
    pids: tuple[int, ...] = ()
    """The rank's, and those on the device that are no other rank's."""
    host: str | None = None
    user: str | None = None
    """Who the process belongs to."""
    command: str | None = None
