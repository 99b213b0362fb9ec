"""A job as it was examined, and its newest step, which is read for each frame."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from mgpu_doctor.case.model import Case
from mgpu_doctor.findings import Diagnosis, Followed
from mgpu_doctor.live.finding_history import update_history
from mgpu_doctor.live.frame import Progress
from mgpu_doctor.live.job_progress import measure_progress
from mgpu_doctor.live.rank_map import RankMap, map_ranks
from mgpu_doctor.live.step_heatmap import Heatmap, make_heatmap
from mgpu_doctor.recording.box import BadBox, BoxFile, BoxReader


@dataclass(frozen=True, slots=True)
class Seen:
    """An examined job. `age`: seconds since its diagnosis. `read`: seconds since its boxes were
    read."""

    diagnosis: Diagnosis
    heat: Heatmap | str | None
    """One sentence: why there is none. None if it is not needed."""
    going: Progress
    age: float = 0.0
    read: float = 0.0
    followed: tuple[Followed, ...] = ()
    map: RankMap | None = None
    """None: no rank has joined, or it is not needed."""
    leaders: tuple[BoxFile, ...] = ()
    """The boxes of the ranks that are furthest."""

    @classmethod
    def of(
        cls,
        diagnosis: Diagnosis,
        case: Case,
        before: tuple[Followed, ...] = (),
        at: float = 0.0,
        *,
        heated: bool = True,
    ) -> Seen:
        """Returns the view. `before`: the findings tracked so far. `at`: the moment of this
        view."""
        followed = update_history(before, diagnosis.findings, at, over=case.job.ended is not None)
        heat = make_heatmap(case, diagnosis.stages) if heated else None
        going = measure_progress(case, diagnosis.stages, diagnosis.servers)
        ranks = map_ranks(diagnosis, heat) if heated else None
        return cls(diagnosis, heat, going, followed=followed, map=ranks)


class Leaders:
    """Reads the newest step of the ranks that are furthest, at hardly any cost. For one thread."""

    def __init__(self) -> None:
        self._readers: dict[Path, BoxReader] = {}

    def follow(self, files: Iterable[BoxFile]) -> None:
        """Reads the steps of these boxes from now on."""
        before, self._readers = self._readers, {}
        for file in files:
            reader = before.get(file.path)
            if reader is not None and not reader.replaced():
                self._readers[file.path] = before.pop(file.path)
                continue
            try:
                self._readers[file.path] = BoxReader(file)
            except (BadBox, OSError):
                continue  # its step is as old as all else
        for reader in before.values():
            reader.close()

    def advance(self, seen: Seen) -> Seen:
        """Returns the view with the furthest step of now: all else may be some seconds old."""
        steps = [reader.newest_step() for reader in self._readers.values()]
        newest = max((step for step in steps if step is not None), default=None)
        known = seen.diagnosis.furthest_step
        if newest is None or (known is not None and newest <= known):
            return seen
        return replace(seen, going=seen.going._replace(step=newest, idle=None))

    def close(self) -> None:
        self.follow(())
