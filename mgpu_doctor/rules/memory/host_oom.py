"""Host memory ran out, and a rank or one of its workers was killed or got no memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from mgpu_doctor.analysis.capacity.memory_growth import MemoryGrowth, find_growing_hosts
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem.failure_order import list_victims
from mgpu_doctor.analysis.postmortem.out_of_memory import (
    BY_FULL,
    BY_GROUP,
    BY_LOG,
    BY_MACHINE,
    FULL,
)
from mgpu_doctor.analysis.postmortem.rank_failures import (
    FailureKind,
    FullMemory,
    MemoryProof,
    OutOfMemory,
    RankFailure,
)
from mgpu_doctor.case.model import Case
from mgpu_doctor.findings import Finding, Fix, Predicted, Severity
from mgpu_doctor.formatting import format_bytes, format_share
from mgpu_doctor.rules.failures import failure_text
from mgpu_doctor.rules.failures.log_rules import log_detector
from mgpu_doctor.rules.memory import leaks, memory_users
from mgpu_doctor.rules.memory.memory_users import User
from mgpu_doctor.rules.memory.oom_evidence import describe_full_memory, make_evidence
from mgpu_doctor.rules.rule import Limit, Limits, Rule

MOSTLY = 0.5
"""Share of a rank's memory that must have grown step by step for a leak to be the cause."""


def _oom_host(measures: Measures, limits: Limits) -> Iterable[Finding]:
    case, postmortem = measures.case, measures.postmortem
    later = (tuple(each for each in event if each.memory) for event in postmortem.others)
    for victims in (postmortem.out_of_memory, *later):
        if victims and (memory := victims[0].memory) is not None:
            finding = _finding(case, victims, memory, limits)
            growing = find_growing_hosts(case, measures.step_seconds, limits["grown"])
            yield _by_leak(finding, growing)


def _finding(
    case: Case, culprits: Sequence[RankFailure], memory: OutOfMemory, limits: Limits
) -> Finding:
    first = culprits[0]
    use = memory_users.users(case, first)
    name = failure_text.who(culprits, case)
    return Finding(
        code="oom-host",
        severity=Severity.CRITICAL,
        confidence=memory.confidence
        if memory.proof is MemoryProof.KERNEL_LOG
        else min(memory.confidence, first.confidence),
        title=f"{name} {_ended(first, memory)}: {describe_full_memory(memory)}",
        cause=_cause(first, memory, use, limits),
        culprits=failure_text.culprits_of(culprits),
        victims=list_victims(case, culprits),
        evidence=(
            *make_evidence(memory),
            *memory_users.list_evidence(use),
            *failure_text.evidence_of(first, case, memory_of_host=False),
        ),
        since_step=first.last_step,
        fixes=_fixes(memory, use),
    )


def _by_leak(finding: Finding, growing: Sequence[MemoryGrowth]) -> Finding:
    """The finding, explained by a leak if most of the failed ranks' memory grew step by step."""
    accused = {culprit.rank for culprit in finding.culprits}
    leaking = [memory_growth for memory_growth in growing if memory_growth.rank.rank in accused]
    if not leaking or any(
        memory_growth.growth.sure < MOSTLY * memory_growth.growth.last for memory_growth in leaking
    ):
        return finding
    most = max(leaking, key=lambda memory_growth: memory_growth.growth.slope)
    return replace(
        finding,
        cause=f"It leaked: the memory of rank {most.rank.rank} grew by "
        f"{format_bytes(most.growth.slope)} per step, to {format_bytes(most.growth.last)} in "
        f"{most.growth.places:,.0f} steps. {finding.cause}",
        evidence=(*leaks.growth_rows(leaking), *finding.evidence),
        fixes=(leaks.ON_HOST, *(fix for fix in finding.fixes if fix.id == "more-memory")),
        replaces=(*finding.replaces, "leak-host"),
    )


def _ended(failure: RankFailure, memory: OutOfMemory) -> str:
    step = failure_text.after_step(failure)
    if failure.kind is FailureKind.EXCEPTION and not memory.is_child:
        at = failure_text.place(failure.error) if failure.error is not None else None
        return f"ran out of host memory{f' at {at}' if at else ''}{step}"
    whom = "lost a worker process" if memory.is_child else "was killed"
    return f"{whom} because host memory ran out{step}"


def _cause(failure: RankFailure, memory: OutOfMemory, use: Sequence[User], limits: Limits) -> str:
    full = describe_full_memory(memory)
    sentences = [f"{full[0].upper()}{full[1:]}"]
    if memory.group is not None:
        sentences[0] += f" ({memory.group})"
    sentences[0] += "."
    if failure.kind is FailureKind.EXCEPTION and not memory.is_child and failure.error is not None:
        sentences.append(f"The allocation failed: {failure_text.headline(failure.error)}.")
    else:
        whom = "a worker process of this rank" if memory.is_child else "this rank"
        sentences.append(f"The kernel's OOM killer chose {whom}.")
    own = next((user for user in use if user.pid == failure.pid), None)
    if own is not None and use[0].total >= limits["more"] * own.total:
        sentences.append(
            f"Rank {use[0].rank} used more: {format_bytes(use[0].total)} against "
            f"{format_bytes(own.total)} with their workers; the OOM killer does not always choose "
            "the largest."
        )
    everything, of_workers = sum(user.total for user in use), sum(user.of_workers for user in use)
    if everything and of_workers >= everything / 2:
        sentences.append(
            f"Worker processes held {format_bytes(of_workers)} of the {format_bytes(everything)} "
            "of the job."
        )
    return " ".join(sentences)


def _fixes(memory: OutOfMemory, use: Sequence[User]) -> tuple[Fix, ...]:
    return (_more_room(memory), fewer_workers(use), one_copy())


def _more_room(memory: OutOfMemory) -> Fix:
    if memory.full is FullMemory.PROCESS_LIMIT:
        how = "`ulimit -v unlimited` (or `-d`) before the job, or the same in limits.conf."
    elif memory.limit is not None:
        how = (
            "Docker: `--memory=…`; Kubernetes: `resources.limits.memory`; Slurm: `--mem` or "
            "`--mem-per-cpu`; systemd: `MemoryMax=`. /dev/shm counts towards it."
        )
    else:
        how = "A machine with more memory, fewer ranks on this one, or swap for short peaks."
    return Fix("more-memory", "Give the job more host memory", how)


def fewer_workers(use: Sequence[User] = ()) -> Fix:
    """A fix that reduces the memory of data-loader workers. `use`: memory by rank, if known."""
    of_workers, many = sum(user.of_workers for user in use), sum(user.workers for user in use)
    predicted = None
    if many > 1 and of_workers:
        basis = "measured: half of the workers' resident memory; pages that they share count twice"
        predicted = Predicted(None, -of_workers // 2, basis)
    return Fix(
        "fewer-workers",
        "Reduce the memory of the data loaders",
        "Halve `num_workers` and `prefetch_factor` of the DataLoader; keep samples in NumPy arrays "
        "or Arrow tables instead of lists of Python objects: every worker gradually copies those, "
        "as their reference counts change.",
        predicted,
    )


def one_copy() -> Fix:
    """A fix that holds one copy of the data for all ranks."""
    return Fix(
        "one-copy",
        "Hold one copy of the data for all ranks",
        "Memory-map it (`np.load(file, mmap_mode='r')`, `torch.load(file, mmap=True)`, Arrow), and "
        "load checkpoints with `mmap=True` or on one rank at a time: N ranks that each load the "
        "whole file need N times its size.",
    )


RULES: tuple[Rule, ...] = (
    Rule(
        code="oom-host",
        family="memory",
        summary="Host memory ran out: the kernel killed a rank or one of its workers, or refused "
        "it memory.",
        measured="The rank (or a child of it, such as a data-loader worker) ended by SIGKILL, and "
        "the kernel's log names its pid as killed for lack of memory, or `oom_kill` of its control "
        "group (version 1 or 2) or, where the log cannot be read, of the machine rose meanwhile. "
        "If the log was read and does not name it, another process sent SIGKILL: `failed-killed`. "
        "Also a MemoryError, or an allocator's error that host memory ran out. Memory use is from "
        "the last host sample before the failure; leaks are detected as for leak-host.",
        thresholds=f"Confidence: kernel log {BY_LOG}, the group's own counter {BY_GROUP}, the "
        f"machine's {BY_MACHINE}, a group that was {format_share(FULL)} full in the last sample "
        f"while nothing could be counted {BY_FULL}. `memory.events` and `memory.oom_control` count "
        "a kill in the group of the killed process (the kernel's mm/memcontrol.c).",
        fixes="Raise the limit, use fewer or lighter data-loader workers, hold one copy of the "
        "data.",
        examine=_oom_host,
        alternatives=(log_detector("oom-host"),),
        replaces=(
            "failed-killed",
            "failed-exception",
            "failed-signal",
            "failed-dataloader-worker",
        ),
        limits=(
            leaks.GROWN,
            Limit(
                "more",
                1.25,
                "ratio",
                "memory of another rank, as a multiple of the killed rank's, from which it is "
                "reported that it used more; ranks of one job are within a few per cent of each "
                "other.",
            ),
        ),
    ),
)
