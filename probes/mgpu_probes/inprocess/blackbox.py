"""Writes the black box of one rank: a memory-mapped file that survives SIGKILL of all processes.

`docs/black-box.md` specifies the format. Nothing here blocks. Only `Writer.open` raises: on an
error of its own a writer switches itself off and writes the reason into the box.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import re
import struct
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from math import nan
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakSet

from . import layout
from .bounded_json import utf8
from .box_texts import Texts
from .boxfile import STANDARD, Sizes, create, head, open_folder, reserve
from .step_history import History
from .step_record import BODY, I64, U16, U32, U64, clamp_whole, pack_clamped, pack_device_step

if TYPE_CHECKING:
    from .device_clock import DeviceStep

_EVENT_BODY = struct.Struct(layout.EVENT.format[:-1])
_FOLD_EVERY = 128
"""Steps between two updates of the open history window: rare enough not to affect the p99."""

P = ParamSpec("P")
R = TypeVar("R")


def _safely(
    method: Callable[Concatenate[Writer, P], R],
) -> Callable[Concatenate[Writer, P], R | None]:
    """Wraps a method: it does nothing in an inactive writer, and switches the writer off instead of
    raising."""

    @functools.wraps(method)
    def safe(self: Writer, /, *args: P.args, **kwargs: P.kwargs) -> R | None:
        if not self.active:
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            self._fail(error)
            return None

    return safe


class Writer:
    """Writes the black box of this process. Only one thread may record steps; the other methods may
    be called from any."""

    active: bool
    """False when switched off, closed, or in a forked child: then all methods do nothing."""
    off: str | None
    """Why the writer switched itself off; None: it did not."""
    words: memoryview
    """The box as unsigned 64-bit words, for the now cell: `words[NOW_PHASE // 8] = …`. A fork
    replaces it by scratch memory in the child, so read this attribute for every store."""

    def __init__(self, path: str, box: mmap.mmap, sizes: Sizes) -> None:
        offsets = layout.areas()
        self.path = path
        self.pid = os.getpid()
        self.active = True
        self.off = None
        self._box = box
        self._at = offsets
        self._bytes = memoryview(box)
        self.words = self._words_of_box = self._bytes.cast("Q")
        self._crcs = self._bytes.cast("I")
        self._lock = threading.RLock()  # re-entrant: a GC callback may come within any method
        self.written = 0  # steps
        self._steps_at = offsets["steps"]
        self._step_capacity = sizes.steps
        self._device_written = 0
        self._device_at = offsets["device"]
        self._device_capacity = sizes.device
        self.words[layout.DEVICE_RECORDS // 8] = sizes.device
        self.words[layout.DEVICE_AREA // 8] = offsets["device"]
        self._events = count(1)
        self._event_capacity = sizes.events
        self._history = History(box, self.words, offsets["history"], sizes)
        self._window_end = 0
        self._folded = 0
        self._fold_after = min(_FOLD_EVERY, sizes.steps)
        self._fold_at = self._fold_after
        self._texts = Texts(box, self.words)
        self._generation = 0
        self._identity: tuple[Any, ...] = ()
        _writers.add(self)

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        *,
        rank: int = -1,
        local_rank: int = -1,
        world_size: int = -1,
        attempt: int = 0,
        stage: int = -1,
        stages: int = -1,
        sizes: Sizes = STANDARD,
    ) -> Writer:
        """Creates `HOST.PID.ATTEMPT.box` in `folder`, and the folder if it is missing (mode 0700).

        `sizes` must not exceed the layout's. Raises OSError, and leaves no file behind, if the disk
        is full or read-only, others can write to the folder, the file system does not keep what it
        reserves, …
        """
        host = os.uname().nodename
        name = f"{re.sub('[^A-Za-z0-9-]', '-', host)[:64]}.{os.getpid()}.{attempt}"
        place = open_folder(os.fspath(folder))
        try:
            file, temporary, final = create(place, name)
            try:
                size = layout.areas()["end"]
                reserve(file, size)
                box = mmap.mmap(file, size)
                writer = cls(os.path.join(folder, final), box, sizes)
                writer._identity = head(sizes), attempt, utf8(host, 64)
                writer.identify(rank, local_rank, world_size, stage, stages)
                os.rename(temporary, final, src_dir_fd=place, dst_dir_fd=place)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=place)
                raise
            finally:
                os.close(file)
        finally:
            os.close(place)
        return writer

    def step(  # noqa: PLR0917 - keyword-only arguments would cost more
        self,
        end_ns: int,
        wall_ns: int,
        step: int,
        flags: int,
        phases: Sequence[float],
        samples: int = 0,
        tokens: int = 0,
        loss: float = nan,
        gc_s: float = 0.0,
        group_seq: int = 0,
        collectives: int = 0,
        micro_batches: int = 0,
        cpu_s: float = nan,
        device_bytes: int = 0,
        stage: int = -1,
        group: int = 0,
        resident_bytes: int = 0,
        _pack: Callable[..., bytes] = BODY.pack,
        _crc32: Callable[[bytes], int] = zlib.crc32,
    ) -> None:
        """Records one step: the named fields of `layout.STEP_FIELDS`, `phases` in seconds. They are
        not one object, because building it would cost as much as all the rest."""
        if not self.active:
            return
        try:
            number = self.written + 1
            try:
                body = _pack(
                    number,
                    end_ns,
                    wall_ns,
                    step,
                    flags,
                    *phases,
                    samples,
                    tokens,
                    loss,
                    gc_s,
                    group_seq,
                    collectives,
                    micro_batches,
                    cpu_s,
                    device_bytes,
                    stage,
                    group,
                    resident_bytes,
                )
            except (struct.error, OverflowError, TypeError, ValueError):
                values = {**locals(), "seq": number}
                names = [field.name for field in layout.STEP_FIELDS if field.name]
                body = pack_clamped([values[name] for name in names])
                end_ns = clamp_whole(end_ns, -I64, I64)
            if end_ns >= self._window_end or number > self._fold_at:
                self._fold(end_ns)
            offset = self._steps_at + (number - 1) % self._step_capacity * 128
            self._box[offset : offset + 124] = body
            self._crcs[(offset + 124) >> 2] = _crc32(body)
            # An aligned native store. struct.pack_into would show readers a 0 for a moment.
            self.words[_STEP_CURSOR] = number
            self.written = number
        except Exception as error:
            self._fail(error)

    @_safely
    def device_step(self, step: DeviceStep, *, knows_wait: bool = True) -> None:
        """Records the device's times of an earlier step, the one with the sequence number
        `step.record`. Call it from the thread that records steps. `knows_wait`: hooks see all
        waits."""
        number = self._device_written + 1
        body = pack_device_step(number, step, knows_wait=knows_wait)
        offset = self._device_at + (number - 1) % self._device_capacity * layout.DEVICE_SIZE
        self._box[offset : offset + layout.DEVICE_CRC_AT] = body
        self._crcs[(offset + layout.DEVICE_CRC_AT) >> 2] = zlib.crc32(body)
        self.words[layout.DEVICE_CURSOR // 8] = number
        self._device_written = number

    def _fold(self, end_ns: int) -> None:
        """Adds all new records to the history, and opens the window of `end_ns` if that is
        later."""
        records = b""
        if self._folded < self.written:
            size, base = layout.STEP_SIZE, self._steps_at
            first = self._folded % self._step_capacity
            last = (self.written - 1) % self._step_capacity
            if first <= last:
                records = self._box[base + first * size : base + (last + 1) * size]
            else:
                end = base + self._step_capacity * size
                records = self._box[base + first * size : end]
                records += self._box[base : base + (last + 1) * size]
        self._folded = self.written
        self._fold_at = self.written + self._fold_after
        self._history.add(records)
        if end_ns >= self._window_end:
            self._window_end = self._history.roll(end_ns)

    @_safely
    def event(  # noqa: PLR0917 - the fields of layout.EVENT in their order
        self,
        kind: int,
        start_ns: int,
        step: int = 0,
        duration_ns: int = 0,
        value: float = nan,
        text: str = "",
    ) -> None:
        """Records an event: a code of `layout.EVENTS`, its text cut to 212 bytes."""
        raw = utf8(text, layout.EVENT_TEXT_SIZE)
        with self._lock:
            number = next(self._events)
            body = _EVENT_BODY.pack(
                number,
                clamp_whole(start_ns, -I64, I64),
                clamp_whole(kind, 0, U16),
                len(raw),
                clamp_whole(step, 0, U32),
                clamp_whole(duration_ns, 0, U64),
                float(value),
                raw,
            )
            offset = self._at["events"] + (number - 1) % self._event_capacity * layout.EVENT_SIZE
            self._box[offset : offset + layout.EVENT_CRC_AT] = body
            self._crcs[(offset + layout.EVENT_CRC_AT) // 4] = zlib.crc32(body)
            cursor = layout.EVENT_CURSOR // 8
            self.words[cursor] = max(self.words[cursor], number)

    @_safely
    def birth(self, facts: Mapping[str, Any]) -> None:
        """Merges `facts` into the process metadata (keys: docs/black-box.md); a new value of a key
        replaces the old one."""
        with self._lock:
            self._texts.birth(facts)

    def site(self, text: str) -> int:
        """The number for NOW_SITE that stands for the call site `text`; 0 if there is no room."""
        if not self.active:
            return 0
        word = self._texts.sites.get(text)
        return self._intern(text) or 0 if word is None else word

    def text_of_site(self, word: int) -> str | None:
        """The call site that a number of NOW_SITE stands for; None: unknown number. Slow."""
        sites = dict(self._texts.sites)
        return next((text for text, its_word in sites.items() if its_word == word), None)

    @_safely
    def _intern(self, text: str) -> int:
        with self._lock:
            return self._texts.site(text)

    @_safely
    def identify(
        self, rank: int, local_rank: int, world_size: int, stage: int = -1, stages: int = -1
    ) -> None:
        """Sets the process's place in the job; -1: unknown."""
        with self._lock:
            self._generation += 1
            fixed, attempt, host = self._identity
            identity = (rank, local_rank, world_size, attempt, stage, stages)
            block = layout.IDENTITY.pack(
                *fixed, *(clamp_whole(number, -1, 2**31 - 1) for number in identity), host
            )
            self.words[layout.GENERATION_FIRST // 8] = self._generation
            self._box[: len(block)] = block
            self.words[layout.GENERATION_LAST // 8] = self._generation

    @_safely
    def last_words(self, facts: Mapping[str, Any]) -> None:
        """Merges `facts` into the reason why the process ends: `type`, `message`, `file`, `line`,
        `function`, `traceback`. Long texts are shortened in their middle."""
        with self._lock:
            self._texts.last_words(facts)

    @_safely
    def state(self, value: int) -> None:
        """Sets the state: a code of `layout.STATES`."""
        self.words[layout.STATE // 8] = clamp_whole(value, 0, len(layout.STATES) - 1)

    @_safely
    def leave(self, exit_code: int | None) -> None:
        """Records that the process ends now, and its exit code if known."""
        self._fold(0)
        if exit_code is not None:
            self.words[layout.EXIT_CODE // 8] = (int(exit_code) & 0xFF) + 1
        self.words[layout.ENDED // 8] = time.monotonic_ns()
        if self.words[layout.STATE // 8] != layout.FAILED:
            self.words[layout.STATE // 8] = layout.ENDED_CLEAN

    @_safely
    def switch_off(self, reason: str) -> None:
        """Stops writing, and records the reason in the box (`off` in its last words)."""
        self.off = reason
        self.last_words({"off": reason})
        if self.words[layout.STATE // 8] not in (layout.FAILED, layout.ENDED_CLEAN):
            self.words[layout.STATE // 8] = layout.OFF
        self.active = False

    def close(self) -> None:
        """Unmaps the box; the file stays. Not needed before the process ends."""
        self._abandon()
        for view in (self._crcs, self._words_of_box, self._bytes):
            view.release()
        self._box.close()

    def _fail(self, error: Exception) -> None:
        if self.off is not None:  # `switch_off` itself failed: the box cannot be written any more
            self.active = False
            return
        self.switch_off(f"{type(error).__name__}: {error}")

    def _abandon(self) -> None:
        """Stops using the box without writing to it: after a fork it belongs to the parent."""
        self.active = False
        self.words = memoryview(bytearray(layout.HEADER_SIZE)).cast("Q")


_STEP_CURSOR = layout.STEP_CURSOR // 8


_writers: WeakSet[Writer] = WeakSet()


def _after_fork() -> None:
    for writer in list(_writers):
        writer._abandon()


os.register_at_fork(after_in_child=_after_fork)
