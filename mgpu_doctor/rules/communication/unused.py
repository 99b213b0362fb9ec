"""The search for unused parameters where there are none."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.birth import Ddp, ddp, steps
from mgpu_doctor.case.phase_clock import host_stamped
from mgpu_doctor.findings import Evidence, Finding, Fix, Predicted
from mgpu_doctor.formatting import format_seconds
from mgpu_doctor.rules.blame import severity_of_cost
from mgpu_doctor.rules.communication.exposed import LOGGED, cost
from mgpu_doctor.rules.rule import Limits, Rule

TIMED = "timed by the probe"


def _searching(measures: Measures) -> list[Ddp]:
    """The first DistributedDataParallel of every rank; empty where a rank has none or none
    searches."""
    first = ddp(measures.case.ranks[0])
    if first is None or not first.find_unused:
        return []
    found = [one for rank in measures.case.ranks if (one := ddp(rank)) is not None]
    return found if len(found) == len(measures.case.ranks) else []


def _unused(measures: Measures, _: Limits) -> Iterable[Finding]:
    modules = _searching(measures)
    if not modules or any(
        not one.find_unused or one.static_graph or one.unused_bytes != 0 or one.graph_varies
        for one in modules
    ):
        return
    a_step = _seconds_a_step(measures, modules)
    step = measures.step_seconds
    saved = min(1.0, min(a_step) / step) if a_step and step else None
    sure = all(one.graph_varies is False for one in modules)
    spent = f"{format_seconds(min(a_step))} a step" if a_step else "time"
    yield Finding(
        code="unused-parameter-scan",
        severity=severity_of_cost(saved or 0.0),
        confidence=0.95 if sure else 0.7,
        title=f"The search for unused parameters costs {spent} and finds none",
        cause="find_unused_parameters=True makes DistributedDataParallel walk the whole autograd "
        "graph before each backward pass, and keeps it from ordering its buckets as gradients "
        "become ready. Every parameter took part "
        + ("in every pass so far." if sure else "in every pass that was looked at."),
        evidence=(
            *(
                Evidence(
                    "searching, a step, on the rank where it is least", least, "s", None, TIMED
                )
                for least in sorted(a_step)[:1]
            ),
            Evidence("parameters that were unused", 0, "bytes", None, LOGGED),
        ),
        since_step=0,
        cost=cost(saved, step),
        fixes=(
            Fix(
                "no-search",
                "Turn the search off",
                "DistributedDataParallel(model, find_unused_parameters=False). Keep it where a "
                "branch or layer is skipped now and then (layer dropout, mixture of experts): "
                "without it such a pass ends in `RuntimeError: Expected to have finished "
                "reduction in the prior iteration`, and never in wrong gradients. In Lightning: "
                'strategy="ddp"; in transformers: ddp_find_unused_parameters=False; in Accelerate: '
                "DistributedDataParallelKwargs(find_unused_parameters=False).",
                None
                if saved is None
                else Predicted(
                    1 - saved,
                    None,
                    "measured: the searches, which all ranks do at once, on the one that searched "
                    "least; a lower bound, as buckets in the right order hide more communication",
                ),
            ),
        ),
    )


def _seconds_a_step(measures: Measures, modules: list[Ddp]) -> list[float]:
    """Of searching, by rank; empty where a rank does not say, or a device works meanwhile."""
    if host_stamped(measures.case.ranks):
        return []
    taken = [steps(rank) for rank in measures.case.ranks]
    times = [
        one.scan_seconds / many
        for one, many in zip(modules, taken, strict=True)
        if one.scan_seconds is not None and many
    ]
    return times if len(times) == len(modules) else []


RULES = (
    Rule(
        code="unused-parameter-scan",
        family="slow",
        summary="DistributedDataParallel searches for unused parameters in every pass, and there "
        "are none.",
        measured="The flag, what the search found (torch's own log, and whether the set ever "
        "changed), and the time of the searches. What they cost is their time on the rank that "
        "searched least, as all do at once.",
        thresholds="No unused parameter on any rank, in any pass that torch tells of. Warning from "
        "5 % of the step time, worth knowing below.",
        fixes="`find_unused_parameters=False`.",
        examine=_unused,
        needs=("step_seconds",),
    ),
)
