"""Reads many boxes; those of a large job in two processes, if a second core is free.

The second process is forked and takes boxes from the same queue, some at a time. It puts the parsed
boxes into a file that both have open, and reports them through a pipe. If it is killed, the parent
reads the boxes it did not report. The pickles are safe to load: the file has no name and only this
user can access it. The columns of a large job stay in such files."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import signal
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, NoReturn, TypeAlias

from mgpu_doctor.recording.box import BadBox, Box, BoxFile, read_box
from mgpu_doctor.recording.column_file import ColumnFile
from mgpu_doctor.recording.columns import Packer

MANY = 2000
"""Number of boxes from which a second process pays: reading them takes half a second. With 640
nothing was gained (on two busy cores)."""
AT_ONCE = 64
"""Boxes that a process takes from the queue at once."""

Read: TypeAlias = "Box | str"
"""A box, or one sentence why it cannot be read."""

_NUMBER = struct.Struct("=H")
_SAID = struct.Struct("=HQQ")
"""Number of a share; offset and length of its pickle in the file."""


@contextlib.contextmanager
def reading(
    files: Sequence[BoxFile], read: Callable[[BoxFile], Box] = read_box
) -> Iterator[Callable[[], list[Read]]]:
    """A function that reads all `files`, in order; a second process begins at once.

    `read`: reads a box. Any other than `read_box` is called in this process, and its boxes are not
    packed.
    """
    if read is not read_box:
        yield lambda: [_read_one_file(file, read) for file in files]
    elif len(files) < MANY:
        yield lambda: _packed(files, Packer())
    else:
        with contextlib.ExitStack() as opened:
            shares = [files[at : at + AT_ONCE] for at in range(0, len(files), AT_ONCE)]
            helper = _begun(shares, opened) if _may_fork() else None
            yield lambda: _together(shares, helper)


class KeptBoxes:
    """Boxes that are read once, as they are then; called like `read_box`."""

    def __init__(self, files: Sequence[BoxFile]) -> None:
        with reading(files) as read_all:
            self._boxes = dict(zip(files, read_all(), strict=True))

    def __call__(self, file: BoxFile) -> Box:
        """The box in a file. Raises BadBox."""
        box = self._boxes.get(file)
        if box is None:
            box = self._boxes[file] = _read_one_file(file, read_box)
        if isinstance(box, str):
            raise BadBox(box)
        return box


def _read_one_file(file: BoxFile, read: Callable[[BoxFile], Box]) -> Read:
    try:
        return read(file)
    except BadBox as error:
        return str(error)
    except OSError as error:
        return f"{file.path} cannot be read: {error.strerror or error}"


def _packed(files: Sequence[BoxFile], packer: Packer) -> list[Read]:
    packed: list[Read] = []
    for start in range(0, len(files), AT_ONCE):
        reads = [_read_one_file(file, read_box) for file in files[start : start + AT_ONCE]]
        whole = [box for box in reads if not isinstance(box, str)]
        columns = iter(packer.pack_all([box.steps for box in whole]))
        packed += [
            box if isinstance(box, str) else replace(box, steps=next(columns)) for box in reads
        ]
    return packed


def _may_fork() -> bool:
    """Returns whether a second core is free and no other thread runs, whose locks a child would
    inherit."""
    return len(os.sched_getaffinity(0)) > 1 and threading.active_count() == 1


class _Helper(NamedTuple):
    """What this process shares with the second one."""

    queue: int
    """A pipe with the numbers of the remaining shares."""
    answers: int
    """A pipe with the child's reports."""
    file: ColumnFile


def _begun(shares: Sequence[Sequence[BoxFile]], opened: contextlib.ExitStack) -> _Helper | None:
    """Starts the second process; None if disk space, descriptors or processes ran out."""
    try:
        file = ColumnFile()
        queue, fill = os.pipe()
        _closing(opened, queue)
        with open(fill, "wb") as numbers:  # fits into the pipe's buffer
            numbers.write(b"".join(map(_NUMBER.pack, range(len(shares)))))
        messages, report = os.pipe()
        _closing(opened, messages)
        with open(report, "wb", buffering=0):
            child = os.fork()
            if child == 0:
                _help(shares, queue, file, report)
    except OSError:
        return None
    opened.callback(_end, child)
    return _Helper(queue, messages, file)


def _end(child: int) -> None:
    """Ends the second process, if this one was interrupted before it ended by itself."""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _together(shares: Sequence[Sequence[BoxFile]], helper: _Helper | None) -> list[Read]:
    """Returns the boxes that both processes read. Shares that the child did not finish are read
    here."""
    by_worker: dict[int, list[Read]] = {}
    packer = Packer(_new_file())
    if helper is not None:
        for number in _taken(helper.queue):
            by_worker[number] = _packed(shares[number], packer)
        with open(helper.answers, "rb", closefd=False) as file:
            by_worker.update(_left(helper.file, file.read()))
    return [
        box
        for number, share in enumerate(shares)
        for box in (by_worker[number] if number in by_worker else _packed(share, packer))
    ]


def _new_file() -> ColumnFile | None:
    try:
        return ColumnFile()
    except OSError:  # then everything stays in memory
        return None


def _closing(opened: contextlib.ExitStack, descriptor: int) -> int:
    opened.callback(os.close, descriptor)
    return descriptor


def _taken(queue: int) -> Iterator[int]:
    """Yields numbers of shares until none is left. A read from the pipe gives a complete number to
    exactly one of the processes."""
    while raw := os.read(queue, _NUMBER.size):
        yield _NUMBER.unpack(raw)[0]


def _help(
    shares: Sequence[Sequence[BoxFile]], queue: int, file: ColumnFile, report: int
) -> NoReturn:
    """The child's work. It prints nothing, even if it fails."""
    try:
        for asked in (signal.SIGINT, signal.SIGTERM):
            signal.signal(asked, signal.SIG_DFL)
        packer = Packer(file)
        for number in _taken(queue):
            raw = io.BytesIO()
            _Pickler(raw, 5).dump(_packed(shares[number], packer))
            begin = file.append(raw.getbuffer())
            os.write(report, _SAID.pack(number, begin, raw.tell()))
    finally:
        os._exit(0)


class _Pickler(pickle.Pickler):
    """The child's columns lie in the file that both processes have open."""

    def persistent_id(self, value: object) -> object:
        return "file" if isinstance(value, ColumnFile) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, raw: bytes, file: ColumnFile) -> None:
        super().__init__(io.BytesIO(raw))
        self._file = file

    def persistent_load(self, _: object) -> ColumnFile:
        return self._file


def _left(file: ColumnFile, messages: bytes) -> dict[int, list[Read]]:
    """Returns share -> the boxes that the child parsed."""
    whole = messages[: len(messages) // _SAID.size * _SAID.size]
    return {
        number: _Unpickler(file.read(begin, length), file).load()
        for number, begin, length in _SAID.iter_unpack(whole)
    }
