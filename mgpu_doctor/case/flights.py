"""What torch's flight recorder tells of each rank's collectives. Facts only.

One form for the JSON and the pickled dumps, of torch 2.4 to 2.13, gloo and NCCL. Reading them is
`mgpu_probes.outside.flight`'s work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Collective:
    """One entry of the recorder. None: this version or backend does not tell."""

    group: str
    """Name of the process group (`0`, `1`, …); its members are in `Flight.groups`."""
    sequence: int | None
    """Number of the collective in its group, the same on all its ranks."""
    operation: str
    """`all_reduce`, `broadcast`, `send 0->1`, … without the backend's name."""
    inputs: tuple[tuple[int, ...], ...]
    """Shapes of the input tensors."""
    outputs: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    """Of inputs, then outputs."""
    state: str | None
    """`scheduled`, `started`, `completed`; gloo always says scheduled: see `retired`."""
    retired: bool | None
    created: float | None
    """Seconds since the epoch at which the call was made."""
    site: tuple[str, int | None, str] | None
    """File, line and function of the innermost frame of the user's own code."""
    frames: tuple[tuple[str, int | None, str], ...] = ()
    """The call's whole stack, innermost first, where it was recorded."""
    timeout: float | None = None
    """Seconds."""
    p2p: bool = False
    backend: str | None = None
    """`nccl`, `gloo`, …: a group may have several, and each counts for itself."""
    started: float | None = None
    """Seconds since the epoch at which NCCL was seen to have begun it; before, it is queued."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a rank is in a group, by the recorder's own count."""

    enqueued: int | None
    started: int | None
    completed: int | None


@dataclass(frozen=True, slots=True)
class Flight:
    """One rank's dump. `collectives`: oldest first."""

    rank: int | None
    source: str
    """File name, or `worker socket`."""
    version: str | None
    collectives: tuple[Collective, ...]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Group name -> ranks that are in it."""
    progress: Mapping[str, Progress] = field(default_factory=dict)
    at: float | None = None
    """When it was dumped, at the latest."""
    host: str | None = None
    pid: int | None = None
    lost: int = 0
    """Entries that the recorder no longer holds or that could not be read."""
    unseen: int = 0
    """Operations that it counted and did not record, as gloo's sends and receives (torch 2.13)."""
    slack: float = 0.0
    """Seconds by which it may have been dumped before `at`."""
