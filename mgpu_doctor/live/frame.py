"""What one refresh of the screen shows: frozen, made by a source, read by panels.

A GPU's index names it only together with its host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mgpu_doctor.case.device_samples import Device
if TYPE_CHECKING:  # a frame without a job is made without what only a job needs
    from mgpu_doctor.case.device_samples import DeviceSample, XidEvent
    from mgpu_doctor.case.host_samples import HostSample
    from mgpu_doctor.findings import Diagnosis, Followed
    from mgpu_doctor.live.history_collector import History
    from mgpu_doctor.live.step_heatmap import Heatmap


class GpuKey(NamedTuple):
    """A GPU, in whatever row it stands. `host`: None: not known. `number`: its index there."""

    host: str | None
    number: int


class HostGpu(NamedTuple):
    """A GPU and the host that it is in."""

    host: str | None
    device: Device

    @property
    def which(self) -> GpuKey:
        return GpuKey(self.host, self.device.index)


class Position(NamedTuple):
    """Where a replay stands. Seconds since the epoch; `speed` is recorded seconds a second."""

    start: float
    end: float
    at: float
    speed: float
    paused: bool


class Progress(NamedTuple):
    """How a job goes of late. None: not known."""

    step_seconds: float | None = None
    """Mean of the newest steps of the rank that is furthest."""
    samples: float | None = None
    """A second, of all ranks that are seen; each batch counts once. None, too, while it stands."""
    tokens: float | None = None
    """The same in tokens."""
    loss: float | None = None
    """Mean over the newest steps and the ranks that tell it; infinite: it is no number."""
    idle: float | None = None
    """Seconds since any rank ended a step; None: the job moves, or is over."""
    probe: float | None = None
    """Share of a step's time, 0..1, that the probe takes by its own count, mean of the ranks."""

    @property
    def rate(self) -> float | None:
        """Steps a second; None, too, while the job stands."""
        return None if self.idle is not None or not self.step_seconds else 1 / self.step_seconds


NO_PROGRESS = Progress()
"""No step was measured."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Frame:
    at: float
    """The moment shown, seconds since the epoch."""
    source: str
    """Where it comes from, in a few words."""
    diagnosis: Diagnosis | None = None
    """None: there is no job to show, `hint` says what to do."""
    heat: Heatmap | str | None = None
    """A sentence: why there is none."""
    going: Progress = NO_PROGRESS
    """How the job goes of late."""
    devices: DeviceSample | None = None
    """None: nothing was sampled."""
    elsewhere: tuple[DeviceSample, ...] = ()
    """The same of the GPUs of further hosts, one a host."""
    host: HostSample | None = None
    xids: tuple[XidEvent, ...] = ()
    """The newest that were heard of this machine since it is watched, also by earlier frames."""
    hint: str | None = None
    followed: tuple[Followed, ...] = ()
    """Findings with the times at which they came; those that are no more last, the newest first."""
    others: int = 0
    """Further jobs that are alive on this machine."""
    late: float = 0.0
    """Seconds by which this frame was made later than it was due."""
    age: float = 0.0
    """Seconds since the diagnosis was made; ranks and steps are newer."""
    ranks_age: float = 0.0
    """Seconds since ranks and steps were read. Of what is over and of a replay 0."""
    gpus_age: float = 0.0
    """The same of the GPUs."""
    interval: float = 0.0
    """Seconds between frames that somebody asked for; 0: this is the only one."""
    replay: Position | None = None
    history: History | None = None
    """What was sampled until now; None: the source keeps none."""
