"""GPUs that are idle although no rank waits for data or for other ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mgpu_probes.inprocess.layout import CHECKPOINT, EVALUATION, OTHER

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.device_times import BoundBy, clock_of
from mgpu_doctor.case.process_metadata import PhaseClock
from mgpu_doctor.findings import Cost, Evidence, Finding, Fix, Predicted, Severity
from mgpu_doctor.formatting import format_share
from mgpu_doctor.rules.culprits import severity_of_cost
from mgpu_doctor.rules.gpu.gpu_use import (
    PRETEND,
    held_up,
    host_busy,
    larger_batch,
    memory_share,
    model_share,
    most_share,
    uses,
    utilizations,
)
from mgpu_doctor.rules.rule import Limit, Limits, Rule
from mgpu_doctor.rules.traces import trace_time

UTILIZATION = Limit(
    "utilization",
    0.70,
    "fraction",
    "utilization that every GPU stays below in 95 % of the samples (Amazon SageMaker Debugger, "
    "rule LowGPUUtilization: threshold_p95 = 70).",
)
EXCUSE = Limit(
    "excuse",
    0.10,
    "fraction",
    "share of a rank's time in input or in waiting for other ranks from which that explains it "
    "better (TraceML's INPUT_BOUND).",
)
BUSY = Limit(
    "busy",
    0.80,
    "fraction",
    "share of the time in which every rank's host computes; below it, hosts wait for other things.",
)
MODEL = Limit(
    "model",
    0.70,
    "fraction",
    "share of the time that every host spends in forward, backward and optimizer; below it, the "
    "host does other work than launching kernels.",
)
MEMORY = Limit(
    "memory",
    0.70,
    "fraction",
    "share of the device's memory below which a larger batch is suggested (Amazon SageMaker "
    "Debugger, rule BatchSize: gpu_memory_threshold_p95 = 70).",
)
AHEAD = Limit(
    "ahead",
    0.25,
    "fraction",
    "share of a step by which the host is ahead of its device when backward begins, at least: with "
    "more, kernels wait for the device, not for the host. A choice.",
)
DEFAULTS = {limit.name: limit.default for limit in (BUSY, MODEL, AHEAD)}
ELSEWHERE = {"checkpoint": CHECKPOINT, "evaluation": EVALUATION, "no phase": OTHER}
"""What a host does while its device is idle."""
SPINS = (
    "Only a low reading is informative: a GPU that spins in a collective or runs one small kernel "
    "at a time counts as fully utilized."
)


def _idle(measures: Measures, limits: Limits) -> dict[int, float] | None:
    """Rank -> mean utilization of its device, if all are low and no better reason is known."""
    known = utilizations(measures)
    low = known and all(high < limits["utilization"] for _, high in known.values())
    if not low or held_up(measures, limits["excuse"]):
        return None
    return {number: mean for number, (mean, _) in known.items()}


def _busy(measures: Measures, limits: Limits, held: Mapping[int, float]) -> float | None:
    """The busy share of the least busy host that limits a device, if all these hosts are busy with
    launching kernels; None otherwise. `held`: the limited devices."""
    ranks = [rank for rank in measures.case.ranks if rank.rank in held]
    busy = [host_busy(rank) for rank in ranks]
    known = [one for one in busy if one is not None]
    least = min(known, default=0.0)
    in_model = min((model_share(rank) for rank in ranks), default=0.0)
    enough = len(known) == len(busy) and least >= limits["busy"] and in_model >= limits["model"]
    return least if enough else None


def _held_back(measures: Measures, idle: Mapping[int, float], share: float) -> dict[int, float]:
    """The idle devices whose host may be too slow. If devices timed steps, this leaves out hosts
    that are well ahead and ranks without timed steps."""
    step, leads = measures.step_seconds, measures.run_ahead
    if step is None or not leads:
        return dict(idle)
    slow = {rank for rank, lead in leads.items() if lead.least < share * step}
    return {rank: mean for rank, mean in idle.items() if rank in slow}


def _launch(measures: Measures, limits: Limits) -> Iterable[Finding]:
    idle = _idle(measures, limits)
    held = _held_back(measures, idle or {}, limits["ahead"])
    busy = _busy(measures, limits, held)
    if not idle or busy is None:
        return
    most = max(idle.values())
    gain = Predicted(
        most,
        None,
        "upper bound: the step cannot become shorter than the time in which the busiest GPU ran "
        "any kernel, by NVML; the actual gain was not simulated",
    )
    step = measures.step_seconds
    yield Finding(
        code="launch-bound",
        severity=severity_of_cost(1 - most),
        confidence=0.8
        if all(measures.bound_by.get(rank) is BoundBy.HOST for rank in held)
        else 0.6,
        title=f"The GPUs run kernels {format_share(most)} of the time at most: the host cannot "
        "start them fast enough",
        cause="The host computes in forward, backward and optimizer nearly all the time: many "
        "small kernels, each launched from Python. Their number was not measured.",
        victims=tuple(sorted(held)),
        evidence=(
            *_utilization(measures, limits),
            *_lead(measures, held),
            Evidence(
                "share of the time in which the host computes, on the rank with the least",
                busy,
                "fraction",
                limits["busy"],
                "main thread's CPU time and the backward pass; an upper bound",
            ),
        ),
        since_step=0,
        cost=Cost(1 - most, None if step is None else (1 - most) * step),
        fixes=(
            Fix(
                "compile",
                "Fuse kernels and launch them together",
                'model = torch.compile(model, mode="reduce-overhead"), before it is wrapped in '
                "DistributedDataParallel; it records CUDA graphs where shapes stay the same "
                "(torch.cuda.make_graphed_callables does it by hand). Optimizers: fused=True.",
                gain,
            ),
            larger_batch(measures, "Give each kernel more to do"),
        ),
    )


def _low(measures: Measures, limits: Limits) -> Iterable[Finding]:
    idle = _idle(measures, limits)
    if not idle:
        return
    held = _held_back(measures, idle, DEFAULTS["ahead"])
    if _busy(measures, DEFAULTS, held) is not None:
        return
    hosts = [rank for rank in idle if measures.bound_by.get(rank) is not BoundBy.DEVICE]
    most, memory = max(idle.values()), memory_share(measures)
    roomy = memory is not None and memory < limits["memory"]
    elsewhere = {
        name: share
        for name, phase in ELSEWHERE.items()
        if (share := most_share(measures, phase, hosts)) >= limits["excuse"]
    }
    evidence = [*_utilization(measures, limits), *_lead(measures, idle)]
    if memory is not None:
        source = "NVML samples; all processes, caches included"
        evidence.append(
            Evidence("memory of the fullest GPU", memory, "fraction", limits["memory"], source)
        )
    for name, share in elsewhere.items():
        what = f"share of the time in {name}, on the rank with the most"
        evidence.append(Evidence(what, share, "fraction", limits["excuse"], _clocks(measures)))
    yield Finding(
        code="low-utilization",
        severity=Severity.WARNING,
        confidence=0.7,
        title=f"The GPUs run no kernel for {format_share(1 - most)} of the time or more",
        cause=_cause(roomy, elsewhere) if hosts else QUEUED,
        victims=tuple(sorted(idle)),
        evidence=tuple(evidence),
        since_step=0,
        fixes=tuple(_fixes(measures, roomy, elsewhere)) if hosts else (TRACE,),
    )


QUEUED = (
    "Ranks wait neither for data nor for each other, and every host has queued work before its "
    "GPU begins it, so no host is the bottleneck. The GPUs wait for something in their own queues, "
    "such as copies or work in other streams."
)
TRACE = Fix(
    "trace-queue",
    "Find what the GPUs wait for in their queues",
    "`mgpu-doctor trace PID` records kernels, copies and the gaps between them.",
)


def _lead(measures: Measures, ranks: Iterable[int]) -> Iterable[Evidence]:
    """Evidence of how far the hosts of these ranks are ahead, if devices timed steps."""
    known = [lead.least for rank in ranks if (lead := measures.run_ahead.get(rank)) is not None]
    if known:
        yield Evidence(
            "how far the host is ahead of its GPU when backward begins, on the rank where it is "
            "most",
            max(known),
            "s",
            None,
            "events on the device; a lower bound",
        )


def _clocks(measures: Measures) -> str:
    by_device = any(clock_of(rank) is PhaseClock.DEVICE for rank in measures.case.ranks)
    return "device's clock" if by_device else "host's clock"


def _cause(roomy: bool, elsewhere: Mapping[str, float]) -> str:
    sentence = "Ranks wait neither for data nor for each other."
    if elsewhere:
        places = " and ".join(
            f"{name} ({format_share(share)})" for name, share in elsewhere.items()
        )
        return f"{sentence} Meanwhile the host spends its time in: {places}."
    if roomy:
        return f"{sentence} Much memory is free, so the batch is small for these devices."
    return f"{sentence} What the host does meanwhile is unknown."


def _fixes(measures: Measures, roomy: bool, elsewhere: Mapping[str, float]) -> Iterable[Fix]:
    if elsewhere:
        yield Fix(
            "overlap-host-work",
            "Keep the GPUs busy meanwhile",
            "Save and evaluate less often or in the background "
            "(torch.distributed.checkpoint.async_save); log every 100th step; read values of "
            "tensors (`.item()`, printing) a step later.",
        )
    if roomy:
        yield larger_batch(measures, "Use the free memory for a larger batch")
    if not roomy and not elsewhere:
        yield Fix(
            "find-host-work",
            "Find out what the host does meanwhile, or use fewer GPUs",
            "py-spy record --pid PID --duration 30 -o host.svg shows where the time of a rank's "
            "host goes.",
        )


def _utilization(measures: Measures, limits: Limits) -> Iterable[Evidence]:
    source = f"NVML, {min(use.samples for use in uses(measures).values())} samples per GPU"
    known = utilizations(measures).values()
    yield Evidence(
        "utilization of the busiest GPU, mean", max(m for m, _ in known), "fraction", None, source
    )
    yield Evidence(
        "the same, 95th percentile",
        max(high for _, high in known),
        "fraction",
        limits["utilization"],
        source,
    )


RULES = (
    Rule(
        code="launch-bound",
        family="slow",
        summary="The GPUs are idle between many small kernels: the host cannot launch them fast "
        "enough.",
        measured="NVML's utilization of every rank's GPU is low while every host is busy (CPU time "
        "of the main thread, and the backward pass, which autograd runs in its own thread) inside "
        f"forward, backward and optimizer, and no rank waits for data or for other ranks. {SPINS} "
        "Kernels and the gaps between them are not counted. If devices timed steps, only ranks "
        "whose host is not well ahead of its device are judged, and the confidence is higher if "
        "all of them are host-bound.",
        thresholds="All limits hold on every judged rank. Not reported if the GPU of any rank is "
        "uncertain.",
        fixes='torch.compile(mode="reduce-overhead"), CUDA graphs, fused optimizers, a larger '
        "batch.",
        examine=_launch,
        alternatives=(trace_time.LAUNCH_BOUND,),
        needs=("devices",),
        limits=(UTILIZATION, EXCUSE, BUSY, MODEL, AHEAD),
        unverified=PRETEND,
    ),
    Rule(
        code="low-utilization",
        family="slow",
        summary="The GPUs are idle much of the time, although no rank waits for data or for other "
        "ranks.",
        measured=f"NVML's utilization of every rank's GPU, sampled while it trained. {SPINS} "
        "Reported only if `launch-bound` does not apply. If the run-ahead is known, a host's work "
        "counts only if the host is not ahead of its GPU.",
        thresholds="Not reported if the GPU of any rank is uncertain.",
        fixes="A larger batch if memory is free (with its learning rate), less host work between "
        "steps, or fewer GPUs.",
        examine=_low,
        alternatives=(trace_time.LOW_UTILIZATION,),
        needs=("devices",),
        limits=(UTILIZATION, EXCUSE, MEMORY),
        unverified=PRETEND,
    ),
)
