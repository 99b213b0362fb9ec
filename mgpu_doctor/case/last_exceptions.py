"""The exception at the end of a log that contains no complete traceback.

People post the last line of a failure alone, or cut its traceback. Such an exception counts only
at the end of a log, and only if nothing else there reports a failure."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace

from mgpu_probes.outside.console_errors import LAUNCHER_EXCEPTIONS
from mgpu_probes.outside.logs.log_lines import Line, split_line
from mgpu_probes.outside.terminal_text import clean
from mgpu_probes.outside.tracebacks import ASIDE, ASIDE_LINES

from mgpu_doctor.case.captured_console import MESSAGE_LIMIT
from mgpu_doctor.case.log_sources import LabelledLog
from mgpu_doctor.case.model import Error, LoggedEnd

EXCERPT = "last lines"
"""The source of these endings."""
LAST_LINES = 12
"""Lines at the end of a log of which one must name the exception. A choice: launchers and native
code print a few lines after it."""
_LAUNCHERS = LAUNCHER_EXCEPTIONS | {"CalledProcessError"}
RAISED = re.compile(
    r"(?:[Ee]rror: {1,4}|E {2,8})?"
    r"(?P<type>(?:\w{1,60}\.){0,8}(?:_?[A-Z]\w{0,60}?(?:Error|Exception)|Exception))"
    r"(?: \(see above for traceback\))?(?:: {0,3}(?P<message>.*))?$"
)
_MARKS = " \t*`"
"""What is left of bold text and code in a text that was copied from a web page."""
PROGRESS = re.compile(r"\b(?:epochs?|steps?|iter(?:ation)?s?|loss|it/s|s/it)\b", re.IGNORECASE)
HARMLESS = re.compile(
    r"\b(?:ignor(?:ed|ing)|fall(?:ing)? ?back|retry(?:ing)?(?! (?:count|limit|exceeded|failed))"
    r"|skipp(?:ed|ing)|warnings?)\b"
    r"|can only test a child process|module compiled against API version",
    re.IGNORECASE,
)
"""What shows that an exception ended nothing. The last two are printed while a loader is taken down
and by extensions that were built for another NumPy."""


def find_last_exceptions(
    logs: Iterable[LabelledLog], caught: Container[tuple[str, int]]
) -> list[LoggedEnd]:
    """Of each log that ends with an exception, that exception. `caught`: source and line of
    exceptions that are known to have ended nothing."""
    logs = list(logs)
    ends = []
    for log in logs:
        source = log.scanned.source
        past = {line.text for line in log.scanned.kept_lines if (source, line.number) in caught}
        if (end := _last_exception(log, past)) is not None:
            ends.append(end)
    return ends if len(logs) == 1 else [replace(end, order=None) for end in ends]


def _last_exception(log: LabelledLog, past: Container[str]) -> LoggedEnd | None:
    lines = [split_line(line) for line in log.scanned.tail]
    for at in range(len(lines) - 1, max(-1, len(lines) - 1 - LAST_LINES), -1):
        line = lines[at]
        raised = RAISED.match(line.text.strip(_MARKS))
        if raised is None and PROGRESS.search(line.text):
            return None
        if raised is None or raised["type"].rpartition(".")[2] in _LAUNCHERS:
            continue
        if line.text in past or HARMLESS.search(line.text) or _is_aside(lines, at):
            return None
        message = clean((raised["message"] or "").strip(), MESSAGE_LIMIT)
        name = clean(raised["type"], 200)
        return LoggedEnd(
            rank=log.of(line.rank, line.local_rank),
            pid=None,
            exit_code=None,
            signal=None,
            first=False,
            error=Error(name, message, None, None, None, line.text, line.at),
            source=EXCERPT,
            order=log.scanned.tail_numbers[at],
        )
    return None


def _is_aside(lines: Sequence[Line], at: int) -> bool:
    """Whether the traceback that ends there belongs to a finalizer, a log handler or a thread."""
    begin = at
    while begin > 0 and (
        lines[begin - 1].text[:1].isspace() or "Traceback" in lines[begin - 1].text
    ):
        begin -= 1
    return any(ASIDE.search(line.text) for line in lines[max(0, begin - ASIDE_LINES) : at])
