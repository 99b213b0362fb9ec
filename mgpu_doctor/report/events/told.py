"""What ranks told of themselves, the like of it as one: a job that saves every hundred steps is one
line, and a save that took much longer than the others another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from mgpu_probes.inprocess.layout import EVENT_CAPACITY

from mgpu_doctor.case.model import Case, Rank
from mgpu_doctor.case.model import Event as Told
from mgpu_doctor.report.events import evaluated
from mgpu_doctor.report.events.coming import hosts_of, named
from mgpu_doctor.report.events.event import Event, Kind, said
from mgpu_doctor.report.text import count, seconds
from mgpu_doctor.report.verdict import Tone

LONG_PAUSE = 0.05
"""Seconds from which a pause of the garbage collector is told: half a step of a usual job."""
ALONE = 2
"""So many of a kind are told one by one."""
TIMES, LATER = 3.0, 0.5
"""How many times as long as usual, and how many seconds longer, is worth a line of its own."""
ELSEWHERE = ("joined", "left", "exception")
"""Kinds that others tell better."""
WORDS = {
    "checkpoint": (Kind.SAVING, "saved a checkpoint", "saved {} checkpoints"),
    "evaluation": (Kind.SAVING, "evaluated", "evaluated {} times"),
    "gc": (Kind.PAUSES, "Python's garbage collector paused it", "{} pauses of garbage collection"),
}


@dataclass(frozen=True, slots=True)
class _Turn:
    """The same event on some ranks. Seconds; `took` is that of the slowest."""

    at: float
    step: int
    took: float


def told_by_ranks(case: Case) -> Iterator[Event]:
    by_kind: dict[str, list[tuple[Rank, list[Told]]]] = defaultdict(list)
    for rank in (*case.earlier, *case.ranks):
        own: dict[str, list[Told]] = defaultdict(list)
        for event in rank.events:
            if event.kind not in ELSEWHERE and (event.kind != "gc" or event.seconds >= LONG_PAUSE):
                own[event.kind].append(event)
        if "evaluation" not in own and (seen := evaluated.evaluations(rank)):
            own["evaluation"] = list(seen)
        for kind, events in own.items():
            by_kind[kind].append((rank, events))
    hosts = hosts_of(case)
    for kind, tellers in by_kind.items():
        if kind in WORDS:
            for ranks, turns in _in_step(tellers, alike=kind != "gc"):
                yield from _series(kind, named(ranks, hosts), turns, _is_cut(kind, ranks))
        else:
            about = _compiled if kind == "recompile" else _other
            for rank, events in tellers:
                yield from about(named([rank], hosts), events)


def _in_step(
    tellers: Sequence[tuple[Rank, list[Told]]], *, alike: bool
) -> Iterator[tuple[list[Rank], list[_Turn]]]:
    """`alike`: ranks that did it at the same steps are told together; else all of them are."""
    groups: dict[tuple[int, ...], list[tuple[Rank, list[Told]]]] = defaultdict(list)
    for rank, events in tellers:
        steps = [event.step for event in events] if alike else []
        same = (rank.attempt, *steps)
        groups[same].append((rank, events))
    for members in groups.values():
        ranks = [rank for rank, _ in members]
        if alike:
            rows = zip(*(events for _, events in members), strict=True)
            turns = [
                _Turn(max(one.at for one in row), row[0].step, max(one.seconds for one in row))
                for row in rows
            ]
        else:
            each = (event for _, events in members for event in events)
            turns = [_Turn(one.at, one.step, one.seconds) for one in each]
        yield ranks, sorted(turns, key=lambda turn: turn.at)


def _series(kind: str, who: str, turns: Sequence[_Turn], cut: bool) -> Iterator[Event]:
    about, once, often = WORDS[kind]
    usual = median(turn.took for turn in turns)
    single = [
        turn
        for turn in turns
        if len(turns) <= ALONE
        or (kind != "gc" and turn.took > TIMES * usual and turn.took > usual + LATER)
    ]
    for turn in single:
        beside = f", usually {seconds(usual)}" if len(turns) > ALONE else ""
        sentence = f"{once}: {seconds(turn.took)} at step {turn.step}{beside}"
        yield Event(about, turn.at, who, sentence, Tone.WARNING if beside else Tone.INFO)
    if len(turns) > ALONE:
        many = f"at least {len(turns)}" if cut else str(len(turns))
        longest = max(turn.took for turn in turns)
        took = (
            f"the longest {seconds(longest)}, {seconds(sum(turn.took for turn in turns))} in all"
            if kind == "gc"
            else f"{seconds(usual)} each{_every(turns)}"
        )
        sentence = f"{often.format(many)}, {took}, the last at step {turns[-1].step}"
        yield Event(about, turns[-1].at, who, sentence)


def _every(turns: Sequence[_Turn]) -> str:
    gaps = {after.step - before.step for before, after in pairwise(turns)}
    return f", every {count(gaps.pop(), 'step')}" if len(gaps) == 1 and min(gaps) > 0 else ""


def _is_cut(kind: str, ranks: Iterable[Rank]) -> bool:
    """Whether a rank's ring may have lost its first events."""
    return any(
        len(rank.events) >= EVENT_CAPACITY or (kind == "evaluation" and evaluated.is_cut(rank))
        for rank in ranks
    )


def _compiled(who: str, events: Sequence[Told]) -> Iterator[Event]:
    """By function: `name file:line: reason`."""
    functions: dict[str, list[Told]] = defaultdict(list)
    for event in events:
        functions[event.text.partition(": ")[0]].append(event)
    for name, times in functions.items():
        last = times[-1]
        why = last.text.partition(": ")[2]
        spent = seconds(sum(one.seconds for one in times))
        often = "" if len(times) == 1 else f" {len(times)} times"
        reason = f", the last time because {why}" if why else f", the last at step {last.step}"
        what = name or "a function"
        sentence = said(f"torch compiled {what}{often}, {spent}{reason}")
        tone = Tone.WARNING if len(times) > ALONE else Tone.INFO
        yield Event(Kind.COMPILING, last.at, who, sentence, tone)


def _other(who: str, events: Sequence[Told]) -> Iterator[Event]:
    """Notes, memory pressure and kinds of newer probes."""
    texts: dict[tuple[str, str], list[Told]] = defaultdict(list)
    for event in events:
        texts[event.kind, event.text].append(event)
    for (kind, words), times in texts.items():
        often = "" if len(times) == 1 else f", {len(times)} times"
        sentence = said(f"{kind}: {words}{often}" if words else f"{kind}{often}")
        yield Event(Kind.PAUSES, times[-1].at, who, sentence)
