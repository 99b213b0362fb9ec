"""Flight recorders of running ranks, asked from outside: by a socket, or by NCCL's pipe.

Through the socket of a worker server any backend answers at once, without call stacks. NCCL's pipe
(TORCH_NCCL_DEBUG_INFO_PIPE_FILE) needs nothing in the job but that variable: one byte in it lets
the rank write its dump, with call stacks, over its last one.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mgpu_probes.outside.flight.dumps import parse, read_dump
from mgpu_probes.outside.flight.unpickler import NotAFlightError
from mgpu_probes.outside.foreign import open_any_below

HANDLER = "fr_trace_json"
PIPE_STEM = ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE",)
DUMP_STEMS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
USUAL_STEMS = (".cache/torch/comm_lib_trace_rank_", ".cache/torch/nccl_trace_rank_")
"""Under the rank's home: torch 2.8 and later, torch 2.5 and later; before, in /tmp."""
OLD_STEM = "/tmp/nccl_trace_rank_"
POLL = 0.05
"""Seconds between two looks at a file that is being written."""

_Mark = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Pipe:
    """Where a rank waits to be asked, and where it may write its dump."""

    path: Path
    dumps: tuple[Path, ...]
    rank: int
    root: Path | None = None
    """What a rank in a container sees as `/`: its links could lead out of there."""
    user: int | None = None
    """Whose the rank is: pipe and dump must be, too. None: unknown."""


def from_worker(
    ask: Callable[[str], bytes],
    *,
    rank: int | None = None,
    pid: int | None = None,
    handler: str = HANDLER,
) -> dict[str, Any]:
    """The plain form of what a rank's worker server answers. `ask`: handler -> body, e.g. a
    partial of `mgpu_probes.outside.stacks.worker.ask`. Ranks that our own probe is in answer
    `fr_trace`, too, with call stacks.

    Raises NotAFlightError, and whatever `ask` raises.
    """
    at = time.time()
    read = parse(ask(handler), source="worker socket")
    return {**read, "rank": rank, "pid": pid, "host": socket.gethostname(), "at": at}


def pipe_of(
    environ: Mapping[str, str],
    rank: int,
    root: Path | None = None,
    user: int | None = None,
) -> Pipe | None:
    """The pipe of a rank with this environment; None where it was not asked to have one.

    `root`: `/proc/PID/root` for a rank in a container. `user`: whose the rank is.
    """
    stem = next((environ[name] for name in PIPE_STEM if environ.get(name)), None)
    if stem is None:
        return None
    home = environ.get("HOME", "/tmp")
    told = [environ[name] for name in DUMP_STEMS if environ.get(name)]
    stems = told or [*(f"{home}/{usual}" for usual in USUAL_STEMS), OLD_STEM]
    seen = root or Path("/")
    dumps = tuple(under(seen, f"{one}{rank}") for one in stems)
    return Pipe(under(seen, f"{stem}{rank}.pipe"), dumps, rank, root, user)


def from_pipe(pipe: Pipe, timeout: float = 20.0) -> dict[str, Any]:
    """The plain form of the dump that a rank writes when it is asked through its pipe.

    `timeout`: seconds; torch looks at the pipe about once a second, and its first dump takes some
    seconds. Raises NotAFlightError where none comes.
    """
    before = {path: _mark(path, pipe) for path in pipe.dumps}
    at = time.time()
    _knock(pipe)
    end = time.monotonic() + timeout
    seen: dict[Path, _Mark | None] = dict(before)
    while time.monotonic() < end:
        time.sleep(POLL)
        for path in pipe.dumps:
            mark = _mark(path, pipe)
            settled = mark is not None and mark == seen[path] and mark != before[path]
            seen[path] = mark
            if settled:
                # A dump that is still being written does not parse yet.
                with suppress(NotAFlightError):
                    read = read_dump(path, pipe.root)
                    return {**read, "rank": pipe.rank, "at": at, "slack": 0.0}
    raise NotAFlightError(f"rank {pipe.rank} wrote no dump within {timeout:.0f} s of being asked")


def _knock(pipe: Pipe) -> None:
    """One byte into the pipe, never waiting for a reader."""
    path = pipe.path
    try:
        flags = os.O_WRONLY | os.O_NONBLOCK
        descriptor = open_any_below(pipe.root or path.parent, path, flags)
    except OSError as error:
        raise NotAFlightError(f"nobody listens at {path}: {error.strerror or error}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISFIFO(status.st_mode):
            raise NotAFlightError(f"{path} is no pipe")
        if pipe.user not in (None, status.st_uid):
            raise NotAFlightError(f"{path} is no pipe of the rank's user")
        os.write(descriptor, b"1")
    except OSError as error:
        raise NotAFlightError(f"nobody listens at {path}: {error.strerror or error}") from None
    finally:
        os.close(descriptor)


def _mark(path: Path, pipe: Pipe) -> _Mark | None:
    """Of a file of the rank's user; None: there is none."""
    try:
        descriptor = open_any_below(pipe.root or path.parent, path, os.O_PATH)
    except OSError:
        return None
    status = os.fstat(descriptor)
    os.close(descriptor)
    if pipe.user not in (None, status.st_uid):
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def under(root: Path, path: str) -> Path:
    """`path` as the rank means it, seen from here; nothing leads out of `root`."""
    parts: Iterable[str] = (part for part in Path(path).parts if part not in ("/", ".."))
    return root.joinpath(*parts)
