"""What a filter is asked of: a rank, a GPU, or a rank on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mgpu_doctor.case.gpu import Device
    from mgpu_doctor.findings import RankSummary


class Row(NamedTuple):
    """One placement; see the room's docstring."""

    rank: RankSummary | None = None
    device: Device | None = None
    pids: tuple[int, ...] = ()
    """The rank's, and those on the device that are no other rank's."""
    host: str | None = None
    user: str | None = None
    """Who the rank's process belongs to."""
