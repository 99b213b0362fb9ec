"""What was recognised in console text. Facts only: which signature, where, with which values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

BUFFERED = 200
"""Lines a rank that may still be printed after its own end was: what its standard output had
buffered (8 KiB by CPython's default, where it is no terminal) comes after its traceback."""


LATER_LINES, LATER_SECONDS = 10, 30.0
"""Lines, and how long after a moment the last of them was stamped, that show the same sooner: what
was buffered bears earlier stamps, and of a job that waits for a dead rank nobody counts on."""


def went_on(after: int, ranks: int, later: float | None = None) -> bool:
    """Whether training went on after a moment, by the lines that it printed since: their number,
    and the seconds to the last one where they have time stamps."""
    if later is not None and later >= LATER_SECONDS and after >= LATER_LINES:
        return True
    return after > BUFFERED * max(1, ranks)


@dataclass(frozen=True, slots=True)
class LogMatch:
    """The first line that matched a signature on a rank."""

    signature: str
    """Id in `mgpu_doctor.signatures`."""
    rank: int | None
    source: str
    """The file or stream."""
    number: int
    """Of the line in it, from 1."""
    text: str
    """The line, made harmless, 500 characters at most."""
    at: float | None
    """Seconds since the epoch by the line's own time stamp, or by the last one shortly before."""
    values: Mapping[str, str] = field(default_factory=dict)
    """The pattern's named groups."""
    count: int = 1
    """How often it matched on this rank."""
    context: tuple[str, ...] = ()
    """Some lines around it."""
    after: int = 0
    """Lines by which training counted on (steps, epochs, a loss) later in the same source."""
    later: float | None = None
    """Seconds from `at` to the last of these lines, by its time stamp."""
