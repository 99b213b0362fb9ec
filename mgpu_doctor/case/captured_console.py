"""The captured console of a recording: its last lines, and how processes ended according to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from mgpu_probes.outside import console_errors as parser
from mgpu_probes.outside.console_errors import Failure
from mgpu_probes.outside.terminal_text import clean, clean_line
from mgpu_probes.outside.tracebacks import Frame, Traceback
from mgpu_probes.outside.untrusted_files import OverBudgetError, entries_below, within_budget

from mgpu_doctor.case.box_files import host_folders, part_folders
from mgpu_doctor.case.model import Console, Error, LoggedEnd, Rank, Unexamined
from mgpu_doctor.case.untrusted_json import read_bounded
from mgpu_doctor.case.user_code import is_user_code
from mgpu_doctor.recording import layout

MOST_BYTES = 8 << 20
"""Bytes of one console file; the end is kept."""
TAIL_LINES = 200
TAIL_WIDTH = 500
MESSAGE_LIMIT = 4000
TRACEBACK_LIMIT = 16_000
STREAMS = ("console", "stdout", "stderr")
_LEFT_OUT = "examine a single file of its console: `mgpu-doctor diagnose FILE`"


def read_streams(
    recording: Path,
    most: int = MOST_BYTES,
    hosts: Iterable[Path] | None = None,
    unexamined: list[Unexamined] | None = None,
) -> dict[str, list[str]]:
    """The lines of each captured stream, oldest first; those of single hosts are named after them.
    `most`: bytes that are read of a file; `hosts`: the folders of the hosts, None: of all.
    `unexamined` gets the reason if some streams are left out."""
    streams: dict[str, list[str]] = {}
    folders = {"": recording}
    for host in host_folders(recording) if hosts is None else hosts:
        for task, folder in part_folders(recording, host):
            folders[f"{host.name} task {task} " if task else f"{host.name} "] = folder
    names = (
        (folder / layout.CONSOLE, whose, stream)
        for whose, folder in folders.items()
        if entries_below(recording, folder / layout.CONSOLE)  # most nodes have none of their own
        for stream in STREAMS
    )
    with within_budget() as budget:
        for folder, whose, stream in names:
            raw = _read_stream(recording, folder, stream, most)
            try:
                budget.take_text(raw)
            except OverBudgetError as error:
                if unexamined is not None:
                    unexamined.append(Unexamined("console log", str(error.strerror), _LEFT_OUT))
                break
            if raw:
                streams[whose + stream] = raw.decode("utf-8", "replace").split("\n")
    return streams


def _read_stream(root: Path, folder: Path, stream: str, most: int) -> bytes:
    raw = b""
    for name in (f"{stream}.log", f"{stream}.log.1"):
        with suppress(OSError):
            raw += read_bounded(folder / name, most, root=root, at_end=True)
    return raw


def console(streams: Mapping[str, list[str]], ranks: Iterable[Rank]) -> tuple[Console, int | None]:
    """The console as facts, and the signal by which the launcher says that it was asked to end."""
    known = _Known(ranks)
    ends: list[LoggedEnd] = []
    tail: list[str] = []
    asked: int | None = None
    for lines in streams.values():
        facts = parser.parse_console(lines)
        asked = facts.asked or asked
        ends += [
            logged_end(failure, known.rank(failure.rank, failure.local_rank, failure.pid))
            for failure in facts.failures
        ]
        ends += [
            LoggedEnd(
                rank=known.rank(printed.rank, printed.local_rank, None),
                pid=None,
                exit_code=None,
                signal=None,
                first=False,
                error=error_of(printed.traceback),
                source="traceback",
            )
            for printed in facts.tracebacks
        ]
        last = lines[-TAIL_LINES - 1 :]
        tail += [clean_line(line, TAIL_WIDTH) for line in last if line.strip()]
    return Console(tuple(tail[-2 * TAIL_LINES :]), tuple(ends)), asked


def error_of(traceback: Traceback) -> Error:
    """A printed traceback as an error, at the innermost frame of the user's own code."""
    frame = innermost_user_frame(traceback.frames)
    return Error(
        type=clean(traceback.type, 200),
        message=clean(traceback.message, MESSAGE_LIMIT),
        file=frame.file if frame else None,
        line=frame.line if frame else None,
        function=frame.function if frame else None,
        traceback=shortened(traceback.text),
        at=None,
    )


def innermost_user_frame(frames: Iterable[Frame]) -> Frame | None:
    """The innermost frame that is not in an installed package or the standard library; if none,
    the innermost of all."""
    known = list(frames)
    own = [frame for frame in known if is_user_code(frame.file)]
    return next(reversed(own or known), None)


def shortened(traceback: str) -> str:
    """The traceback within the limit: the middle is cut, because the end names the exception."""
    if len(traceback) <= TRACEBACK_LIMIT:
        return clean(traceback, TRACEBACK_LIMIT)
    tail = traceback[-(TRACEBACK_LIMIT - 2000) :]
    return clean(f"{traceback[:1900]}\n  …\n{tail}", TRACEBACK_LIMIT)


class _Known:
    """Finds the rank that a text refers to."""

    def __init__(self, ranks: Iterable[Rank]) -> None:
        numbered = [rank for rank in ranks if rank.rank is not None]
        pids = Counter(rank.pid for rank in numbered)  # two hosts may have a process of one number
        self._by_pid = {
            rank.pid: rank.rank for rank in numbered if rank.pid is not None and pids[rank.pid] == 1
        }
        hosts = {rank.host for rank in numbered}
        self._by_local = (
            {rank.local_rank: rank.rank for rank in numbered} if len(hosts) <= 1 else {}
        )
        self._one_host = len(hosts) <= 1

    def rank(self, rank: int | None, local_rank: int | None, pid: int | None) -> int | None:
        if rank is not None:
            return rank
        if pid in self._by_pid:
            return self._by_pid[pid]
        return self._by_local.get(local_rank, local_rank) if self._one_host else None


def logged_end(failure: Failure, rank: int | None) -> LoggedEnd:
    """An ending as a launcher reports it. `rank`: of the process that ended; None: unknown."""
    return LoggedEnd(
        rank=rank,
        pid=failure.pid,
        exit_code=failure.exit_code,
        signal=failure.signal,
        first=failure.first,
        error=error_of(failure.traceback) if failure.traceback else None,
        source=failure.source,
        sent_by_launcher=failure.sent_by_launcher,
    )
