"""What the exporter looks at: this machine and a job, made into the text of a page."""

from __future__ import annotations

from typing import Protocol

from mgpu_doctor.case.model import Outcome
from mgpu_doctor.export import page
from mgpu_doctor.export.xids import Xids
from mgpu_doctor.live.frame import Frame


class Source(Protocol):
    """`mgpu_doctor.live.here.Live`, as far as it is needed."""

    def frame(self, passed: float, /) -> Frame: ...

    def next_job(self) -> None: ...


class Watching:
    """For one thread. `fixed`: the job was named, so no other one takes its place."""

    def __init__(self, source: Source, here: str, *, fixed: bool) -> None:
        self._source = source
        self._here = here
        self._fixed = fixed
        self._xids = Xids()

    def text(self) -> bytes:
        """A sample. Where the job is over and another one runs here, it is of that one."""
        frame = self._source.frame(0)
        self._xids.count(frame.devices, self._here)
        if not self._fixed and _over(frame) and frame.others:
            self._source.next_job()
            frame = self._source.frame(0)
            self._xids.count(frame.devices, self._here)
        return page.lines([*page.families(frame, self._here), self._xids.family()])


def _over(frame: Frame) -> bool:
    diagnosis = frame.diagnosis
    if diagnosis is None:
        return False
    job = diagnosis.case.job
    return job.ended is not None or job.outcome not in (Outcome.RUNNING, Outcome.HUNG)
