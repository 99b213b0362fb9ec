"""Failures in a job's console output: tracebacks of ranks, and what launchers report of them.

It parses, each tested with real text of torch 2.13 (tests/recorded/console): Python tracebacks,
also of several ranks interleaved behind `[rank2]:` and torchrun's `[default2]:`; torchrun's
failure summary and log lines; `torch.multiprocessing.spawn`'s reports; faulthandler; a launcher
that a signal stopped. The text is untrusted: lines and counts are bounded.

Sources: torch/distributed/elastic/multiprocessing/errors (ChildFailedError.format_msg) and
torch/multiprocessing/spawn.py, torch 2.13; versions since 1.9 print the same form."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from mgpu_probes.outside.terminal_text import clean_line
from mgpu_probes.outside.tracebacks import Traceback, TracebackReader

MOST_FAILURES = 4096
MOST_BODY = 400

_OTHERS = re.compile(r"^Failures:\s*$")
_ROOT = re.compile(r"^Root Cause \(first observed failure\):\s*$")
_ENTRY = re.compile(r"^\[\d{1,7}\]:\s*$")
_FIELD = re.compile(r"^  (time|host|rank|exitcode|error_file|traceback)\s*: ?(.*)$")
_CUT_ENTRY = re.compile(r"^  rank {6}: \d{1,7} \(local_rank: \d{1,5}\)\s*$")
"""The first line that names a rank, where a report's head was cut off."""
_RULE = re.compile(r"^(={10,}|-{10,})\s*$")
_SUMMARY_RANK = re.compile(r"^(\d{1,7}) \(local_rank: (\d{1,5})\)")
_EXIT = re.compile(r"^(-?\d{1,6})(?: \(pid: (\d{1,10})\)|$)")
_LOGGED = re.compile(r"failed \(exitcode: (-?\d{1,6})\) local_rank: (\d{1,5}) \(pid: (\d{1,10})\)")
_SPAWN_SIGNAL = re.compile(r"process (\d{1,7}) terminated with signal (\w{1,20})")
_SPAWN_EXIT = re.compile(r"process (\d{1,7}) terminated with exit code (-?\d{1,6})")
LINE_LIMIT = 4096
MOST_STREAMS = 4096
MOST_TRACEBACKS = 1024

_RANK = re.compile(r"\[rank(\d{1,7})\]: ?")
_LOCAL = re.compile(r"\[[A-Za-z_][\w-]{0,40}?(\d{1,5})\]: ?")
_SPAWNED = re.compile(r"^-- Process (\d{1,7}) terminated with the following error:\s*$")
_CLOSING = re.compile(r"Sending process (\d{1,10}) closing signal SIG[A-Z]{2,8}")
"""torch/distributed/elastic/multiprocessing/api.py, torch 1.9 to 2.13"""
_ASKED = re.compile(
    r"(?:Received (\d{1,2}) death signal, shutting down workers"
    r"|SignalException: Process \d{1,10} got signal: (\d{1,2})\s*$)"
)

LAUNCHER_EXCEPTIONS = frozenset(
    {"ChildFailedError", "ProcessRaisedException", "ProcessExitedException", "SignalException"}
)
"""Exceptions by which a launcher reports the failure of a child, not its own."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of a child as its launcher reports it. At most one of `signal` and
    `exit_code` is set.

    `first`: the launcher calls it the first or root failure. That is often wrong: it is the first
    one that the launcher *noticed*. `at`: number of the line, from 0.
    """

    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    host: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    first: bool = False
    source: str = ""
    traceback: Traceback | None = None
    at: int = 0
    sent_by_launcher: bool | None = None
    """Whether the launcher sent this process a signal to end, if it lists those to whom it did."""


@dataclass(slots=True)
class _Entry:
    first: bool
    at: int
    headless: bool = False
    """It stood in a report whose head is cut off."""
    fields: dict[str, str] = field(default_factory=dict)
    body: list[str] = field(default_factory=list)


class LauncherReport:
    """Collects failures from the launcher's own lines (those without a rank's prefix)."""

    def __init__(self) -> None:
        self._failures: list[Failure] = []
        self._logged: list[Failure] = []
        self._inside = False
        self._first = False
        self._entry: _Entry | None = None
        self._spawned: int | None = None
        self._closed: set[int] = set()
        """Processes to which the launcher sent a signal to end."""

    def feed(self, line: str, number: int) -> bool:
        """Reads a line; returns whether it was part of the launcher's report."""
        if _OTHERS.match(line) or _ROOT.match(line):
            self._close()
            self._inside, self._first = True, bool(_ROOT.match(line))
            return True
        if logged := _LOGGED.search(line):
            code, local_rank, pid = (int(part) for part in logged.groups())
            self._log(_ended(code, local_rank=local_rank, pid=pid, source="torchrun", at=number))
            return True
        if closing := _CLOSING.search(line):
            if len(self._closed) < MOST_FAILURES:
                self._closed.add(int(closing[1]))
            return True
        if not self._inside and _CUT_ENTRY.match(line):
            self._inside, self._entry = True, _Entry(False, number, headless=True)
        return self._inside and self._in_report(line, number)

    def spawned_child(self, index: int) -> None:
        """Assigns the next traceback without a rank to child `index` of mp.spawn."""
        self._spawned = index

    def claims(self, traceback: Traceback) -> bool:
        """Whether mp.spawn announced this traceback, which is then kept as a failure."""
        if self._spawned is None:
            return False
        index, self._spawned = self._spawned, None
        self._keep(
            Failure(
                local_rank=index,
                exit_code=1,
                first=True,
                source="mp.spawn",
                traceback=traceback,
                at=traceback.at,
            )
        )
        return True

    def launcher_raised(self, traceback: Traceback) -> None:
        """Reads the failure of a child from the launcher's own exception."""
        if ended := _SPAWN_SIGNAL.search(traceback.message):
            number = _signal_number(ended[2])
            if number is not None:
                code = -number
                self._keep(_ended(code, int(ended[1]), source="mp.spawn", at=traceback.at))
        elif ended := _SPAWN_EXIT.search(traceback.message):
            self._keep(_ended(int(ended[2]), int(ended[1]), source="mp.spawn", at=traceback.at))

    def failures(self) -> tuple[Failure, ...]:
        """The failures, root causes first; from log lines only for pids not in a summary."""
        self._close()
        reported = {failure.pid for failure in self._failures}
        logged = [failure for failure in self._logged if failure.pid not in reported]
        merged = sorted(self._failures + logged, key=lambda failure: not failure.first)
        return tuple(map(self._with_sender, merged))

    def _with_sender(self, failure: Failure) -> Failure:
        if not self._closed or failure.pid is None:
            return failure
        return replace(failure, sent_by_launcher=failure.pid in self._closed)

    def _in_report(self, line: str, number: int) -> bool:
        if _RULE.match(line):
            if self._entry and self._entry.headless and line.startswith("="):
                self._entry.first = True  # a report ends with the root cause
            self._close()
            self._inside = not line.startswith("=")
        elif _ENTRY.match(line):
            self._close()
            self._entry = _Entry(self._first, number)
        elif (field := _FIELD.match(line)) and self._entry and not self._entry.body:
            self._entry.fields[field[1]] = field[2].strip()
            if field[1] == "traceback":
                self._entry.body.append(field[2])
        elif self._entry and self._entry.body and line.startswith("  "):
            if len(self._entry.body) < MOST_BODY:
                self._entry.body.append(line[2:])
        elif line.strip() and line.strip() != "<NO_OTHER_FAILURES>":
            self._close()
            self._inside = False
            return False
        return True

    def _close(self) -> None:
        entry, self._entry = self._entry, None
        if entry is None:
            return
        rank = _SUMMARY_RANK.match(entry.fields.get("rank", ""))
        code = _EXIT.match(entry.fields.get("exitcode", ""))
        if rank is None and code is None:
            return
        reader = TracebackReader(labelled=True)
        for line in entry.body:
            reader.feed(line, entry.at)
        reader.finish(entry.at)
        failure = _ended(int(code[1]), source="torchrun summary") if code else Failure()
        self._keep(
            replace(
                failure,
                rank=int(rank[1]) if rank else None,
                local_rank=int(rank[2]) if rank else None,
                pid=int(code[2]) if code and code[2] else None,
                host=entry.fields.get("host") or None,
                first=entry.first,
                source="torchrun summary",
                traceback=reader.tracebacks[-1] if reader.tracebacks else None,
                at=entry.at,
            )
        )

    def _keep(self, failure: Failure) -> None:
        if len(self._failures) < MOST_FAILURES:
            self._failures.append(failure)

    def _log(self, failure: Failure) -> None:
        if len(self._logged) < MOST_FAILURES:
            self._logged.append(failure)


def _ended(
    code: int, local_rank: int | None = None, pid: int | None = None, source: str = "", at: int = 0
) -> Failure:
    """A failure from the exit code that a launcher prints; a signal is negative."""
    return Failure(
        local_rank=local_rank,
        pid=pid,
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        first=True,
        source=source,
        at=at,
    )


def _signal_number(name: str) -> int | None:
    try:
        return signal.Signals[name].value
    except KeyError:
        return None


@dataclass(frozen=True, slots=True)
class PrintedTraceback:
    """A traceback and the rank that printed it, if the text says which."""

    rank: int | None
    local_rank: int | None
    traceback: Traceback


@dataclass(frozen=True, slots=True)
class ConsoleFacts:
    tracebacks: tuple[PrintedTraceback, ...] = ()
    failures: tuple[Failure, ...] = ()
    asked: int | None = None
    """The signal that stopped the launcher."""


Stream = tuple[int | None, int | None]


def parse_console(lines: Iterable[str], *, is_start: bool = False) -> ConsoleFacts:
    """Reads console lines (any iterable, with or without line ends) into facts. `is_start`: they
    are the beginning of a text, which may have been cut off inside a traceback."""
    streams: dict[Stream, TracebackReader] = {}
    report = LauncherReport()
    asked: int | None = None
    number = 0
    for number, raw in enumerate(lines):
        line = clean_line(raw, LINE_LIMIT)
        stream, text = _split(line)
        if stream == (None, None):
            if request := _ASKED.search(text):
                asked = int(request[1] or request[2])
            if report.feed(text, number):
                continue
            if spawned := _SPAWNED.match(text):
                report.spawned_child(int(spawned[1]))
                continue
        if stream not in streams and len(streams) < MOST_STREAMS:
            labelled = stream != (None, None)
            streams[stream] = TracebackReader(labelled=labelled, is_start=is_start)
        if reader := streams.get(stream):
            reader.feed(text, number)
    tracebacks = []
    for (rank, local_rank), reader in streams.items():
        reader.finish(number)
        for traceback in reader.tracebacks:
            name = traceback.type.rpartition(".")[2]
            if name in LAUNCHER_EXCEPTIONS:
                report.launcher_raised(traceback)
            elif not (rank is None and report.claims(traceback)):
                tracebacks.append(PrintedTraceback(rank, local_rank, traceback))
    tracebacks.sort(key=lambda printed: printed.traceback.at)
    return ConsoleFacts(tuple(tracebacks[:MOST_TRACEBACKS]), report.failures(), asked)


def _split(line: str) -> tuple[Stream, str]:
    """Splits off the prefixes that torch and torchrun put before a rank's lines."""
    rank = local = None
    while line.startswith("["):
        if rank is None and (match := _RANK.match(line)):
            rank = int(match[1])
        elif local is None and rank is None and (match := _LOCAL.match(line)):
            local = int(match[1])
        else:
            break
        line = line[match.end() :]
    return (rank, local), line
