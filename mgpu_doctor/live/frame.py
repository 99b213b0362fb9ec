"""What one refresh of the screen shows: frozen, made by a source, read by panels.

A GPU's index names it only together with its host."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:  # a frame without a job does without these imports
    from mgpu_doctor.case.device_samples import Device, DeviceSample, XidEvent
    from mgpu_doctor.case.host_samples import HostSample
    from mgpu_doctor.findings import Diagnosis, Finding, Followed
    from mgpu_doctor.live.history_collector import History
    from mgpu_doctor.live.host_statuses import HostStatus
    from mgpu_doctor.live.process_list import ListedProcess
    from mgpu_doctor.live.rank_map import RankMap
    from mgpu_doctor.live.step_heatmap import Heatmap


HOST = "host"
"""The grouping of ranks by host; other groupings are named by what their groups are."""


class GpuKey(NamedTuple):
    """A GPU, whatever its row. `host`: None if unknown. `number`: its index on the host."""

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
    """A replay's position, in seconds since the epoch; `speed` in recorded seconds per second."""

    start: float
    end: float
    at: float
    speed: float
    paused: bool


class Progress(NamedTuple):
    """A job's recent progress. None: unknown."""

    step_seconds: float | None = None
    """Mean of the newest steps of the most advanced rank, in seconds."""
    samples: float | None = None
    """Samples per second of all observed ranks; each batch counts once. Also None without
    progress."""
    tokens: float | None = None
    """Tokens per second, counted likewise."""
    loss: float | None = None
    """Mean over the newest steps and the ranks that report it; infinite if it is not a number."""
    idle: float | None = None
    """Seconds since any rank ended a step; None if the job makes progress or is over."""
    probe: float | None = None
    """Share of step time, 0..1, that the probe reports as its own cost; mean over the ranks."""
    epoch: int | None = None
    """The epoch of the training data loader, from 1."""
    epoch_left: float | None = None
    """Seconds until this epoch ends, if steps take as long as the newest ones."""
    step: int | None = None
    """The furthest step, where it was read after the ranks; else the diagnosis knows it."""

    @property
    def rate(self) -> float | None:
        """Steps per second; also None while the job makes no progress."""
        return None if self.idle is not None or not self.step_seconds else 1 / self.step_seconds


NO_PROGRESS = Progress()
"""Whether no step was measured."""


class Frame(msgspec.Struct, frozen=True, eq=False):
    at: float
    """The moment shown, seconds since the epoch."""
    source: str
    """Where it comes from, in a few words."""
    diagnosis: Diagnosis | None = None
    """None if there is no job to show; then `hint` says what to do."""
    heat: Heatmap | str | None = None
    """One sentence: why there is no heat map."""
    map: RankMap | None = None
    """The ranks in groups; None: no rank has joined, or it was not made."""
    hosts: tuple[HostStatus, ...] = ()
    """The hosts of the job, in the order of ranks, then those that are not seen."""
    going: Progress = NO_PROGRESS
    """The job's recent progress."""
    devices: DeviceSample | None = None
    """None: nothing was sampled."""
    elsewhere: tuple[DeviceSample, ...] = ()
    """The samples of the GPUs of further hosts, one per host."""
    host: HostSample | None = None
    xids: tuple[XidEvent, ...] = ()
    """The newest XIDs of this machine since watching began, including those of earlier frames."""
    hint: str | None = None
    followed: tuple[Followed, ...] = ()
    """Findings with the times at which they appeared; resolved ones last, newest first."""
    others: int = 0
    """Further jobs that are alive on this machine."""
    late: float = 0.0
    """Seconds by which this frame was made later than it was due."""
    age: float = 0.0
    """Seconds since the diagnosis was made; ranks and steps are newer."""
    ranks_age: float = 0.0
    """Seconds since ranks and steps were read; 0 for a finished job and for a replay."""
    gpus_age: float = 0.0
    """Seconds since the GPUs were sampled."""
    interval: float = 0.0
    """Requested seconds between frames; 0 if this is the only one."""
    over: bool = False
    """Whether the first process of the job has ended."""
    replay: Position | None = None
    history: History | None = None
    """Past samples; None if the source keeps none."""
    hardware: tuple[Finding, ...] = ()
    """Defective GPUs of this machine, at warning or worse, whether or not a job is shown."""
    processes: tuple[ListedProcess, ...] = ()
    """Those that use a GPU or the most CPU; only while no job is shown."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Returns those of the job; if it has none, the defects of GPUs."""
        of_job = self.diagnosis.findings if self.diagnosis is not None else ()
        return of_job or self.hardware
