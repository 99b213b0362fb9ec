"""Stores the marks of a turn that is timed by the device, with their events, until these have
completed.

If no mark shows when a turn begins, the tape of a turn also holds the first marks of the next one.
It is cut when the step engine has reported where the turn ended. `device_clock` uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .step_engine import Steps
    from .step_marks import Data, Mark
    from .step_segments import Step

    ReadLater = Callable[[], float]
    """Returns a value that the device computes within the turn; call it when its events
    completed."""

MOST_CUTS = 8
"""Moments of one turn, at most, at which the next turn may have begun."""


class Tape:
    """The marks and events of one turn."""

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
        """The turn's key, equal on all ranks."""
        self.step = step
        """Steps that were recorded before it."""
        self.engine: Steps | None = None
        """A copy of the step engine from the begin of the turn; None: no turn has begun yet."""
        self.steps: list[Step] = []
        """The steps that the copy reports."""
        self.marks: list[Mark] = []
        self.data: list[Data] = []
        self.moments: list[int] = []
        """The moments of the marks as given to the step engine, ns."""
        self.events = [event]
        """The event of the turn's begin, then those of its marks."""
        self.host = [now]
        """When the host recorded each event, ns."""
        self.passed: list[tuple[int, int]] = []
        """Indexes of events that were seen as complete at the next mark, and when, ns."""
        self.record = 0
        self.values: list[tuple[int, str, ReadLater]] = []
        """Values to read: the number of marks before it, its name (`loss`, `skipped`), its
        reader."""
        self.goes_on = True
        """Whether the next turn is timed, too, if its begin is on this tape."""
        self.copies: dict[int, tuple[Steps, list[Step]]] = {}
        """Moment at which the next turn may have begun -> a copy of the engine, and its steps."""

    def add(self, mark: Mark, data: Data, moment: int, event: Any, now: int) -> None:
        """Adds a mark, and the event that was recorded with it at `now`."""
        self.marks.append(mark)
        self.data.append(data)
        self.moments.append(moment)
        self.events.append(event)
        self.host.append(now)

    def position(self, moment: int) -> int | None:
        """The number of marks up to and including the first one at that moment; None: there is
        none."""
        return self.moments.index(moment) + 1 if moment in self.moments else None

    def rest(self, count: int, key: int, step: int) -> Tape | None:
        """The tape of the next turn, which began with mark number `count`, whose event both tapes
        hold; None: the engine was not copied there. `key`, `step`: of the next turn."""
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
        """Cuts the tape after mark number `count`, which ended the turn. Returns the later
        events."""
        self.values = [value for value in self.values if value[0] <= count]
        later = self.events[count + 1 :]
        self.passed = [passed for passed in self.passed if passed[0] <= count]
        del self.events[count + 1 :], self.host[count + 1 :]
        self.copies.clear()
        return later

    def read(self, name: str) -> float | None:
        """The last value of that name; None: there is none. Call it when the events completed."""
        for _, value_name, value in reversed(self.values):
            if value_name == name:
                return value()
        return None
