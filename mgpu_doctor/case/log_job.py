"""The job and its ranks, as far as console text shows them. `log_case` calls this."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mgpu_probes.outside.jobs.launchers import find_launcher_in_log
from mgpu_probes.outside.logs.scanned_logs import Hit, Scanned

from mgpu_doctor.case.model import Job, LoggedEnd, Outcome, Rank, State
from mgpu_doctor.case.placeholders import blank_rank
from mgpu_doctor.formatting import name_signal


@dataclass(frozen=True, slots=True)
class Fact:
    """A known line that is no failure and names the world size in its group `world`."""

    id: str
    needle: str
    pattern: str
    least: int = 1
    heads: tuple[str, ...] = ()


FACTS = (
    Fact("says-world-size", "world_size", r"\bworld_size\b['\"]?\s?[:=]\s?(?P<world>\d{1,6})\b"),
    Fact("says-WORLD_SIZE", "WORLD_SIZE", r"\bWORLD_SIZE\b['\"]?\s?[:=]\s?(?P<world>\d{1,6})\b"),
    Fact(
        "says-world-size-in-words", "world size", r"\b[Ww]orld size\s?[:=]\s?(?P<world>\d{1,6})\b"
    ),
    Fact("says-member", "GLOBAL_RANK", r"GLOBAL_RANK: \d+, MEMBER: \d+/(?P<world>\d{1,6})\b"),
    Fact(
        "says-registered",
        "All distributed processes registered",
        r"All distributed processes registered\. Starting with (?P<world>\d{1,6}) processes",
    ),
)
"""Lines that name the world size: torch's and Lightning's own, and what most scripts print."""

_FRAMEWORKS = (("/tensorflow/", "tensorflow"), ("/keras/", "tensorflow"), ("/torch/", "torch"))


def world_size_of(hits: Iterable[Hit]) -> int | None:
    """The world size that the text names; None if it names none, or different ones."""
    facts = {fact.id for fact in FACTS}
    named = {
        int(value)
        for hit in hits
        if hit.signature in facts
        for value in hit.values.values()
        if int(value) > 0
    }
    return named.pop() if len(named) == 1 else None


def job_of_logs(
    scanned: Sequence[Scanned],
    ends: Iterable[LoggedEnd],
    asked: int | None,
    world_size: int | None,
) -> Job:
    """The job. It is never known to be completed: text that stops may have lost its end."""
    failed = any(end.error or end.exit_code or end.signal for end in ends)
    outcome = Outcome.KILLED if asked else Outcome.FAILED if failed else Outcome.UNKNOWN
    text = "\n".join(line for log in scanned for line in _kept_lines(log))
    began = [log.began for log in scanned if log.began is not None]
    ended = [log.ended for log in scanned if log.ended is not None]
    return Job(
        id=os.path.basename(scanned[0].source),
        command=(),
        cwd=None,
        framework=next((name for mark, name in _FRAMEWORKS if mark in text), None),
        strategy=None,
        launcher=find_launcher_in_log(text),
        world_size=world_size,
        hosts=(),
        started=min(began, default=None),
        ended=max(ended, default=None),
        outcome=outcome,
        exit_code=None,
        signal=None,
        asked=name_signal(asked),
    )


def ranks_of_logs(
    seen: Collection[int],
    ends: Iterable[LoggedEnd],
    hosts: Mapping[int, str],
    job: Job,
    *,
    alive: bool,
) -> tuple[Rank, ...]:
    """The ranks that printed something, or whose end was printed. `alive`: the logs still grow, so
    ranks without a known end are running."""
    ends_by_rank: dict[int, list[LoggedEnd]] = {number: [] for number in seen}
    for end in ends:
        if end.rank is not None:
            ends_by_rank.setdefault(end.rank, []).append(end)
    alive = alive and job.outcome is Outcome.UNKNOWN
    return tuple(
        _rank(number, ends_by_rank[number], hosts.get(number, ""), job, alive=alive)
        for number in sorted(ends_by_rank)
    )


def _rank(number: int, ends: Sequence[LoggedEnd], host: str, job: Job, *, alive: bool) -> Rank:
    status = next((e for e in ends if e.exit_code is not None or e.signal is not None), None)
    code = status.exit_code if status else None
    killed = status.signal if status else None
    raised = any(end.error for end in ends)
    state = State.RUNNING if alive else State.EXITED
    if killed or (raised and code is None):
        state = State.DEAD
    return blank_rank(
        rank=number,
        world_size=job.world_size,
        host=host,
        pid=next((end.pid for end in ends if end.pid is not None), None),
        state=state,
        exit_code=code,
        signal=killed,
    )


def _kept_lines(scanned: Scanned) -> Iterable[str]:
    yield from (line.text for line in scanned.kept_lines)
    yield from scanned.tail
