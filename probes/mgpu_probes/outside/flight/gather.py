"""The flight recorders of a running job's ranks, by whatever way each of them can be asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mgpu_probes.outside.flight.live import HANDLER, from_pipe, from_worker, pipe_of, under
from mgpu_probes.outside.flight.unpickler import NotAFlightError
from mgpu_probes.outside.jobs.found import FoundJob, FoundProcess, FoundUntold
from mgpu_probes.outside.processes import PROC
from mgpu_probes.outside.stacks import worker

SOCKET = "TORCH_WORKER_SERVER_SOCKET"
"""Where torch's elastic agent has its workers listen (torch.distributed.elastic.control_plane)."""
WITH_SITES = "fr_trace"
"""A handler of our own probe: as a pickle, with call stacks."""
MOST_RANKS = 1_024
MOST_ENVIRON = 1 << 20
SOURCE = "flight recorder"
REMEDY = (
    "start the job with `mgpu-doctor run -- COMMAND`, or with NCCL set "
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/nccl_ before it starts"
)
_Way = Callable[[], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Gathered:
    """`forms`: plain forms (see `form`), by rank. `untold`: who could not be asked, and why."""

    forms: tuple[dict[str, Any], ...]
    untold: tuple[FoundUntold, ...]


def gather(
    job: FoundJob, sockets: Mapping[int, str], *, timeout: float = 20.0, proc: Path = PROC
) -> Gathered:
    """Asks all ranks at once. `sockets`: pid -> where a rank with our probe listens; `timeout`:
    seconds for each way. Nothing is sent to a rank that has not prepared for it."""
    ranks = [one for one in job.ranks if one.state not in "ZX"][:MOST_RANKS]
    with ThreadPoolExecutor(32, "flight") as pool:
        answers = pool.map(lambda one: _ask(one, sockets.get(one.pid), timeout, proc), ranks)
        found = list(answers)
    forms = [one for one in found if isinstance(one, dict)]
    return Gathered(
        tuple(sorted(forms, key=lambda form: (form["rank"] is None, form["rank"] or 0))),
        tuple(one for one in found if isinstance(one, FoundUntold)),
    )


def _ask(
    one: FoundProcess, own: str | None, timeout: float, proc: Path
) -> dict[str, Any] | FoundUntold:
    reason = "it was not prepared to be asked"
    for way in _ways(one, own, timeout, proc):
        try:
            return {**way(), "pid": one.pid}
        except (OSError, NotAFlightError) as error:
            reason = f"it gave no answer: {error}"
    return FoundUntold(one.pid, SOURCE, reason, REMEDY)


def _ways(one: FoundProcess, own: str | None, timeout: float, proc: Path) -> list[_Way]:
    """The best first: call stacks are worth more than a quick answer."""
    given = environ(one.pid, proc)
    root = proc / str(one.pid) / "root" if one.container else None
    asking = partial(from_worker, rank=one.rank, pid=one.pid)
    ways: list[_Way] = []
    if own is not None:
        ask = partial(worker.ask, own, timeout=timeout)
        ways += [partial(asking, ask, handler=name) for name in (WITH_SITES, HANDLER)]
    pipe = pipe_of(given, one.rank, root, one.uid) if one.rank is not None else None
    if pipe is not None:
        ways.append(partial(from_pipe, pipe, timeout))
    if given.get(SOCKET):
        path = under(root or Path("/"), given[SOCKET])
        ways.append(partial(asking, partial(worker.ask, str(path), timeout=timeout)))
    return ways


def environ(pid: int, proc: Path) -> dict[str, str]:
    """With which it was started; empty where that may not be read."""
    try:
        with open(proc / str(pid) / "environ", "rb") as file:
            raw = file.read(MOST_ENVIRON)
    except OSError:
        return {}
    pairs = (os.fsdecode(item).partition("=") for item in raw.split(b"\0"))
    return {name: value for name, equals, value in pairs if equals}
