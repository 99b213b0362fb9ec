"""The black box of one rank: a memory-mapped file that survives SIGKILL of everything.

`docs/black-box.md` explains the format. Nothing here blocks, and nothing but `Writer.open` raises:
on trouble of its own a writer switches itself off and says why in the box.
"""

from __future__ import annotations

import contextlib
import errno
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
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakSet

from . import layout
from .compact import fitted, utf8
from .history import I64, U16, U32, History, single

_BODY = struct.Struct(layout.STEP.format[:-1])
_EVENT_BODY = struct.Struct(layout.EVENT.format[:-1])
_NAMES_TRIED = 100
_LONGEST_SITE = 1024
_FOLD_EVERY = 128
"""Steps between two sums of the open history window: rare enough to stay out of the p99."""

P = ParamSpec("P")
R = TypeVar("R")


def _safely(
    method: Callable[Concatenate[Writer, P], R],
) -> Callable[Concatenate[Writer, P], R | None]:
    """Makes a method do nothing in an inactive writer, and switch off instead of raising."""

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
    """Writes the black box of this process. Steps come from one thread, the rest from any."""

    active: bool
    """False once switched off, closed or in a forked child: all methods do nothing then."""
    off: str | None
    """Why it switched itself off."""
    words: memoryview
    """The box as unsigned 64-bit words, for the now cell: `words[NOW_PHASE // 8] = …`. In a forked
    child it is replaced by scratch memory, so fetch it anew for every store."""

    def __init__(
        self,
        path: str,
        box: mmap.mmap,
        *,
        step_capacity: int,
        event_capacity: int,
        history_capacity: int,
        window_ns: int,
    ) -> None:
        at = layout.areas()
        self.path = path
        self.pid = os.getpid()
        self.active = True
        self.off = None
        self._box = box
        self._at = at
        self._bytes = memoryview(box)
        self.words = self._words_of_box = self._bytes.cast("Q")
        self._crcs = self._bytes.cast("I")
        self._lock = threading.RLock()  # re-entrant: a GC callback may come within any method
        self._steps = 0
        self._steps_at = at["steps"]
        self._step_capacity = step_capacity
        self._events = count(1)
        self._event_capacity = event_capacity
        self._history = History(box, self.words, at["history"], history_capacity, window_ns)
        self._window_end = 0
        self._folded = 0
        self._fold_after = min(_FOLD_EVERY, step_capacity)
        self._fold_at = self._fold_after
        self._sites: dict[str, int] = {}
        self._strings_used = 0
        self._birth: dict[str, Any] = {}
        self._last_words: dict[str, Any] = {}
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
        step_capacity: int = layout.STEP_CAPACITY,
        event_capacity: int = layout.EVENT_CAPACITY,
        history_capacity: int = layout.HISTORY_CAPACITY,
        window_ns: int = layout.FIRST_HISTORY_WINDOW_NS,
    ) -> Writer:
        """Creates `HOST.PID.ATTEMPT.box` in `folder`, which is made (0700) where it is missing.

        Capacities may only be smaller than the layout's. Raises OSError (disk full, read-only,
        no such folder, …) and leaves nothing behind then.
        """
        os.makedirs(folder, mode=0o700, exist_ok=True)
        host = os.uname().nodename
        name = f"{re.sub('[^A-Za-z0-9-]', '-', host)[:64]}.{os.getpid()}.{attempt}"
        fd, temporary, path = _create(os.fspath(folder), name)
        try:
            size = layout.areas()["end"]
            # Never sparse: a store into a hole of a full disk is SIGBUS for the training.
            os.posix_fallocate(fd, 0, size)
            box = mmap.mmap(fd, size)
            writer = cls(
                path,
                box,
                step_capacity=step_capacity,
                event_capacity=event_capacity,
                history_capacity=history_capacity,
                window_ns=window_ns,
            )
            writer._head(host, attempt, history_capacity)
            writer.identify(rank, local_rank, world_size, stage, stages)
            os.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        finally:
            os.close(fd)
        return writer

    def step(  # noqa: PLR0917 - positional: keywords would cost as much as the record
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
        _pack: Callable[..., bytes] = _BODY.pack,
        _crc32: Callable[[bytes], int] = zlib.crc32,
    ) -> None:
        """Records one step: the fields of `layout.STEP`, `phases` being seconds in its order."""
        if not self.active:
            return
        try:
            number = self._steps + 1
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
                )
            except (struct.error, OverflowError, TypeError, ValueError):
                end_ns = _whole(end_ns, -I64, I64)
                numbers = (samples, tokens, group_seq, collectives, micro_batches, device_bytes)
                body = _clamped(
                    (number, end_ns, wall_ns, step, flags),
                    phases,
                    numbers,
                    (loss, gc_s, cpu_s),
                    (stage, group),
                )
            if end_ns >= self._window_end or number > self._fold_at:
                self._fold(end_ns)
            at = self._steps_at + (number - 1) % self._step_capacity * 128
            self._box[at : at + 124] = body
            self._crcs[(at + 124) >> 2] = _crc32(body)
            # An aligned native store. struct.pack_into would show readers a 0 for a moment.
            self.words[_STEP_CURSOR] = number
            self._steps = number
        except Exception as error:
            self._fail(error)

    def _fold(self, end_ns: int) -> None:
        """Brings the history up to the newest record; opens the window of `end_ns`."""
        records = b""
        if self._folded < self._steps:
            size, base = layout.STEP_SIZE, self._steps_at
            first = self._folded % self._step_capacity
            last = (self._steps - 1) % self._step_capacity
            if first <= last:
                records = self._box[base + first * size : base + (last + 1) * size]
            else:
                end = base + self._step_capacity * size
                records = self._box[base + first * size : end]
                records += self._box[base : base + (last + 1) * size]
        self._folded = self._steps
        self._fold_at = self._steps + self._fold_after
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
                _whole(start_ns, -I64, I64),
                _whole(kind, 0, U16),
                len(raw),
                _whole(step, 0, U32),
                _whole(duration_ns, 0, _U64),
                float(value),
                raw,
            )
            at = self._at["events"] + (number - 1) % self._event_capacity * layout.EVENT_SIZE
            self._box[at : at + layout.EVENT_CRC_AT] = body
            self._crcs[(at + layout.EVENT_CRC_AT) // 4] = zlib.crc32(body)
            cursor = layout.EVENT_CURSOR // 8
            self.words[cursor] = max(self.words[cursor], number)

    @_safely
    def birth(self, facts: Mapping[str, Any]) -> None:
        """Adds `facts` to what is known of this process (keys: docs/black-box.md).

        A key given again replaces its earlier value.
        """
        with self._lock:
            self._birth.update(facts)
            raw = fitted(self._birth, layout.BIRTH_SLOT_SIZE)
            slot = 1 - (self.words[layout.BIRTH_SLOT // 8] >> 32)
            at = self._at["birth"] + slot * layout.BIRTH_SLOT_SIZE
            self._box[at : at + len(raw)] = raw
            self.words[layout.BIRTH_SLOT // 8] = slot << 32 | len(raw)

    def site(self, text: str) -> int:
        """The word for NOW_SITE that stands for `text`; 0 where there is no room for more."""
        if not self.active:
            return 0
        word = self._sites.get(text)
        return self._intern(text) or 0 if word is None else word

    @_safely
    def _intern(self, text: str) -> int:
        raw = utf8(text, _LONGEST_SITE)
        with self._lock:
            used = self._strings_used
            if used + 2 + len(raw) > layout.STRINGS_SIZE:
                return 0
            at = self._at["strings"] + used
            self._box[at : at + 2 + len(raw)] = struct.pack("=H", len(raw)) + raw
            self._strings_used = used + 2 + len(raw)
            self.words[layout.STRINGS_USED // 8] = self._strings_used
            self._sites[text] = used + 1
            return used + 1

    @_safely
    def identify(
        self, rank: int, local_rank: int, world_size: int, stage: int = -1, stages: int = -1
    ) -> None:
        """Sets who this process is, -1 where unknown."""
        with self._lock:
            self._generation += 1
            head, attempt, host = self._identity
            who = (rank, local_rank, world_size, attempt, stage, stages)
            block = layout.IDENTITY.pack(
                *head, *(_whole(number, -1, 2**31 - 1) for number in who), host
            )
            self.words[layout.GENERATION_FIRST // 8] = self._generation
            self._box[: len(block)] = block
            self.words[layout.GENERATION_LAST // 8] = self._generation

    @_safely
    def last_words(self, words: Mapping[str, Any]) -> None:
        """Adds to why the process ends: `type`, `message`, `file`, `line`, `function`,
        `traceback`; long texts lose their middle."""
        with self._lock:
            self._last_words.update(words)
            raw = fitted(self._last_words, layout.WORDS_SIZE)
            self.words[layout.WORDS_USED // 8] = 0
            at = self._at["words"]
            self._box[at : at + len(raw)] = raw
            self.words[layout.WORDS_USED // 8] = len(raw)

    @_safely
    def state(self, value: int) -> None:
        """Sets the state: a code of `layout.STATES`."""
        self.words[layout.STATE // 8] = _whole(value, 0, len(layout.STATES) - 1)

    @_safely
    def leave(self, exit_code: int | None) -> None:
        """The process ends now, with `exit_code` as far as it knows it."""
        self._fold(0)
        if exit_code is not None:
            self.words[layout.EXIT_CODE // 8] = (int(exit_code) & 0xFF) + 1
        self.words[layout.ENDED // 8] = time.monotonic_ns()
        if self.words[layout.STATE // 8] != layout.FAILED:
            self.words[layout.STATE // 8] = layout.ENDED_CLEAN

    @_safely
    def switch_off(self, reason: str) -> None:
        """Nothing is written from now on; the box says why (`off` in its last words)."""
        self.off = reason
        self.last_words({"off": reason})
        if self.words[layout.STATE // 8] not in (layout.FAILED, layout.ENDED_CLEAN):
            self.words[layout.STATE // 8] = layout.OFF
        self.active = False

    def close(self) -> None:
        """Unmaps the box; the file stays. A process need not do this, its end does."""
        self._abandon()
        for view in (self._crcs, self._words_of_box, self._bytes):
            view.release()
        self._box.close()

    def _fail(self, error: Exception) -> None:
        if self.off is not None:  # trouble while saying so: the box cannot be written any more
            self.active = False
            return
        self.switch_off(f"{type(error).__name__}: {error}")

    def _abandon(self) -> None:
        """Lets go of the box without a trace in it: it belongs to the parent of a fork."""
        self.active = False
        self.words = memoryview(bytearray(layout.HEADER_SIZE)).cast("Q")

    def _head(self, host: str, attempt: int, history_capacity: int) -> None:
        at = self._at
        before = time.monotonic_ns()
        wall = time.time_ns()
        between = (before + time.monotonic_ns()) // 2
        head = (
            layout.MAGIC,
            layout.VERSION_MAJOR,
            layout.VERSION_MINOR,
            layout.BYTE_ORDER_MARK,
            layout.HEADER_SIZE,
            at["birth"],
            layout.BIRTH_SLOT_SIZE,
            at["strings"],
            layout.STRINGS_SIZE,
            at["steps"],
            self._step_capacity,
            at["events"],
            self._event_capacity,
            at["history"],
            history_capacity,
            at["words"],
            layout.WORDS_SIZE,
            self.pid,
            os.getppid(),
            _start_ticks(),
            wall,
            between,
            _boot_id(),
        )
        self._identity = head, attempt, utf8(host, 63)


_STEP_CURSOR = layout.STEP_CURSOR // 8
_U64 = 2**64 - 1


def _whole(value: Any, low: int, high: int) -> int:
    try:
        return max(low, min(int(value), high))
    except (TypeError, ValueError, OverflowError):  # NaN, infinity, no number at all
        return max(low, min(0, high))


def _real(value: Any) -> float:
    try:
        return single(float(value))
    except (TypeError, ValueError, OverflowError):
        return nan


def _clamped(
    times: tuple[int, int, int, int, int],
    phases: Sequence[float],
    numbers: tuple[int, int, int, int, int, int],
    reals: tuple[float, float, float],
    place: tuple[int, int],
) -> bytes:
    """A step's body from values that do not fit their fields."""
    number, end_ns, wall_ns, step, flags = times
    samples, tokens, group_seq, collectives, micro_batches, device_bytes = numbers
    loss, gc_s, cpu_s = map(_real, reals)
    seconds = [*map(_real, phases), *[nan] * len(layout.PHASES)][: len(layout.PHASES)]
    return _BODY.pack(
        number,
        end_ns,
        _whole(wall_ns, 0, I64),
        _whole(step, 0, U32),
        _whole(flags, 0, U32),
        *seconds,
        _whole(samples, 0, U32),
        _whole(tokens, 0, U32),
        loss,
        gc_s,
        _whole(group_seq, 0, U32),
        _whole(collectives, 0, U16),
        _whole(micro_batches, 0, U16),
        cpu_s,
        _whole(device_bytes, 0, _U64),
        _whole(place[0], -1, 2**15 - 1),
        _whole(place[1], 0, U16),
    )


def _create(folder: str, name: str) -> tuple[int, str, str]:
    """A new temporary file and the name that it may take, which nobody else takes meanwhile."""
    for turn in range(_NAMES_TRIED):
        stem = f"{name}.{turn}" if turn else name
        temporary = os.path.join(folder, f".{stem}.tmp")
        path = os.path.join(folder, stem + layout.BOX_SUFFIX)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(temporary, flags, 0o600)
        except FileExistsError:
            continue
        if not os.path.lexists(path):
            return fd, temporary, path
        os.close(fd)
        os.unlink(temporary)
    raise FileExistsError(errno.EEXIST, "too many boxes of this name", os.path.join(folder, name))


def _start_ticks() -> int:
    """When this process started, in clock ticks since boot; 0 where /proc does not tell."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def _boot_id() -> bytes:
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as boot:
            return bytes.fromhex(boot.read().strip().replace(b"-", b"").decode())
    except (OSError, ValueError):
        return bytes(16)


_writers: WeakSet[Writer] = WeakSet()


def _after_fork() -> None:
    for writer in list(_writers):
        writer._abandon()


os.register_at_fork(after_in_child=_after_fork)
