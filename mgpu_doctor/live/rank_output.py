"""A rank's newest output, read from the end of the files its process prints to.

A rank's own output file is used if it exists. Else the lines come from the recorded console, where
labels such as `[rank3]:` identify the ranks."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mgpu_probes.outside.logs.log_lines import numbered_style, split_line
from mgpu_probes.outside.terminal_text import clean_line

from mgpu_doctor.case.captured_console import read_streams
from mgpu_doctor.case.model import Case
from mgpu_doctor.findings import RankSummary

DESCRIPTORS = {"stdout": 1, "stderr": 2}
MOST_BYTES = 256 << 10
"""Bytes per stream."""
MOST_LINES = 500
MOST_WIDTH = 1000
OVER = ("exited", "dead", "missing")
"""States in which the pid may already belong to another process."""
TIMELESS = (
    "Output has no timestamps: what was printed by this moment is unknown. "
    "It is shown at the recording's end."
)
BOTH = "stdout and stderr"
UNREADABLE = "unreadable"
"""Stands for a stream whose target is unknown."""
NOTHING = "Nothing was printed, or the output was not recorded."
BY_RUN = "`mgpu-doctor run -- COMMAND` records what a job prints"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a standard stream goes. `file`: device and inode if it is a file. `shared`: whether
    other ranks print there, too. `end`: the file's last bytes."""

    name: str
    file: tuple[int, int] | None = None
    shared: bool = False
    end: bytes = b""


def target(pid: int, stream: str, others: Iterable[int], most: int) -> Target | None:
    """Returns where `stdout` or `stderr` of a running process goes; None if not permitted or the
    process is gone. `most`: bytes read from a file."""
    try:
        path = _path(pid, stream)
        name = os.readlink(path)
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            return Target(name)
        # Through /proc of the process: the right file even in a container, or if it was unlinked.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            file.seek(max(0, os.fstat(descriptor).st_size - most))
            end = file.read(most)
    except OSError:
        return None
    identity = status.st_dev, status.st_ino
    shared = any(_identity(other, stream) == identity for other in others)
    return Target(name, identity, shared, end)


def _identity(pid: int, stream: str) -> tuple[int, int] | None:
    try:
        status = os.stat(_path(pid, stream))
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _path(pid: int, stream: str) -> str:
    return f"/proc/{pid}/fd/{DESCRIPTORS[stream]}"


@dataclass(frozen=True, slots=True)
class Printed:
    text: str
    own: bool
    """False if no label says which rank printed it."""


@dataclass(frozen=True, slots=True)
class Stream:
    """One output. `name`: `stdout`, `stderr`, `console` if both go to one place, or a file name."""

    name: str
    lines: tuple[Printed, ...]


@dataclass(frozen=True, slots=True)
class Output:
    """A rank's output. `reason`: why there is none."""

    streams: tuple[Stream, ...] = ()
    reason: str | None = None


def output_of(case: Case, rank: RankSummary, *, replayed: bool = False) -> Output:
    """Returns what the rank printed last. Reads files; unreadable ones raise nothing."""
    if replayed and case.job.ended is None:
        return Output(reason=TIMELESS)
    streams, elsewhere = ([], "") if replayed else _by_itself(case, rank)
    if elsewhere or not streams:  # else the recording's copy shows the same lines again
        known = {stream.name for stream in streams}
        streams += [log for log in _recorded(case, rank) if log.name not in known]
    shown = tuple(stream for stream in streams if stream.lines)
    return Output(shown) if shown else Output(reason=_why(case, rank, elsewhere))


def _by_itself(case: Case, rank: RankSummary) -> tuple[list[Stream], str]:
    """Returns the output from the files that the running rank prints into, else where it prints
    instead."""
    over = case.job.ended is not None or rank.state in OVER
    here = {rank.pid for rank in case.ranks if rank.is_here}
    if over or rank.pid is None or rank.pid not in here:
        return [], ""
    pids = here - {rank.pid}
    streams: dict[tuple[int, int], Stream] = {}
    elsewhere = ""
    for name in DESCRIPTORS:
        to = target(rank.pid, name, [pid for pid in pids if pid is not None], MOST_BYTES)
        if to is None or to.file is None:
            elsewhere = elsewhere or (to.name if to is not None else UNREADABLE)
        elif to.file in streams:
            streams[to.file] = replace(streams[to.file], name=BOTH)
        else:
            lines = _whose(_lines(to.end), case, rank, alone=not to.shared)
            streams[to.file] = Stream(name, lines)
    return list(streams.values()), elsewhere


def _recorded(case: Case, rank: RankSummary) -> Iterator[Stream]:
    if case.subject.kind != "recording":
        return
    folder = Path(case.subject.ref)
    alone = len(case.ranks) <= 1 and (case.job.world_size or 1) == 1
    for name, lines in read_streams(folder, MOST_BYTES).items():
        yield Stream(name, _whose(lines, case, rank, alone=alone))


def _lines(raw: bytes) -> list[str]:
    """Returns the lines; the first is left out if it may be incomplete."""
    lines = raw.decode("utf-8", "replace").split("\n")
    return lines[1:] if len(raw) >= MOST_BYTES else lines


def _whose(
    lines: Sequence[str], case: Case, rank: RankSummary, *, alone: bool
) -> tuple[Printed, ...]:
    """Returns the newest lines of this rank, and those that no label assigns. Blank lines are left
    out. `alone`: no other rank prints there."""
    numbers = _numbers(case)
    style = None if alone else numbered_style(lines)
    tail = []
    for line in lines:
        shown = clean_line(line, MOST_WIDTH).rstrip()
        if shown and alone:
            tail.append(Printed(shown, True))
        elif shown:
            label = split_line(shown, style)
            number = label.rank if label.rank is not None else numbers.get(label.local_rank)
            if number is None or number == rank.rank:
                tail.append(Printed(shown, number is not None))
    return tuple(tail[-MOST_LINES:])


def _numbers(case: Case) -> dict[int | None, int | None]:
    """Returns local rank -> rank if all ranks are on one host."""
    if len({rank.host for rank in case.ranks}) != 1:
        return {}
    return {rank.local_rank: rank.rank for rank in case.ranks if rank.local_rank is not None}


def _why(case: Case, rank: RankSummary, elsewhere: str) -> str:
    if case.subject.kind == "recording":
        return NOTHING
    if elsewhere in ("", UNREADABLE):
        return f"Its output was not recorded; {BY_RUN}."
    kinds = {"/dev/pts/": "a terminal", "/dev/tty": "a terminal", "pipe:": "a pipe"}
    kind = next((kind for begins, kind in kinds.items() if elsewhere.startswith(begins)), "")
    name = f"{kind} ({elsewhere})" if kind else elsewhere
    who = "rank ?" if rank.rank is None else f"rank {rank.rank}"
    return f"What {who} prints goes into {name} and cannot be read again; {BY_RUN}."
