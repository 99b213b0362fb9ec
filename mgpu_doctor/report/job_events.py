"""Events of ranks and of the job: joined, ended, checkpoints, evaluations, pauses. Pure.

Similar events are merged: regular saves every hundred steps are one line, and a save that took much
longer than the others is another.
"""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from statistics import median
from typing import TypeVar

import numpy as np
from mgpu_probes.inprocess.layout import EVALUATION, EVENT_CAPACITY

from mgpu_doctor.case.model import Case, Event, Outcome, Rank, State
from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.formatting import format_count, format_ranks, format_seconds, format_signal
from mgpu_doctor.report import text
from mgpu_doctor.report.text import line
from mgpu_doctor.report.verdict import Tone


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """One line of the timeline."""

    kind: Kind
    at: float | None
    """Seconds since the epoch; None: unknown."""
    who: str
    sentence: str
    tone: Tone = Tone.INFO


LONGEST = 400
"""Characters of a sentence."""

SAME_MOMENT = 5.0
"""Seconds between two ranks' events of the same kind that are one event."""


class Kind(str, Enum):
    """What an event is about."""

    RANKS = "ranks"
    SAVING = "saving"
    PAUSES = "pauses"
    COMPILING = "compiling"
    ERRORS = "errors"
    FINDINGS = "findings"
    GPUS = "GPUs"


T = TypeVar("T")


def quote(message: str) -> str:
    """Returns text of a job (names, messages), made safe and short enough for a sentence."""
    return text.cut(text.line(message), LONGEST)


def group_by_moment(
    moments: Iterable[tuple[float, T]], gap: float = SAME_MOMENT
) -> Iterator[list[T]]:
    """Groups of items whose moments follow each other within `gap` seconds."""
    group: list[T] = []
    last = 0.0
    for moment, item in sorted(moments, key=lambda moment: moment[0]):
        if group and moment - last > gap:
            yield group
            group = []
        group.append(item)
        last = moment
    if group:
        yield group


END_REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a process to end: mostly by its launcher, because another rank failed."""


def name_ranks(ranks: Iterable[Rank], hosts: int = 1) -> str:
    """`ranks 0-3`, with their host if the job has several and they share one."""
    ranks = list(ranks)
    numbers = [rank.rank for rank in ranks if rank.rank is not None]
    subject = format_ranks(numbers, limit=3) if numbers else f"pid {ranks[0].pid}"
    hosts_here = {line(rank.host) for rank in ranks}
    return f"{subject} {hosts_here.pop()}" if hosts > 1 and len(hosts_here) == 1 else subject


def hosts_of(case: Case) -> int:
    return len({rank.host for rank in (*case.ranks, *case.earlier)})


def list_joins_and_ends(diagnosis: Diagnosis) -> Iterator[TimelineEvent]:
    """When ranks joined and ended, and when the job did."""
    case = diagnosis.case
    ranks = (*case.earlier, *case.ranks)
    hosts, failed_at = hosts_of(case), diagnosis.latest_ends
    joined: dict[int, list[tuple[float, Rank]]] = defaultdict(list)
    ended: dict[tuple[str, Tone], list[tuple[float, Rank]]] = defaultdict(list)
    for rank in ranks:
        if rank.started is not None:
            joined[rank.attempt].append((rank.started, rank))
        if rank.ended is not None and rank.state in (State.EXITED, State.DEAD):
            ended[_describe_end(rank)].append(
                (failed_at.get((rank.rank, rank.pid), rank.ended), rank)
            )
    first = min(joined, default=0)
    for attempt, moments in joined.items():
        restart = f", restart {attempt - first}" if attempt > first else ""
        for group in group_by_moment(moments):
            moment = max(rank.started or 0.0 for rank in group)
            yield TimelineEvent(Kind.RANKS, moment, name_ranks(group, hosts), f"joined{restart}")
    for (how, tone), moments in ended.items():
        when = {id(rank): moment for moment, rank in moments}
        for group in group_by_moment(moments):
            moment = min(when[id(rank)] for rank in group)
            yield TimelineEvent(Kind.RANKS, moment, name_ranks(group, hosts), how, tone)
    yield from _job(case)


def _describe_end(rank: Rank) -> tuple[str, Tone]:
    """Returns how the rank ended, in words, and how severe that is."""
    if rank.signal is not None:
        tone = Tone.INFO if rank.signal in END_REQUESTS else Tone.CRITICAL
        return f"ended by {format_signal(rank.signal)}", tone
    if rank.exit_code:
        return f"ended with exit code {rank.exit_code}", Tone.CRITICAL
    if rank.state is State.DEAD:
        return "ended for an unknown reason", Tone.CRITICAL
    return "ended normally", Tone.GOOD


def _job(case: Case) -> Iterator[TimelineEvent]:
    job = case.job
    if job.started is not None:
        command = quote(" ".join(job.command)) or "its command is not known"
        yield TimelineEvent(Kind.RANKS, job.started, "the job", f"was started: {command}")
    if job.ended is not None and job.outcome is not Outcome.RUNNING:
        code = "" if job.exit_code is None else f", exit code {job.exit_code}"
        requester = f", asked by {line(job.asked)}" if job.asked else ""
        completed = job.outcome is Outcome.COMPLETED
        tone = Tone.GOOD if completed else Tone.INFO if job.asked else Tone.CRITICAL
        how = f"ended: {job.outcome.value}{code}{requester}"
        yield TimelineEvent(Kind.RANKS, job.ended, "the job", how, tone)


LEAST = 0.05
"""Seconds in a step from which its evaluation is an event: a batch or two is no evaluation."""
MOST = 16
"""Evaluations of one rank, the newest."""


def evaluations(rank: Rank) -> tuple[Event, ...]:
    """Returns the evaluations of a rank without evaluation events, from its step records. Each ends
    with the step that it is counted in."""
    if not len(rank.steps):
        return ()
    seconds = rank.steps["phases"][:, EVALUATION]
    places = np.flatnonzero(np.nan_to_num(seconds) >= LEAST)[-MOST:].tolist()
    end_times = rank.steps["end_ns"]
    return tuple(
        Event(
            "evaluation",
            float(end_times[place]) * 1e-9 + rank.clock_offset,
            int(rank.steps["step"][place]),
            float(seconds[place]),
            0.0,
            "",
        )
        for place in places
    )


def is_cut(rank: Rank) -> bool:
    """Whether the rank may have had more evaluations."""
    return rank.lost_records > 0 or len(evaluations(rank)) >= MOST


LONG_PAUSE = 0.05
"""Seconds from which a pause of the garbage collector is an event: half a usual step."""
ALONE = 2
"""Events of one kind up to which each has a line."""
TIMES, LATER = 3.0, 0.5
"""An event that takes this many times as long, and this many seconds longer, has its own line."""
ELSEWHERE = ("joined", "left", "exception")
"""Kinds that other functions list."""
WORDS = {
    "checkpoint": (Kind.SAVING, "saved a checkpoint", "saved {} checkpoints"),
    "evaluation": (Kind.SAVING, "evaluated", "evaluated {} times"),
    "gc": (Kind.PAUSES, "Python's garbage collector paused it", "{} pauses of garbage collection"),
}


@dataclass(frozen=True, slots=True)
class _Occurrence:
    """The same event on some ranks. Seconds; `took`: on the slowest rank."""

    at: float
    step: int
    took: float


STOPPED, STOPPED_TIMES = 5.0, 10.0
"""Seconds, and times the median, from which a step is an event: long enough to be searched for, and
no jitter."""


def list_stops(case: Case) -> Iterator[TimelineEvent]:
    """After which step of an attempt none ended any more, and which steps took so long that
    training seemed to stop. A first step is none of these: it compiles and warms up; nor is one
    with an evaluation or a checkpoint, which are events."""
    yield from _standstills(case)
    stops: dict[tuple[int, int], list[tuple[float, float, float, Rank]]] = defaultdict(list)
    for rank in (*case.earlier, *case.ranks):
        if len(rank.steps) < 2:
            continue
        seconds = rank.steps["wall_ns"] * 1e-9
        usual = float(np.median(seconds))
        explained = {event.step for event in (*rank.events, *evaluations(rank))}
        for place in np.flatnonzero(seconds >= max(STOPPED, STOPPED_TIMES * usual)).tolist():
            step, took = int(rank.steps["step"][place]), float(seconds[place])
            if step > 1 and step not in explained:
                began = float(rank.steps["end_ns"][place]) * 1e-9 + rank.clock_offset - took
                stops[rank.attempt, step].append((began, took, usual, rank))
    for (_, step), rows in sorted(stops.items())[-MOST:]:
        began, took, usual, _ = max(rows, key=lambda row: row[1])
        sentence = f"step {step} took {format_seconds(took)}, usually {format_seconds(usual)}"
        who = name_ranks((rank for *_, rank in rows), hosts_of(case))
        yield TimelineEvent(Kind.PAUSES, began, who, sentence)


def _standstills(case: Case) -> Iterator[TimelineEvent]:
    """The end of the last step of each attempt, if nothing followed it for long: neither another
    step nor the end of a rank. Not of training that is over."""
    attempts: dict[int, list[Rank]] = defaultdict(list)
    for rank in (*case.earlier, *case.ranks):
        attempts[rank.attempt].append(rank)
    for ranks in attempts.values():
        stepping = [rank for rank in ranks if len(rank.steps) > 1]
        if not stepping or any(rank.took_leave or rank.exit_code == 0 for rank in ranks):
            continue
        last = max(float(rank.steps["end_ns"][-1]) * 1e-9 + rank.clock_offset for rank in stepping)
        still = min(case.observed if rank.ended is None else rank.ended for rank in ranks) - last
        if still < STOPPED:
            continue
        usual = median(float(np.median(rank.steps["wall_ns"])) * 1e-9 for rank in stepping)
        if still >= STOPPED_TIMES * usual:
            step = max(rank.last_step or 0 for rank in stepping)
            sentence = (
                f"ended no step for {format_seconds(still)} after step {step}, "
                f"usually {format_seconds(usual)}"
            )
            yield TimelineEvent(Kind.PAUSES, last, "the job", sentence)


def list_rank_events(case: Case) -> Iterator[TimelineEvent]:
    """Checkpoints, evaluations, pauses, compilations and notes that the ranks recorded."""
    by_kind: dict[str, list[tuple[Rank, list[Event]]]] = defaultdict(list)
    for rank in (*case.earlier, *case.ranks):
        events_by_kind: dict[str, list[Event]] = defaultdict(list)
        for event in rank.events:
            if event.kind not in ELSEWHERE and (event.kind != "gc" or event.seconds >= LONG_PAUSE):
                events_by_kind[event.kind].append(event)
        if "evaluation" not in events_by_kind and (measured := evaluations(rank)):
            events_by_kind["evaluation"] = list(measured)
        for kind, events in events_by_kind.items():
            by_kind[kind].append((rank, events))
    hosts = hosts_of(case)
    for kind, recorded in by_kind.items():
        if kind in WORDS:
            for ranks, occurrences in _in_step(recorded, same_step=kind != "gc"):
                yield from _series(
                    kind, name_ranks(ranks, hosts), occurrences, _is_cut(kind, ranks)
                )
        else:
            about = _compiled if kind == "recompile" else _other
            for rank, events in recorded:
                yield from about(name_ranks([rank], hosts), events)


def _in_step(
    recorded: Sequence[tuple[Rank, list[Event]]], *, same_step: bool
) -> Iterator[tuple[list[Rank], list[_Occurrence]]]:
    """Returns groups of ranks with the same events, and these events.

    `alike`: only ranks with events at the same steps are merged; else all ranks are.
    """
    groups: dict[tuple[int, ...], list[tuple[Rank, list[Event]]]] = defaultdict(list)
    for rank, events in recorded:
        steps = [event.step for event in events] if same_step else []
        same = (rank.attempt, *steps)
        groups[same].append((rank, events))
    for members in groups.values():
        ranks = [rank for rank, _ in members]
        if same_step:
            rows = zip(*(events for _, events in members), strict=True)
            occurrences = [
                _Occurrence(
                    max(event.at for event in row), row[0].step, max(event.seconds for event in row)
                )
                for row in rows
            ]
        else:
            occurrences = [
                _Occurrence(event.at, event.step, event.seconds)
                for _, events in members
                for event in events
            ]
        yield ranks, sorted(occurrences, key=lambda occurrence: occurrence.at)


def _series(
    kind: str, subject: str, occurrences: Sequence[_Occurrence], cut: bool
) -> Iterator[TimelineEvent]:
    about, once, often = WORDS[kind]
    usual = median(occurrence.took for occurrence in occurrences)
    single = [
        occurrence
        for occurrence in occurrences
        if len(occurrences) <= ALONE
        or (kind != "gc" and occurrence.took > TIMES * usual and occurrence.took > usual + LATER)
    ]
    for occurrence in single:
        beside = f", usually {format_seconds(usual)}" if len(occurrences) > ALONE else ""
        sentence = f"{once}: {format_seconds(occurrence.took)} at step {occurrence.step}{beside}"
        yield TimelineEvent(
            about, occurrence.at, subject, sentence, Tone.WARNING if beside else Tone.INFO
        )
    if len(occurrences) > ALONE:
        count = f"at least {len(occurrences)}" if cut else str(len(occurrences))
        longest = max(occurrence.took for occurrence in occurrences)
        took = (
            f"the longest {format_seconds(longest)}, "
            f"{format_seconds(sum(occurrence.took for occurrence in occurrences))} in all"
            if kind == "gc"
            else f"{format_seconds(usual)} each{_every(occurrences)}"
        )
        sentence = f"{often.format(count)}, {took}, the last at step {occurrences[-1].step}"
        yield TimelineEvent(about, occurrences[-1].at, subject, sentence)


def _every(occurrences: Sequence[_Occurrence]) -> str:
    gaps = {later.step - earlier.step for earlier, later in pairwise(occurrences)}
    return f", every {format_count(gaps.pop(), 'step')}" if len(gaps) == 1 and min(gaps) > 0 else ""


def _is_cut(kind: str, ranks: Iterable[Rank]) -> bool:
    """Whether a rank's ring may have lost its first events."""
    return any(
        len(rank.events) >= EVENT_CAPACITY or (kind == "evaluation" and is_cut(rank))
        for rank in ranks
    )


def _compiled(subject: str, events: Sequence[Event]) -> Iterator[TimelineEvent]:
    """Compilations by function. An event's text is `name file:line: reason`."""
    functions: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        functions[event.text.partition(": ")[0]].append(event)
    for name, times in functions.items():
        last = times[-1]
        why = last.text.partition(": ")[2]
        spent = format_seconds(sum(time.seconds for time in times))
        often = "" if len(times) == 1 else f" {len(times)} times"
        reason = f", the last time because {why}" if why else f", the last at step {last.step}"
        function = name or "a function"
        sentence = quote(f"torch compiled {function}{often}, {spent}{reason}")
        tone = Tone.WARNING if len(times) > ALONE else Tone.INFO
        yield TimelineEvent(Kind.COMPILING, last.at, subject, sentence, tone)


def _other(subject: str, events: Sequence[Event]) -> Iterator[TimelineEvent]:
    """Notes, memory pressure and kinds of newer probes."""
    texts: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in events:
        texts[event.kind, event.text].append(event)
    for (kind, message), times in texts.items():
        often = "" if len(times) == 1 else f", {len(times)} times"
        sentence = quote(f"{kind}: {message}{often}" if message else f"{kind}{often}")
        yield TimelineEvent(Kind.PAUSES, times[-1].at, subject, sentence)
