"""The job stands: who is waited for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.model import Job, Rank, State
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_ranks
from mgpu_doctor.rules.falls import afterwards, obituary
from mgpu_doctor.rules.falls.leavers import EVEN_BATCHES
from mgpu_doctor.rules.hang.absent import absent
from mgpu_doctor.rules.hang.stall import LEAST_SECONDS, LEAST_STEPS, Stall, stall_of
from mgpu_doctor.rules.rule import Limits, Rule


def _rank_dead(measures: Measures, _: Limits) -> Iterable[Finding]:
    case = measures.case
    stall = stall_of(case)
    if stall is None:
        yield from absent(measures)
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
