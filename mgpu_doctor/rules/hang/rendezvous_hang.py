"""Ranks wait in init_process_group for others, by their stacks and the process table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem.unexplained_failures import list_hosts_without_ranks
from mgpu_doctor.analysis.stacks.hang_analysis import Hang, Kind
from mgpu_doctor.analysis.stacks.progress import LEAST_BLOCKED, RankProgress
from mgpu_doctor.analysis.stacks.wait_classifier import Doing
from mgpu_doctor.case.model import AskedHost, Case, Rank, State
from mgpu_doctor.findings import Culprit, Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_count, format_ranks
from mgpu_doctor.rules.failures.log_rules import log_detector
from mgpu_doctor.rules.hang.rank_behind import report_blocked_ranks
from mgpu_doctor.rules.hang.stack_evidence import (
    LONG_WITHOUT_STEPS,
    culprit_rows,
    duration_row,
    find_culprit,
    hang_of_kind,
    is_long,
    name_ranks,
    rank_numbers,
    waiter_rows,
)
from mgpu_doctor.rules.rule import Detector, Limits, Rule

PAST_STARTUP = 60.0
"""Seconds after which a rank has imported its libraries: 3 to 20 s on a quiet machine."""
START_ALL_RANKS = Fix(
    "start-them-all",
    "Start as many ranks as WORLD_SIZE says, all with the same address",
    "Compare WORLD_SIZE, MASTER_ADDR and MASTER_PORT of all ranks (`tr '\\0' '\\n' < "
    "/proc/PID/environ | grep -E 'WORLD_SIZE|MASTER_|^RANK'`); rank 0 listens at that address. "
    "`torchrun --nproc-per-node N` sets them consistently; on several hosts its `--nnodes` and "
    "`--rdzv-endpoint` must be the same everywhere.",
)


def _find_rendezvous_hang(measures: Measures, _: Limits) -> Iterable[Finding]:
    hang = hang_of_kind(measures, Kind.JOINING)
    if hang is None:
        return
    alive = [progress for progress in hang.culprits if progress.state.doing is not Doing.DEAD]
    if alive and len(alive) == len(hang.culprits) and not hang.missing:
        yield from report_blocked_ranks(hang, measures, "hang-rendezvous")
    else:
        yield from _report_absent_ranks(hang, measures)


def _report_absent_ranks(hang: Hang, measures: Measures) -> Iterable[Finding]:
    """Ranks have exited or were never started, or no rank is at fault."""
    case = measures.case
    dead = [progress for progress in hang.culprits if progress.state.doing is Doing.DEAD]
    absent = sorted({*hang.missing, *rank_numbers(progress.state for progress in dead)})
    long = is_long(hang, case)
    hosts = [] if hang.complete else list_hosts_without_ranks(case)
    past = (hang.complete or bool(hosts)) and _are_past_startup(hang, case)
    if not absent and not long and not past:
        return  # they may be about to connect, or others may still start on other hosts
    waiting = name_ranks(hang.waiting)
    verb = "waits" if len(hang.waiting) == 1 else "wait"
    if absent:
        gone = f"{format_ranks(absent).capitalize()} {_describe_absence(absent, dead)}"
        title = f"{gone}; {waiting} {verb} in init_process_group"
    elif hosts:
        title = f"{name_hosts(hosts)} never joined; {waiting} {verb} in init_process_group"
    else:
        title = f"{waiting.capitalize()} {verb} in init_process_group, and no other rank joins"
    present = len(hang.waiting) + len(hang.culprits) - len(dead)
    states = {progress.state.rank: progress.state for progress in dead}
    yield Finding(
        code="hang-rendezvous",
        severity=Severity.CRITICAL if absent or long else Severity.WARNING,
        confidence=0.9 if long and not hosts else 0.75 if absent or hosts else 0.55,
        title=title,
        cause=" ".join(
            (_cause(absent, present, hang.world_size), *map(describe_host_without_ranks, hosts))
        ),
        culprits=(
            *(
                find_culprit(measures, states[rank]) if rank in states else Culprit(rank)
                for rank in absent
            ),
            *(Culprit(None, host.node or host.name) for host in hosts if not absent),
        ),
        victims=rank_numbers(hang.waiting),
        evidence=(
            Evidence("running ranks", present, "ranks", hang.world_size, "process table"),
            *culprit_rows(hang),
            *waiter_rows(hang),
            duration_row(hang, case),
        ),
        fixes=(START_ALL_RANKS,),
    )


def describe_host_without_ranks(host: AskedHost) -> str:
    """A sentence: what is known of a host that has no rank of the job."""
    if host.trouble is not None:
        return f"Host {host.name} is not seen: {host.trouble}."
    return f"Host {host.name} answers, and runs no rank of this job that has a black box."


def _describe_absence(absent: list[int], dead: Sequence[RankProgress]) -> str:
    is_one = len(absent) == 1
    if absent == sorted(rank_numbers(progress.state for progress in dead)):
        return "has exited" if is_one else "have exited"
    return "is not running" if is_one else "are not running"


def _are_past_startup(hang: Hang, case: Case) -> bool:
    """Whether all of them have run for so long that they are not just starting."""
    pids = {state.pid for state in hang.waiting}
    started = {rank.stack_pid: rank.started for rank in case.ranks if rank.stack_pid in pids}
    return len(started) == len(pids) and all(
        at is not None and case.job_snapshots[-1].at - at >= PAST_STARTUP for at in started.values()
    )


def _cause(absent: list[int], present: int, world_size: int | None) -> str:
    if absent:
        return (
            f"WORLD_SIZE is {world_size or 'larger'}, but only {format_count(present, 'rank')} "
            f"{'runs' if present == 1 else 'run'} here: the others were never started or have "
            "exited."
        )
    if world_size is not None and present >= world_size:
        return (
            "All ranks are running and waiting, but they do not find each other: their addresses, "
            "ports or world sizes differ, or a firewall is between them."
        )
    return (
        "The ranks of other hosts have not joined: they were not started, or use another address "
        "or port."
    )


def _find_unjoined_ranks(measures: Measures, _: Limits) -> Iterable[Finding]:
    """The same by black boxes, if the user named a host that has no rank: a rank that has a box
    and has not joined is in init_process_group."""
    case = measures.case
    hosts, ranks, world = list_hosts_without_ranks(case), case.ranks, case.job.world_size
    if not hosts or not ranks or world is None or len(ranks) >= world:
        return
    if not all(map(_is_joining, ranks)):
        return
    # The ranks themselves record nothing while they wait: afterwards, samples show how long.
    samples = (*(one.at for one in case.job_snapshots), *(one.at for one in case.host_samples))
    now = max([case.observed, *samples])
    youngest = max(rank.started if rank.started is not None else now for rank in ranks)
    if now - youngest < PAST_STARTUP:
        return
    numbers = tuple(rank.rank for rank in ranks if rank.rank is not None)
    verb = "waits" if len(ranks) == 1 else "wait"
    yield Finding(
        code="hang-rendezvous",
        severity=Severity.WARNING,
        confidence=0.7,
        title=f"{name_hosts(hosts)} never joined; {format_ranks(numbers)} {verb} in "
        "init_process_group",
        cause=" ".join((_cause([], len(ranks), world), *map(describe_host_without_ranks, hosts))),
        culprits=tuple(Culprit(None, host.node or host.name) for host in hosts),
        victims=numbers,
        evidence=(
            Evidence("ranks that asked to join", len(ranks), "ranks", world, "black boxes"),
            Evidence(
                "time since the last of them started", now - youngest, "s", None, "black boxes"
            ),
        ),
        fixes=(START_ALL_RANKS,),
    )


def _is_joining(rank: Rank) -> bool:
    """Whether it lives and is still in init_process_group."""
    lives = rank.state in (State.RUNNING, State.WAITING)
    return lives and not len(rank.steps) and not any(e.kind == "joined" for e in rank.events)


def name_hosts(hosts: Sequence[AskedHost]) -> str:
    """The hosts by name, to begin a sentence with."""
    noun = "Host" if len(hosts) == 1 else "Hosts"
    return f"{noun} {' and '.join(host.name for host in hosts)}"


RULES: tuple[Rule, ...] = (
    Rule(
        code="hang-rendezvous",
        family="hang",
        summary="The job never starts: ranks wait for others that do not join.",
        measured="By their stacks, ranks are blocked in init_process_group. The processes of the "
        "job are counted and compared with WORLD_SIZE; a rank that runs but is blocked elsewhere "
        "is named with its line.",
        thresholds=f"They must be blocked for {LEAST_BLOCKED:g} s, or for "
        f"{LONG_WITHOUT_STEPS:.0f} s if all missing ranks belong to other hosts. A host that was "
        f"named with `--hosts` and has no rank counts as absent once the others have run for "
        f"{PAST_STARTUP:g} s.",
        fixes="Start the missing ranks; compare WORLD_SIZE, MASTER_ADDR and MASTER_PORT.",
        examine=_find_rendezvous_hang,
        alternatives=(
            log_detector("hang-rendezvous"),
            Detector(
                _find_unjoined_ranks,
                "Without stacks: all ranks have black boxes, none has joined or recorded a step, "
                "and a host that was named with `--hosts` has no rank.",
                fallback=True,
            ),
        ),
    ),
)
