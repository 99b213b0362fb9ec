"""Findings about DistributedDataParallel's settings: accumulation, buckets, unused parameters."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_doctor.analysis.cost.communication_cost import measure_core_contention
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.steps.host_bound import cost_of_host_time
from mgpu_doctor.case.process_metadata import Ddp
from mgpu_doctor.findings import Cost, Evidence, Finding, Fix, Predicted, Severity
from mgpu_doctor.formatting import format_seconds, format_share
from mgpu_doctor.rules.communication.exposed_communication import (
    DEFAULT_CAP_MIB,
    HALF,
    LOGGED,
    MIB,
    cost,
    exchanged,
    exposed_share,
    needless,
    overlap_gain,
)
from mgpu_doctor.rules.culprits import WARNING_COST, severity_of_cost
from mgpu_doctor.rules.rule import Limit, Limits, Rule
from mgpu_doctor.rules.traces import trace_time

COUNTED = "forward passes counted by the probe"


def how_to_accumulate(batches: int) -> str:
    """Code for DistributedDataParallel, and settings for frameworks built on it."""
    return (
        "In the loop, with the forward pass inside, too:\n"
        f"    last = (i + 1) % {batches} == 0\n"
        "    with contextlib.nullcontext() if last else model.no_sync():\n"
        f"        loss = criterion(model(inputs), targets) / {batches}\n"
        "        loss.backward()\n"
        "    if last:\n"
        "        optimizer.step()\n"
        "        optimizer.zero_grad()\n"
        f"In Lightning: Trainer(accumulate_grad_batches={batches}). In Accelerate: "
        f"Accelerator(gradient_accumulation_steps={batches}) and `with "
        "accelerator.accumulate(model):` around the body. In transformers: "
        f"gradient_accumulation_steps={batches}."
    )


def _accumulation(measures: Measures, _: Limits) -> Iterable[Finding]:
    often = exchanged(measures)
    if often is None or often.passes < 2 or often.synced - often.updates < HALF:
        return
    step = measures.step_seconds
    moved = exposed_share(measures, often)
    saved = needless(measures) if moved is not None else None
    spent = format_seconds(saved * step) if saved is not None and step else "time"
    batches, most = round(often.passes), round(often.synced)
    evidence = [
        Evidence("exchanges of gradients per step", often.synced, "times", often.updates, COUNTED),
        Evidence("backward passes per step", often.passes, "times", None, "step records"),
    ]
    predicted = None
    if moved is not None and saved is not None:
        share, source = moved
        evidence.append(
            Evidence("exposed communication, of the step", share, "fraction", None, source)
        )
        predicted = Predicted(
            1 - saved,
            None,
            f"formula: {format_share(often.needless)} of the exposed communication, and of the CPU "
            "time for the overlapped part if no core is free; accurate to about 20 %, and probably "
            "too low, as ranks would also wait for each other less often",
        )
    yield Finding(
        code="accumulation-syncs",
        severity=severity_of_cost(saved) if saved is not None else Severity.INFO,
        confidence=0.95,
        title=f"Gradients are exchanged {most} times per update, which wastes {spent} per step",
        cause=f"Each update accumulates the gradients of {batches} backward passes. "
        f"DistributedDataParallel exchanges them in {most} of these, but only the last exchange is "
        "needed.",
        evidence=tuple(evidence),
        since_step=0,
        cost=cost(saved, step),
        fixes=(
            Fix(
                "no-sync",
                "Exchange gradients only in the last micro-batch",
                how_to_accumulate(batches),
                predicted,
            ),
        ),
    )


def _overlap(measures: Measures, limits: Limits) -> Iterable[Finding]:
    found = overlap_gain(measures)
    if found is None or found[0] < limits["gain"]:
        return
    gain, mib, logged = found
    step = measures.step_seconds or 0.0
    crowd = measure_core_contention(measures.case.ranks, measures.surroundings, gain)
    crowded = crowd is not None and crowd.crowded
    usual = logged.cap is not None and logged.cap <= DEFAULT_CAP_MIB * MIB
    if crowded and usual:
        return
    default = ", which is torch's default: leave the argument out" if mib == DEFAULT_CAP_MIB else ""
    largest = max(logged.buckets)
    hidden = max(0.0, logged.communication - logged.exposed)
    cause = (
        f"DistributedDataParallel sends {largest / MIB:.0f} of {sum(logged.buckets) / MIB:.0f} MiB "
        f"of gradients in one bucket, which cannot be sent before its last gradient is ready"
    )
    cause += f" (bucket_cap_mb={logged.cap / MIB:.0f})." if logged.cap else "."
    if crowded:
        cause += (
            " The cores that would send the data are busy with backward itself, so smaller buckets "
            "may gain little on this machine."
        )
    yield Finding(
        code="overlap-poor",
        severity=Severity.INFO if crowded else severity_of_cost(gain),
        confidence=0.6 if crowded else 0.8,
        title=f"Only {format_share(hidden / max(logged.communication, 1e-12))} of communication "
        f"overlaps with backward; {format_seconds(logged.exposed)} per pass are exposed",
        cause=cause,
        evidence=(
            Evidence("communication per pass", logged.communication, "s", None, LOGGED),
            Evidence("of this, exposed after backward", logged.exposed, "s", None, LOGGED),
            Evidence("computing gradients per pass", logged.backward, "s", None, LOGGED),
            Evidence("largest bucket", largest, "bytes", sum(logged.buckets), LOGGED),
        ),
        since_step=0,
        cost=Cost() if crowded else cost(gain, step),
        fixes=(
            Fix(
                "smaller-buckets",
                "Send buckets while backward still computes",
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


TIMED = "timed by the probe"


def _searching(measures: Measures) -> list[Ddp]:
    """The first DistributedDataParallel of every rank; empty if a rank has none or none search."""
    first = measures.case.ranks[0].metadata.ddp
    if first is None or not first.find_unused:
        return []
    found = [ddp for rank in measures.case.ranks if (ddp := rank.metadata.ddp) is not None]
    return found if len(found) == len(measures.case.ranks) else []


def _unused(measures: Measures, _: Limits) -> Iterable[Finding]:
    modules = _searching(measures)
    if not modules or any(
        not module.find_unused
        or module.static_graph
        or module.unused_bytes != 0
        or module.graph_varies
        for module in modules
    ):
        return
    taken = _seconds_a_step(measures)
    step, least = measures.step_seconds, min(taken.values(), default=None)
    costs = cost_of_host_time(taken, measures.bound_by) if taken else None
    saved = min(1.0, min(costs.values()) / step) if costs and step else None
    sure = all(module.graph_varies is False for module in modules)
    yield Finding(
        code="unused-parameter-scan",
        severity=severity_of_cost(saved or 0.0),
        confidence=0.95 if sure else 0.7,
        title=f"The search for unused parameters {_spent(least, saved)} and finds none",
        cause=f"{_hidden(least, saved)}find_unused_parameters=True makes DistributedDataParallel "
        "walk the whole autograd graph before each backward pass, and keeps it from ordering its "
        "buckets as gradients become ready. Every parameter was used "
        + ("in every pass so far." if sure else "in every pass that was checked."),
        evidence=(
            *(
                Evidence(
                    "search time per step, on the rank with the least", seconds, "s", None, TIMED
                )
                for seconds in sorted(taken.values())[:1]
            ),
            Evidence("size of the parameters that were unused", 0, "bytes", None, LOGGED),
        ),
        since_step=0,
        cost=cost(saved, step),
        fixes=(
            Fix(
                "no-search",
                "Turn the search off",
                "`DistributedDataParallel(model, find_unused_parameters=False)`. Keep the search "
                "if a branch or layer is sometimes skipped (layer dropout, mixture of experts): "
                "without it, such a pass fails with `RuntimeError: Expected to have finished "
                "reduction in the prior iteration`; gradients are never wrong. In Lightning: "
                '`strategy="ddp"`; in transformers: `ddp_find_unused_parameters=False`; in '
                "Accelerate: `DistributedDataParallelKwargs(find_unused_parameters=False)`.",
                None
                if not saved
                else Predicted(
                    1 - saved,
                    None,
                    "measured: search time on the rank where it is shortest, as all ranks search "
                    "at once; a lower bound, as buckets in the right order hide more communication",
                ),
            ),
        ),
    )


def _spent(least: float | None, saved: float | None) -> str:
    if least is None:
        return "costs time"
    verb, whose = ("costs", "") if saved else ("takes", "of the host's time ")
    return f"{verb} {format_seconds(least)} {whose}per step"


def _hidden(least: float | None, saved: float | None) -> str:
    """A sentence about the cost of a search that does not lengthen the step, or may not."""
    if least is None or saved:
        return ""
    if saved is None:
        return (
            "Whether the search lengthens the step is unknown: the hosts may be ahead of their "
            "devices. "
        )
    return "The devices still have queued work meanwhile, so the search lengthens no step. "


def _seconds_a_step(measures: Measures) -> dict[int, float]:
    """Rank -> host seconds per step that the search takes; empty unless known for all ranks."""
    found = {}
    for rank in measures.case.ranks:
        module, steps = rank.metadata.ddp, rank.metadata.steps
        if module is None or module.scan_seconds is None or not steps or rank.rank is None:
            return {}
        found[rank.rank] = module.scan_seconds / steps
    return found


RULES = (
    Rule(
        code="accumulation-syncs",
        family="slow",
        summary="Gradients are accumulated over several micro-batches but exchanged in each of "
        "them.",
        measured="Backward passes per step, the share of DistributedDataParallel's forward passes "
        "outside `no_sync`, and optimizer steps per step. The cost is the needless exchanges' "
        "share of the exposed communication.",
        thresholds="At least two backward passes per step, and at least 0.5 exchanges per step "
        "more than optimizer steps. Not reported with LBFGS, or with several optimizers whose "
        "steps were not counted. Warning from 5 % of the step time.",
        fixes="Put `with model.no_sync():` around forward and backward of all micro-batches except "
        "the last.",
        examine=_accumulation,
        needs=("step_seconds",),
    ),
    Rule(
        code="overlap-poor",
        family="slow",
        summary="Communication does not overlap with backward, because most gradients are sent in "
        "one bucket.",
        measured="DistributedDataParallel's log: backward, communication and their overlap, bucket "
        "sizes. The gain is a formula: buckets one after the other, gradients ready evenly.",
        thresholds="More than 2 MiB of gradients, and one bucket with at least half of them. No "
        "gain is predicted on overloaded CPU cores (measured: buckets of 1 MiB and of 1000 MiB "
        "take equally long there).",
        fixes="Set a smaller `bucket_cap_mb`.",
        examine=_overlap,
        alternatives=(trace_time.OVERLAP_POOR,),
        needs=("step_seconds",),
        limits=(
            Limit(
                "gain",
                WARNING_COST,
                "fraction",
                "predicted share of the step time that smaller buckets save; a warning needs 5 %.",
            ),
        ),
        unverified="on GPUs",
    ),
    Rule(
        code="unused-parameter-scan",
        family="slow",
        summary="DistributedDataParallel searches for unused parameters in every pass, although "
        "all are used.",
        measured="The flag, the result of the search (torch's own log, and whether the set ever "
        "changed), and the search time. The cost is the time on the rank where it is shortest, as "
        "all ranks search at once. On a rank with a GPU it is known only if the run-ahead is: all "
        "of that time if the host is not ahead of the GPU, none if it is.",
        thresholds="No unused parameter on any rank, in any pass that torch reports. Warning from "
        "5 % of the step time, info below.",
        fixes="Set `find_unused_parameters=False`.",
        examine=_unused,
        needs=("step_seconds",),
        unverified="on GPUs",
    ),
)
