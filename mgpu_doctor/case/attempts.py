"""Which ranks are the last attempt of a job, which are earlier attempts, and which only ran beside.

Attempts follow one another. Processes without a process group (a world of one) that train at the
same time are independent ranks of one job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

from mgpu_doctor.case.model import Rank, State, Unexamined

SEEN_LATE = 2.0
"""Seconds by which a process may be gone before that is seen from outside: it may have been
replaced meanwhile. Processes are polled at least once per second; the rest is for a busy machine.
A choice."""
MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class Attempts:
    """The ranks of a job. Each tuple is sorted by rank."""

    last: tuple[Rank, ...]
    """Those of the last attempt. Independent ranks are numbered in the order of their start."""
    earlier: tuple[Rank, ...] = ()
    """Those that were replaced."""
    beside: tuple[Rank, ...] = ()
    """Processes that trained by themselves beside a process group: neither of it nor replaced."""


def are_independent(ranks: Sequence[Rank]) -> bool:
    """Whether these are several ranks without a process group: none waits for another."""
    return len(ranks) > 1 and all(rank.world_size == 1 for rank in ranks)


def by_rank(rank: Rank) -> tuple[bool, int, float]:
    """The key by which ranks are sorted; those of unknown number come last."""
    return (rank.rank is None, rank.rank or 0, _started(rank))


def split_attempts(ranks: Sequence[Rank]) -> Attempts:
    """The ranks by attempt. A rank of the last attempt whose number, or whose world size, differs
    from that of the newest rank was replaced, unless it ran beside it by itself."""
    ordered = sorted(_number_attempts_alike(ranks), key=_started)
    if not ordered:
        return Attempts(())
    number = max(rank.attempt for rank in ordered)
    newest = [rank for rank in ordered if rank.attempt == number]
    earlier = [rank for rank in ordered if rank.attempt != number]
    are_in_groups = all(rank.world_size != 1 for rank in newest)
    *replaced, together = [newest] if are_in_groups else _find_overlapping(newest)
    groups = [rank for rank in together if rank.world_size != 1]
    if not groups:
        earlier += [rank for ranks in replaced for rank in ranks]
        return Attempts(_number_by_start(together), _sorted(earlier))
    world = max(groups, key=_started).world_size
    earlier += [rank for part in (*replaced, groups) for rank in part if rank.world_size != world]
    current: dict[object, Rank] = {}
    for rank in newest:
        if rank.world_size == world:
            key: object = (rank.host, rank.pid) if rank.rank is None else rank.rank
            if key in current:
                earlier.append(current[key])
            current[key] = rank
    beside = [rank for rank in together if rank.world_size == 1]
    return Attempts(_sorted(current.values()), _sorted(earlier), _sorted(beside))


def list_beside(attempts: Attempts) -> list[Unexamined]:
    """The processes that ran beside the ranks, which no view shows."""
    if not attempts.beside:
        return []
    pids = [str(rank.pid) for rank in attempts.beside[:MOST_NAMED]]
    more = ", …" if len(attempts.beside) > MOST_NAMED else ""
    return [
        Unexamined(
            "processes beside the ranks",
            f"{', '.join(pids)}{more} trained at the same time, outside of the ranks' process "
            "group: they are not shown",
            "start them under a `mgpu-doctor run` of their own",
        )
    ]


def last_sign_of_life(rank: Rank) -> float | None:
    """The latest moment at which the rank is known to have run, by its own record."""
    signs = [rank.started, rank.now.since if rank.now else None]
    if len(rank.steps):
        signs.append(float(rank.steps["end_ns"][-1]) / 1e9 + rank.clock_offset)
    signs.extend(event.at for event in rank.events[-1:])
    return max((sign for sign in signs if sign is not None), default=None)


def _find_overlapping(ranks: Sequence[Rank]) -> list[list[Rank]]:
    """The ranks by the start of their processes, divided where all earlier ones had ended before
    the next one started. A process may train late: another may have ended before."""
    parts: list[list[Rank]] = []
    until = -inf
    for rank in sorted(ranks, key=_process_started):
        if not parts or _process_started(rank) >= until:
            parts.append([])
        parts[-1].append(rank)
        until = max(until, _lived_until(rank))
    return parts


def _lived_until(rank: Rank) -> float:
    """A moment until which its process certainly lived."""
    if rank.state in (State.RUNNING, State.WAITING):
        return inf
    seen_gone = -inf if rank.ended is None else rank.ended - SEEN_LATE
    return max(seen_gone, last_sign_of_life(rank) or -inf)


def _number_by_start(ranks: Sequence[Rank]) -> tuple[Rank, ...]:
    """Ranks without a process group, numbered if they are several."""
    if len(ranks) < 2:
        return tuple(ranks)
    return tuple(replace(rank, rank=number) for number, rank in enumerate(ranks))


def _sorted(ranks: Iterable[Rank]) -> tuple[Rank, ...]:
    return tuple(sorted(ranks, key=by_rank))


def _started(rank: Rank) -> float:
    return rank.started or 0.0


def _process_started(rank: Rank) -> float:
    return _started(rank) if rank.process_started is None else rank.process_started


def _has_place(rank: Rank) -> bool:
    """Whether no other rank of its attempt has its number."""
    return rank.rank is not None and rank.world_size != 1


def _number_attempts_alike(ranks: Sequence[Rank]) -> Sequence[Rank]:
    """The ranks, with attempts numbered as on the host that has seen most of them.

    Each launcher of torchrun counts for itself: that of a host which joined later, in place of one
    that was lost, begins at 0, and one whose own ranks did not fail does not count a restart. All
    ranks of an attempt start at about the same time."""
    by_host: dict[str, list[Rank]] = {}
    for rank in sorted(ranks, key=_started):
        by_host.setdefault(rank.host, []).append(rank)
    if len(by_host) < 2:
        return ranks
    starts = {host: _split_by_number(own) for host, own in by_host.items()}
    most = max(starts.values(), key=lambda attempts: (len(attempts), attempts[-1][0].attempt))
    if len(most) < 2:
        return ranks
    begun = {number: _began(attempt) for number, attempt in enumerate(most, most[0][0].attempt)}
    return [
        replace(rank, attempt=min(begun, key=lambda number: abs(begun[number] - _began(attempt))))
        for attempts in starts.values()
        for attempt in attempts
        for rank in attempt
    ]


def _split_by_number(ranks: list[Rank]) -> list[list[Rank]]:
    """The ranks of a host, oldest first, by attempt."""
    attempts: list[list[Rank]] = []
    for rank in ranks:
        last = attempts[-1] if attempts else []
        again = _has_place(rank) and any(other.rank == rank.rank for other in last)
        if not last or again or last[0].attempt != rank.attempt:
            attempts.append([])
        attempts[-1].append(rank)
    return attempts


def _began(attempt: list[Rank]) -> float:
    return _started(attempt[0])
