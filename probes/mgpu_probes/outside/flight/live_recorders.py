"""Reads the flight recorders of running ranks, through a socket or NCCL's pipe.

A worker server's socket answers at once for any backend, but without call stacks. NCCL's pipe
(TORCH_NCCL_DEBUG_INFO_PIPE_FILE) needs only that variable in the job: one byte written to it
makes the rank write its dump, with call stacks, over its last one."""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mgpu_probes.outside.flight.flight_dumps import parse_dump, read_dump
from mgpu_probes.outside.jobs.running_jobs import JobProcess, RunningJob, UnreadSource
from mgpu_probes.outside.processes import PROC
from mgpu_probes.outside.stacks import worker_socket
from mgpu_probes.outside.torch_pickles import NotAFlightError
from mgpu_probes.outside.untrusted_files import open_any_below

HANDLER = "fr_trace_json"
PIPE_STEM = ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE",)
DUMP_STEMS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
USUAL_STEMS = (".cache/torch/comm_lib_trace_rank_", ".cache/torch/nccl_trace_rank_")
"""Under the rank's home: torch 2.8 and later, torch 2.5 and later; before, in /tmp."""
OLD_STEM = "/tmp/nccl_trace_rank_"
POLL = 0.05
"""Seconds between two checks of a file that is being written."""

_Mark = tuple[int, int, int]
SOCKET = "TORCH_WORKER_SERVER_SOCKET"
"""Where torch's elastic agent has its workers listen (torch.distributed.elastic.control_plane)."""
WITH_SITES = "fr_trace"
"""Handler of our own probe, which answers with a pickle that has call stacks. With a build for CUDA
torch takes 2.3 s of CPU time to look these up for the first time (2.15), 25 s on a busy machine;
meanwhile the rank answers nothing."""
WITHOUT_SITES = "fr_trace_plain"
"""The same without call stacks, which is answered at once."""
MOST_RANKS = 1_024
MOST_ENVIRON = 1 << 20
SOURCE = "flight recorder"
REMEDY = (
    "start the job with `mgpu-doctor run -- COMMAND`, or with NCCL set "
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/nccl_ before it starts"
)
NO_RECORDER = (
    "it offers no flight recorder: torch records process groups of several ranks, and those of "
    "gloo only in newer versions"
)
NEWER_TORCH = "with a newer torch the collectives of gloo are recorded; stacks need no recorder"
_Way = Callable[[], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Pipe:
    """The pipe that triggers a rank's dump, and the files that it may write."""

    path: Path
    dumps: tuple[Path, ...]
    rank: int
    root: Path | None = None
    """What a rank in a container sees as `/`: its links could lead out of there."""
    user: int | None = None
    """The user of the rank, who must own pipe and dump. None: unknown."""


def ask_by_socket(
    ask: Callable[[str], bytes],
    *,
    rank: int | None = None,
    pid: int | None = None,
    handler: str = HANDLER,
) -> dict[str, Any]:
    """The plain form of what a rank's worker server answers. `ask`: handler -> body, e.g. a
    partial of `mgpu_probes.outside.stacks.worker_socket.ask`. Ranks that our own probe is in answer
    `fr_trace`, too, with call stacks.

    Raises NotAFlightError, and whatever `ask` raises.
    """
    at = time.time()
    read = parse_dump(ask(handler), source="worker socket")
    return {**read, "rank": rank, "pid": pid, "host": socket.gethostname(), "at": at}


def find_pipe(
    environ: Mapping[str, str],
    rank: int,
    root: Path | None = None,
    user: int | None = None,
) -> Pipe | None:
    """The pipe of a rank with this environment; None if it is not configured.

    `root`: `/proc/PID/root` for a rank in a container. `user`: the rank's user.
    """
    stem = next((environ[name] for name in PIPE_STEM if environ.get(name)), None)
    if stem is None:
        return None
    home = environ.get("HOME", "/tmp")
    paths = [environ[name] for name in DUMP_STEMS if environ.get(name)]
    stems = paths or [*(f"{home}/{usual}" for usual in USUAL_STEMS), OLD_STEM]
    seen = root or Path("/")
    dumps = tuple(join_below(seen, f"{stem}{rank}") for stem in stems)
    return Pipe(join_below(seen, f"{stem}{rank}.pipe"), dumps, rank, root, user)


def ask_by_pipe(pipe: Pipe, timeout: float = 20.0) -> dict[str, Any]:
    """The plain form of the dump that a rank writes on a request through its pipe.

    `timeout`: seconds; torch polls the pipe about once per second, and its first dump takes some
    seconds. Raises NotAFlightError if there is no dump.
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
    raise NotAFlightError(f"rank {pipe.rank} wrote no dump within {timeout:.0f} s of the request")


def _knock(pipe: Pipe) -> None:
    """Writes one byte to the pipe, without waiting for a reader. Raises NotAFlightError."""
    path = pipe.path
    try:
        flags = os.O_WRONLY | os.O_NONBLOCK
        descriptor = open_any_below(pipe.root or path.parent, path, flags)
    except OSError as error:
        raise NotAFlightError(f"no process reads {path}: {error.strerror or error}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISFIFO(status.st_mode):
            raise NotAFlightError(f"{path} is no pipe")
        if pipe.user not in (None, status.st_uid):
            raise NotAFlightError(f"{path} is not a pipe of the rank's user")
        os.write(descriptor, b"1")
    except OSError as error:
        raise NotAFlightError(f"no process reads {path}: {error.strerror or error}") from None
    finally:
        os.close(descriptor)


def _mark(path: Path, pipe: Pipe) -> _Mark | None:
    """Inode, size and time of a file of the rank's user; None if there is none."""
    try:
        descriptor = open_any_below(pipe.root or path.parent, path, os.O_PATH)
    except OSError:
        return None
    status = os.fstat(descriptor)
    os.close(descriptor)
    if pipe.user not in (None, status.st_uid):
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def join_below(root: Path, path: str) -> Path:
    """The rank's `path` as seen from this process, always below `root`."""
    parts: Iterable[str] = (part for part in Path(path).parts if part not in ("/", ".."))
    return root.joinpath(*parts)


@dataclass(frozen=True, slots=True)
class Gathered:
    """`forms`: plain forms (see `flight_format`), by rank. `unread`: unread ranks, and why."""

    forms: tuple[dict[str, Any], ...]
    unread: tuple[UnreadSource, ...]


def gather_recorders(
    job: RunningJob, sockets: Mapping[int, str], *, timeout: float = 20.0, proc: Path = PROC
) -> Gathered:
    """The recorders of all ranks, read at once. `sockets`: pid -> socket of a rank with our probe;
    `timeout`: seconds per method. Ranks that are not set up for it are not contacted."""
    ranks = [rank for rank in job.ranks if rank.state not in "ZX"][:MOST_RANKS]
    with ThreadPoolExecutor(32, "flight") as pool:
        answers = pool.map(lambda rank: _ask(rank, sockets.get(rank.pid), timeout, proc), ranks)
        results = list(answers)
    forms = [result for result in results if isinstance(result, dict)]
    return Gathered(
        tuple(sorted(forms, key=lambda form: (form["rank"] is None, form["rank"] or 0))),
        tuple(result for result in results if isinstance(result, UnreadSource)),
    )


def _ask(
    found_process: JobProcess, own: str | None, timeout: float, proc: Path
) -> dict[str, Any] | UnreadSource:
    reason, remedy = "its flight recorder cannot be queried", REMEDY
    for way in _ways(found_process, own, timeout, proc):
        try:
            return {**way(), "pid": found_process.pid}
        except worker_socket.NoHandlerError:
            reason, remedy = NO_RECORDER, NEWER_TORCH
        except (OSError, NotAFlightError) as error:
            reason = f"it gave no answer: {error}"
    return UnreadSource(found_process.pid, SOURCE, reason, remedy)


def _ways(found_process: JobProcess, own: str | None, timeout: float, proc: Path) -> list[_Way]:
    """The methods to try, best first: call stacks matter more than a quick answer."""
    given = read_environment(found_process.pid, proc)
    root = proc / str(found_process.pid) / "root" if found_process.container else None
    asking = partial(ask_by_socket, rank=found_process.rank, pid=found_process.pid)
    ways: list[_Way] = []
    if own is not None:
        ask = partial(worker_socket.ask_worker, own, timeout=timeout)
        ways += [partial(_ask_probe, asking, ask), partial(asking, ask)]
    pipe = (
        find_pipe(given, found_process.rank, root, found_process.uid)
        if found_process.rank is not None
        else None
    )
    if pipe is not None:
        ways.append(partial(ask_by_pipe, pipe, timeout))
    if given.get(SOCKET):
        path = join_below(root or Path("/"), given[SOCKET])
        ways.append(partial(asking, partial(worker_socket.ask_worker, str(path), timeout=timeout)))
    return ways


def _ask_probe(
    asking: Callable[..., dict[str, Any]], ask: Callable[[str], bytes]
) -> dict[str, Any]:
    """With call stacks, or what the rank answered before it was asked for them."""
    plain = asking(ask, handler=WITHOUT_SITES)
    try:
        return asking(ask, handler=WITH_SITES)
    except (OSError, NotAFlightError):
        return plain


def read_environment(pid: int, proc: Path) -> dict[str, str]:
    """The environment with which a process was started; empty if not readable."""
    try:
        with open(proc / str(pid) / "environ", "rb") as file:
            raw = file.read(MOST_ENVIRON)
    except OSError:
        return {}
    pairs = (os.fsdecode(item).partition("=") for item in raw.split(b"\0"))
    return {name: value for name, equals, value in pairs if equals}
