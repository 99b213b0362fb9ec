"""Errors whose message is not known: what they are about, by their words alone.

They count only if a log shows no known failure. Exceptions that ended a process are read wherever
they were printed; other errors only at the end of a log."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache

from mgpu_probes.outside.logs.log_lines import Line
from mgpu_probes.outside.logs.scanned_logs import Form, Scanned

from mgpu_doctor.case.error_lines import FLATTENED, LastLine, LogEnd, read_log_end
from mgpu_doctor.case.last_exceptions import RAISED
from mgpu_doctor.case.log_matches import LogMatch
from mgpu_doctor.case.log_sources import LabelledLog
from mgpu_doctor.case.model import Error, LoggedEnd
from mgpu_doctor.case.user_code import is_user_code
from mgpu_doctor.signatures.error_endings import (
    ABORTED,
    CUT_IN,
    DIVERGED,
    LOST_PEER,
    NCCL_TRAIL,
    SILENT,
    STOPPED,
    UNFINISHED,
    UNMET,
    WAITING,
)
from mgpu_doctor.signatures.error_topics import CONNECTIONS, HARD, TOPICS, WORDED_CAUSES
from mgpu_doctor.signatures.signature import Signature

MOST_SIGNS = 8
MESSAGE_LINES = 3
MESSAGE_WIDTH = 200
_SETTINGS = re.compile(r"(?:\{ ?['\"]|\[ ?['\"]|\b\w{1,60}\(\w{1,60}=|(?<=core dumped\)) ).*")
"""The rest of a line from printed settings or a command on: they name much that did not fail."""
_FILE = re.compile(r'^\s*File "([^"]{1,400})", line \d', re.MULTILINE)
_NESTED = re.compile(r"(?:^|[\s'\"(])[A-Z][A-Za-z]{2,40}(?:Error|Exception): ")
"""An exception, most likely of the user's code, that the message of another one repeats."""
_FRAMEWORK = re.compile(
    r"(?:torch|tensorflow|jax(?:lib)?|deepspeed|megatron|lightning|pytorch_lightning|accelerate"
    r"|horovod|ray|vllm|paddle|mxnet)\."
)
"""Types of exceptions of these packages, also where the traceback is missing."""
_PROGRAMMING = frozenset(
    {"AttributeError", "ImportError", "IndentationError", "KeyError", "ModuleNotFoundError"}
    | {"NameError", "NotImplementedError", "SyntaxError", "TypeError", "UnboundLocalError"}
    | {"ZeroDivisionError"}
)
"""Exceptions that are mistakes of a script, whatever their message is about."""
_UNMET_CODE = "failed-rendezvous"
"""A ValueError about the rendezvous is a mistake of a script, too: a wrong argument. Processes that
do not find each other get errors of connections."""


def find_worded_errors(
    logs: Sequence[LabelledLog],
    ends: Collection[LoggedEnd],
    caught: Collection[tuple[str, int]],
    *,
    exceptions_only: bool = False,
) -> tuple[LogMatch, ...]:
    """Signs of the errors' topics, in the order of their lines. `ends`: the known endings;
    `caught`: source and line of exceptions that ended nothing; `exceptions_only`: without other
    lines at the end of a log."""
    errors = [end.error for end in ends if end.error is not None]
    if signs := list(_of_exceptions(ends, logs)):
        return tuple(signs[:MOST_SIGNS])
    if exceptions_only or any(_is_mistake(error) for error in errors):
        return ()
    has_ended = any(end.exit_code or end.signal for end in ends)
    for log in logs:
        found = _of_end(read_log_end(log.scanned, caught), has_ended=has_ended)
        signs += [
            _sign(topic, row.line, row.number, log)
            for topic, row in found
            if not errors or topic.id in WORDED_CAUSES
        ]
    return tuple(signs[:MOST_SIGNS])


def _is_mistake(error: Error) -> bool:
    return error.type.rpartition(".")[2] in _PROGRAMMING


def _of_exceptions(ends: Iterable[LoggedEnd], logs: Sequence[LabelledLog]) -> Iterator[LogMatch]:
    for end in ends:
        error = end.error
        if error is None or _is_mistake(error):
            continue
        lines = error.message.strip().split("\n")[:MESSAGE_LINES]
        topic = _topic_of_exception(error.type, " ".join(lines), of_library=_is_of_library(error))
        if topic is not None:
            log, number = _place(error, logs)
            first = f"{error.type}: {lines[0]}".rstrip()
            yield _sign(topic, Line(end.rank, None, error.at, None, first), number, log)


def _place(error: Error, logs: Sequence[LabelledLog]) -> tuple[LabelledLog, int]:
    """The log that printed the exception, and the number of its line."""
    raised = f"{error.type}: {error.message}".partition("\n")[0].rstrip()[:MESSAGE_WIDTH]
    for log in logs:
        for number, text in _numbered(log.scanned):
            if raised in text:
                return log, number
    return logs[0], 1


def _numbered(scanned: Scanned) -> Iterator[tuple[int, str]]:
    yield from ((line.number, line.text) for line in scanned.kept_lines)
    yield from zip(scanned.tail_numbers, scanned.tail, strict=True)


def _of_end(end: LogEnd, *, has_ended: bool) -> list[tuple[Signature, LastLine]]:
    """What the end of a log reports, with the lines; how a process ended only if nothing else."""
    telling = [(topic, row) for row in end.reports if (topic := _of_line(row, end)) is not None]
    for box in end.boxes:
        text = " ".join(row.line.text.strip() for row in box)
        telling.append((_topic_of(text) or STOPPED, box[0]))
    if end.silent is not None and not has_ended:
        telling = [(topic, row) for topic, row in telling if row is not end.silent]
        telling = telling or [(SILENT, end.silent)]
    if telling:
        return telling
    if end.trail is not None:
        return [(NCCL_TRAIL, end.trail)]
    if end.waiting and end.is_still_waiting:
        return [(WAITING, end.waiting[-1])]
    if end.cut is not None:
        return [(UNMET, end.waiting[-1])] if end.waiting else [(_cut_in(end), end.cut)]
    if end.progress is not None and end.progress.shows_nan:
        return [(DIVERGED, end.progress)]
    stopped = next((row for row in end.reports if row.reports_end), None)
    return [(STOPPED, stopped)] if stopped is not None and not has_ended else []


def _cut_in(end: LogEnd) -> Signature:
    return next(
        (ending for ending, files in CUT_IN if any(map(files.search, end.cut_files))), UNFINISHED
    )


def _of_line(row: LastLine, end: LogEnd) -> Signature | None:
    if not row.reports_error:
        return None
    raised = RAISED.match(row.line.text.strip()) or FLATTENED.match(row.line.text)
    topic = (
        _topic_of_exception(raised["type"], raised["message"] or "")
        if raised is not None
        else _topic_of(row.line.text)
    )
    if topic is not None and topic.id in CONNECTIONS and end.has_progressed:
        topic = LOST_PEER
    return ABORTED if row.is_fatal and topic in (None, LOST_PEER) else topic


def _is_of_library(error: Error) -> bool:
    """Whether an installed package raised it, not the user's code."""
    frames = _FILE.findall(error.traceback)
    return bool(frames) and not is_user_code(frames[-1])


def _topic_of_exception(name: str, message: str, *, of_library: bool = False) -> Signature | None:
    topic = _topic_of(f"{name}: {message}")
    if topic is None or topic.id in HARD:
        return topic
    if name == "ValueError" and topic.code == _UNMET_CODE:
        return None
    if (of_library or _FRAMEWORK.match(name)) and not _NESTED.search(message):
        return topic
    return _topic_of(name)


def _topic_of(text: str) -> Signature | None:
    text = _SETTINGS.sub("", text)
    return next((topic for topic, words in _words() if words.search(text)), None)


@cache
def _words() -> tuple[tuple[Signature, re.Pattern[str]], ...]:
    return tuple((topic, re.compile(topic.pattern)) for topic in TOPICS)


def _sign(topic: Signature, line: Line, number: int, log: LabelledLog) -> LogMatch:
    return LogMatch(
        signature=topic.id,
        rank=log.of(line.rank, line.local_rank),
        source=log.scanned.source,
        number=number,
        text=line.text.strip(),
        at=line.at,
        form=Form.WORDS,
    )
