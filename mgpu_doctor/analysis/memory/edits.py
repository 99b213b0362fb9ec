"""Streams with something about them changed: the means of all formulas here.

A changed stream is replayed like a traced one, so that every phase's peak is found anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count

from mgpu_doctor.analysis.memory.stream import Event, Freed, Kind, Phase, Stream, Taken

Change = Callable[[int, Event], Iterable[Event]]
"""What stands in the place of an event, given its index."""


def rebuilt(stream: Stream, change: Change) -> Stream:
    starts = set(stream.steps)
    events: list[Event] = []
    steps = []
    for index, event in enumerate(stream.events):
        if index in starts:
            steps.append(len(events))
        events.extend(change(index, event))
    return replace(stream, events=tuple(events), steps=tuple(steps))


def resized(stream: Stream, size: Callable[[Taken], int]) -> Stream:
    """Every block as large as `size` says."""

    def change(_: int, event: Event) -> Iterable[Event]:
        if isinstance(event, Taken) and (new := size(event)) != event.size:
            return (replace(event, size=new),)
        return (event,)

    return rebuilt(stream, change)


def with_set_up(stream: Stream, blocks: Sequence[tuple[str, Kind, int]]) -> Stream:
    """Blocks (name, kind, bytes) that are taken at the end of the set-up and never freed."""
    fresh = _fresh(stream)
    extra = [Taken(next(fresh), size, kind, Phase.SETUP, name) for name, kind, size in blocks]
    first = stream.steps[0] if stream.steps else 0
    events = (*stream.events[:first], *extra, *stream.events[first:])
    return replace(stream, events=events, steps=tuple(at + len(extra) for at in stream.steps))


def with_in_steps(
    stream: Stream,
    blocks: Sequence[tuple[str, Kind, int]],
    *,
    begin: Callable[[Event], bool],
    end: Phase,
) -> Stream:
    """Blocks that every step takes before its first event of which `begin` is true, and frees after
    its last of the phase `end`."""
    fresh = _fresh(stream)
    before: dict[int, list[Event]] = {}
    after: dict[int, list[Event]] = {}
    for start, stop in spans(stream):
        inside = range(start, stop)
        first = next((i for i in inside if begin(stream.events[i])), None)
        last = next((i for i in reversed(inside) if stream.events[i].phase is end), None)
        if first is None or last is None or last < first:
            continue
        for name, kind, size in blocks:
            number = next(fresh)
            phase = stream.events[first].phase
            before.setdefault(first, []).append(Taken(number, size, kind, phase, name))
            after.setdefault(last, []).append(Freed(number, end))

    return rebuilt(stream, lambda i, event: (*before.get(i, ()), event, *after.get(i, ())))


def with_short_gradients(stream: Stream) -> Stream:
    """Each gradient lives only until the next one is made: where it is copied or added to at
    once, and the memory that keeps it is counted elsewhere."""
    gradients = {event.block for event in stream.events if is_gradient(event)}
    waiting: list[int] = []

    def change(_: int, event: Event) -> Iterable[Event]:
        if event.block not in gradients and event.phase is Phase.BACKWARD:
            return (event,)
        freed = [Freed(block, Phase.BACKWARD) for block in waiting]
        waiting.clear()
        if event.block not in gradients:
            return (*freed, event)
        if isinstance(event, Taken):
            waiting.append(event.block)
            return (event,) if not freed else (event, *freed)
        return freed

    return rebuilt(stream, change)


def in_forward(event: Event) -> bool:
    return event.phase is Phase.FORWARD


def is_gradient(event: Event) -> bool:
    return isinstance(event, Taken) and event.kind is Kind.GRADIENTS


def gradients(stream: Stream) -> tuple[int, ...]:
    """Bytes of each gradient, in the order in which they become ready: those that are held where
    they are the most together."""
    held: dict[int, int] = {}
    now = most = 0
    best: tuple[int, ...] = ()
    taken_last = False
    for event in stream.events:
        if isinstance(event, Taken):
            if event.kind is Kind.GRADIENTS:
                held[event.block] = event.size
                now += event.size
                taken_last = True
        elif event.block in held:
            if taken_last and now > most:
                most, best = now, tuple(held.values())
            taken_last = False
            now -= held.pop(event.block)
    return tuple(held.values()) if now > most else best


def spans(stream: Stream) -> list[tuple[int, int]]:
    """First event of each step, and the one after its last."""
    return list(zip(stream.steps, [*stream.steps[1:], len(stream.events)], strict=False))


def _fresh(stream: Stream) -> count[int]:
    return count(max((event.block for event in stream.events), default=-1) + 1)
