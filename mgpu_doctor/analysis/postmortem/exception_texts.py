"""What an exception's text says besides its type: where it was raised, if something passed it on (a
data-loader worker, a replica, a graph of TensorFlow), and what the operating system refused. Pure.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass, replace

from mgpu_probes.outside.tracebacks import Traceback, TracebackReader

from mgpu_doctor.case.captured_console import error_of
from mgpu_doctor.case.model import Error
from mgpu_doctor.case.user_code import is_user_code

_WRAPPED = re.compile(
    r"Caught (?P<type>[\w.]{1,100}) in (?P<where>DataLoader worker process \d{1,6}"
    r"|replica \d{1,4} on device \d{1,4}|pin memory thread for device \d{1,4})\."
)
"""torch/_utils.py's ExceptionWrapper, torch 1.10 to 2.13."""
_ORIGINAL = "Original Traceback (most recent call last):"
_BACKWARD = re.compile(r"_engine_run_backward|Variable\._execution_engine|run_backward\(")
_OPERATION = re.compile(r"\b(?P<name>[A-Z]\w{1,80}Backward\d*)\b")
_NUMBER = re.compile(r"\[Errno (\d{1,3})\]")
_WORDS = {
    "no space left on device": errno.ENOSPC,
    "disk quota exceeded": errno.EDQUOT,
    "file too large": errno.EFBIG,
    "too many open files in system": errno.ENFILE,
    "too many open files": errno.EMFILE,
    # multiprocessing's way to say that the file descriptors in a message got lost: EMFILE
    "received 0 items of ancdata": errno.EMFILE,
    "read-only file system": errno.EROFS,
    "permission denied": errno.EACCES,
}
"""strerror(3) in lower case, as C++ code prints it too. The first that fits counts."""
_TYPES = {"PermissionError": errno.EACCES}
_FILE = re.compile(
    r"(?:\[Errno \d{1,3}\] [^:']{1,100}: |file )['<\"](?P<file>[^'>\"]{1,500})['>\"]"
)
_SEMAPHORE = "_multiprocessing.SemLock("
"""Python's locks and queues are files in /dev/shm; the error itself names none."""
_SHARED = re.compile(r"/torch_\d|/dev/shm/|shared memory|\bshm\b")


def original(error: Error) -> Error:
    """The exception where it happened; the given one where it is not wrapped or its own traceback
    cannot be read. Where none of the user's code is in it, the line of who waited for it stays."""
    if _WRAPPED.search(error.message) and _ORIGINAL in error.message:
        raised = _last_traceback(error.message.partition("Original ")[2])
    else:
        raised = _last_traceback(error.traceback)
        raised = raised if raised is not None and raised.is_called_by_graph else None
    if raised is None:
        return error
    original_error = error_of(raised)
    wrapper = f"{error.type}: {error.message.splitlines()[0]}"
    inner = replace(original_error, at=error.at, traceback=f"{wrapper}\n{original_error.traceback}")
    if any(is_user_code(frame.file) for frame in raised.frames):
        return inner
    return replace(inner, file=error.file, line=error.line, function=error.function)


def _last_traceback(text: str) -> Traceback | None:
    """The last one of an exception's text that has calls."""
    reader = TracebackReader(labelled=True)
    lines = text.split("\n")
    for number, line in enumerate(lines):
        reader.feed(line, number)
    reader.finish(len(lines))
    return reader.tracebacks[-1] if reader.tracebacks and reader.tracebacks[-1].frames else None


def wrapped_in(error: Error) -> str | None:
    """`DataLoader worker process 0` where the exception came from there, else None."""
    wrapped = _WRAPPED.search(error.message)
    return wrapped["where"] if wrapped is not None else None


def in_backward(error: Error) -> bool:
    """Whether autograd's engine raised it: then its line is only that of the backward call."""
    last = error.traceback.rstrip().rpartition('File "')[2]
    return bool(_BACKWARD.search(last))


def operation(error: Error) -> str | None:
    """The operation whose gradient failed, such as `PowBackward0`, if the message names it."""
    match = _OPERATION.search(error.message)
    return match["name"] if match is not None else None


@dataclass(frozen=True, slots=True)
class SystemRefusal:
    """`shared`: it was about shared memory. `file`: the one that the text names."""

    number: int
    file: str | None
    shared: bool


def parse_system_error(error: Error | None) -> SystemRefusal | None:
    """The refused access that an exception reports; None: no known one."""
    if error is None:
        return None
    number = _number(error)
    if number is None:
        return None
    file = _FILE.search(error.message)
    shared = bool(_SHARED.search(error.message)) or _SEMAPHORE in error.traceback
    return SystemRefusal(number, file["file"] if file else None, shared)


def _number(error: Error) -> int | None:
    if "inotify" in error.message:
        return None  # its limit of watches has the number of a full disk
    if match := _NUMBER.search(error.message):
        return int(match[1])
    message = error.message.lower()
    spelled = next((number for words, number in _WORDS.items() if words in message), None)
    return spelled or _TYPES.get(error.type.rpartition(".")[2])
