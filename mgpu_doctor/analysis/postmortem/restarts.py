"""What each restart of a job cost: work after the last checkpoint, and time without a step. Pure.

An attempt is a group of ranks that were started together; its number is in their black boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from mgpu_doctor.case.model import Case, Event, Rank

CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class Restart:
    """An attempt that ended, and what happened until the next one trained. Seconds; moments are
    since the epoch."""

    number: int
    """1: the first restart."""
    failed: float
    """When the attempt's first rank failed; if that is unknown, its last step."""
    until: float
    """When a rank of the next attempt had completed a step; if none ever did, when that attempt
    failed in turn, or the moment of the view."""
    trains: bool
    """Whether the next attempt has completed a step."""
    steps: int
    """Steps that the attempt completed."""
    saved: float | None
    """When its last checkpoint was saved; None: none was seen."""
    lost_steps: int | None
    """Steps that it completed after that; None: unknown, as no checkpoint was seen."""
    error: str | None
    """The type of the exception of the first rank that raised one."""
    left: tuple[str, ...] = ()
    """Hosts that had ranks of it and have none of the next attempt."""
    joined: tuple[str, ...] = ()
    """Hosts that have ranks of the next attempt only."""

    @property
    def down(self) -> float:
        """Seconds from the failure to the next completed step, or without one so far."""
        return max(0.0, self.until - self.failed)

    @property
    def lost(self) -> float | None:
        """Seconds from the last checkpoint to the failure; None: unknown."""
        if self.lost_steps == 0:
            return 0.0
        return None if self.saved is None else max(0.0, self.failed - self.saved)


@dataclass(frozen=True, slots=True)
class Restarts:
    """All restarts of a job, oldest first. Seconds."""

    restarts: tuple[Restart, ...]
    began: float
    """When the job or the first known attempt began, since the epoch."""
    until: float
    """The moment of the view, since the epoch."""
    save_seconds: float | None
    """The longest that the ranks took to save a checkpoint; None: none was seen."""

    @property
    def down(self) -> float:
        """Time without a step."""
        return sum(restart.down for restart in self.restarts)

    @property
    def lost(self) -> float | None:
        """Time whose work was lost, of the restarts for which that is known; None: of none."""
        known = [restart.lost for restart in self.restarts if restart.lost is not None]
        return sum(known) if known else None

    @property
    def share(self) -> float:
        """Share of the job's time that the restarts cost, at least: 0..1."""
        whole = self.until - self.began
        return min(1.0, (self.down + (self.lost or 0.0)) / whole) if whole > 0 else 0.0


def find_restarts(case: Case) -> Restarts | None:
    """What the restarts of the job cost; None: it was not restarted, or no attempt has trained."""
    attempts: dict[int, list[Rank]] = {}
    for rank in (*case.earlier, *case.ranks):
        attempts.setdefault(rank.attempt, []).append(rank)
    ordered = [attempts[number] for number in sorted(attempts)]
    if len(ordered) < 2 or not any(len(rank.steps) for ranks in ordered for rank in ranks):
        return None
    starts = [case.job.started, *(rank.started for rank in ordered[0])]
    began = [moment for moment in starts if moment is not None]
    restarts = [
        _make_restart(number, ended, following, case.observed)
        for number, (ended, following) in enumerate(pairwise(ordered), 1)
    ]
    known = tuple(restart for restart in restarts if restart is not None)
    if not known or not began:
        return None
    saves = [event.seconds for ranks in ordered for rank in ranks for event in _saves(rank)]
    return Restarts(known, min(began), case.observed, max(saves) if saves else None)


def _make_restart(
    number: int, ended: Sequence[Rank], following: Sequence[Rank], observed: float
) -> Restart | None:
    failed = _find_failure(ended)
    if failed is None:
        return None
    trains = [moment for rank in following if (moment := _first_step(rank)) is not None]
    gave_up = None if trains else _find_failure(following)
    raised = [rank.error for rank in ended if rank.error is not None and rank.error.at is not None]
    saved, lost_steps = _find_lost_steps(ended)
    return Restart(
        number=number,
        failed=failed,
        until=min(trains) if trains else observed if gave_up is None else gave_up,
        trains=bool(trains),
        steps=max((_count_steps(rank) for rank in ended), default=0),
        saved=saved,
        lost_steps=lost_steps,
        error=min(raised, key=lambda error: error.at or 0.0).type if raised else None,
        left=_hosts_without(ended, following),
        joined=_hosts_without(following, ended),
    )


def _hosts_without(ranks: Sequence[Rank], others: Sequence[Rank]) -> tuple[str, ...]:
    """The hosts of these ranks that have none of the others; empty if not all others are known."""
    if len(others) < max((rank.world_size or 0 for rank in others), default=0):
        return ()
    return tuple(sorted({rank.host for rank in ranks} - {rank.host for rank in others}))


def _find_failure(ranks: Sequence[Rank]) -> float | None:
    """When the first of these ranks failed; if none is known to have, the last step of all."""
    moments = [rank.error.at for rank in ranks if rank.error is not None]
    moments += [rank.ended for rank in ranks if rank.exit_code or rank.signal]
    failures = [moment for moment in moments if moment is not None]
    if failures:
        return min(failures)
    return max((_moment(rank, -1) for rank in ranks if len(rank.steps)), default=None)


def _find_lost_steps(ranks: Sequence[Rank]) -> tuple[float | None, int | None]:
    """When the attempt saved its last checkpoint, and the steps that were completed afterwards by
    the rank that saved it. An attempt without a step lost none."""
    if not any(len(rank.steps) for rank in ranks):
        return None, 0
    saves = [(event.at + event.seconds, event, rank) for rank in ranks for event in _saves(rank)]
    if not saves:
        return None, None
    saved, event, rank = max(saves, key=lambda save: save[0])
    return saved, max(0, _count_steps(rank) - event.step - 1)  # saved at the end of that step


def _saves(rank: Rank) -> list[Event]:
    return [event for event in rank.events if event.kind == CHECKPOINT]


def _count_steps(rank: Rank) -> int:
    return int(rank.steps["step"][-1]) + 1 if len(rank.steps) else 0


def _first_step(rank: Rank) -> float | None:
    """When the rank completed its first step. If that is not on record any more, when it started:
    then the time without a step is a lower bound."""
    if not len(rank.steps):
        return None
    return _moment(rank, 0) if rank.steps["step"][0] == 0 else rank.started


def _moment(rank: Rank, index: int) -> float:
    return float(rank.steps["end_ns"][index]) / 1e9 + rank.clock_offset
