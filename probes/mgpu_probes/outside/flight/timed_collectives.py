"""Has running ranks time their collectives for some steps, and keeps their flight recorders' dumps.

All ranks are asked whether they can before any is asked to. Timing stays on until the job ends:
torch has no way to switch it off."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mgpu_probes.outside import processes
from mgpu_probes.outside.flight.flight_dumps import parse_dump
from mgpu_probes.outside.stacks import worker_socket
from mgpu_probes.outside.torch_pickles import NotAFlightError
from mgpu_probes.outside.traces.trace_requests import TakenTrace, Tell, TraceRequest

HANDLER, BEGIN = "collective_timing", "collective_timing_begin"
DUMP = "fr_trace_plain"
STEPS, SECONDS = 20, 30.0
"""What ends the wait first by default."""
POLL = 0.2
SETTLE = 0.5
"""Seconds after the last step: torch's watchdog reads the events of a collective that has ended
after 0.1 s."""
PATIENCE = 3.0
DUMP_PATIENCE = 20.0
MOST_ANSWER = 4096
AT_ONCE = 32
NO_HANDLER = "its probe does not time collectives: it is an older one, or the job has one rank only"
BUFFER_SIZE = "TORCH_FR_BUFFER_SIZE=2000 (before torch 2.9: TORCH_NCCL_TRACE_BUFFER_SIZE=2000)"


class NotTimedError(Exception):
    """The job's collectives cannot be timed; the message says why, in words that follow a colon."""


@dataclass(frozen=True, slots=True)
class TimingState:
    """A rank's answer."""

    rank: int | None
    steps: int
    """Steps so far."""
    why: str | None
    """Why it does not time its collectives."""


Sockets = Mapping[int, str]


def check_timing(sockets: Sockets) -> None:
    """Asks all ranks whether they can time their collectives, and changes nothing. `sockets`: pid
    -> socket. Raises NotTimedError if one cannot."""
    _raise_refusal(dict(_ask_all(sockets, HANDLER)))
    _check_recorder(next(iter(sockets.values())))


def time_collectives(
    sockets: Sockets, wanted: TraceRequest, folder: Path, tell: Tell
) -> list[TakenTrace]:
    """Switches timing on, waits some steps, and writes one dump per rank to `folder`. Takes
    seconds. Raises NotTimedError."""
    begun = dict(_ask_all(sockets, BEGIN))
    _raise_refusal(begun)
    _wait(sockets, begun, wanted, tell)
    tell("reading the flight recorders")
    with ThreadPoolExecutor(AT_ONCE, "timing") as pool:
        keep = partial(_keep_dump, sockets, begun, folder)
        taken = list(pool.map(keep, begun))
    return sorted(taken, key=lambda one: (one.rank is None, one.rank or 0, one.pid))


def _ask_all(sockets: Sockets, handler: str) -> Iterator[tuple[int, TimingState]]:
    with ThreadPoolExecutor(AT_ONCE, "timing") as pool:
        ask: Callable[[str], TimingState] = partial(_ask, handler)
        yield from zip(sockets, pool.map(ask, sockets.values()), strict=True)


def _ask(handler: str, path: str) -> TimingState:
    try:
        answer = json.loads(worker_socket.ask_worker(path, handler, PATIENCE, MOST_ANSWER))
    except TimeoutError:
        return TimingState(None, 0, "it does not answer: does code in C hold Python's lock?")
    except OSError as error:
        return TimingState(None, 0, NO_HANDLER if "404" in str(error) else f"{error}")
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        return TimingState(None, 0, "its answer is not that of a probe")
    rank, steps, why = (answer.get(name) for name in ("rank", "told", "why"))
    if not isinstance(steps, int) or not 0 <= steps < 1 << 60:
        return TimingState(None, 0, "its answer is not that of a probe")
    return TimingState(
        rank=rank if isinstance(rank, int) and 0 <= rank < 1 << 20 else None,
        steps=steps,
        why=why[:300] if isinstance(why, str) else None,
    )


def _raise_refusal(states: Mapping[int, TimingState]) -> None:
    """One rank that cannot is enough: a collective is timed on all of its ranks, or not at all."""
    refusing = [(pid, state) for pid, state in states.items() if state.why is not None]
    if not refusing:
        return
    pid, state = min(refusing, key=lambda item: (item[1].rank is None, item[1].rank or 0))
    who = f"process {pid}" if state.rank is None else f"rank {state.rank}"
    alike = sum(other.why == state.why for _, other in refusing) - 1
    more = f", and {alike} more alike" if alike else ""
    raise NotTimedError(f"{state.why} ({who}{more})")


def _check_recorder(path: str) -> None:
    try:
        form = parse_dump(worker_socket.ask_worker(path, DUMP, DUMP_PATIENCE), source="socket")
    except (OSError, NotAFlightError) as error:
        raise NotTimedError(f"its flight recorder cannot be read ({error})") from None
    if not form["collectives"]:
        raise NotTimedError(
            f"its flight recorder holds nothing: start the job with {BUFFER_SIZE} next time"
        )


def _wait(
    sockets: Sockets, begun: Mapping[int, TimingState], wanted: TraceRequest, tell: Tell
) -> None:
    """Until every rank has taken the steps, or the time is over, or a rank has ended."""
    most_steps = wanted.steps or (None if wanted.seconds else STEPS)
    end = time.monotonic() + (wanted.seconds or SECONDS)
    while time.monotonic() < end and all(map(processes.is_alive, sockets)):
        time.sleep(POLL)
        now = dict(_ask_all(sockets, HANDLER))
        steps = min(max(0, state.steps - begun[pid].steps) for pid, state in now.items())
        tell(f"timing collectives: {steps} steps" + (f" of {most_steps}" if most_steps else ""))
        if most_steps is not None and steps >= most_steps:
            break
    time.sleep(SETTLE)


def _keep_dump(
    sockets: Sockets, begun: Mapping[int, TimingState], folder: Path, pid: int
) -> TakenTrace:
    rank = begun[pid].rank
    try:
        dump = worker_socket.ask_worker(sockets[pid], DUMP, DUMP_PATIENCE)
    except OSError as error:
        why = f"its flight recorder gave no answer ({error})"
        return TakenTrace(pid, rank, None, why if processes.is_alive(pid) else "it has ended")
    name = f"flight_rank_{rank}" if rank is not None else f"flight_pid{pid}"
    path = folder / name
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(path, flags, 0o600), "wb") as file:
            file.write(dump)
    except OSError as error:
        return TakenTrace(pid, rank, None, f"{path} cannot be written ({error.strerror})")
    return TakenTrace(pid, rank, path)
