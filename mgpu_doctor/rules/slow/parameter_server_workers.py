"""Workers that learn at their own pace (parameter servers): a slow one, and one that is lost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.postmortem.failure_order import find_first_failures
from mgpu_doctor.analysis.statistics.pace_comparison import (
    EXCESS,
    LEAST,
    SURE,
    SlowPace,
    find_slow_pace,
    measure_paces,
    throughput_lost,
)
from mgpu_doctor.analysis.structure.job_structure import without
from mgpu_doctor.case.model import Outcome
from mgpu_doctor.case.process_metadata import Pace
from mgpu_doctor.findings import Cost, Culprit, Evidence, Finding, Fix, Predicted, Severity
from mgpu_doctor.formatting import format_count, format_seconds, format_share
from mgpu_doctor.rules.blame import severity_of_cost
from mgpu_doctor.rules.failures import failure_fixes, failure_text
from mgpu_doctor.rules.rule import Limits, Rule
from mgpu_doctor.rules.slow.straggler_finding import COST


def _slow(measures: Measures, limits: Limits) -> Iterable[Finding]:
    for chief in measures.case.ranks:
        if found := _slowest(chief.metadata.worker_paces, limits):
            yield _slow_task(*found, measures)
    if measures.servers and not measures.stragglers:  # else they do wait for each other
        workers = without(measures.case.ranks, measures.servers)
        if found := _slowest(measure_paces(workers), limits):
            yield _slow_rank(*found, measures)


def _slowest(paces: Sequence[Pace], limits: Limits) -> tuple[SlowPace, float] | None:
    """The slow one, where there is one that costs enough, and which share of the throughput."""
    slow = find_slow_pace(paces)
    saved = throughput_lost(paces, slow) if slow is not None else 0.0
    return (slow, saved) if slow is not None and saved >= limits["cost"] else None


def _slow_task(slow: SlowPace, saved: float, measures: Measures) -> Finding:
    """A worker of TensorFlow, which is known by its task alone."""
    task = f"/job:worker/replica:0/task:{slow.index}"
    return _finding(
        Culprit(None, device=task),
        f"Worker {slow.index} takes {format_seconds(slow.middle)} for a closure",
        (slow, saved, measures.step_seconds),
        seen=Evidence(
            "seconds for a closure, median, against that of the other workers",
            slow.middle,
            "s",
            slow.of_others,
            f"its newest {format_count(slow.times, 'closure')}, as the chief sees them",
            task,
        ),
        how=f"On the host of this worker (its address stands in TF_CONFIG, `cluster.worker"
        f"[{slow.index}]`): `top` for neighbours on its cores, clocks, and the storage "
        "that its part of the data set is read from. ds.prefetch(tf.data.AUTOTUNE) in the "
        "function given to create_per_worker_dataset.",
    )


def _slow_rank(slow: SlowPace, saved: float, measures: Measures) -> Finding:
    rank = measures.rank(slow.index)
    host, device, pid = (rank.host, rank.device, rank.pid) if rank else (None, None, None)
    on = f" on {host}" if host else ""
    return _finding(
        Culprit(slow.index, host=host, device=device, pid=pid),
        f"Rank {slow.index}, a worker, takes {format_seconds(slow.middle)} for its own work of a "
        "step",
        (slow, saved, measures.step_seconds),
        seen=Evidence(
            "own work a step, median, against that of the other workers",
            slow.middle,
            "s",
            slow.of_others,
            f"its newest {format_count(slow.times, 'step')}, without waiting and communication",
        ),
        how=f"The list of ranks shows which phase is longer than the others'. `top`{on} for "
        "neighbours on its cores, clocks, and the storage that its part of the data is read from.",
    )


def _finding(
    worker: Culprit,
    title: str,
    cost: tuple[SlowPace, float, float | None],
    *,
    seen: Evidence,
    how: str,
) -> Finding:
    slow, saved, step = cost
    return Finding(
        code="straggler-worker",
        severity=severity_of_cost(saved),
        confidence=0.9,
        title=f"{title}, the others {format_seconds(slow.of_others)}: {format_share(saved)} of "
        "the throughput "
        "is lost",
        cause="Workers of a parameter server do not wait for each other, so the job is slower only "
        "by what this one does less. The weights that its gradients were computed with are older "
        "than the others'. Its host or its part of the data is slow: all workers run the same "
        "function.",
        culprits=(worker,),
        evidence=(seen,),
        since_step=0,
        cost=Cost(saved, None if step is None else saved * step),
        fixes=(
            Fix(
                "mend-worker",
                f"Find what slows worker {slow.index}",
                how,
                Predicted(
                    1 - saved,
                    None,
                    "formula: what the workers do in a second, with this one's time at the median "
                    "of the others",
                ),
            ),
        ),
    )


def _lost(measures: Measures, _: Limits) -> Iterable[Finding]:
    """Of ranks: the console tells of others."""
    case = measures.case
    if case.job.outcome is not Outcome.COMPLETED:
        return
    died = {rank.rank for rank in case.ranks if rank.signal or rank.exit_code or rank.error}
    fallen = tuple(fall for fall in find_first_failures(case) if fall.rank in died)
    if not fallen:
        return
    yield Finding(
        code="worker-lost",
        severity=Severity.WARNING,
        confidence=fallen[0].confidence,
        title=f"{failure_text.who(fallen, case)} {failure_text.death(fallen[0])}; the job went on "
        f"without {'them' if len(fallen) > 1 else 'it'}",
        cause=f"{failure_text.cause_of(fallen[0], case)} The others went on: the job was finished "
        "by fewer workers, without the part of the data that only the lost ones had.",
        culprits=failure_text.culprits_of(fallen),
        evidence=failure_text.evidence_of(fallen[0], case),
        since_step=fallen[0].last_step,
        fixes=failure_fixes.fixes_of(fallen[0], case.job),
    )


RULES = (
    Rule(
        code="straggler-worker",
        family="slow",
        summary="A worker of a parameter server takes longer than the others for the same work; "
        "they do not wait for it, but it does less.",
        measured="ParameterServerStrategy: the chief times each worker's closures. Ranks that send "
        "gradients to a rank that only serves: their own work of each step, without waiting and "
        "communication. Quartiles of each worker's newest 256 are compared.",
        thresholds=f"A median that is {format_share(EXCESS)} above the median of the others', by "
        f"{SURE:g} standard errors beyond the next, over {LEAST} closures or steps of each at "
        "least. What it costs is the sum of what the workers do in a second, against the same "
        "with this one mended.",
        fixes="Look at that worker's host and at its part of the data.",
        examine=_slow,
        limits=(COST,),
    ),
    Rule(
        code="worker-lost",
        family="failed",
        summary="A worker died and the job went on without it, as asynchronous strategies can.",
        measured="A rank that ended by a signal, an exception or an exit code of its own, in a job "
        "that ended well and in which others took steps after that.",
        thresholds="At least two steps of another rank, begun after the worker's last sign of "
        "life.",
        fixes="Find why it died; start it again, where the launcher does not.",
        examine=_lost,
    ),
)
