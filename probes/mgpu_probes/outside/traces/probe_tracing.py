"""Traces by our own probe inside the ranks: all ranks trace the same steps.

Each rank is asked through its socket for its step count and pace, and is then given the step at
which to begin, far enough ahead that all ranks have received it. The probe bounds its own work,
`inprocess/frameworks/torch/on_demand_trace.py`: the client may go away at any time."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from mgpu_probes.outside.stacks.rank_replies import (
    NoReply,
    RankProcess,
    RankRequest,
    Ranks,
    Replies,
    Reply,
    ask_at_once,
)
from mgpu_probes.outside.traces.trace_requests import TakenTrace, Tell, TraceRequest, move_trace

STEPS, SECONDS = 20, 30.0
"""Steps by default. Fewer than a dozen often do not show which rank is late."""
MOST_STEPS = 1_000
APART = 0.5
"""Seconds between two polls of the ranks' progress."""
AHEAD = 1.0
"""Seconds within which all ranks of this host have received a request."""
POLL = 0.2
STILL = 90.0
"""Seconds without progress of any rank after which tracing gives up: a rank ends a trace within a
step by itself after that time."""
SUFFIXES = (".sock", ".trace.json")
TIME_OVER = "the time was over"
"""A rank's reason for ending a trace early."""
_OVER = ("done", "failed")
_ENDED = "it ended while it was traced"


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


class EndedTrace(NamedTuple):
    """How a rank ended its trace. `why`: the trace is short, or there is none; `is_written`: None:
    the rank has ended, and may have written it before."""

    rank: int | None
    why: str | None
    is_written: bool | None


class TracedRanks(Ranks, Protocol):
    """Ranks whose traces can be fetched."""

    @property
    def ahead(self) -> float:
        """Seconds within which all of them have received a request."""
        ...

    def collect(
        self, ended: Mapping[RankProcess, EndedTrace], folder: Path, tell: Tell
    ) -> list[TakenTrace]:
        """Moves the traces to `folder`."""
        ...


class LocalRanks:
    """The ranks on this host. `sockets`: pid -> path of the socket of its probe."""

    ahead = AHEAD

    def __init__(self, sockets: Mapping[int, str]) -> None:
        self._sockets = sockets
        self._begun = time.time()

    @property
    def processes(self) -> tuple[RankProcess, ...]:
        return tuple(map(RankProcess, self._sockets))

    def ask(self, request: RankRequest, whom: Iterable[RankProcess]) -> Replies:
        whom = tuple(whom)
        asked = [(self._sockets[rank.pid], (rank.pid, None)) for rank in whom]
        return dict(zip(whom, ask_at_once(asked, request), strict=True))

    def collect(
        self,
        ended: Mapping[RankProcess, EndedTrace],
        folder: Path,
        tell: Tell,  # noqa: ARG002 - it takes no time here
    ) -> list[TakenTrace]:
        return [
            move_trace(file, rank.pid, trace.rank, folder, trace.why)
            if trace.is_written or (trace.is_written is None and self._is_left(file))
            else TakenTrace(rank.pid, trace.rank, None, trace.why)
            for rank, trace in ended.items()
            for file in [Path(self._sockets[rank.pid].removesuffix(SUFFIXES[0]) + SUFFIXES[1])]
        ]

    def _is_left(self, file: Path) -> bool:
        """Whether a rank that has ended wrote its trace before."""
        try:
            return file.stat().st_mtime >= self._begun
        except OSError:
            return False


def trace_ranks(
    ranks: TracedRanks, wanted: TraceRequest, folder: Path, tell: Tell
) -> list[TakenTrace]:
    """The traces of all ranks, written to `folder`. Takes seconds. If it is interrupted, the ranks
    leave no trace."""
    tell("querying the ranks' steps")
    states, refused = _first(ranks)
    asked = tuple(states)
    try:
        refused |= _begin(ranks, states, wanted)
        begun = {rank: after for rank, (_, after) in states.items() if rank not in refused}
        asked = tuple(begun)
        ended = _follow(ranks, begun, wanted, tell)
        taken = ranks.collect(
            {rank: _end(rank, state, wanted) for rank, state in ended.items()}, folder, tell
        )
    except BaseException:
        _cancel(ranks, asked)
        raise
    found = [TakenTrace(rank.pid, None, None, why, rank.host) for rank, why in refused.items()]
    found += taken
    return sorted(found, key=lambda one: (one.rank is None, one.rank or 0, one.pid))


def _end(rank: RankProcess, state: State, wanted: TraceRequest) -> EndedTrace:
    if state.state == "done":
        is_complete = wanted.seconds is not None and state.why == TIME_OVER
        return EndedTrace(state.rank, None if is_complete else state.why, is_written=True)
    is_written = None if state.why == _ENDED else False
    return EndedTrace(state.rank, state.why or _still(rank), is_written)


def parse_state(reply: Reply) -> State | str:
    """The state in a rank's reply, or why there is none."""
    if reply.failure is NoReply.LATE:
        return "it does not answer: does code in C hold Python's lock?"
    if reply.failure is NoReply.UNKNOWN:
        return "its probe knows no traces"
    if reply.failure is not None:
        return reply.why or "it cannot be asked"
    try:
        said = json.loads(reply.body)
    except (ValueError, RecursionError):
        return "its answer is not that of a probe"
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
    ranks: TracedRanks,
) -> tuple[dict[RankProcess, tuple[State, State]], dict[RankProcess, str]]:
    """Two states per rank, `APART` seconds apart; and why other ranks cannot be traced."""
    refused: dict[RankProcess, str] = {}

    def read_states(whom: Iterable[RankProcess]) -> dict[RankProcess, State]:
        states = {}
        for rank, reply in ranks.ask(RankRequest("trace_state"), whom).items():
            state = parse_state(reply)
            if isinstance(state, str):
                refused[rank] = state
            else:
                states[rank] = state
        return states

    before = read_states(ranks.processes)
    time.sleep(APART)
    after = read_states(before)
    return {rank: (before[rank], state) for rank, state in after.items()}, refused


def _begin(
    ranks: TracedRanks, states: Mapping[RankProcess, tuple[State, State]], wanted: TraceRequest
) -> dict[RankProcess, str]:
    """The ranks that refuse, and why."""
    at = choose_first_step(
        [one.told for one, _ in states.values()],
        [one.told for _, one in states.values()],
        ranks.ahead,
    )
    query = f"at={at}&steps={_steps(wanted)}&milliseconds={int((wanted.seconds or SECONDS) * 1000)}"
    refused = {}
    for rank, reply in ranks.ask(RankRequest(f"trace_begin?{query}"), states).items():
        state = parse_state(reply)
        if isinstance(state, str):
            if reply.failure is not NoReply.LATE:  # it has the request, or answers later
                refused[rank] = state
        elif state.state == "failed" and state.why is not None:
            refused[rank] = state.why
    return refused


def _steps(wanted: TraceRequest) -> int:
    return wanted.steps or (MOST_STEPS if wanted.seconds else STEPS)


def choose_first_step(before: Iterable[int], after: Iterable[int], ahead: float = AHEAD) -> int:
    """The first step that no rank has begun when it receives the request. `before`, `after`: the
    ranks' steps, `APART` seconds apart; `ahead`: seconds that the request takes at most."""
    last = [*after]
    fastest = max((now - then for then, now in zip(before, last, strict=True)), default=0)
    return max(last, default=0) + 2 + math.ceil(max(0, fastest) / APART * ahead)


def _follow(
    ranks: TracedRanks, begun: Mapping[RankProcess, State], wanted: TraceRequest, tell: Tell
) -> dict[RankProcess, State]:
    """The last state of each rank; `why` is None if its trace has not ended."""
    # Their answers about an earlier trace do not count.
    states = {rank: State(one.rank, one.told, "asked", None, 0) for rank, one in begun.items()}
    news = time.monotonic()
    left = [*states]
    while time.monotonic() - news < STILL:
        left = [rank for rank, one in states.items() if one.state not in _OVER]
        if not left:
            return states
        for rank, reply in ranks.ask(RankRequest("trace_state"), left).items():
            state = parse_state(reply)
            if reply.failure is NoReply.ENDED:
                state = State(states[rank].rank, 0, "failed", _ENDED, 0)
            if not isinstance(state, str) and state != states[rank]:
                states[rank], news = state, time.monotonic()
        traced = max((state.steps for state in states.values()), default=0)
        tell(f"tracing: {traced} steps" + (f" of {_steps(wanted)}" if not wanted.seconds else ""))
        time.sleep(POLL)
    _cancel(ranks, left)
    return states


def _cancel(ranks: TracedRanks, whom: Iterable[RankProcess]) -> None:
    ranks.ask(RankRequest("trace_cancel"), whom)


def _still(rank: RankProcess) -> str:
    command = "mgpu-doctor diagnose " + (str(rank.pid) if rank.host is None else "latest")
    return f"it finished no step in {STILL:.0f} s: `{command}` shows whether it hangs"
