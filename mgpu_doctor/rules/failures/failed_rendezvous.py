"""Ranks that never joined the process group.

Ranks that timed out waiting for them are victims.
"""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem.unexplained_failures import find_rendezvous_timeouts
from mgpu_doctor.case.model import Case, State
from mgpu_doctor.findings import Culprit, Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_ranks
from mgpu_doctor.rules.failures import failure_text
from mgpu_doctor.rules.failures.log_rules import log_detector
from mgpu_doctor.rules.gpu.xid_evidence import XIDS_OF_ENDS
from mgpu_doctor.rules.hang.rendezvous_hang import (
    START_ALL_RANKS,
    describe_host_without_ranks,
    name_hosts,
)
from mgpu_doctor.rules.rule import Limits, Rule

SEEN, GUESSED = 0.9, 0.7
"""Confidence if the launcher reported every missing rank's process, and if one may never have been
started."""


def _never_meant(case: Case) -> bool:
    """Whether the launcher started all processes of its command, but the world size is larger."""
    there = [rank for rank in case.ranks if rank.state is not State.MISSING]
    local = {rank.metadata.local_world_size for rank in there}
    return len({rank.host for rank in there}) == 1 and local == {len(there)}


def _world_size(measures: Measures, _: Limits) -> Iterable[Finding]:
    case = measures.case
    absent = measures.postmortem.absent
    if not absent or not _never_meant(case):
        return
    world, started = len(case.ranks), len(case.ranks) - len(absent)
    waiters = find_rendezvous_timeouts(case)
    launcher = case.job.launcher or "the launcher"
    yield Finding(
        code="failed-world-size",
        severity=Severity.CRITICAL,
        confidence=SEEN,
        title=f"The process group waited for {world} ranks, and {launcher} started {started}",
        cause=f"WORLD_SIZE, or `world_size=` of init_process_group, is {world} although {launcher} "
        f"set it to {started}: the script or its configuration overrides it.",
        culprits=tuple(Culprit(rank.rank, rank.host) for rank in absent),
        victims=tuple(rank.rank for rank in waiters if rank.rank is not None),
        evidence=(
            Evidence("ranks of the process group", world, "ranks", started, "black boxes"),
            *failure_text.list_survivor_evidence(waiters[0]),
        ),
        fixes=(
            Fix(
                "launchers-world-size",
                "Let the launcher set the world size",
                "Remove `world_size` and `rank` from init_process_group and WORLD_SIZE from the "
                f"script (`os.environ[...] =`), or start `--nproc-per-node {world}`.",
            ),
        ),
    )


def _examine(measures: Measures, _: Limits) -> Iterable[Finding]:
    case = measures.case
    absent, hosts = measures.postmortem.absent, measures.postmortem.unjoined_hosts
    if not hosts and (not absent or _never_meant(case)):
        return
    waiters = find_rendezvous_timeouts(case)
    pids: dict[int | None, int | None] = {
        end.rank: end.pid for end in case.console.ends if end.rank is not None
    }
    all_known = not hosts and all(pids.get(rank.rank) is not None for rank in absent)
    victims = [rank.rank for rank in waiters if rank.rank is not None]
    missing = format_ranks(rank.rank for rank in absent if rank.rank is not None)
    who = name_hosts(hosts) if hosts else missing.capitalize()
    cause = "Nothing shows that the process was ever started, or it could not reach the others."
    if all_known:
        cause = (
            "The process was started but never called init_process_group in time: what it did "
            "instead was not measured."
        )
    yield Finding(
        code="failed-rendezvous",
        severity=Severity.CRITICAL,
        confidence=SEEN if all_known else GUESSED,
        title=f"{who} never joined the process group; {format_ranks(victims)} timed out waiting",
        cause=" ".join(map(describe_host_without_ranks, hosts)) or cause,
        culprits=(
            *(Culprit(rank.rank, rank.host, pid=pids.get(rank.rank)) for rank in absent),
            *(Culprit(None, host.node or host.name) for host in hosts),
        ),
        victims=tuple(victims),
        evidence=(
            Evidence(
                "ranks that asked to join",
                sum(rank.state is not State.MISSING for rank in case.ranks),
                "ranks",
                case.job.world_size,
                "black boxes",
            ),
            *failure_text.list_survivor_evidence(waiters[0]),
        ),
        fixes=(START_ALL_RANKS if hosts else _see_what_they_do(missing),),
    )


def _see_what_they_do(ranks: str) -> Fix:
    return Fix(
        "look-at-the-absent",
        f"See what {ranks} does before init_process_group",
        f"While it hangs, `py-spy dump --pid PID` on {ranks} shows the line. Usual causes: "
        "rank-dependent code before the call (a download, a lock), a WORLD_SIZE larger "
        "than the number of processes started, another MASTER_ADDR or MASTER_PORT.",
    )


RULES: tuple[Rule, ...] = (
    Rule(
        code="failed-rendezvous",
        family="failed",
        summary="Ranks never joined the process group, and the others timed out waiting for them.",
        measured="A rank's own exception says that others did not join in time, no rank failed for "
        "another reason, and some ranks have no black box: a rank opens its box when it enters "
        "init_process_group. A host that was named with `--hosts` and has no rank is reported "
        "instead of its ranks, if more ranks are missing than the other hosts lack by their "
        "LOCAL_WORLD_SIZE.",
        thresholds=f"Confidence {SEEN} if the launcher printed the missing rank's pid, else "
        f"{GUESSED}: it may never have been started.",
        fixes="Look at what the missing rank does before init_process_group; check WORLD_SIZE, "
        "MASTER_ADDR and MASTER_PORT.",
        examine=_examine,
        alternatives=(log_detector("failed-rendezvous"), XIDS_OF_ENDS),
    ),
    Rule(
        code="failed-world-size",
        family="failed",
        summary="The process group expects more ranks than were started.",
        measured="As for `failed-rendezvous`, but the launcher on the only host started all the "
        "processes it was asked for (LOCAL_WORLD_SIZE), fewer than the process group has ranks.",
        thresholds=f"No threshold: numbers are compared. Confidence {SEEN}.",
        fixes="Let the launcher set WORLD_SIZE; do not override it in the script.",
        examine=_world_size,
        alternatives=(log_detector("failed-world-size"), XIDS_OF_ENDS),
        replaces=("failed-rendezvous", "failed-exception"),
    ),
)
