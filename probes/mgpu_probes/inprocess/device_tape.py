"""The marks of a turn that is timed on the device, until its events have completed.

Where no mark shows when a turn begins, the tape of one turn also holds the first marks of the next,
and is cut once the step engine has reported where the turn ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .step_engine import Steps
    from .step_marks import Data, Mark
    from .step_segments import Step

    ReadLater = Callable[[], float]
    """Gives a value that the device computes within the turn, once the turn's events completed."""

MOST_CUTS = 8
"""Moments of one turn at which the next may have begun."""


class Tape:
    """The marks of one turn, with their events."""

    __slots__ = (
        "copies",
        "data",
        "engine",
        "events",
        "goes_on",
        "host",
        "key",
        "marks",
        "moments",
        "passed",
        "record",
        "step",
        "steps",
        "values",
    )

    def __init__(self, event: Any, now: int, *, key: int, step: int) -> None:
        self.key = key
        """Equal on all ranks at the same turn."""
        self.step = step
        """Steps that were recorded before it."""
        self.engine: Steps | None = None
        """A copy of the step engine as it was when the turn began; None: no turn has begun yet."""
        self.steps: list[Step] = []
        """What it reports."""
        self.marks: list[Mark] = []
        self.data: list[Data] = []
        self.moments: list[int] = []
        """Of the marks, as the step engine was given them, ns."""
        self.events = [event]
        """The first is the beginning, the others belong to the marks up to the end of the turn."""
        self.host = [now]
        """When the host recorded each, ns."""
        self.passed: list[tuple[int, int]] = []
        """Index of an event that was seen to be complete at the next mark, and when, ns."""
        self.record = 0
        self.values: list[tuple[int, str, ReadLater]] = []
        """How many marks had been set, what it is (`loss`, `skipped`), and how to read it."""
        self.goes_on = True
        """The turn after this one is timed, too, if its beginning is on this tape."""
        self.copies: dict[int, tuple[Steps, list[Step]]] = {}
        """Copies of the engine by the moment at which the next turn may have begun, and what each
        reports."""

    def add(self, mark: Mark, data: Data, moment: int, event: Any, now: int) -> None:
        """A mark, and the event that was recorded with it at `now`."""
        self.marks.append(mark)
        self.data.append(data)
        self.moments.append(moment)
        self.events.append(event)
        self.host.append(now)

    def position(self, moment: int) -> int | None:
        """The number of marks up to and with the first one at that moment; None: it is not here."""
        return self.moments.index(moment) + 1 if moment in self.moments else None

    def rest(self, count: int, key: int, step: int) -> Tape | None:
        """The tape of the turn that began with the last of `count` marks, whose event both hold;
        None: the engine was not copied there. `key` and `step` are the turn's."""
        copied = self.copies.get(self.moments[count - 1])
        if copied is None:
            return None
        rest = Tape(self.events[count], self.host[count], key=key, step=step)
        rest.engine, rest.steps = copied
        rest.marks, rest.data = self.marks[count:], self.data[count:]
        rest.moments = self.moments[count:]
        rest.events += self.events[count + 1 :]
        rest.host += self.host[count + 1 :]
        rest.passed = [(place - count, seen) for place, seen in self.passed if place >= count]
        rest.values = [
            (place - count, name, read) for place, name, read in self.values if place > count
        ]
        return rest

    def end(self, count: int) -> list[Any]:
        """The turn ended with the last of `count` marks; the events of later ones."""
        self.values = [value for value in self.values if value[0] <= count]
        later = self.events[count + 1 :]
        self.passed = [passed for passed in self.passed if passed[0] <= count]
        del self.events[count + 1 :], self.host[count + 1 :]
        self.copies.clear()
        return later

    def read(self, name: str) -> float | None:
        """The last value of that name, once the turn's events have completed; None: none is."""
        for _, value_name, value in reversed(self.values):
            if value_name == name:
                return value()
        return None
