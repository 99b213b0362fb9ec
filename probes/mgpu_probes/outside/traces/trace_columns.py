"""The events of a profiler trace in columns, one row per event."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt


class NotATraceError(Exception):
    """The input is not a profiler trace; the message says why in a sentence."""


class Kind(IntEnum):
    """Where an event ran and what wrote it down."""

    KERNEL = 0
    COPY = 1
    SET = 2
    LAUNCH = 3
    """A call of the CUDA runtime or driver, on the host."""
    OPERATOR = 4
    NOTE = 5
    """A record function of the user's code or of torch's: steps, loaders, optimizers, gloo."""


EVENT_DTYPE = np.dtype(
    [
        ("start", np.int64),  # nanoseconds; the zero is the trace's own
        ("length", np.int64),  # nanoseconds
        ("correlation", np.int64),  # joins a launch to what it launched; -1: unknown
        ("name", np.int32),  # index in `names`
        ("thread", np.int32),  # index of the host's thread, in order of appearance
        ("stream", np.int32),  # of the device; -1: none
        ("group", np.int32),  # index in `names` of the process group and its ranks; -1: unknown
        ("sequence", np.int32),  # of a collective in its group; -1: unknown
        ("kind", np.uint8),
    ]
)
Events = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class RawTrace:
    """One file. Names are a stranger's, cut but not cleaned."""

    names: tuple[str, ...]
    events: Events
    """As `EVENT_DTYPE`, by start."""
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    host: str | None = None
    cut: str | None = None
    """Why some events could not be read; None: all were read."""
    damaged: int = 0
    """Number of malformed events."""
    framework: str = "torch"
