"""Reads a black box: once, or repeatedly while its rank runs.

A box is untrusted: it may be torn, truncated, half written or malicious. Every size in it is
checked, and a record counts only if its CRC and its sequence number are right.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import msgspec
import numpy as np
from mgpu_probes.inprocess import layout
from mgpu_probes.outside.untrusted_files import open_below

from . import records
from .boxheader import (
    MOST_RECORDS,
    BadBox,
    Identity,
    Room,
    geometry,
    identity,
    read_at,
    stable,
    word,
)
from .boxhistory import HistoryReader
from .boxtexts import TextReader, Texts
from .columns import Columns
from .device_position import BoxPosition, NoPosition, read_position
from .records import DEVICE_DTYPE, EVENT_DTYPE, HISTORY_DTYPE, STEP_DTYPE, Array
from .ring import Ring

__all__ = [
    "DEVICE_DTYPE",
    "EVENT_DTYPE",
    "HISTORY_DTYPE",
    "STEP_DTYPE",
    "BadBox",
    "Box",
    "BoxEvent",
    "BoxFile",
    "BoxNow",
    "BoxReader",
    "read_box",
]

_SELDOM = (layout.EVENT_CURSOR, layout.BIRTH_SLOT, layout.WORDS_USED, layout.STATE)
_ATTEMPTS = 4
"""Re-reads while the writer is active; what is still inconsistent then is damaged."""


@dataclass(frozen=True, slots=True)
class BoxNow:
    """What the process last reported to be doing. Monotonic nanoseconds."""

    phase: str
    since_ns: int
    step: int
    site: str | None
    group_seq: int | None


@dataclass(frozen=True, slots=True)
class BoxEvent:
    """Monotonic nanoseconds; `kind` is one of `layout.EVENTS`, or `event N` of a newer writer."""

    kind: str
    start_ns: int
    step: int
    duration_ns: int
    value: float
    text: str


class Box(msgspec.Struct, frozen=True):
    """Everything one black box held at one moment. Times are monotonic nanoseconds of the host. (A
    Struct is made, changed and sent in a fifth of a data class's time.)"""

    path: str
    identity: Identity
    birth: Mapping[str, Any]
    state: str
    """One of `layout.STATES`."""
    exit_code: int | None
    ended_ns: int | None
    now: BoxNow | None
    device_position: BoxPosition | NoPosition
    """How far the device got while the host was blocked, or why that is unknown."""
    steps: Array | Columns
    """`STEP_DTYPE`, by `seq`."""
    device_times: Array | None
    """`DEVICE_DTYPE`, by `seq`: the device's times of some steps; None: the box has no room for
    any."""
    events: tuple[BoxEvent, ...]
    history: Array
    """`HISTORY_DTYPE`, oldest first; the last one's window may still be open."""
    history_window_ns: int | None
    last_words: Mapping[str, Any]
    probe_cost_ns: int
    lost: int
    """Step records that were damaged."""
    overwritten: int
    """Step records that the ring no longer holds; the history still counts them."""
    damage: tuple[str, ...]
    """What else could not be read, as texts."""

    @property
    def clock_offset(self) -> float:
        """Seconds to add to this box's monotonic seconds to get seconds since the epoch."""
        return (self.identity.realtime_ns - self.identity.monotonic_ns) / 1e9


class BoxFile(NamedTuple):
    """Path of a box. No link between `root`, which the user named, and `path` is followed."""

    path: Path
    root: Path

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> BoxFile:
        """Returns the box file at this path, in a trusted folder."""
        return cls(Path(path), Path(path).parent)


def read_box(where: BoxFile | str | os.PathLike[str], room: Room | None = None) -> Box:
    """Returns the box in a file. Raises BadBox (one sentence about the file) and OSError.

    `room`: the steps lie in it, until it is cleared, and neither they nor the history are cleaned
    by `plausible`: whoever reads many boxes checks them together."""
    with BoxReader(where, room) as reader:
        return reader.poll()


class BoxReader:
    """Reads a box repeatedly, each time only what is new. Raises like `read_box`."""

    def __init__(self, where: BoxFile | str | os.PathLike[str], room: Room | None = None) -> None:
        file = where if isinstance(where, BoxFile) else BoxFile.of(where)
        self.path = os.fspath(file.path)
        self._fd = _open(file)
        try:
            header = read_at(self._fd, 0, layout.HEADER_SIZE)
            self._at = geometry(header)
        except BadBox as bad:
            os.close(self._fd)
            raise BadBox(f"{self.path} cannot be read: {bad}") from None
        clean = records.plausible if room is None else _unchanged
        self._steps = Ring(
            self._fd,
            offset=self._at.steps,
            capacity=self._at.step_capacity,
            dtype=STEP_DTYPE,
            cursor_at=layout.STEP_CURSOR,
            clean=clean,
            read=read_at if room is None else room.read_at,
        )
        self._events = Ring(
            self._fd,
            offset=self._at.events,
            capacity=self._at.event_capacity,
            dtype=EVENT_DTYPE,
            cursor_at=layout.EVENT_CURSOR,
            clean=_unchanged,
        )
        self._device_times = Ring(
            self._fd,
            offset=self._at.device,
            capacity=self._at.device_capacity if self._at.device else 0,
            dtype=DEVICE_DTYPE,
            cursor_at=layout.DEVICE_CURSOR,
            clean=records.plausible_device_times,
        )
        self._events_seen: tuple[BoxEvent, ...] = ()
        self._history = HistoryReader(self._fd, self._at.history, self._at.history_capacity, clean)
        self._windows: tuple[Array, int | None] = self._steps.kept, None
        self._told_texts = Texts({}, {}, ())
        self._seldom: tuple[bytes, ...] | None = None
        """The header's words that change with new events and texts, as last read."""
        self._texts = TextReader(self._fd, self._at)
        opened = os.fstat(self._fd)
        self._file = opened.st_dev, opened.st_ino
        self._before = word(header, layout.GENERATION_LAST)
        """GENERATION_LAST of the header as last read."""
        self._who: tuple[bytes, Identity] | None = None
        """The identity, with the bytes it was read from."""

    def __enter__(self) -> BoxReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._fd)

    def replaced(self) -> bool:
        """Returns whether another file has replaced this one. A deleted file can still be read."""
        try:
            there = os.stat(self.path, follow_symlinks=False)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) != self._file

    def newest_step(self) -> int | None:
        """Returns the number of the newest recorded step, read now at hardly any cost; None:
        unknown. Changes nothing that `poll` returns."""
        try:
            record = self._steps.peek()
        except OSError:
            return None
        return None if record is None else int(record["step"])

    def poll(self, *, whole: bool = True, most: int = MOST_RECORDS) -> Box:
        """Returns the box as it is now. Only what the header reports as new is read: polling a box
        that has hardly changed costs a few reads. If it need not be `whole`, the history stays as
        last read, and so do events and texts without news in the header: half the cost. `most`:
        records of a ring to keep, the newest."""
        self._steps.limit(most)
        self._device_times.limit(most)
        before = self._before
        for _ in range(_ATTEMPTS):
            header = self._header()
            if trusted := stable(before, header):
                break
            before = word(header, layout.GENERATION_LAST)
        who = self._identity(header, trusted=trusted)
        self._steps.poll(header)
        if whole or word(header, layout.DEVICE_CURSOR) != self._device_times.newest:
            self._device_times.poll(header)
        seldom = tuple(header[at : at + 8] for at in _SELDOM)
        if whole or self._seldom is None:
            self._windows = self._history.poll(header)
        if (has_news := whole or seldom != self._seldom) and len(new := self._events.poll(header)):
            self._events_seen = (*self._events_seen, *map(_event, new))[-self._at.event_capacity :]
        self._seldom = seldom
        windows, window = self._windows
        header = self._header()
        self._before = word(header, layout.GENERATION_LAST)
        if has_news:
            self._told_texts = self._texts.poll(header)
        texts = self._told_texts
        ended, code = word(header, layout.ENDED), word(header, layout.EXIT_CODE)
        state = word(header, layout.STATE)
        torn = () if trusted else ("the process ended while it changed its rank",)
        lost = self._device_times.lost
        untimed = (f"{lost} records of device times are damaged",) if lost else ()
        return Box(
            path=self.path,
            identity=who,
            birth=texts.birth,
            state=layout.STATES[state] if state < len(layout.STATES) else "unknown",
            exit_code=code - 1 if 0 < code <= 256 else None,
            ended_ns=ended or None,
            now=self._now(header),
            device_position=read_position(header, who.version),
            steps=self._steps.kept,
            device_times=self._device_times.kept if self._at.device else None,
            events=self._events_seen,
            history=windows,
            history_window_ns=window,
            last_words=texts.last_words,
            probe_cost_ns=word(header, layout.PROBE_COST),
            lost=self._steps.lost,
            overwritten=self._steps.overwritten,
            damage=(*torn, *untimed, *texts.damage),
        )

    def _identity(self, header: bytes, *, trusted: bool) -> Identity:
        """Returns the identity. Cached: it changes only if the process changes its rank."""
        if not trusted:
            return identity(header, trusted=False)
        raw = header[: layout.IDENTITY.size]
        if self._who is None or self._who[0] != raw:
            self._who = raw, identity(header, trusted=True)
        return self._who[1]

    def _header(self) -> bytes:
        header = read_at(self._fd, 0, layout.HEADER_SIZE)
        if len(header) < layout.HEADER_SIZE:
            raise BadBox(f"{self.path} cannot be read: it was truncated meanwhile")
        return header

    def _now(self, header: bytes) -> BoxNow | None:
        phase, since = word(header, layout.NOW_PHASE), word(header, layout.NOW_SINCE)
        if not since or phase & 0xFF >= len(layout.PHASES):
            return None
        return BoxNow(
            phase=layout.PHASES[phase & 0xFF],
            since_ns=since,
            step=phase >> 8,
            site=self._texts.site(word(header, layout.NOW_SITE)),
            group_seq=word(header, layout.NOW_SEQUENCE) or None,
        )


def _unchanged(values: Array) -> Array:
    return values


def _event(record: np.void) -> BoxEvent:
    kind = int(record["kind"])
    text = bytes(record["text"])[: int(record["length"])]
    return BoxEvent(
        kind=layout.EVENTS[kind] if kind < len(layout.EVENTS) else f"event {kind}",
        start_ns=int(record["start_ns"]),
        step=int(record["step"]),
        duration_ns=int(record["duration_ns"]),
        value=float(record["value"]),
        text=text.decode("utf-8", "replace"),
    )


def _open(file: BoxFile) -> int:
    try:
        return open_below(file.root, file.path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise BadBox(f"{file.path} cannot be read: it is a symbolic link") from None
        if not error.errno:
            raise BadBox(f"{file.path} cannot be read: {error.strerror}") from None
        raise
