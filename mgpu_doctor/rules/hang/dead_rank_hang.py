"""Survivors wait for a rank that is gone: by black boxes, else by the process table and stacks."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.stacks import hang_analysis
from mgpu_doctor.analysis.stacks.hang_analysis import Kind
from mgpu_doctor.analysis.stacks.progress import Motion
from mgpu_doctor.case.model import Case, Job, Rank, State
from mgpu_doctor.findings import Culprit, Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_ranks
from mgpu_doctor.rules.falls import afterwards, falls, obituary
from mgpu_doctor.rules.falls.leavers import EVEN_BATCHES
from mgpu_doctor.rules.hang.stack_evidence import (
    EVIDENCE_RANKS,
    culprit,
    judged,
    label,
    numbers,
    seen_standing,
    suffering,
    whereabouts,
)
from mgpu_doctor.rules.hang.stall import LEAST_SECONDS, LEAST_STEPS, Stall, stall_of
from mgpu_doctor.rules.rule import Limits, Rule


def _rank_dead(measures: Measures, _: Limits) -> Iterable[Finding]:
    case = measures.case
    stall = stall_of(case)
    if stall is None:
        yield from _by_process_table(measures)
        return
    first = stall.culprits[0]
    victims = tuple(sorted(rank.rank for rank in stall.waiting if rank.rank is not None))
    name = obituary.who(stall.culprits, case)
    many = len(stall.waiting)
    others = f"{many} rank{'s' if many > 1 else ''}"
    verb = "left in good order" if stall.left_cleanly else "is gone"
    if len(stall.culprits) > 1 and not stall.left_cleanly:
        verb = "are gone"
    site = _site(stall.waiting)
    yield Finding(
        code="hang-rank-dead",
        severity=Severity.CRITICAL,
        confidence=min(first.confidence, 0.95),
        title=f"{name} {verb}, and {others} waited {stall.seconds:.0f} s for an answer",
        cause=_cause(stall, measures, name),
        culprits=obituary.culprits_of(stall.culprits),
        victims=victims,
        evidence=(
            Evidence(
                "time that the survivors have waited since",
                round(stall.seconds, 3),
                "s",
                stall.threshold,
                "black boxes of the survivors",
                site,
            ),
            *obituary.evidence_of(first, case),
        ),
        since_step=first.last_step,
        fixes=(*_fixes(stall, case.job), _end_it(case.ranks), _notice_sooner(case.job)),
    )


def _cause(stall: Stall, measures: Measures, name: str) -> str:
    first = stall.culprits[0]
    site = _site(stall.waiting)
    waiting = [rank.rank for rank in stall.waiting if rank.rank is not None]
    stand = f"{format_ranks(waiting).capitalize()} stand{'s' if len(waiting) == 1 else ''}"
    where = f" in {site}" if site else " in a collective or receive"
    if stall.left_cleanly:
        steps = f" after step {first.last_step}" if first.last_step is not None else ""
        return (
            f"{name} ended normally{steps} while the others had more to do: ranks had unequal "
            f"numbers of batches, or one left the loop early. {stand}{where} and will get no "
            "answer."
        )
    why = obituary.cause_of(first, measures.case)
    return f"{name} {obituary.death(first)}. {why} {stand}{where} and will get no answer."


def _fixes(stall: Stall, job: Job) -> tuple[Fix, ...]:
    if not stall.left_cleanly:
        return afterwards.fixes_of(stall.culprits[0], job)
    return (EVEN_BATCHES,)


def _end_it(ranks: Iterable[Rank]) -> Fix:
    alive = [r.pid for r in ranks if r.state in (State.RUNNING, State.WAITING) and r.pid]
    pids = " ".join(map(str, alive[:64]))
    return Fix(
        "end-the-job",
        "End the job: waiting helps no more",
        f"Ctrl-C in its terminal, or `kill {pids}`." if pids else "Ctrl-C in its terminal.",
    )


def _notice_sooner(job: Job) -> Fix:
    timeout = (
        "`dist.init_process_group(…, timeout=timedelta(minutes=2))` ends a wait without an answer "
        "by an error (the default is 30 minutes for gloo, 10 for NCCL)."
    )
    if job.launcher == "torchrun":
        return Fix("shorter-timeout", "Notice it sooner next time", timeout)
    ranks = job.world_size or "N"
    return Fix(
        "supervise",
        "Let a launcher end the others when one dies",
        f"Start with `torchrun --standalone --nproc-per-node {ranks} SCRIPT`: it ends the job as "
        f"soon as one rank fails. {timeout}",
    )


def _site(waiting: Iterable[Rank]) -> str | None:
    sites = Counter(rank.now.site for rank in waiting if rank.now and rank.now.site)
    return sites.most_common(1)[0][0] if sites else None


def _how_it_ended(one: Motion, case: Case) -> str | None:
    """How the first of them ended, as its zombie and the kernel's log tell."""
    pid, rank = one.posture.pid, one.posture.rank
    end = next((end for end in case.ends if end.pid == pid), None)
    if end is None:
        return None
    if end.signal is None:
        return f"It ended with exit code {end.exit_code}."
    kind = falls.Kind.KILLED if end.signal == signal.SIGKILL else falls.Kind.SIGNAL
    fall = falls.Fall(kind, rank, "process table", 0.97, pid=pid, signal=end.signal)
    return obituary.cause_of(fall, case)


def _by_process_table(measures: Measures) -> Iterable[Finding]:
    """`hang-rank-dead` by the process table: ranks are gone, and the others wait for them."""
    standing = judged(measures, Kind.ABSENT)
    if standing is None:
        return
    case = measures.case
    gone = sorted({*standing.missing, *numbers(one.posture for one in standing.culprits)})
    pids = {one.posture.rank: one.posture for one in standing.culprits}
    ends = {end.pid: end for end in case.ends}
    name = format_ranks(gone).capitalize() if gone else "A rank"
    verb = "is gone" if len(gone) <= 1 else "are gone"
    state = {one.posture.process.state for one in standing.culprits}
    rows = []
    for one in standing.culprits[:EVIDENCE_RANKS]:
        end = ends.get(one.posture.pid)
        how = "a zombie" if one.posture.process.state == "Z" else "gone"
        if end is not None and (end.signal is not None or end.exit_code is not None):
            how += f", signal {end.signal}" if end.signal else f", exit code {end.exit_code}"
        rows.append(Evidence(label(one.posture), how, "text", None, "process table"))
    rows += [
        Evidence(f"rank {number}", "no process", "text", None, "process table")
        for number in standing.missing[:EVIDENCE_RANKS]
    ]
    lasts = standing.seconds >= hang_analysis.LEAST_SECONDS
    yield Finding(
        code="hang-rank-dead",
        severity=Severity.CRITICAL,
        confidence=0.9 if lasts else 0.75,
        title=f"{name} {verb}{suffering(standing, True, max(1, len(gone)))}",
        cause="Its process has ended, and nobody has ended the others: they will get no answer. "
        + (
            (
                _how_it_ended(standing.culprits[0], case)
                or "Its parent has not yet read its exit status."
            )
            if "Z" in state
            else "How it ended was not seen; its console and the kernel's log (`dmesg -T`) tell."
        ),
        culprits=tuple(
            culprit(measures, pids[number]) if number in pids else Culprit(number)
            for number in gone
        ),
        victims=numbers(standing.waiting),
        evidence=(*rows, *whereabouts(standing)[len(standing.culprits[:EVIDENCE_RANKS]) :])
        + ((seen_standing(standing, case),) if lasts else ()),
        fixes=(
            Fix(
                "end-the-job",
                "End the job: waiting helps no more",
                "`kill " + " ".join(str(one.pid) for one in standing.waiting[:64]) + "`, and see "
                "in what that rank printed last why it ended.",
            ),
            Fix(
                "supervise",
                "Let a launcher end the others when one dies",
                "`torchrun` and `mpirun` do so; give `srun` `--kill-on-bad-exit=1`.",
            ),
        ),
    )


RULES: tuple[Rule, ...] = (
    Rule(
        code="hang-rank-dead",
        family="hang",
        summary="A rank is gone and the others wait for it.",
        measured="A rank's process has ended, by its black box, its exit status or the process "
        "table, while the black boxes of others say that they have stood in a collective or "
        "receive ever since. Why the rank ended is taken from its own record, its exit status or "
        "the console, in this order. Once the launcher has noticed the death and ended the job, "
        "the finding is one of `failed-*` instead. Without boxes: by the process table "
        "and the stacks of the others.",
        thresholds=f"A wait of {LEAST_SECONDS:.0f} s since the death (so that a launcher has time "
        f"to notice it by itself; torch's agent looks every 0.1 s) and of {LEAST_STEPS:.0f} median "
        "steps.",
        fixes="Mend why the rank ended; end the job; let a launcher that supervises its ranks "
        "start it, or set a shorter timeout.",
        examine=_rank_dead,
        replaces=("failed-exception", "failed-killed", "failed-signal", "oom-host"),
    ),
)
