"""Black boxes to ranks: what each was doing, and how it ended, as far as anybody knows."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from mgpu_probes.inprocess.layout import BOX_SUFFIX, PHASES
from mgpu_probes.outside import processes

from mgpu_doctor.case.blank import blank_rank
from mgpu_doctor.case.files import number, text, whole
from mgpu_doctor.case.last_step import without_rest
from mgpu_doctor.case.model import Error, Event, LoggedEnd, Now, ProcessEnd, Rank, Records, State
from mgpu_doctor.case.printed import MESSAGE_LIMIT, shortened
from mgpu_doctor.case.process_metadata import ProcessMetadata, process_metadata
from mgpu_doctor.recording.box import Box

MOST_MISSING = 4096
"""Ranks of a job on one host: cores and accelerators of the largest are far fewer. One box says how
many ranks there are, and may say anything."""
UNKNOWN_HOST = ""
NODES = ("--nnodes", "--num_machines", "--num-machines", "--num_nodes")
"""Launchers' options that tell how many hosts there are."""
ENDED_BY_RAY = 1
"""Exit code of a Ray worker that was not wanted any more."""
ALONE = "--standalone"
"""torchrun's option that says there is one host."""


@dataclass(frozen=True, slots=True)
class Here:
    """This machine in this boot: only its own pids can be looked up. `owner`: the user whose
    recording it is; None: unknown."""

    host: str
    boot_id: str | None
    owner: int | None = None

    def was(self, box: Box) -> bool:
        """Whether the box's process ran here, so that its pid means something."""
        same_boot = self.boot_id is not None and box.identity.boot_id == self.boot_id
        return box.identity.host == self.host and same_boot and bool(box.identity.start_ticks)

    def booted_since(self, box: Box) -> bool:
        """Whether the machine was started anew after the box was begun."""
        known = None not in (box.identity.boot_id, self.boot_id)
        return known and box.identity.host == self.host and box.identity.boot_id != self.boot_id

    def is_of_its_owner(self, pid: int) -> bool:
        """Whether the process is of the user whose recording names it."""
        return self.owner is not None and processes.find_uid(pid) == self.owner


Exits = Mapping[tuple[str, int], list[tuple[ProcessEnd, int | None]]]
"""(host, pid) -> how it ended and its start ticks, for each process that had this pid."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What is known besides the boxes. `until`: nothing later counts (replay)."""

    here: Here
    exits: Exits
    over: bool
    """The recording says that the job has ended."""
    until: float | None = None


def rank_of(box: Box, moment: Moment) -> Rank | None:
    """The rank that wrote the box; None where it had not begun at the moment of the view."""
    identity, offset = box.identity, box.clock_offset
    until = moment.until
    begun = identity.realtime_ns / 1e9
    if until is not None and begun > until:
        return None
    exited = _seen_exit(box, moment)
    said = None if box.ended_ns is None else box.ended_ns / 1e9 + offset
    if until is not None and said is not None and said > until:
        said = None
    steps = _until(box.steps, offset, until)
    gone = _gone(box, moment, exited, said)
    metadata = _metadata(box)
    code, number_ = _exit(box, metadata, exited, said)
    error = _error(box, said, offset) if gone and code != 0 else None
    if error is not None and error.type == "SystemExit" and code is None:
        error = None  # somebody caught it: it ended otherwise
    now = _now(box, steps, offset, until)
    state = _ended(code, number_, error, orderly=said is not None) if gone else _living(now)
    is_here = not gone and until is None and moment.here.was(box)
    return Rank(
        rank=identity.rank,
        local_rank=identity.local_rank,
        world_size=identity.world_size,
        host=text(identity.host, 64) or UNKNOWN_HOST,
        pid=identity.pid,
        attempt=identity.attempt,
        stage=identity.stage,
        device=text(metadata.device, 64),
        state=state,
        exit_code=code if gone else None,
        signal=number_ if gone else None,
        ended=(exited.at if exited else said) if gone else None,
        started=begun,
        metadata=metadata,
        steps=without_rest(steps) if state is State.EXITED else steps,
        history=_until(box.history, offset, until),
        history_window=None if box.history_window_ns is None else box.history_window_ns / 1e9,
        events=_events(box, offset, until),
        now=now,
        error=error,
        probe_cost=box.probe_cost_ns / 1e9,
        lost_records=box.lost + box.overwritten,
        clock_offset=offset,
        took_leave=gone and said is not None,
        is_here=is_here and moment.here.is_of_its_owner(identity.pid),
    )


def _metadata(box: Box) -> ProcessMetadata:
    """What the probe found out. The socket at which a rank answers lies beside its box, whatever
    path the box names: it could be any socket of the reader's."""
    metadata = process_metadata(box.birth)
    if metadata.worker_socket is None:
        return metadata
    beside = f"{box.path.removesuffix(BOX_SUFFIX)}.sock"
    return msgspec.structs.replace(metadata, worker_socket=beside)


def last_attempt(ranks: list[Rank]) -> tuple[list[Rank], list[Rank]]:
    """Splits into the ranks of the last attempt and those that were replaced by a later one."""
    newest = max(ranks, key=lambda rank: (rank.attempt, rank.started or 0.0), default=None)
    current: dict[object, Rank] = {}
    earlier: list[Rank] = []
    for rank in sorted(ranks, key=lambda rank: rank.started or 0.0):
        other_world = newest is not None and rank.world_size != newest.world_size
        if newest is not None and (rank.attempt != newest.attempt or other_world):
            earlier.append(rank)
            continue
        key: object = (rank.host, rank.pid) if rank.rank is None else rank.rank
        if key in current:
            earlier.append(current[key])
        current[key] = rank
    return sorted(current.values(), key=_by_rank), sorted(earlier, key=_by_rank)


def with_missing(ranks: list[Rank], command: Sequence[str]) -> list[Rank]:
    """Adds the ranks that must be there by the world size and never opened a box on the hosts
    seen. Where other hosts' boxes are not at hand nobody is called missing."""
    worlds = {rank.world_size for rank in ranks if rank.world_size}
    if len(worlds) != 1 or any(rank.rank is None for rank in ranks):
        return ranks
    (world,) = worlds
    if world is None or world > MOST_MISSING or not _sees_all(ranks, world, command):
        return ranks
    known = {rank.rank for rank in ranks}
    absent = [_missing(number_, ranks[0]) for number_ in range(world) if number_ not in known]
    return sorted([*ranks, *absent], key=_by_rank)


def completed(rank: Rank) -> Rank:
    """The rank of a job that ended well: one that vanished without a word left in good order."""
    vanished = rank.exit_code is None and rank.signal is None and rank.error is None
    return replace(rank, state=State.EXITED) if rank.state is State.DEAD and vanished else rank


def ended_as_told(rank: Rank, ends: Iterable[LoggedEnd]) -> Rank:
    """The rank, with the exit code or signal that the console tells where nobody saw its end."""
    over = rank.state in (State.DEAD, State.EXITED)
    if not over or rank.exit_code is not None or rank.signal is not None:
        return rank
    for end in ends:
        known = end.exit_code is not None or end.signal is not None
        if known and (end.pid == rank.pid if end.pid else end.rank == rank.rank is not None):
            orderly = rank.state is State.EXITED
            state = _ended(end.exit_code, end.signal, rank.error, orderly=orderly)
            return replace(rank, state=state, exit_code=end.exit_code, signal=end.signal)
    return rank


def last_sign_of_life(rank: Rank) -> float | None:
    """The latest moment at which the rank is known to have run, by its own record."""
    signs = [rank.started, rank.now.since if rank.now else None]
    if len(rank.steps):
        signs.append(float(rank.steps["end_ns"][-1]) / 1e9 + rank.clock_offset)
    signs.extend(event.at for event in rank.events[-1:])
    return max((sign for sign in signs if sign is not None), default=None)


def _seen_exit(box: Box, moment: Moment) -> ProcessEnd | None:
    """How the process ended as seen from outside; a reused pid is told apart by its start."""
    for end, ticks in reversed(moment.exits.get((box.identity.host, box.identity.pid), [])):
        if None not in (ticks, box.identity.start_ticks) and ticks != box.identity.start_ticks:
            continue
        if moment.until is None or end.at <= moment.until:
            return end
    return None


def _gone(box: Box, moment: Moment, exited: ProcessEnd | None, said: float | None) -> bool:
    if exited is not None:
        return True
    if moment.until is not None:
        return said is not None
    if moment.here.was(box):
        return not processes.is_alive(box.identity.pid, box.identity.start_ticks)
    return moment.over or said is not None or moment.here.booted_since(box)


def _exit(
    box: Box, metadata: ProcessMetadata, exited: ProcessEnd | None, said: float | None
) -> tuple[int | None, int | None]:
    """Exit code and signal. Both are kept where Python's shutdown, after the process had said its
    code, was aborted by threads that still ran."""
    own = box.exit_code if said is not None else None
    if exited is None:
        return own, None
    if said is not None and own is None and exited.signal == signal.SIGABRT:
        own = _asked_for(box.last_words)
    if metadata.launcher == "ray" and (own == 0 or exited.exit_code == ENDED_BY_RAY):
        return own, None  # Ray ends its workers so, whatever became of the training
    if exited.signal is not None and exited.signal != signal.SIGABRT:
        return None, exited.signal
    return (own if exited.exit_code is None else exited.exit_code), exited.signal


def _asked_for(words: Mapping[str, object]) -> int | None:
    """The exit code that `sys.exit` was called for: its number, or 1 where it was given words."""
    if words.get("type") != "SystemExit":
        return None
    said = text(words.get("message"), 20) or ""
    return int(said) & 0xFF if said.removeprefix("-").isdecimal() else 1


def _living(now: Now | None) -> State:
    return State.WAITING if now is not None and now.phase == "wait" else State.RUNNING


def _ended(code: int | None, number_: int | None, error: Error | None, *, orderly: bool) -> State:
    """`orderly`: the process itself said goodbye, as it also does after `sys.exit(3)`."""
    if number_ is not None or error is not None or code:
        return State.DEAD
    return State.EXITED if code == 0 or orderly else State.DEAD


def _error(box: Box, said: float | None, offset: float) -> Error | None:
    words = box.last_words
    kind = text(words.get("type"), 200)
    if box.state != "exception" and kind is None:
        return None
    raised = [event.start_ns / 1e9 + offset for event in box.events if event.kind == "exception"]
    trace = words.get("traceback")
    return Error(
        type=kind or "unknown exception",
        message=text(words.get("message"), MESSAGE_LIMIT) or "",
        file=text(words.get("file"), 1000),
        line=whole(words.get("line"), 0, 1 << 31),
        function=text(words.get("function"), 200),
        traceback=shortened(trace) if isinstance(trace, str) else "",
        at=number(raised[-1]) if raised else said,
    )


def _until(records: Records, offset: float, until: float | None) -> Records:
    if until is None or not len(records):
        return records
    return records[records["end_ns"] / 1e9 + offset <= until]


def _events(box: Box, offset: float, until: float | None) -> tuple[Event, ...]:
    found = (
        Event(
            kind=event.kind,
            at=event.start_ns / 1e9 + offset,
            step=event.step,
            seconds=event.duration_ns / 1e9,
            value=event.value,
            text=event.text,
        )
        for event in box.events
    )
    return tuple(event for event in found if until is None or event.at <= until)


def _now(box: Box, steps: Records, offset: float, until: float | None) -> Now | None:
    """What the box says, or, in a replay of an earlier moment, what the steps around it tell."""
    now = box.now
    if now is not None and (until is None or now.since_ns / 1e9 + offset <= until):
        site = text(now.site, 300)
        return Now(now.phase, now.since_ns / 1e9 + offset, now.step, site, now.group_seq)
    if until is None or not len(steps):
        return None
    shares = np.nan_to_num(steps["phases"][-1])
    longest = PHASES[int(np.argmax(shares))] if shares.any() else "other"
    since = float(steps["end_ns"][-1]) / 1e9 + offset
    return Now(longest, since, int(steps["step"][-1]) + 1, None, None)


def _sees_all(ranks: list[Rank], world: int, command: Sequence[str]) -> bool:
    """Whether the job has one host alone, as far as its ranks and its command line tell."""
    if len({rank.host for rank in ranks}) > 1:
        return False
    words = " ".join(command).replace("=", " ").split()
    elsewhere = any(rank.local_rank not in (None, rank.rank) for rank in ranks)
    if ALONE in words and not elsewhere:
        return True  # whatever world size the script has set for itself
    local = [rank.metadata.local_world_size for rank in ranks]
    if any(size is not None and size < world for size in local):
        return False
    nodes = [words[at + 1] for at, word in enumerate(words[:-1]) if word in NODES]
    return not elsewhere and all(count in ("1", "1:1") for count in nodes)


def _missing(number_: int, like: Rank) -> Rank:
    return blank_rank(
        rank=number_,
        world_size=like.world_size,
        host=like.host,
        attempt=like.attempt,
        state=State.MISSING,
    )


def _by_rank(rank: Rank) -> tuple[bool, int, float]:
    return (rank.rank is None, rank.rank or 0, rank.started or 0.0)
