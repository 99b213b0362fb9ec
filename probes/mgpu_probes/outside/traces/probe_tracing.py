"""Traces by our own probe inside the ranks: all ranks trace the same steps.

Each rank is asked through its socket for its step count and pace, and is then given the step at
which to begin, far enough ahead that all ranks have received it. The probe bounds its own work,
`inprocess/frameworks/torch/on_demand_trace.py`: the client may go away at any time."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mgpu_probes.outside import processes
from mgpu_probes.outside.stacks import worker_socket
from mgpu_probes.outside.traces.trace_requests import TakenTrace, Tell, TraceRequest, move_trace

STEPS, SECONDS = 20, 30.0
"""Steps by default. Fewer than a dozen often do not show which rank is late."""
MOST_STEPS = 1_000
APART = 0.5
"""Seconds between two polls of the ranks' progress."""
AHEAD = 1.0
"""Seconds within which all ranks have received a request."""
POLL = 0.2
STILL = 90.0
"""Seconds without progress of any rank after which tracing gives up: a rank ends a trace within a
step by itself after that time."""
PATIENCE = 3.0
"""Seconds to wait for an answer; a rank that writes its trace does not answer."""
MOST_ANSWER = 4096
SUFFIXES = (".sock", ".trace.json")
_OVER = ("done", "failed")
TIME_OVER = "the time was over"
"""A rank's reason for ending a trace early."""


@dataclass(frozen=True, slots=True)
class State:
    """A rank's answer."""

    rank: int | None
    told: int
    """Steps so far."""
    state: str
    why: str | None
    steps: int
    """Traced so far."""


Ask = Callable[[str], State | None]
"""A rank's handler -> its answer; None: no answer in time."""


class RefusedError(OSError):
    """The rank cannot write a trace; the message says why."""


def trace_ranks(
    sockets: Mapping[int, str], wanted: TraceRequest, folder: Path, tell: Tell
) -> list[TakenTrace]:
    """The traces of all ranks, written to `folder`. `sockets`: pid -> socket. Takes seconds."""
    asks = {pid: partial(ask_trace_state, path) for pid, path in sockets.items()}
    begun = time.time()
    with ThreadPoolExecutor(min(32, len(asks) or 1), "trace") as pool:
        try:
            tell("querying the ranks' steps")
            ranks, refused = _first(asks, pool)
            refused |= _begin(asks, ranks, wanted, pool)
            begun_ranks = {pid: after for pid, (_, after) in ranks.items() if pid not in refused}
            ended = _follow(asks, begun_ranks, wanted, tell, pool)
        except BaseException:
            list(pool.map(_cancel, asks.values()))
            raise
    found = [TakenTrace(pid, None, None, why) for pid, why in refused.items()]
    for pid, state in ended.items():
        file = Path(sockets[pid].removesuffix(SUFFIXES[0]) + SUFFIXES[1])
        if state.state == "done" or _left_behind(file, pid, begun):
            why = None if wanted.seconds and state.why == TIME_OVER else state.why
            found.append(move_trace(file, pid, state.rank, folder, why))
        else:
            found.append(TakenTrace(pid, state.rank, None, state.why or _still(pid)))
    return sorted(found, key=lambda one: (one.rank is None, one.rank or 0, one.pid))


def ask_trace_state(path: str, handler: str) -> State | None:
    """Raises RefusedError."""
    try:
        said = json.loads(worker_socket.ask_worker(path, handler, PATIENCE, MOST_ANSWER))
    except TimeoutError:
        return None
    except PermissionError as error:
        raise RefusedError(f"{error}") from None
    except OSError as error:
        old = "404" in str(error)
        raise RefusedError("its probe knows no traces" if old else f"{error}") from None
    except (ValueError, RecursionError):
        raise RefusedError("its answer is not that of a probe") from None
    return _state(said if isinstance(said, dict) else {})


def _state(said: Mapping[str, object]) -> State:
    rank, why = said.get("rank"), said.get("why")
    return State(
        rank=rank if isinstance(rank, int) and 0 <= rank < 1 << 20 else None,
        told=_count(said.get("told")),
        state=str(said.get("state"))[:20],
        why=why[:300] if isinstance(why, str) else None,
        steps=_count(said.get("steps")),
    )


def _count(said: object) -> int:
    return said if isinstance(said, int) and 0 <= said < 1 << 60 else 0


def _first(
    asks: Mapping[int, Ask], pool: ThreadPoolExecutor
) -> tuple[dict[int, tuple[State, State]], dict[int, str]]:
    """Two states per rank, `APART` seconds apart; and why other ranks cannot be traced."""
    refused: dict[int, str] = {}

    def read_state(pid: int) -> State | None:
        try:
            state = asks[pid]("trace_state")
        except RefusedError as error:
            refused[pid] = str(error)
            return None
        if state is None:
            refused[pid] = "it does not answer: does code in C hold Python's lock?"
        return state

    before = dict(zip(asks, pool.map(read_state, asks), strict=True))
    time.sleep(APART)
    left = [pid for pid in asks if pid not in refused]
    after = dict(zip(left, pool.map(read_state, left), strict=True))
    ranks = {
        pid: (first, second)
        for pid in left
        if (first := before[pid]) is not None and (second := after[pid]) is not None
    }
    return ranks, refused


def _begin(
    asks: Mapping[int, Ask],
    ranks: Mapping[int, tuple[State, State]],
    wanted: TraceRequest,
    pool: ThreadPoolExecutor,
) -> dict[int, str]:
    """Pid -> reason of the ranks that refuse."""
    at = choose_first_step(
        [one.told for one, _ in ranks.values()], [one.told for _, one in ranks.values()]
    )
    query = f"at={at}&steps={_steps(wanted)}&milliseconds={int((wanted.seconds or SECONDS) * 1000)}"

    def begin(pid: int) -> str | None:
        try:
            state = asks[pid](f"trace_begin?{query}")
        except RefusedError as error:
            return str(error)
        return state.why if state is not None and state.state == "failed" else None

    answers = zip(ranks, pool.map(begin, ranks), strict=True)
    return {pid: why for pid, why in answers if why is not None}


def _steps(wanted: TraceRequest) -> int:
    return wanted.steps or (MOST_STEPS if wanted.seconds else STEPS)


def choose_first_step(before: Iterable[int], after: Iterable[int]) -> int:
    """The first step that no rank has begun when it receives the request. `before`, `after`: the
    ranks' steps, `APART` seconds apart."""
    last = [*after]
    fastest = max((now - then for then, now in zip(before, last, strict=True)), default=0)
    return max(last, default=0) + 2 + math.ceil(max(0, fastest) / APART * AHEAD)


def _follow(
    asks: Mapping[int, Ask],
    ranks: Mapping[int, State],
    wanted: TraceRequest,
    tell: Tell,
    pool: ThreadPoolExecutor,
) -> dict[int, State]:
    """The last state of each rank; `why` is None if its trace has not ended."""
    # Their answers about an earlier trace do not count.
    states = {pid: State(one.rank, one.told, "asked", None, 0) for pid, one in ranks.items()}
    news = time.monotonic()

    def read_state(pid: int) -> State | None:
        try:
            return asks[pid]("trace_state")
        except RefusedError:
            if processes.is_alive(pid):
                return None
            return State(states[pid].rank, 0, "failed", "it ended while it was traced", 0)

    while time.monotonic() - news < STILL:
        left = [pid for pid, one in states.items() if one.state not in _OVER]
        if not left:
            return states
        for pid, state in zip(left, pool.map(read_state, left), strict=True):
            if state is not None and state != states[pid]:
                states[pid], news = state, time.monotonic()
        traced = max((state.steps for state in states.values()), default=0)
        tell(f"tracing: {traced} steps" + (f" of {_steps(wanted)}" if not wanted.seconds else ""))
        time.sleep(POLL)
    list(pool.map(_cancel, asks.values()))
    return states


def _cancel(asking: Ask) -> None:
    with suppress(RefusedError):
        asking("trace_cancel")


def _left_behind(file: Path, pid: int, since: float) -> bool:
    """Whether a rank that has ended wrote its trace before."""
    try:
        return not processes.is_alive(pid) and file.stat().st_mtime >= since
    except OSError:
        return False


def _still(pid: int) -> str:
    return (
        f"it finished no step in {STILL:.0f} s: `mgpu-doctor diagnose {pid}` shows whether it hangs"
    )
