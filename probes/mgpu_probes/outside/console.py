"""What a job's printed text says about how its processes ended. Facts only, no judgement.

Understood, each from the real text of torch 2.13 (tests/recorded/console): Python tracebacks, also
of several ranks interleaved behind `[rank2]:` and torchrun's `[default2]:`; torchrun's failure
summary and log lines; `torch.multiprocessing.spawn`'s reports; faulthandler; a launcher that was
asked to end. The text is a stranger's: lines and counts are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mgpu_probes.outside.launcher_report import Failure, LauncherReport
from mgpu_probes.outside.text import clean_line
from mgpu_probes.outside.tracebacks import Traceback, TracebackReader

LINE_LIMIT = 4096
MOST_STREAMS = 4096
MOST_TRACEBACKS = 1024

_RANK = re.compile(r"\[rank(\d{1,7})\]: ?")
_LOCAL = re.compile(r"\[[A-Za-z_][\w-]{0,40}?(\d{1,5})\]: ?")
_SPAWNED = re.compile(r"^-- Process (\d{1,7}) terminated with the following error:\s*$")
_ASKED = re.compile(
    r"(?:Received (\d{1,2}) death signal, shutting down workers"
    r"|SignalException: Process \d{1,10} got signal: (\d{1,2})\s*$)"
)

LAUNCHER_EXCEPTIONS = frozenset(
    {"ChildFailedError", "ProcessRaisedException", "ProcessExitedException", "SignalException"}
)
"""Exceptions by which a launcher reports a child's end: not an end of their own."""


@dataclass(frozen=True, slots=True)
class PrintedTraceback:
    """A traceback and whose it is, as far as the text says. In the order in which they ended."""

    rank: int | None
    local_rank: int | None
    traceback: Traceback


@dataclass(frozen=True, slots=True)
class ConsoleFacts:
    tracebacks: tuple[PrintedTraceback, ...] = ()
    failures: tuple[Failure, ...] = ()
    asked: int | None = None
    """The signal by which somebody asked the launcher to end."""


Stream = tuple[int | None, int | None]


def parse(lines: Iterable[str]) -> ConsoleFacts:
    """Reads console lines (any iterable, with or without line ends) into facts."""
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
            streams[stream] = TracebackReader(labelled=stream != (None, None))
        if reader := streams.get(stream):
            reader.feed(text, number)
    tracebacks = []
    for (rank, local_rank), reader in streams.items():
        reader.finish(number)
        for traceback in reader.found:
            name = traceback.type.rpartition(".")[2]
            if name in LAUNCHER_EXCEPTIONS:
                report.launcher_raised(traceback)
            elif not (rank is None and report.claims(traceback)):
                tracebacks.append(PrintedTraceback(rank, local_rank, traceback))
    tracebacks.sort(key=lambda printed: printed.traceback.at)
    return ConsoleFacts(tuple(tracebacks[:MOST_TRACEBACKS]), report.failures(), asked)


def _split(line: str) -> tuple[Stream, str]:
    """Takes the prefixes off that torch and torchrun put before a rank's lines."""
    rank = local = None
    while line.startswith("["):
        if rank is None and (found := _RANK.match(line)):
            rank = int(found[1])
        elif local is None and rank is None and (found := _LOCAL.match(line)):
            local = int(found[1])
        else:
            break
        line = line[found.end() :]
    return (rank, local), line
