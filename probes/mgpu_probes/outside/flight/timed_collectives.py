"""Has running ranks time their collectives for some steps, and keeps their flight recorders' dumps.

All ranks are asked whether they can before any is asked to. Timing stays on until the job ends:
torch has no way to switch it off."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mgpu_probes.outside.flight.flight_dumps import parse_dump
from mgpu_probes.outside.stacks.rank_replies import (
    NoReply,
    RankProcess,
    RankRequest,
    Ranks,
    Reply,
)
from mgpu_probes.outside.stacks.worker_socket import MOST_BYTES
from mgpu_probes.outside.torch_pickles import NotAFlightError
from mgpu_probes.outside.traces.trace_requests import TakenTrace, Tell, TraceRequest

HANDLER, BEGIN = "collective_timing", "collective_timing_begin"
DUMP = RankRequest("fr_trace_plain", 20.0, MOST_BYTES)
STEPS, SECONDS = 20, 30.0
"""What ends the wait first by default."""
POLL = 0.2
SETTLE = 0.5
"""Seconds after the last step: torch's watchdog reads the events of a collective that has ended
after 0.1 s."""
DUMPS_AT_ONCE = 32
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


States = Mapping[RankProcess, TimingState]


def check_timing(ranks: Ranks) -> None:
    """Asks all ranks whether they can time their collectives, and changes nothing. Raises
    NotTimedError if one cannot."""
    _raise_refusal(_ask_all(ranks, HANDLER))
    _check_recorder(ranks)


def time_collectives(
    ranks: Ranks, wanted: TraceRequest, folder: Path, tell: Tell
) -> list[TakenTrace]:
    """Switches timing on, waits some steps, and writes one dump per rank to `folder`. Takes
    seconds. Raises NotTimedError."""
    begun = _ask_all(ranks, BEGIN)
    _raise_refusal(begun)
    _wait(ranks, begun, wanted, tell)
    tell("reading the flight recorders")
    taken = []
    asked = list(begun)
    for first in range(0, len(asked), DUMPS_AT_ONCE):
        replies = ranks.ask(DUMP, asked[first : first + DUMPS_AT_ONCE])
        taken += [
            _keep_dump(rank, begun[rank].rank, reply, folder) for rank, reply in replies.items()
        ]
    return sorted(taken, key=lambda one: (one.rank is None, one.rank or 0, one.pid))


def _ask_all(ranks: Ranks, handler: str) -> States:
    replies = ranks.ask(RankRequest(handler), ranks.processes)
    return {rank: _parse(reply) for rank, reply in replies.items()}


def _parse(reply: Reply) -> TimingState:
    if reply.failure is NoReply.LATE:
        return TimingState(None, 0, "it does not answer: does code in C hold Python's lock?")
    if reply.failure is not None:
        return TimingState(
            None, 0, NO_HANDLER if reply.failure is NoReply.UNKNOWN else reply.why or "it failed"
        )
    try:
        answer = json.loads(reply.body)
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


def _raise_refusal(states: States) -> None:
    """One rank that cannot is enough: a collective is timed on all of its ranks, or not at all."""
    refusing = [(rank, state) for rank, state in states.items() if state.why is not None]
    if not refusing:
        return
    process, state = min(refusing, key=lambda item: (item[1].rank is None, item[1].rank or 0))
    who = f"process {process.pid}" if state.rank is None else f"rank {state.rank}"
    alike = sum(other.why == state.why for _, other in refusing) - 1
    more = f", and {alike} more alike" if alike else ""
    raise NotTimedError(f"{state.why} ({who}{more})")


def _check_recorder(ranks: Ranks) -> None:
    (reply,) = ranks.ask(DUMP, ranks.processes[:1]).values()
    try:
        form = parse_dump(_read_dump(reply), source="socket")
    except (OSError, NotAFlightError) as error:
        raise NotTimedError(f"its flight recorder cannot be read ({error})") from None
    if not form["collectives"]:
        raise NotTimedError(
            f"its flight recorder holds nothing: start the job with {BUFFER_SIZE} next time"
        )


def _read_dump(reply: Reply) -> bytes:
    if reply.failure is not None:
        raise OSError(reply.why or "no answer in time")
    return reply.body


def _wait(ranks: Ranks, begun: States, wanted: TraceRequest, tell: Tell) -> None:
    """Until every rank has taken the steps, or the time is over, or a rank has ended."""
    most_steps = wanted.steps or (None if wanted.seconds else STEPS)
    end = time.monotonic() + (wanted.seconds or SECONDS)
    while time.monotonic() < end:
        time.sleep(POLL)
        replies = ranks.ask(RankRequest(HANDLER), begun)
        if any(reply.failure is NoReply.ENDED for reply in replies.values()):
            break
        steps = min(
            max(0, _parse(reply).steps - begun[rank].steps) for rank, reply in replies.items()
        )
        tell(f"timing collectives: {steps} steps" + (f" of {most_steps}" if most_steps else ""))
        if most_steps is not None and steps >= most_steps:
            break
    time.sleep(SETTLE)


def _keep_dump(process: RankProcess, rank: int | None, reply: Reply, folder: Path) -> TakenTrace:
    pid, host = process.pid, process.host
    if reply.failure is not None:
        why = f"its flight recorder gave no answer ({reply.why or 'not in time'})"
        if reply.failure is NoReply.ENDED:
            why = "it has ended"
        return TakenTrace(pid, rank, None, why, host)
    path = folder / (f"flight_rank_{rank}" if rank is not None else f"flight_pid{pid}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(path, flags, 0o600), "wb") as file:
            file.write(reply.body)
    except OSError as error:
        return TakenTrace(pid, rank, None, f"{path} cannot be written ({error.strerror})", host)
    return TakenTrace(pid, rank, path, None, host)
