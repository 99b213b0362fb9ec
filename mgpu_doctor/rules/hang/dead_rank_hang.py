"""A rank is gone and the others wait for it: by black boxes, else by processes and stacks."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem.dead_rank_stall import (
    LEAST_SECONDS,
    LEAST_STEPS,
    Stall,
)
from mgpu_doctor.analysis.postmortem.postmortem import with_memory
from mgpu_doctor.analysis.postmortem.rank_failures import FailureKind, RankFailure
from mgpu_doctor.analysis.stacks.hang_analysis import Hang, Kind
from mgpu_doctor.analysis.stacks.progress import LEAST_BLOCKED
from mgpu_doctor.analysis.stacks.thread_states import ThreadState
from mgpu_doctor.case.model import Case, Job, ProcessEnd, Rank
from mgpu_doctor.findings import Culprit, Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_count, format_ranks
from mgpu_doctor.rules.advice import EVEN_BATCHES, is_alive
from mgpu_doctor.rules.failures import failure_fixes, failure_text
from mgpu_doctor.rules.hang.stack_evidence import (
    MOST_ROWS,
    PROCESS_TABLE,
    describe_waiters,
    duration_row,
    find_culprit,
    hang_of_kind,
    name_process,
    rank_numbers,
    waiter_rows,
)
from mgpu_doctor.rules.rule import Limits, Rule

MOST_CONFIDENT = 0.95
MOST_PIDS = 64
"""Processes that the command to end the job lists."""
NO_ANSWER = "and will get no answer."


def _find_dead_rank(measures: Measures, _: Limits) -> Iterable[Finding]:
    stall = measures.postmortem.stall
    if stall is not None:
        yield _report_by_boxes(stall, measures.case)
    else:
        yield from _find_by_processes(measures)


# ------------------------------------------------------------------------------ by the black boxes


def _report_by_boxes(stall: Stall, case: Case) -> Finding:
    first = stall.culprits[0]
    name = failure_text.who(stall.culprits, case)
    if stall.left_cleanly:
        verb = "exited normally"
    else:
        verb = "is gone" if len(stall.culprits) == 1 else "are gone"
    return Finding(
        code="hang-rank-dead",
        severity=Severity.CRITICAL,
        confidence=min(first.confidence, MOST_CONFIDENT),
        title=f"{name} {verb}, and {format_count(len(stall.waiting), 'rank')} waited "
        f"{stall.seconds:.0f} s for an answer",
        cause=_cause(stall, case, name),
        culprits=failure_text.culprits_of(stall.culprits),
        victims=tuple(sorted(rank.rank for rank in stall.waiting if rank.rank is not None)),
        evidence=(
            Evidence(
                "time the survivors have waited since",
                round(stall.seconds, 3),
                "s",
                stall.threshold,
                "black boxes of the survivors",
                _common_site(stall.waiting),
            ),
            *failure_text.evidence_of(first, case),
        ),
        since_step=first.last_step,
        fixes=(*_fix_cause(stall, case.job), _end_job(case), _notice_sooner(case.job)),
    )


def _cause(stall: Stall, case: Case, name: str) -> str:
    first = stall.culprits[0]
    waiting = [rank.rank for rank in stall.waiting if rank.rank is not None]
    site = _common_site(stall.waiting) or "a collective or receive"
    verb = "waits" if len(waiting) == 1 else "wait"
    wait = f"{format_ranks(waiting).capitalize()} {verb} in {site} {NO_ANSWER}"
    if stall.left_cleanly:
        steps = f" after step {first.last_step}" if first.last_step is not None else ""
        return (
            f"{name} finished{steps} while the others had more to do: the ranks had unequal "
            f"numbers of batches, or one left the loop early. {wait}"
        )
    return f"{name} {failure_text.death(first)}. {failure_text.cause_of(first, case)} {wait}"


def _common_site(waiting: Iterable[Rank]) -> str | None:
    sites = Counter(rank.now.site for rank in waiting if rank.now and rank.now.site)
    return sites.most_common(1)[0][0] if sites else None


def _fix_cause(stall: Stall, job: Job) -> tuple[Fix, ...]:
    return (EVEN_BATCHES,) if stall.left_cleanly else failure_fixes.fixes_of(stall.culprits[0], job)


def _end_job(case: Case, more: str = "") -> Fix:
    alive = [rank.pid for rank in case.ranks if is_alive(case, rank.pid)]
    pids = " ".join(map(str, alive[:MOST_PIDS]))
    how = f"Ctrl-C in its terminal, or `kill {pids}`." if pids else "Ctrl-C in its terminal."
    return Fix("end-the-job", "End the job: it cannot continue", f"{how} {more}".strip())


def _notice_sooner(job: Job) -> Fix:
    timeout = (
        "`dist.init_process_group(…, timeout=timedelta(minutes=2))` turns a wait without an answer "
        "into an error (the default is 30 minutes for gloo, 10 for NCCL)."
    )
    if job.launcher == "torchrun":
        return Fix("shorter-timeout", "Set a shorter timeout", timeout)
    return Fix(
        "supervise",
        "Use a launcher that ends the other ranks when one exits",
        f"Start with `torchrun --standalone --nproc-per-node {job.world_size or 'N'} SCRIPT`: it "
        f"ends the job as soon as one rank fails. {timeout}",
    )


# ---------------------------------------------------------------- by the process table and stacks


def _find_by_processes(measures: Measures) -> Iterable[Finding]:
    hang = hang_of_kind(measures, Kind.ABSENT)
    if hang is None:
        return
    case = measures.case
    states = {progress.state.rank: progress.state for progress in hang.culprits}
    gone = sorted({*hang.missing, *rank_numbers(progress.state for progress in hang.culprits)})
    name = format_ranks(gone).capitalize() if gone else "A rank"
    verb = "is gone" if len(gone) <= 1 else "are gone"
    lasts = hang.seconds >= LEAST_BLOCKED
    yield Finding(
        code="hang-rank-dead",
        severity=Severity.CRITICAL,
        confidence=0.9 if lasts else 0.75,
        title=f"{name} {verb}{describe_waiters(hang, max(1, len(gone)), certain=True)}",
        cause=f"Its process has ended and the others were not ended: they wait {NO_ANSWER} "
        + _how_it_ended(hang, case),
        culprits=tuple(
            find_culprit(measures, states[rank]) if rank in states else Culprit(rank)
            for rank in gone
        ),
        victims=rank_numbers(hang.waiting),
        evidence=(
            *_gone_rows(hang, case),
            *waiter_rows(hang),
            *((duration_row(hang, case),) if lasts else ()),
        ),
        fixes=(
            _end_job(case, "The last output of that rank may say why it ended."),
            Fix(
                "supervise",
                "Use a launcher that ends the other ranks when one exits",
                "`torchrun` and `mpirun` do so; give `srun` `--kill-on-bad-exit=1`.",
            ),
        ),
    )


def _how_it_ended(hang: Hang, case: Case) -> str:
    if not any(progress.state.process.state == "Z" for progress in hang.culprits):
        return "How it ended is unknown; its console and the kernel log (`dmesg -T`) may say."
    state = hang.culprits[0].state
    end = _find_end(state, case)
    if end is None:
        return "Its parent has not yet read its exit status."
    if end.signal is None:
        return f"It ended with exit code {end.exit_code}."
    kind = FailureKind.KILLED if end.signal == signal.SIGKILL else FailureKind.SIGNAL
    failure = RankFailure(
        kind, state.rank, PROCESS_TABLE, 0.97, pid=state.host_pid, signal=end.signal
    )
    return failure_text.cause_of(with_memory(failure, case), case)


def _find_end(state: ThreadState, case: Case) -> ProcessEnd | None:
    """How its process ended; None: unknown, or processes of two hosts with its pid have ended."""
    ends = [end for end in case.ends if end.pid == state.host_pid]
    return ends[0] if len(ends) == 1 else None


def _gone_rows(hang: Hang, case: Case) -> Iterable[Evidence]:
    for progress in hang.culprits[:MOST_ROWS]:
        state = progress.state
        end = _find_end(state, case)
        how = "a zombie" if state.process.state == "Z" else "gone"
        if end is not None and (end.signal is not None or end.exit_code is not None):
            how += f", signal {end.signal}" if end.signal else f", exit code {end.exit_code}"
        yield Evidence(name_process(state), how, "text", None, PROCESS_TABLE)
    for rank in hang.missing[:MOST_ROWS]:
        yield Evidence(f"rank {rank}", "no process", "text", None, PROCESS_TABLE)


RULES: tuple[Rule, ...] = (
    Rule(
        code="hang-rank-dead",
        family="hang",
        summary="A rank is gone and the others wait for it.",
        measured="A rank's process has ended, by its black box, its exit status or the process "
        "table, and the black boxes of other ranks show that they have waited in a collective or "
        "receive ever since. Its own record, its exit status or the console, in this order, say "
        "why it ended. After a launcher has noticed and ended the job, the finding is one of "
        "`failed-*` instead. Without black boxes, the process table and the stacks of the other "
        "ranks show it.",
        thresholds=f"The others have waited for {LEAST_SECONDS:.0f} s (a launcher needs time to "
        f"notice; torch's agent polls every 0.1 s) and for {LEAST_STEPS:.0f} median steps.",
        fixes="Fix why the rank ended, and end the job. Use a launcher that supervises its ranks, "
        "or set a shorter timeout.",
        examine=_find_dead_rank,
        replaces=("failed-exception", "failed-killed", "failed-signal", "oom-host"),
    ),
)
