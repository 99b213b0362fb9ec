"""Ranks that joined, ended and died, and the job as a whole."""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator

from mgpu_doctor.case.model import Case, Outcome, Rank, State
from mgpu_doctor.report.ended import fell_at
from mgpu_doctor.report.events.event import Event, Kind, said, together
from mgpu_doctor.report.text import line, name_ranks
from mgpu_doctor.report.verdict import Tone, signal_name

ASKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals by which a process is asked to end: mostly by its launcher, as another rank fell."""


def named(ranks: Iterable[Rank], hosts: int = 1) -> str:
    """`ranks 0-3`, with their host where the job has several and they have one."""
    ranks = list(ranks)
    numbers = [rank.rank for rank in ranks if rank.rank is not None]
    who = name_ranks(numbers, limit=3) if numbers else f"pid {ranks[0].pid}"
    on = {line(rank.host) for rank in ranks}
    return f"{who} {on.pop()}" if hosts > 1 and len(on) == 1 else who


def hosts_of(case: Case) -> int:
    return len({rank.host for rank in (*case.ranks, *case.earlier)})


def came_and_went(case: Case) -> Iterator[Event]:
    ranks = (*case.earlier, *case.ranks)
    hosts, fell = hosts_of(case), fell_at(case)
    joined: dict[int, list[tuple[float, Rank]]] = defaultdict(list)
    ended: dict[tuple[str, Tone], list[tuple[float, Rank]]] = defaultdict(list)
    for rank in ranks:
        if rank.started is not None:
            joined[rank.attempt].append((rank.started, rank))
        if rank.ended is not None and rank.state in (State.EXITED, State.DEAD):
            ended[_how(rank)].append((fell.get((rank.rank, rank.pid), rank.ended), rank))
    first = min(joined, default=0)
    for attempt, moments in joined.items():
        restart = f", restart {attempt - first}" if attempt > first else ""
        for group in together(moments):
            at = max(rank.started or 0.0 for rank in group)
            yield Event(Kind.RANKS, at, named(group, hosts), f"joined{restart}")
    for (how, tone), moments in ended.items():
        when = {id(rank): at for at, rank in moments}
        for group in together(moments):
            at = min(when[id(rank)] for rank in group)
            yield Event(Kind.RANKS, at, named(group, hosts), how, tone)
    yield from _job(case)


def _how(rank: Rank) -> tuple[str, Tone]:
    """How it ended, and how bad that is."""
    if rank.signal is not None:
        tone = Tone.INFO if rank.signal in ASKED else Tone.CRITICAL
        return f"ended by {signal_name(rank.signal)}", tone
    if rank.exit_code:
        return f"ended with exit code {rank.exit_code}", Tone.CRITICAL
    if rank.state is State.DEAD:
        return "died, and nobody saw how", Tone.CRITICAL
    return "ended in good order", Tone.GOOD


def _job(case: Case) -> Iterator[Event]:
    job = case.job
    if job.started is not None:
        command = said(" ".join(job.command)) or "its command is not known"
        yield Event(Kind.RANKS, job.started, "the job", f"was started: {command}")
    if job.ended is not None and job.outcome is not Outcome.RUNNING:
        code = "" if job.exit_code is None else f", exit code {job.exit_code}"
        asked = f", asked by {line(job.asked)}" if job.asked else ""
        good = job.outcome is Outcome.COMPLETED
        tone = Tone.GOOD if good else Tone.INFO if job.asked else Tone.CRITICAL
        how = f"ended: {job.outcome.value}{code}{asked}"
        yield Event(Kind.RANKS, job.ended, "the job", how, tone)
