"""Workers that train at their own pace (parameter servers): a slow worker, and a lost one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mgpu_doctor.analysis.measures import Measures
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
from mgpu_doctor.rules.culprits import severity_of_cost
from mgpu_doctor.rules.failures import failure_fixes, failure_text
from mgpu_doctor.rules.failures.log_rules import log_detector
from mgpu_doctor.rules.gpu.xid_evidence import XIDS_OF_ENDS
from mgpu_doctor.rules.rule import Limits, Rule
from mgpu_doctor.rules.slow.straggler_finding import COST


def _slow(measures: Measures, limits: Limits) -> Iterable[Finding]:
    for chief in measures.case.ranks:
        if slow_paces := _slowest(chief.metadata.worker_paces, limits):
            yield _slow_task(*slow_paces, measures)
    if measures.servers and not measures.stragglers:  # otherwise they wait for each other
        workers = without(measures.case.ranks, measures.servers)
        if slow_paces := _slowest(measure_paces(workers), limits):
            yield _slow_rank(*slow_paces, measures)


def _slowest(paces: Sequence[Pace], limits: Limits) -> tuple[SlowPace, float] | None:
    """The slow worker and the lost share of the throughput; None if it costs too little."""
    slow = find_slow_pace(paces)
    saved = throughput_lost(paces, slow) if slow is not None else 0.0
    return (slow, saved) if slow is not None and saved >= limits["cost"] else None


def _slow_task(slow: SlowPace, saved: float, measures: Measures) -> Finding:
    """The finding for a TensorFlow worker, which is known only by its task index."""
    task = f"/job:worker/replica:0/task:{slow.index}"
    return _finding(
        Culprit(None, device=task),
        f"Worker {slow.index} takes {format_seconds(slow.middle)} per closure",
        (slow, saved, measures.step_seconds),
        seen=Evidence(
            "median time per closure, compared with the other workers",
            slow.middle,
            "s",
            slow.of_others,
            f"its newest {format_count(slow.times, 'closure')}, as measured by the chief",
            task,
        ),
        how=f"On this worker's host (its address is in TF_CONFIG, `cluster.worker[{slow.index}]`), "
        "check with `top` for other processes on its cores, its clocks, and the storage of its "
        "part of the data set. Add ds.prefetch(tf.data.AUTOTUNE) in the function given to "
        "create_per_worker_dataset.",
    )


def _slow_rank(slow: SlowPace, saved: float, measures: Measures) -> Finding:
    rank = measures.rank(slow.index)
    host, device, pid = (rank.host, rank.device, rank.pid) if rank else (None, None, None)
    on = f" on {host}" if host else ""
    return _finding(
        Culprit(slow.index, host=host, device=device, pid=pid),
        f"Rank {slow.index}, a worker, needs {format_seconds(slow.middle)} of its own work per "
        "step",
        (slow, saved, measures.step_seconds),
        seen=Evidence(
            "median own work per step, compared with the other workers",
            slow.middle,
            "s",
            slow.of_others,
            f"its newest {format_count(slow.times, 'step')}, without waiting and communication",
        ),
        how=f"Look in the list of ranks for the phase that is longer than on the others. Check{on} "
        "with `top` for other processes on its cores, its clocks, and the storage of its part of "
        "the data.",
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
        "the throughput is lost",
        cause="Workers of a parameter server do not wait for each other, so the job loses only the "
        "work that this worker does not do. Its gradients are computed from older weights than the "
        "others'. All workers run the same function, so its host or its part of the data is slow.",
        culprits=(worker,),
        evidence=(seen,),
        since_step=0,
        cost=Cost(saved, None if step is None else saved * step),
        fixes=(
            Fix(
                "fix-worker",
                f"Find what slows worker {slow.index}",
                how,
                Predicted(
                    1 - saved,
                    None,
                    "formula: throughput of all workers, with this one at the median time of the "
                    "others",
                ),
            ),
        ),
    )


def _lost(measures: Measures, _: Limits) -> Iterable[Finding]:
    """Workers that are ranks; rules about the console report the others."""
    case = measures.case
    if case.job.outcome is not Outcome.COMPLETED:
        return
    died = {rank.rank for rank in case.ranks if rank.signal or rank.exit_code or rank.error}
    fallen = tuple(fall for fall in measures.postmortem.first if fall.rank in died)
    if not fallen:
        return
    yield Finding(
        code="worker-lost",
        severity=Severity.WARNING,
        confidence=fallen[0].confidence,
        title=f"{failure_text.who(fallen, case)} {failure_text.death(fallen[0])}; the job "
        f"continued without {'them' if len(fallen) > 1 else 'it'}",
        cause=f"{failure_text.cause_of(fallen[0], case)} The other workers finished the job, "
        "without the data that only the lost ones had.",
        culprits=failure_text.culprits_of(fallen),
        evidence=failure_text.evidence_of(fallen[0], case),
        since_step=fallen[0].last_step,
        fixes=failure_fixes.fixes_of(fallen[0], case.job),
    )


RULES = (
    Rule(
        code="straggler-worker",
        family="slow",
        summary="A worker of a parameter server needs longer than the others for the same work. "
        "They do not wait for it, but the job's throughput is lower.",
        measured="With ParameterServerStrategy, the chief times each worker's closures. For ranks "
        "that send gradients to a parameter server, their own work in each step, without waiting "
        "and communication. Quartiles of each worker's newest 256 times are compared.",
        thresholds=f"A median {format_share(EXCESS)} above the median of the other workers, and "
        f"{SURE:g} standard errors above the next slowest, over at least {LEAST} closures or steps "
        "per worker. The cost is the lost share of the throughput of all workers.",
        fixes="Check that worker's host and its part of the data.",
        examine=_slow,
        limits=(COST,),
    ),
    Rule(
        code="worker-lost",
        family="failed",
        summary="A worker failed and the job continued without it, as asynchronous strategies can.",
        measured="A rank that ended by a signal, an exception or a nonzero exit code, in a job "
        "that completed and in which other ranks took steps afterwards.",
        thresholds="At least two steps of another rank that began after the worker's last sign of "
        "life.",
        fixes="Find out why it failed, and restart it if the launcher does not.",
        examine=_lost,
        alternatives=(log_detector("worker-lost"), XIDS_OF_ENDS),
    ),
)
