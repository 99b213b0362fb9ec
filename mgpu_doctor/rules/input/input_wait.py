"""Waiting for data: on one rank, or on all of them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.stacks.stack_sampling import Work
from mgpu_doctor.case.device_times import BoundBy
from mgpu_doctor.findings import Cost, Evidence, Finding, Fix, Predicted, Severity
from mgpu_doctor.formatting import format_seconds, format_share
from mgpu_doctor.rules.culprits import severity_of_cost
from mgpu_doctor.rules.input.loader_bottleneck import (
    COMPUTES,
    MOSTLY,
    SATURATED,
    WAITS,
    Feeding,
    Why,
    explain_wait,
    feeding,
    how_to_load_faster,
)
from mgpu_doctor.rules.rule import Limit, Limits, Rule
from mgpu_doctor.rules.slow import sampled_stragglers
from mgpu_doctor.rules.slow.straggler_finding import (
    COST,
    MEASURED,
    THRESHOLDS,
    of_family,
    straggler_finding,
)
from mgpu_doctor.rules.traces import trace_stragglers, trace_time

BOUND = Limit(
    "share",
    0.10,
    "fraction",
    "minimum share of the step spent waiting for data, on the rank that waits least (TraceML's "
    "INPUT_BOUND, Apache-2.0); without the wait, steps must be shorter by half of it.",
)
STRONG = Limit(
    "strong", 0.20, "fraction", "share from which the confidence is high (TraceML's value)."
)

CALL = Limit(
    "call",
    0.001,
    "s",
    "wait per step that is not reported for TensorFlow, or for a DataLoader without workers: a "
    "tf.data iterator with batches ready takes 0.3 to 0.8 ms (TensorFlow 2.21), and receiving two "
    "small tensors from a worker 1.6 ms (torch 2.13; two busy cores).",
)


def _straggler(measures: Measures, limits: Limits) -> Iterable[Finding]:
    for straggler in of_family(measures, "input", limits):
        fed = feeding(measures, limits, only=straggler.rank)
        loader = fed.loader
        now = "" if loader.workers is None else f" Its loader has num_workers={loader.workers}."
        share = (straggler.by_phase.get("input") or 0.0) / max(straggler.excess, 1e-12)
        if measures.bound_by.get(straggler.rank) is BoundBy.DEVICE:
            now += (
                " Its GPU still had queued work when the batch arrived, so it did not idle: look "
                "first for work on the GPU while batches are fetched, such as augmentation."
            )
        yield straggler_finding(
            measures,
            straggler,
            code="straggler-input",
            what="its wait for data",
            phases=("input",),
            cause=f"Fetching batches explains {format_share(min(share, 1.0))} of this rank's gap: "
            f"its data, its storage or its loader is slower than the other ranks'.{now}",
            fixes=[
                Fix(
                    "load-in-background",
                    "Load batches in the background",
                    how_to_load_faster(fed, limits),
                ),
                Fix(
                    "check-shard",
                    f"Compare the shard and storage of rank {straggler.rank} with the others'",
                    "Time `dataset[i]` on that host for its own indices: a slow disk, an uncached "
                    "shard or larger samples show there.",
                ),
            ],
        )


def _bound(measures: Measures, limits: Limits) -> Iterable[Finding]:
    if not measures.input_shares or measures.input_saved is None or not measures.step_seconds:
        return
    shares = {
        rank: 0.0 if measures.bound_by.get(rank) is BoundBy.DEVICE else share
        for rank, share in measures.input_shares.items()
    }
    share = min(shares.values())
    if share < limits["share"] or measures.input_saved < limits["share"] / 2:
        return
    middle = float(np.median(list(shares.values())))
    tensorflow = measures.case.job.framework == "tensorflow"
    fed = feeding(measures, limits)
    if middle * measures.step_seconds <= limits["call"] and (tensorflow or fed.loader.workers == 0):
        return
    strong = share >= limits["strong"]
    saved = measures.input_saved
    keeps_up = fed.why in (Why.HANDED_OVER, Why.DIVIDED)
    hard_to_gain = fed.lacks_cores(limits) and not strong
    yield Finding(
        code="input-bound",
        severity=Severity.INFO if keeps_up or hard_to_gain else severity_of_cost(saved),
        confidence=0.95 if strong else 0.8,
        title=f"{'All ranks wait' if len(shares) > 1 else 'The training waits'} for data: "
        f"{format_share(middle)} of every step ({format_seconds(middle * measures.step_seconds)})",
        cause=explain_wait(fed, limits),
        victims=tuple(sorted(shares)),
        evidence=tuple(_evidence(share, middle, fed, limits)),
        since_step=0,
        cost=Cost(step_fraction=saved, seconds_per_step=saved * measures.step_seconds),
        fixes=(_fix(saved, fed, limits),),
    )


def _fix(saved: float, fed: Feeding, limits: Limits) -> Fix:
    how = how_to_load_faster(fed, limits)
    if fed.why is Why.HANDED_OVER:
        return Fix("hand-over-less", "Make batches cheaper to receive", how)
    if fed.why is Why.DIVIDED:
        return Fix("larger-batches", "Use larger batches", how)
    return Fix(
        "load-in-background",
        "Load batches in the background",
        how,
        Predicted(
            1 - saved,
            None,
            "measured what-if: the same steps without waiting for data; an upper bound, as workers "
            "need cores of their own",
        ),
    )


def _evidence(least: float, middle: float, fed: Feeding, limits: Limits) -> Iterable[Evidence]:
    source, bound = "input phase of every rank after warm-up", limits["share"]
    yield Evidence(
        "share of the step spent waiting for data, on the rank that waits least",
        least,
        "fraction",
        bound,
        source,
    )
    yield Evidence("the same, on the median rank", middle, "fraction", bound, source)
    if fed.loader.workers is not None:
        yield Evidence(
            "data loader workers per rank",
            fed.loader.workers,
            "processes",
            None,
            "process metadata",
        )
    if fed.ready is not None:
        measure = "share of that wait in steps whose batch was ready when requested"
        yield Evidence(measure, fed.ready, "fraction", MOSTLY, source)
    least_idle, most_idle = fed.idle or (None, None)
    sampled = (
        ("share of time in which a worker ran or waited for a core", fed.working, "computes"),
        ("minimum share of the wait in which the main thread slept", least_idle, "waits"),
        ("maximum share of the wait in which the main thread slept", most_idle, "waits"),
        ("use of the host's cores", fed.cpu, "saturated"),
    )
    for measure, value, limit in sampled:
        if value is not None:
            yield Evidence(measure, value, "fraction", limits[limit], "host samples")


RULES = (
    Rule(
        code="straggler-input",
        family="slow",
        summary="A rank gets its data later than the others in every step, and they wait for it.",
        measured=MEASURED.format(
            phases="Reported if input explains 80 % of the excess, or more than anything else."
        ),
        thresholds=THRESHOLDS,
        fixes=(
            "Use more loader workers and prefetching, equal shards, and faster or cached storage."
        ),
        examine=_straggler,
        needs=("stragglers",),
        alternatives=(
            sampled_stragglers.detector(Work.INPUT),
            trace_stragglers.detector("straggler-input"),
        ),
        limits=(COST, SATURATED, COMPUTES, WAITS),
        replaces=("straggler-compute", "straggler-other"),
    ),
    Rule(
        code="input-bound",
        family="slow",
        summary="All ranks wait for data in every step.",
        measured=(
            "The input phase, from requesting a batch to having it, as a share of the step, on the "
            "rank that waits least. The cost is a what-if over the same steps. The cause comes "
            "from the loader's settings and from the scheduler's counters: whether its workers "
            "(without workers: the main thread) ran, waited for a core or slept. CPU time is "
            "measured per step. Without workers, the cause is therefore given only if it holds "
            "wherever in the step the main thread slept. A GPU that still has queued work when the "
            "forward pass begins waited for no data: what it did while its host fetched the batch "
            "was work (not yet seen on a GPU)."
        ),
        thresholds=(
            "Warning if steps without the wait would be 5 % shorter. Info if batches are ready "
            "when requested and only receiving them takes that long, or if no core is left for "
            "workers and the share is below `strong`. A disk is named if the process that makes "
            "the batches was in uninterruptible sleep in 20 % of the samples."
        ),
        fixes=(
            "Use persistent loader workers (`num_workers`, `persistent_workers`) and prefetching; "
            "cache or decode samples in advance. If the cores are busy: more cores, or less work "
            "per sample."
        ),
        examine=_bound,
        needs=("input_shares",),
        alternatives=(trace_time.INPUT_BOUND,),
        limits=(BOUND, STRONG, CALL, SATURATED, COMPUTES, WAITS),
    ),
)
