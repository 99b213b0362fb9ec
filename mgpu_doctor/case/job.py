"""The job as a whole: what it is and how it ended. Facts from the recording, ranks and console."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mgpu_doctor.case.files import Json, moment, text, whole, words
from mgpu_doctor.case.model import Job, Outcome, Rank, State

AFTER = 2
"""Steps of a rank after others were gone that show that it does not need them."""
SERVED = "ps"
"""The strategy of a parameter server, and of the chief of a job with some."""
LAUNCHERS = {
    "torchrun": "torchrun",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "mpirun": "mpirun",
    "mpiexec": "mpirun",
    "horovodrun": "horovodrun",
    "srun": "srun",
}
"""Words of a command line that tell what starts its ranks."""


@dataclass(frozen=True, slots=True)
class Ending:
    """`end.json`, or that there is none. `over`: it is there and not after the moment viewed."""

    over: bool = False
    exit_code: int | None = None
    signal: int | None = None
    at: float | None = None
    asked: str | None = None


def ending(content: Mapping[str, Json], until: float | None) -> Ending:
    """Reads `end.json`; in a replay of an earlier moment the job is not over yet."""
    at = moment(content.get("ended"))
    if not content or (until is not None and (at is None or at > until)):
        return Ending()
    return Ending(
        over=True,
        exit_code=whole(content.get("exit_code"), 0, 255),
        signal=whole(content.get("signal"), 1, 64),
        at=at,
        asked=text(content.get("asked"), 20),
    )


def told_by_launcher(end: Ending, asked: int | None) -> Ending:
    """The ending, with the signal that the launcher itself says it was asked to end by."""
    if end.asked is not None or asked is None:
        return end
    try:
        return replace(end, asked=signal.Signals(asked).name)
    except ValueError:
        return end


def job_of(
    path: Path,
    info: Mapping[str, Json],
    *,
    end: Ending,
    ranks: list[Rank],
    earlier: list[Rank],
    launcher_alive: bool | None,
) -> Job:
    """`launcher_alive`: None where this machine cannot tell."""
    command = command_of(info)
    begun = [rank.started for rank in (*ranks, *earlier) if rank.started is not None]
    ended = [rank.ended for rank in ranks if rank.ended is not None]
    outcome = outcome_of(end, ranks, launcher_alive)
    hosts = {rank.host for rank in ranks if rank.host} or {text(info.get("host"), 64) or ""}
    return Job(
        id=text(info.get("id"), 200) or path.resolve().name,
        command=command,
        cwd=text(info.get("cwd"), 4000),
        framework=_most_common(rank.metadata.framework for rank in ranks),
        strategy=_strategy(ranks),
        launcher=_launcher(ranks, command),
        world_size=next(iter(_counted(rank.world_size for rank in ranks)), None),
        hosts=tuple(sorted(host for host in hosts if host)),
        started=moment(info.get("started")) or min(begun, default=None),
        ended=end.at if end.over or outcome is Outcome.RUNNING else max(ended, default=None),
        outcome=outcome,
        exit_code=end.exit_code,
        signal=end.signal,
        asked=end.asked,
    )


def command_of(info: Mapping[str, Json]) -> tuple[str, ...]:
    """The command line that was started; empty where it is not recorded."""
    return tuple(words(info.get("command")) or ())


def outcome_of(end: Ending, ranks: list[Rank], launcher_alive: bool | None) -> Outcome:
    """How the job ended. HUNG is a judgement and left to rules."""
    there = [rank for rank in ranks if rank.state is not State.MISSING]
    return _finished(end, there) if end.over else _unfinished(there, launcher_alive)


def _finished(end: Ending, ranks: list[Rank]) -> Outcome:
    if end.asked is not None or _all_by_one_signal(end, ranks):
        return Outcome.KILLED
    fallen = [rank for rank in ranks if rank.signal or rank.exit_code or rank.error]
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


def this_host() -> str:
    """The name by which boxes and recordings call this machine."""
    return os.uname().nodename


def _all_by_one_signal(end: Ending, ranks: list[Rank]) -> bool:
    """Launcher and every rank were ended by the same signal: somebody ended the whole job. SIGKILL
    of a job of one process is that process's own end: the kernel's OOM killer does just that."""
    if end.signal == signal.SIGKILL:
        return len(ranks) != 1 and all(_silent(rank) for rank in ranks)
    return end.signal in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) and all(
        rank.signal == end.signal or _silent(rank) for rank in ranks
    )


def _silent(rank: Rank) -> bool:
    """Dead without a word, as SIGKILL leaves a process."""
    return (
        rank.state is State.DEAD
        and rank.exit_code is None
        and rank.signal in (None, signal.SIGKILL)
        and rank.error is None
    )


def _launcher(ranks: Iterable[Rank], command: Iterable[str]) -> str | None:
    """What the ranks say started them; the command line where they say nothing of use."""
    said = _most_common(rank.metadata.launcher for rank in ranks)
    if said not in (None, "none", "environment"):
        return said
    for word in command:
        if found := LAUNCHERS.get(word) or LAUNCHERS.get(Path(word).name):
            return found
    return None if said == "none" else said


def _strategy(ranks: list[Rank]) -> str | None:
    """What most say; a parameter server alone knows that it is one."""
    told = [rank.metadata.strategy for rank in ranks]
    return SERVED if SERVED in told else _most_common(told)


def _most_common(values: Iterable[Json]) -> str | None:
    found = next(iter(_counted(value for value in values if isinstance(value, str))), None)
    return text(found, 100)


def _counted(values: Iterable[Json]) -> list[Json]:
    return [value for value, _ in Counter(v for v in values if v is not None).most_common()]
