"""How ranks and the job ended, concluded from recorded facts: the only module of this package that
interprets. Rules decide whether a job hangs."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from mgpu_probes.inprocess.layout import OTHER

from mgpu_doctor.case.attempts import are_independent, by_rank
from mgpu_doctor.case.model import (
    Error,
    JobEnd,
    LoggedEnd,
    Now,
    Outcome,
    ProcessEnd,
    Rank,
    Records,
    State,
)
from mgpu_doctor.case.placeholders import blank_rank
from mgpu_doctor.case.process_metadata import ProcessMetadata
from mgpu_doctor.case.this_machine import this_host
from mgpu_doctor.case.untrusted_json import text
from mgpu_doctor.recording.box import Box
from mgpu_doctor.recording.columns import phase_of

AFTER = 2
"""Steps of a rank after others ended that show that it does not need them."""
MOST_MISSING = 4096
"""Ranks of a job on one host: cores and accelerators of the largest are far fewer. One box says how
many ranks there are, and may say anything."""
NODES = ("--nnodes", "--num_machines", "--num-machines", "--num_nodes")
"""Launchers' options that set the number of hosts."""
ENDED_BY_RAY = 1
"""Exit code of a Ray worker that was no longer needed."""
ALONE = "--standalone"
"""torchrun's option that says there is one host."""
MOST_REST = 0.5
"""If more of the last step than this share is outside all phases, that time is left out. A
choice."""


def outcome_of(end: JobEnd, ranks: list[Rank], launcher_alive: bool | None) -> Outcome:
    """How the job ended. HUNG is a judgement and left to rules."""
    there = [rank for rank in ranks if rank.state is not State.MISSING]
    return _finished(end, there) if end.over else _unfinished(there, launcher_alive)


def _finished(end: JobEnd, ranks: list[Rank]) -> Outcome:
    if end.asked is not None or _all_by_one_signal(end, ranks):
        return Outcome.KILLED
    fallen = [rank for rank in ranks if rank.signal or rank.exit_code or rank.error]
    if end.exit_code == 0 and are_independent(ranks):
        failed = any(rank.signal != signal.SIGTERM for rank in fallen)  # else their program's own
        return Outcome.FAILED if failed else Outcome.COMPLETED
    if end.exit_code != 0 or (fallen and not _went_on(fallen, ranks)):
        return Outcome.FAILED
    return Outcome.COMPLETED


def _went_on(fallen: list[Rank], ranks: list[Rank]) -> bool:
    """Whether another rank, which ended well, took steps that began after these were gone, as
    asynchronous strategies can. One that had begun may still end where all need each other."""
    gone = [rank.ended for rank in fallen if rank.ended is not None]
    if len(gone) < len(fallen):
        return False
    return any(
        rank.state is State.EXITED and rank not in fallen and _steps_since(rank, max(gone)) >= AFTER
        for rank in ranks
    )


def _steps_since(rank: Rank, moment: float) -> int:
    ends = rank.steps["end_ns"].astype(float) * 1e-9 + rank.clock_offset
    begun = ends - rank.steps["wall_ns"].astype(float) * 1e-9
    return int((begun > moment).sum())


def _unfinished(ranks: list[Rank], launcher_alive: bool | None) -> Outcome:
    """No `end.json`: the job still runs, or its observer was killed, too."""
    living = [rank for rank in ranks if rank.state in (State.RUNNING, State.WAITING)]
    if launcher_alive or any(rank.host == this_host() for rank in living):
        return Outcome.RUNNING
    if living or not ranks:
        return Outcome.UNKNOWN
    if all(rank.state is State.EXITED for rank in ranks):
        return Outcome.COMPLETED
    whole_job = len(ranks) > 1 and all(_silent(rank) for rank in ranks)
    return Outcome.KILLED if whole_job else Outcome.FAILED


def _all_by_one_signal(end: JobEnd, ranks: list[Rank]) -> bool:
    """Whether the same signal ended the launcher and every rank, so the whole job was ended.
    SIGKILL of a job with one process does not count: the kernel's OOM killer does the same."""
    if end.signal == signal.SIGKILL:
        return len(ranks) != 1 and all(_silent(rank) for rank in ranks)
    return end.signal in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) and all(
        rank.signal == end.signal or _silent(rank) for rank in ranks
    )


def _silent(rank: Rank) -> bool:
    """Whether it ended without any record, as after SIGKILL."""
    return (
        rank.state is State.DEAD
        and rank.exit_code is None
        and rank.signal in (None, signal.SIGKILL)
        and rank.error is None
    )


def exit_status(
    box: Box, metadata: ProcessMetadata, exited: ProcessEnd | None, left_at: float | None
) -> tuple[int | None, int | None]:
    """Exit code and signal. Both are kept where Python's shutdown, after the process had said its
    code, was aborted by threads that still ran."""
    own = box.exit_code if left_at is not None else None
    if exited is None:
        return own, None
    if left_at is not None and own is None and exited.signal == signal.SIGABRT:
        own = _asked_for(box.last_words)
    if metadata.launcher == "ray" and (own == 0 or exited.exit_code == ENDED_BY_RAY):
        return own, None  # Ray ends its workers so, whatever became of the training
    if exited.signal is not None and exited.signal != signal.SIGABRT:
        return None, exited.signal
    return (own if exited.exit_code is None else exited.exit_code), exited.signal


def _asked_for(words: Mapping[str, object]) -> int | None:
    """The exit code of a `sys.exit` call: its number, or 1 if it was given a text."""
    if words.get("type") != "SystemExit":
        return None
    message = text(words.get("message"), 20) or ""
    return int(message) & 0xFF if message.removeprefix("-").isdecimal() else 1


def living_state(now: Now | None) -> State:
    return State.WAITING if now is not None and now.phase == "wait" else State.RUNNING


def end_state(
    code: int | None, number_: int | None, error: Error | None, *, orderly: bool
) -> State:
    """`orderly`: the process recorded its exit, as it also does after `sys.exit(3)`."""
    if number_ is not None or error is not None or code:
        return State.DEAD
    return State.EXITED if code == 0 or orderly else State.DEAD


def completed(rank: Rank) -> Rank:
    """The rank of a job that completed: if it vanished without a record, it exited normally."""
    vanished = rank.exit_code is None and rank.signal is None and rank.error is None
    return replace(rank, state=State.EXITED) if rank.state is State.DEAD and vanished else rank


def with_logged_end(rank: Rank, ends: Iterable[LoggedEnd]) -> Rank:
    """The rank, with the console's exit code or signal if its end was not seen."""
    over = rank.state in (State.DEAD, State.EXITED)
    if not over or rank.exit_code is not None or rank.signal is not None:
        return rank
    for end in ends:
        known = end.exit_code is not None or end.signal is not None
        same = end.rank in (None, rank.rank) and end.pid == rank.pid
        if known and (same if end.pid else end.rank == rank.rank is not None):
            orderly = rank.state is State.EXITED
            state = end_state(end.exit_code, end.signal, rank.error, orderly=orderly)
            return replace(rank, state=state, exit_code=end.exit_code, signal=end.signal)
    return rank


def with_missing(ranks: list[Rank], command: Sequence[str]) -> list[Rank]:
    """Adds ranks that the world size requires but that never opened a box on the known hosts. If
    other hosts' boxes are not available, no rank is reported as missing."""
    worlds = {rank.world_size for rank in ranks if rank.world_size}
    if len(worlds) != 1 or any(rank.rank is None for rank in ranks):
        return ranks
    (world,) = worlds
    if world is None or world > MOST_MISSING or not _sees_all(ranks, world, command):
        return ranks
    known = {rank.rank for rank in ranks}
    absent = [_missing(number_, ranks[0]) for number_ in range(world) if number_ not in known]
    return sorted([*ranks, *absent], key=by_rank)


def _sees_all(ranks: list[Rank], world: int, command: Sequence[str]) -> bool:
    """Whether the job has only one host, by its ranks and its command line."""
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


def without_rest(steps: Records) -> Records:
    """All steps of a rank that exited, the last one without its time in no phase if that is most of
    it. A step lasts until the next batch is fetched. After the last step that may be the first
    batch of a validation, so its record may contain saving, loading or tracing."""
    if len(steps) < 2:
        return steps
    wall, rest = int(steps["wall_ns"][-1]), float(phase_of(steps, OTHER)[-1]) * 1e9
    if not MOST_REST * wall < rest <= wall:  # neither where it was not measured
        return steps
    changed = steps.copy()
    changed["wall_ns"][-1] -= round(rest)
    changed["end_ns"][-1] -= round(rest)
    changed["phases"][-1, OTHER] = 0.0
    return changed
