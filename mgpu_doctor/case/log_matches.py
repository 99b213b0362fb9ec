"""Signatures found in console text by `log_case`. Facts only: which, where, with which values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mgpu_probes.outside.logs.scanned_logs import Form

BUFFERED = 200
"""Lines per rank that may still appear after its traceback: its buffered standard output (8 KiB by
CPython's default, if it is no terminal)."""


LATER_LINES, LATER_SECONDS = 10, 30.0
"""Fewer lines are enough if the last one is stamped this many seconds later: buffered lines have
earlier stamps, and a job that waits for a dead rank prints no further steps."""


def went_on(after: int, ranks: int, later: float | None = None) -> bool:
    """Whether training continued after a moment.

    `after`: lines with further steps since; `later`: seconds to the last of them, None: no stamps.
    """
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
    """Line number in it, from 1."""
    text: str
    """The line without control characters, at most 500 characters."""
    at: float | None
    """Seconds since the epoch, by the time stamp of this or a line shortly before; None:
    unknown."""
    values: Mapping[str, str] = field(default_factory=dict)
    """The pattern's named groups."""
    count: int = 1
    """How often it matched on this rank."""
    context: tuple[str, ...] = ()
    """Some lines around it."""
    after: int = 0
    """Later lines in the same source with further steps, epochs or losses."""
    later: float | None = None
    """Seconds from `at` to the last of these lines, by its time stamp."""
    form: Form = Form.LINE
    """How it was recognised."""
