"""Whether a rank makes progress: a few words of its box's header."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from mgpu_probes.inprocess import layout

from mgpu_doctor.recording.boxheader import read_at, word

MOST_BOXES = 1024


@dataclass(frozen=True, slots=True)
class Pulse:
    """A rank's progress at one moment. Equal pulses: the rank marked nothing in between."""

    steps: int
    """Records written so far."""
    phase: str | None
    since_ns: int
    """When it entered the phase, monotonic."""
    sequence: int
    """Sequence number of its collectives; 0: unknown."""
    over: bool


def pulses(folder: Path) -> dict[str, Pulse]:
    """File name -> pulse, of the readable boxes in the folder."""
    by_rank = {}
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(layout.BOX_SUFFIX))
    except OSError:
        return {}
    for name in names[:MOST_BOXES]:
        header = _header(folder / name)
        if len(header) == layout.HEADER_SIZE:
            by_rank[name] = _pulse(header)
    return by_rank


def _pulse(header: bytes) -> Pulse:
    phase = word(header, layout.NOW_PHASE) & 0xFF
    state = word(header, layout.STATE)
    known = layout.STATES[state] if state < len(layout.STATES) else "unknown"
    return Pulse(
        steps=word(header, layout.STEP_CURSOR),
        phase=layout.PHASES[phase] if phase < len(layout.PHASES) else None,
        since_ns=word(header, layout.NOW_SINCE),
        sequence=word(header, layout.NOW_SEQUENCE),
        over=bool(word(header, layout.ENDED)) or known in ("exited", "off"),
    )


def _header(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return read_at(descriptor, 0, layout.HEADER_SIZE)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
