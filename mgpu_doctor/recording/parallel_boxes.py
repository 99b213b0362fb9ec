"""Reads many boxes; those of a large job in two processes, if a second core is free.

The second process is forked and takes boxes from the same queue, some at a time. It puts the parsed
boxes into shared memory, so that nothing is copied, and reports them through a pipe. If it is
killed, the parent reads the boxes it did not report. The pickles are safe to load: the memory has
no name and only this user can access it."""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import signal
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import BinaryIO, NamedTuple, NoReturn, TypeAlias

from mgpu_doctor.recording.box import BadBox, Box, BoxFile, read_box
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
"""Number of a share; offset and length of its pickle in the shared memory."""
_ALIGNED = 64


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
    elif len(files) < MANY or not _may_fork():
        yield lambda: _packed(files, Packer())
    else:
        with contextlib.ExitStack() as opened:
            shares = [files[at : at + AT_ONCE] for at in range(0, len(files), AT_ONCE)]
            helper = _begun(shares, opened)
            yield lambda: _together(shares, helper)


def _read_one_file(file: BoxFile, read: Callable[[BoxFile], Box]) -> Read:
    try:
        return read(file)
    except BadBox as error:
        return str(error)
    except OSError as error:
        return f"{file.path} cannot be read: {error.strerror or error}"


def _packed(files: Iterable[BoxFile], packer: Packer) -> list[Read]:
    reads = (_read_one_file(file, read_box) for file in files)
    return [
        box if isinstance(box, str) else replace(box, steps=packer.pack(box.steps)) for box in reads
    ]


def _may_fork() -> bool:
    """Returns whether a second core is free and no other thread runs, whose locks a child would
    inherit."""
    return len(os.sched_getaffinity(0)) > 1 and threading.active_count() == 1


class _Helper(NamedTuple):
    """The file descriptors of the second process."""

    queue: int
    """A pipe with the numbers of the remaining shares."""
    answers: int
    """A pipe with the child's reports."""
    memory: int


def _begun(shares: Sequence[Sequence[BoxFile]], opened: contextlib.ExitStack) -> _Helper | None:
    """Starts the second process; None if memory, descriptors or processes ran out."""
    try:
        memory = _closing(opened, os.memfd_create("boxes"))
        queue, fill = os.pipe()
        _closing(opened, queue)
        with open(fill, "wb") as numbers:  # fits into the pipe's buffer
            numbers.write(b"".join(map(_NUMBER.pack, range(len(shares)))))
        messages, report = os.pipe()
        _closing(opened, messages)
        with open(report, "wb", buffering=0):
            child = os.fork()
            if child == 0:
                _help(shares, queue, memory, report)
    except OSError:
        return None
    opened.callback(_end, child)
    return _Helper(queue, messages, memory)


def _end(child: int) -> None:
    """Ends the second process, if this one was interrupted before it ended by itself."""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _together(shares: Sequence[Sequence[BoxFile]], helper: _Helper | None) -> list[Read]:
    """Returns the boxes that both processes read. Shares that the child did not finish are read
    here."""
    by_worker: dict[int, list[Read]] = {}
    packer = Packer()
    if helper is not None:
        for number in _taken(helper.queue):
            by_worker[number] = _packed(shares[number], packer)
        with open(helper.answers, "rb", closefd=False) as file:
            by_worker.update(_left(helper.memory, file.read()))
    return [
        box
        for number, share in enumerate(shares)
        for box in (by_worker[number] if number in by_worker else _packed(share, packer))
    ]


def _closing(opened: contextlib.ExitStack, descriptor: int) -> int:
    opened.callback(os.close, descriptor)
    return descriptor


def _taken(queue: int) -> Iterator[int]:
    """Yields numbers of shares until none is left. A read from the pipe gives a complete number to
    exactly one of the processes."""
    while raw := os.read(queue, _NUMBER.size):
        yield _NUMBER.unpack(raw)[0]


def _help(shares: Sequence[Sequence[BoxFile]], queue: int, memory: int, report: int) -> NoReturn:
    """The child's work. It prints nothing, even if it fails."""
    try:
        for asked in (signal.SIGINT, signal.SIGTERM):
            signal.signal(asked, signal.SIG_DFL)
        packer = Packer()
        with open(memory, "wb") as file:
            for number in _taken(queue):
                begin, end = _leave(file, _packed(shares[number], packer))
                os.write(report, _SAID.pack(number, begin, end - begin))
    finally:
        os._exit(0)


def _leave(memory: BinaryIO, boxes: list[Read]) -> tuple[int, int]:
    """Writes the arrays, then a pickle of everything else with their offsets; returns begin and end
    of the pickle."""
    arrays: list[pickle.PickleBuffer] = []
    rest = pickle.dumps(boxes, 5, buffer_callback=arrays.append)
    places = []
    for array in arrays:
        memory.write(bytes(-memory.tell() % _ALIGNED))
        with array.raw() as raw:
            places.append((memory.tell(), raw.nbytes))
            memory.write(raw)
    begin = memory.tell()
    memory.write(pickle.dumps((places, rest)))
    memory.flush()
    return begin, memory.tell()


def _left(memory: int, messages: bytes) -> dict[int, list[Read]]:
    """Returns share -> the boxes that the child parsed; their arrays are not copied."""
    size = os.fstat(memory).st_size
    if not size:
        return {}
    shared = memoryview(
        mmap.mmap(memory, size, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ)
    )
    shares = {}
    for number, begin, length in _SAID.iter_unpack(
        messages[: len(messages) // _SAID.size * _SAID.size]
    ):
        places, rest = pickle.loads(shared[begin : begin + length])
        arrays = [shared[at : at + nbytes] for at, nbytes in places]
        shares[number] = pickle.loads(rest, buffers=arrays)
    return shares
