"""How processes ended, according to logs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from mgpu_probes.outside import console_errors as parser
from mgpu_probes.outside.console_errors import ConsoleFacts, PrintedTraceback
from mgpu_probes.outside.jobs.launchers import WRAPPER_FOLDERS
from mgpu_probes.outside.logs.scanned_logs import Form, KeptLine

from mgpu_doctor.case.captured_console import error_of, logged_end
from mgpu_doctor.case.log_matches import LogMatch, went_on
from mgpu_doctor.case.log_sources import LabelledLog
from mgpu_doctor.case.model import LoggedEnd
from mgpu_doctor.case.user_code import is_user_code

_LAUNCHER_FILES = (*WRAPPER_FOLDERS, "subprocess.py")
"""Files whose tracebacks only repeat that a child process failed."""
_OUTERMOST = frozenset(
    {"<module>", "_run_module_as_main", "_run_code", "_bootstrap", "_bootstrap_inner", "_wrap"}
    | {"spawn_main", ""}
)
"""Functions in which processes start. The interpreter's traceback of an uncaught exception starts
there; that of a caught and printed one starts where it was caught."""
FIRST_LINES, LAST_LINES = 4, 10
"""A text that begins with a traceback within the first and ends within the last of these lines was
cut out around it: its outer calls may be missing, too. A choice."""
_PRINTED_BY_HYDRA = "Error executing job with overrides"
"""Hydra catches every exception, shows it without its outer calls, and ends with exit code 1."""


@dataclass(slots=True)
class Endings:
    """How processes ended, according to the logs. `asked`: the signal by which the launcher was
    asked to end."""

    ends: list[LoggedEnd] = field(default_factory=list)
    hosts: dict[int, str] = field(default_factory=dict)
    asked: int | None = None
    caught: set[tuple[str, int]] = field(default_factory=set)
    """Source and line of exceptions that ended no process."""


def endings_of(logs: Sequence[LabelledLog], ranks: int) -> Endings:
    """Endings by tracebacks and launchers' reports. Exceptions that were caught and printed, or
    after which training continued, ended no process. `ranks`: the least number of ranks."""
    endings = Endings()
    parsed = [(log, _parsed(log.scanned.kept_lines)) for log in logs]
    parsed = [(log, facts) for log, facts in parsed if not _all_past(log.scanned.kept_lines, ranks)]
    reported = any(facts.failures for _, facts in parsed)
    printed: list[tuple[int, LoggedEnd]] = []
    for log, facts in parsed:
        endings.asked = endings.asked or facts.asked
        for failure in facts.failures:
            if _went_on(_line(log, failure.at), ranks):
                continue
            end = logged_end(failure, log.of(failure.rank, failure.local_rank))
            endings.ends.append(end)
            if end.rank is not None and failure.host:
                endings.hosts[end.rank] = failure.host
        for number, raised in _tracebacks(log, facts, ranks, reported):
            if raised is None:
                endings.caught.add((log.scanned.source, number))
            else:
                printed.append((number, raised))
    if len(logs) == 1:  # otherwise the order is unknown
        printed = [(number, replace(end, order=number)) for number, end in printed]
    endings.ends += [end for _, end in printed]
    return endings


def _parsed(lines: Sequence[KeptLine]) -> ConsoleFacts:
    is_start = bool(lines) and lines[0].number == 1
    return parser.parse_console((line.text for line in lines), is_start=is_start)


def _tracebacks(
    log: LabelledLog, facts: ConsoleFacts, ranks: int, reported: bool
) -> Iterable[tuple[int, LoggedEnd | None]]:
    """Exceptions with the numbers of their lines; None: it ended no process."""
    hydra = any(_PRINTED_BY_HYDRA in line.text for line in log.scanned.kept_lines)
    for traceback in facts.tracebacks:
        line = _line(log, traceback.traceback.at)
        if _is_launchers(traceback):
            continue
        shown = not _is_outermost(traceback) and (line.after > ranks or not (reported or hydra))
        if shown and not line.after and _is_excerpt(log, traceback):
            continue  # nothing shows that it was caught, nor that it ended a process
        end = LoggedEnd(
            rank=log.of(traceback.rank, traceback.local_rank),
            pid=None,
            exit_code=None,
            signal=None,
            first=False,
            error=replace(error_of(traceback.traceback), at=line.at),
            source="traceback",
        )
        yield line.number, None if shown or _went_on(line, ranks) else end


def _is_outermost(printed: PrintedTraceback) -> bool:
    traceback = printed.traceback
    if traceback.fatal or traceback.is_cut or not traceback.frames:
        return True
    return traceback.frames[0].function in _OUTERMOST


def _is_excerpt(log: LabelledLog, printed: PrintedTraceback) -> bool:
    """Whether the text is little more than this traceback, or ends with it and its outer calls are
    missing: who catches an exception does so in the user's code."""
    traceback = printed.traceback
    begin = _line(log, max(0, traceback.at - traceback.text.count("\n"))).number
    end = _line(log, traceback.at).number
    is_headless = not is_user_code(traceback.frames[0].file)
    if is_headless and end >= max(log.scanned.tail_numbers, default=0):
        return True
    return begin <= FIRST_LINES and end + LAST_LINES > log.scanned.lines


def _is_launchers(printed: PrintedTraceback) -> bool:
    frames = printed.traceback.frames
    return bool(frames) and any(place in frames[-1].file for place in _LAUNCHER_FILES)


def _line(log: LabelledLog, at: int) -> KeptLine:
    lines = log.scanned.kept_lines
    return lines[min(at, len(lines) - 1)]


def _went_on(line: KeptLine, ranks: int) -> bool:
    return went_on(line.after, ranks, line.later)


def _all_past(lines: Sequence[KeptLine], ranks: int) -> bool:
    return not lines or _went_on(lines[-1], ranks)


def with_joined_messages(ends: Iterable[LoggedEnd], signs: Sequence[LogMatch]) -> list[LoggedEnd]:
    """The endings; a message that was broken over lines is as long as the sign found in it."""
    joined = [sign for sign in signs if sign.form is Form.JOINED]
    return [_with_whole_message(end, joined) for end in ends]


def _with_whole_message(end: LoggedEnd, joined: Iterable[LogMatch]) -> LoggedEnd:
    error = end.error
    if error is None:
        return end
    first = f"{error.type}: {error.message.partition(chr(10))[0]}".rstrip()
    for sign in joined:
        if sign.text.startswith(first) and sign.rank in (None, end.rank):
            whole = sign.text[len(error.type) + 2 :]
            return replace(end, error=replace(error, message=whole))
    return end
