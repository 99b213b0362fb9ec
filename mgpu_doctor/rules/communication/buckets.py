"""Buckets of gradients that leave too late for backward to hide their way."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_doctor.analysis.cost.communication_cost import crowding
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.findings import Cost, Evidence, Finding, Fix, Predicted, Severity
from mgpu_doctor.formatting import format_seconds, format_share
from mgpu_doctor.rules.blame import WARNING_COST, severity_of_cost
from mgpu_doctor.rules.communication.exposed import DEFAULT_CAP_MIB, LOGGED, MIB, cost, overlap_gain
from mgpu_doctor.rules.rule import Limit, Limits, Rule


def _overlap(measures: Measures, limits: Limits) -> Iterable[Finding]:
    found = overlap_gain(measures)
    if found is None or found[0] < limits["gain"]:
        return
    gain, mib, logged = found
    step = measures.step_seconds or 0.0
    crowd = crowding(measures.case.ranks, measures.surroundings, gain)
    crowded = crowd is not None and crowd.crowded
    usual = logged.cap is not None and logged.cap <= DEFAULT_CAP_MIB * MIB
    if crowded and usual:
        return
    default = ", which is torch's default: leave the argument out" if mib == DEFAULT_CAP_MIB else ""
    largest = max(logged.buckets)
    hidden = max(0.0, logged.communication - logged.exposed)
    cause = (
        f"DistributedDataParallel sends {largest / MIB:.0f} of {sum(logged.buckets) / MIB:.0f} MiB "
        f"of gradients in one bucket, which can leave only when its last gradient is there"
    )
    cause += f" (bucket_cap_mb={logged.cap / MIB:.0f})." if logged.cap else "."
    if crowded:
        cause += (
            " The cores that would have to move data meanwhile are busy with backward itself, so "
            "other buckets may gain little on this machine."
        )
    yield Finding(
        code="overlap-poor",
        severity=Severity.INFO if crowded else severity_of_cost(gain),
        confidence=0.6 if crowded else 0.8,
        title=f"Backward hides only {format_share(hidden / max(logged.communication, 1e-12))} of "
        "the "
        f"communication: {format_seconds(logged.exposed)} of each pass are exposed",
        cause=cause,
        evidence=(
            Evidence("communication, a pass", logged.communication, "s", None, LOGGED),
            Evidence("of it exposed after backward", logged.exposed, "s", None, LOGGED),
            Evidence("computing gradients, a pass", logged.backward, "s", None, LOGGED),
            Evidence("largest bucket", largest, "bytes", sum(logged.buckets), LOGGED),
        ),
        since_step=0,
        cost=Cost() if crowded else cost(gain, step),
        fixes=(
            Fix(
                "smaller-buckets",
                "Let buckets leave while backward still computes",
                f"DistributedDataParallel(model, bucket_cap_mb={mib}){default}. A bucket is never "
                "smaller than its largest parameter.",
                None
                if crowded
                else Predicted(
                    1 - gain,
                    None,
                    "formula: buckets one after the other, gradients ready evenly over backward; "
                    "rough, as parameters differ in size and each bucket costs a latency",
                ),
            ),
        ),
    )


RULES = (
    Rule(
        code="overlap-poor",
        family="slow",
        summary="Communication that backward could hide is exposed, because most gradients leave "
        "in one bucket.",
        measured="DistributedDataParallel's log: backward, communication and their overlap, bucket "
        "sizes. The gain is a formula: buckets one after the other, gradients ready evenly.",
        thresholds="One bucket with half of all bytes or more, of more than 2 MiB. On CPUs whose "
        "cores have no time left, a gain is not promised (measured: buckets of 1 and of 1000 MiB "
        "take equally long there).",
        fixes="A smaller `bucket_cap_mb`.",
        examine=_overlap,
        needs=("step_seconds",),
        limits=(
            Limit(
                "gain",
                WARNING_COST,
                "fraction",
                "predicted share of the step time that other buckets save; 5 % is the cost of a "
                "warning",
            ),
        ),
        unverified="on GPUs",
    ),
)
