"""Ranks are blocked elsewhere while the others wait for them, by their stacks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem import dead_rank_stall as stall
from mgpu_doctor.analysis.stacks import frames
from mgpu_doctor.analysis.stacks.hang_analysis import (
    LONG_WAIT,
    Hang,
    Kind,
)
from mgpu_doctor.analysis.stacks.progress import LEAST_BLOCKED, NAPS, RankProgress
from mgpu_doctor.analysis.stacks.thread_states import ThreadState
from mgpu_doctor.analysis.stacks.wait_classifier import HOLDING_GIL, TENSORFLOW, Doing
from mgpu_doctor.case.model import Case
from mgpu_doctor.findings import Finding, Fix, Severity
from mgpu_doctor.formatting import format_seconds, format_share
from mgpu_doctor.rules.advice import has_living_rank
from mgpu_doctor.rules.failures.log_rules import log_detector
from mgpu_doctor.rules.hang import blocked_rank, mismatch
from mgpu_doctor.rules.hang.blocked_rank import WaitAssessment
from mgpu_doctor.rules.hang.device_behind import DEVICE_BEHIND
from mgpu_doctor.rules.hang.failed_wait import FAILED_WAIT
from mgpu_doctor.rules.hang.stack_evidence import (
    LONG_WITHOUT_STEPS,
    culprit_rows,
    describe_waiters,
    duration_row,
    find_culprit,
    hang_of_kind,
    hang_seconds,
    have_timed_out,
    is_long,
    long_seconds,
    name_ranks,
    rank_numbers,
    waiter_rows,
)
from mgpu_doctor.rules.rule import Detector, Limits, Rule

CODE = "hang-rank-behind"
CONFIDENCE_ALONE = 0.6
"""Confidence that a rank without a process group, which nothing waits for, hangs."""
_NOTHING = frozenset({Doing.LOCK, Doing.SLEEPING, Doing.BLOCKED, Doing.PROMPT})
"""What such a rank is seen doing: one that reads may wait for work or for storage."""
_FOR_NOBODY = frozenset({Doing.LOCK, Doing.PROMPT})
"""What it does not do on purpose. It may sleep on purpose: an evaluation every few minutes does."""
_FOR_PROCESSES = ("multiprocessing/", "concurrent/futures/", "subprocess.py")
"""Libraries in which a process waits for another one, other than at the start of a `with` block,
for a lock."""
CONFIDENCE_IF_LONG, CONFIDENCE_OF_LONG_WORK = 0.93, 0.7
"""Confidence in a long hang: if the rank waits, and if it may be doing legitimate work."""


def _find_rank_behind(measures: Measures, _: Limits) -> Iterable[Finding]:
    hang = hang_of_kind(measures, Kind.BEHIND)
    if hang is None:
        return
    if not measures.structure.independent:
        yield from report_blocked_ranks(hang, measures, CODE)
        return
    wrong = tuple(filter(_is_wrong_alone, hang.culprits))
    still = [
        progress
        for progress in hang.culprits
        if progress not in wrong and _stands_still(progress, measures.case)
    ]
    if wrong:
        yield from report_blocked_ranks(replace(hang, culprits=wrong), measures, CODE)
    if still:
        yield _report_still_ranks(hang, still, measures)


def report_blocked_ranks(hang: Hang, measures: Measures, code: str) -> Iterable[Finding]:
    """A finding with this code about ranks that are blocked while others wait for them."""
    case = measures.case
    long = is_long(hang, case)
    may_go_on = any(progress.computing for progress in hang.culprits)
    assessed = [_assess(progress, hang, long=long) for progress in hang.culprits]
    known = [assessment for assessment in assessed if assessment is not None]
    if not known or len(known) < len(assessed):
        return
    is_permanent = all(assessment.is_permanent for assessment in known)
    if not hang.waiting and not all(map(_is_wrong_alone, hang.culprits)):
        return
    certain = is_permanent or (long and (not may_go_on or have_timed_out(hang, case)))
    if not certain and _may_all_work(hang):
        return
    worst = max(
        hang.culprits, key=lambda progress: blocked_rank.wait_priority(progress.state.point.doing)
    )
    yield Finding(
        code=code,
        severity=Severity.CRITICAL if certain else Severity.WARNING,
        confidence=min(assessment.confidence for assessment in known),
        title=_title(hang, worst, certain=certain),
        cause=_cause(hang, worst, certain=certain, seconds=hang_seconds(hang, case)),
        culprits=tuple(find_culprit(measures, progress.state) for progress in hang.culprits),
        victims=rank_numbers(hang.waiting),
        evidence=(*culprit_rows(hang), *waiter_rows(hang), duration_row(hang, case)),
        fixes=(
            *blocked_rank.suggest_fixes(worst, alive=has_living_rank(case)),
            *_fix_if_unsure(worst, is_permanent=is_permanent, is_over=case.job.ended is not None),
        ),
    )


def _stands_still(progress: RankProgress, case: Case) -> bool:
    """Whether a rank without a process group has done nothing for long, at a place where it does
    not wait for another process."""
    state = progress.state.point
    if state.doing not in _NOTHING or not (progress.idle and progress.process_idle):
        return False
    called = [
        each
        for each in frames.called_frames(state.trail)
        if frames.function_name(each) != "__enter__"
    ]
    if frames.is_any_in(called, *_FOR_PROCESSES):
        return False
    own = [rank for rank in case.ranks if rank.stack_pid == progress.state.pid]
    return case.job_snapshots[-1].at - progress.since >= long_seconds(own)


def _report_still_ranks(hang: Hang, still: Sequence[RankProgress], measures: Measures) -> Finding:
    newest = measures.case.job_snapshots[-1].at
    seconds = newest - max(progress.since for progress in still)
    hang = replace(hang, culprits=tuple(still), seconds=seconds)
    worst = max(still, key=lambda each: blocked_rank.wait_priority(each.state.point.doing))
    is_locked = worst.state.point.doing is Doing.LOCK
    one = len(still) == 1
    return Finding(
        code=CODE,
        severity=Severity.WARNING if worst.state.point.doing in _FOR_NOBODY else Severity.INFO,
        confidence=CONFIDENCE_ALONE,
        title=f"{_title(hang, worst, certain=False)}, for {format_seconds(seconds)}",
        cause=f"{_describe_path(worst.state.point)} The ranks have no process group, so no "
        f"other rank waits for {'it' if one else 'them'}. If {'it waits' if one else 'they wait'} "
        "there on purpose, this is no fault.",
        culprits=tuple(find_culprit(measures, progress.state) for progress in still),
        evidence=(*culprit_rows(hang), duration_row(hang, measures.case)),
        fixes=(
            *(blocked_rank.suggest_fixes(worst, alive=True) if is_locked else ()),
            _LOOK_AGAIN,
        ),
    )


def _is_wrong_alone(progress: RankProgress) -> bool:
    """Whether this is a fault even if no rank is seen waiting; other waits may be for work."""
    state = progress.state.point
    is_worker_deadlock = progress.state.worker is not None and state.doing is Doing.LOCK
    return is_worker_deadlock or state.doing in (Doing.STOPPED, *HOLDING_GIL)


def _may_all_work(hang: Hang) -> bool:
    """Whether the waiting ranks may be busy: a wait for a GPU can be a long step, in which a rank
    that sleeps meanwhile may have no part."""
    return bool(hang.waiting) and all(map(_may_work, hang.waiting))


def _may_work(state: ThreadState) -> bool:
    if state.operation == TENSORFLOW and state.process.on_device is False:
        return False  # on a CPU, where an idle process computes nothing
    return state.doing in (Doing.DEVICE, Doing.OWN)


def _assess(progress: RankProgress, hang: Hang, *, long: bool) -> WaitAssessment | None:
    waiting = {state.pid for state in hang.waiting}
    assessment = blocked_rank.assess_wait(progress, hang.snapshots, waiting)
    if not long or progress.computing or (assessment is not None and assessment.is_permanent):
        return assessment
    return WaitAssessment(
        False, CONFIDENCE_OF_LONG_WORK if assessment is None else CONFIDENCE_IF_LONG
    )


def _title(hang: Hang, worst: RankProgress, *, certain: bool) -> str:
    count = len(hang.culprits)
    activity = blocked_rank.describe_activity(worst)
    if count > 1:
        activities = {blocked_rank.describe_activity(progress) for progress in hang.culprits}
        activity = f"are blocked: {'each' if len(activities) == 1 else 'one'} {activity}"
    name = name_ranks(progress.state for progress in hang.culprits).capitalize()
    return f"{name} {activity}{describe_waiters(hang, count, certain=certain)}"


def _cause(hang: Hang, worst: RankProgress, *, certain: bool, seconds: float) -> str:
    state, rank = worst.state.point, worst.state.rank
    sentences = []
    if state.doing is Doing.STOPPED:
        who = "The process" if rank is None else f"The process of rank {rank}"
        sentences.append(f"{who} is in state T (stopped) and gets no CPU time.")
    elif state.trail:
        sentences.append(_describe_path(state))
    if hang.waiting:
        verb = "does not reach" if certain else "has not yet reached"
        sentences.append(f"It {verb} the call in which the other ranks wait.")
    if not certain:
        sentences.append(
            f"It has been there for only {seconds:.1f} s and may still continue: check again."
        )
    return " ".join(sentences)


def _describe_path(state: ThreadState) -> str:
    calls = (
        f"{frames.function_name(frame)} {frames.format_location(frame)}"
        for frame in state.trail[-4:]
    )
    return f"Call path: {' → '.join(calls)}."


def _fix_if_unsure(worst: RankProgress, *, is_permanent: bool, is_over: bool) -> tuple[Fix, ...]:
    if is_permanent or worst.state.point.doing is Doing.STOPPED:
        return ()
    if is_over:
        place = (blocked_rank.source_line(worst.state) or "that line").rpartition("/")[2]
        return (
            Fix(
                "look-there",
                f"Find out why it is blocked at {place}",
                "Set a limit on what it waits for or repeats there, and raise an error at the "
                "limit: that ends the job at once, with a traceback. If the job hangs again, run "
                "`mgpu-doctor diagnose` meanwhile to see whether the rank still moves.",
            ),
        )
    return (_LOOK_AGAIN,)


_LOOK_AGAIN = Fix(
    "look-again",
    "Check whether it continues by itself",
    "Run `mgpu-doctor diagnose` on the job again: a rank that is still blocked at the same line is "
    "unlikely to continue.",
)


RULES: tuple[Rule, ...] = (
    Rule(
        code=CODE,
        family="hang",
        summary="Ranks never reach a collective in which the others wait.",
        measured="The stacks of all ranks and of their data-loader workers are sampled from "
        "outside, several times. A process that stays at the same line and uses no CPU is blocked. "
        "If it is blocked in a collective, a receive or the backward pass, it waits for other "
        "ranks; if it is blocked anywhere else, the others wait for it. The innermost frames, the "
        "system call and the GIL show what it is doing. A stopped rank is reported from the first "
        "snapshot on. If all ranks wait at the same place, no one is blamed. torch's flight "
        "recorder also shows it: ranks that never called a collective in which the others wait. Of "
        "ranks without a process group, each that cannot continue by itself is reported, and each "
        "whose process has used no CPU for long, unless it waits for another process: a warning if "
        "it waits for a lock or at a prompt, else a note, because it may sleep on purpose.",
        thresholds=f"Every process of the job must be blocked for {LEAST_BLOCKED:g} s; a rank that "
        f"polls and sleeps may use {format_share(NAPS)} of a core if the ranks that wait for it "
        f"use none, for {LONG_WAIT:g} s unless it sleeps at one line. A rank that cannot continue "
        "by itself (stopped, deadlocked, holding the GIL while it waits) is critical at once. A "
        "rank that sleeps, reads or loops is a warning until it has lasted for"
        f" {stall.LEAST_SECONDS:.0f} s and {stall.LEAST_STEPS:.0f} "
        f"median steps, or for {LONG_WITHOUT_STEPS:.0f} s if no steps were recorded. The scheduler "
        "says how long a thread has not run (/proc/PID/sched). Saving, compiling and importing are "
        "reported only after that time. A rank that computes in one call of the user's is a "
        f"warning if no other rank has run for {LONG_WAIT:g} s in a collective in which the host "
        "sleeps.",
        fixes="Depends on what the rank is doing: release the lock, set a timeout, fix the "
        "dataset, `kill -CONT`.",
        examine=_find_rank_behind,
        needs=("hang",),
        alternatives=(
            DEVICE_BEHIND,
            Detector(mismatch.find_rank_behind),
            FAILED_WAIT,
            log_detector("hang-rank-behind"),
        ),
    ),
)
