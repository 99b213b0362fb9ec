"""Exceptions that come wrapped: what a data-loader worker or a replica raised is told by another
process or thread, whose own line (`for batch in loader:`) is not where it happened."""

from __future__ import annotations

import re
from dataclasses import replace

from mgpu_probes.outside.tracebacks import TracebackReader

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


def original(error: Error) -> Error:
    """The exception where it happened; the given one where it is not wrapped or its own traceback
    cannot be read. Where none of the user's code is in it, the line of who waited for it stays."""
    wrapped = _WRAPPED.search(error.message)
    if wrapped is None or _ORIGINAL not in error.message:
        return error
    reader = TracebackReader(labelled=True)
    text = error.message.partition("Original ")[2]
    lines = text.split("\n")
    for number, line in enumerate(lines):
        reader.feed(line, number)
    reader.finish(len(lines))
    if not reader.found or not reader.found[-1].frames:
        return error
    raised = reader.found[-1]
    told = error_of(raised)
    said = f"{error.type}: {error.message.splitlines()[0]}"
    inner = replace(told, at=error.at, traceback=f"{said}\n{told.traceback}")
    if any(is_user_code(frame.file) for frame in raised.frames):
        return inner
    return replace(inner, file=error.file, line=error.line, function=error.function)


def wrapped_in(error: Error) -> str | None:
    """`DataLoader worker process 0` where the exception came from there, else None."""
    wrapped = _WRAPPED.search(error.message)
    return wrapped["where"] if wrapped is not None else None


def in_backward(error: Error) -> bool:
    """Whether autograd's engine raised it: then its line is only that of the backward call."""
    last = error.traceback.rstrip().rpartition('File "')[2]
    return bool(_BACKWARD.search(last))


def operation(error: Error) -> str | None:
    """The operation whose gradient failed, `PowBackward0`, where the message names it."""
    found = _OPERATION.search(error.message)
    return found["name"] if found is not None else None
