"""How far a rank's device got while its host was blocked, from the header of its black box."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mgpu_probes.inprocess import layout

from .boxheader import word

SINCE_VERSION = (1, 4)
"""The first version of the box format with device positions."""
_HAS_MORE = 1 << 32


class NoPosition(str, Enum):
    """Why it is unknown how far the device got."""

    NO_BOX = "no black box"
    OLD_BOX = "a black box of an older version"
    NO_DEVICE_CLOCK = "no device that is timed"
    HOST_MOVES = "the host makes progress"
    NOT_TIMED = "a step that the device did not time"
    TORN = "a reading that was being written"


@dataclass(frozen=True, slots=True)
class BoxPosition:
    """The newest mark that the device has passed. Monotonic nanoseconds of the host."""

    turn: int
    """The iteration's key: equal on all ranks in the same iteration of the training loop."""
    step: int
    marks: int
    """Number of the iteration's marks that the device has passed."""
    phase: str
    """The device's phase since the last mark, one of `layout.PHASES`."""
    has_more: bool
    """Whether the next mark is queued but not reached. False: the host has set no further mark."""
    since_ns: int
    """When the device was first seen there."""
    seen_ns: int
    """When the device was last seen there."""


def read_position(header: bytes, version: tuple[int, int]) -> BoxPosition | NoPosition:
    """Returns how far the device had got when the box was read, or why that is unknown."""
    if version < SINCE_VERSION:
        return NoPosition.OLD_BOX
    state = word(header, layout.DEVICE_LOOK)
    if state == layout.NOT_WATCHED:
        return NoPosition.NO_DEVICE_CLOCK
    seen = word(header, layout.DEVICE_LOOK_ENDED)
    if state == layout.HOST_MOVES or seen < word(header, layout.NOW_SINCE):
        return NoPosition.HOST_MOVES
    if state == layout.NOT_TIMED:
        return NoPosition.NOT_TIMED
    phase, marks = word(header, layout.DEVICE_PHASE), word(header, layout.DEVICE_MARKS)
    is_whole = seen == word(header, layout.DEVICE_LOOK_BEGUN)
    if state != layout.POSITION_KNOWN or not is_whole or phase & 0xFF >= len(layout.PHASES):
        return NoPosition.TORN
    return BoxPosition(
        turn=word(header, layout.DEVICE_TURN),
        step=phase >> 8,
        marks=marks & (_HAS_MORE - 1),
        phase=layout.PHASES[phase & 0xFF],
        has_more=bool(marks & _HAS_MORE),
        since_ns=word(header, layout.DEVICE_SINCE),
        seen_ns=seen,
    )
