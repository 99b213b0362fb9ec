"""Exposed communication: time in which data moves and no rank does anything else."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_doctor.analysis.cost.communication_cost import CoreContention, measure_core_contention
from mgpu_doctor.analysis.cost.gradient_reduction import Exchanges, logged_reduction
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.process_metadata import Call
from mgpu_doctor.findings import Cost, Evidence, Finding, Fix, Predicted, Severity
from mgpu_doctor.formatting import format_seconds, format_share
from mgpu_doctor.rules.advice import LARGER_BATCH
from mgpu_doctor.rules.communication.ddp_settings import how_to_accumulate
from mgpu_doctor.rules.communication.excess_synchronization import RULES as SYNCHRONIZATION
from mgpu_doctor.rules.communication.excess_synchronization import is_own, measure_cost, places
from mgpu_doctor.rules.communication.exposed_communication import (
    exchanged,
    exposed_share,
    needless,
    overlap_gain,
)
from mgpu_doctor.rules.communication.slow_link import SLOW_LINK, measure_link_cost
from mgpu_doctor.rules.culprits import WARNING_COST, severity_of_cost
from mgpu_doctor.rules.framework_advice import uses_deepspeed
from mgpu_doctor.rules.rule import Limit, Limits, Rule
from mgpu_doctor.rules.settings import DEFAULTS
from mgpu_doctor.rules.traces import trace_time

BUSY = 0.5
"""Cores that other programs use, from which they are mentioned."""
BATCHES = 4
"""How many times as many micro-batches to accumulate, in the advice."""
EXCHANGES = frozenset(
    {
        *("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor"),
        *("all_gather_single", "reduce_scatter_single"),
    }
)


def _bound(measures: Measures, limits: Limits) -> Iterable[Finding]:
    often = exchanged(measures)
    moved = exposed_share(measures, often)
    step = measures.step_seconds
    if moved is None or not step or len(measures.case.ranks) < 2:
        return
    share, source = moved
    crowd = measure_core_contention(measures.case.ranks, measures.surroundings, share)
    crowded = crowd is not None and crowd.short
    better = _said_better(measures, share, crowded)
    left = share - better
    # If another fix saves more, the rest is judged once that fix is applied.
    if left < max(limits["share"], better):
        return
    saved = left * (1 - 1 / BATCHES)
    machine = "; its CPU cores are overloaded" if crowded else ""
    yield Finding(
        code="communication-bound",
        severity=Severity.INFO if crowded else severity_of_cost(saved),
        confidence=0.7 if crowded else 0.9,
        title=f"Communication takes {format_share(share)} of every step "
        f"({format_seconds(share * step)}) and is not overlapped{machine}",
        cause=_cause(measures, crowd),
        evidence=(
            Evidence("exposed communication, of the step", share, "fraction", None, source),
            *_evidence(measures, crowd),
        ),
        since_step=0,
        cost=Cost() if crowded else Cost(saved, saved * step),
        fixes=tuple(_fixes(measures, crowd, left, _accumulated(often))),
    )


def _said_better(measures: Measures, share: float, crowded: bool) -> float:
    """Share of the step time that findings with a better fix account for."""
    links = measure_link_cost(measures, DEFAULTS.limits(SLOW_LINK)["cost"])
    if links is not None:
        return share if links.saved is None else links.saved
    synchronizing = measure_cost(measures, places(measures, DEFAULTS.limits(SYNCHRONIZATION[0])))
    gain = None if crowded else overlap_gain(measures)
    hidden = gain[0] if gain is not None and gain[0] >= WARNING_COST else 0.0
    return needless(measures) + (synchronizing or 0.0) + hidden


def _called(measures: Measures) -> list[Call]:
    """Collectives that Python calls in every step of the first rank, the costliest first; none if a
    module exchanges the gradients (its communication hook may call them)."""
    rank = measures.case.ranks[0]
    if rank.metadata.ddp is not None:
        return []
    taken = rank.metadata.steps or 0
    often = [
        call for call in rank.metadata.calls if call.name in EXCHANGES and call.count >= taken > 0
    ]
    return sorted(often, key=lambda call: -call.seconds)


def _cause(measures: Measures, crowd: CoreContention | None) -> str:
    if crowd is not None and crowd.short:
        return _crowded(crowd)
    logged = logged_reduction(measures.case.ranks)
    if logged is not None:
        return (
            f"DistributedDataParallel spends {format_seconds(logged.communication)} per backward "
            "pass on gradients and overlaps "
            f"{format_seconds(max(0.0, logged.communication - logged.exposed))} of it with "
            "computation. The computation is too short to hide this many bytes on this link."
        )
    called = _called(measures)
    if called and is_own(called[0].site):
        return (
            f"The script calls {called[0].name} at {called[0].site} and waits for it there, so "
            "nothing is computed while gradients move."
        )
    return "The computation is too short to hide this many bytes on this link."


def _crowded(crowd: CoreContention) -> str:
    shared = f"{crowd.cores} cores" if crowd.cores is not None else "the cores of a host"
    parts = [f"{crowd.ranks} ranks share {shared}"]
    if crowd.queueing is not None:
        parts.append(
            "the communication threads of a rank waited for a core for "
            f"{format_seconds(crowd.queueing)} of every second"
        )
    if crowd.moving:
        parts.append(f"they ran for {format_seconds(crowd.moving)} of every second")
    if crowd.outside is not None and crowd.outside >= BUSY:
        parts.append(f"other programs kept {crowd.outside:.1f} cores busy")
    return (
        "Without a GPU, collectives run on the same cores as the computation, and these cores are "
        f"overloaded: {'; '.join(parts)}. Suspect this machine before the network."
    )


def _evidence(measures: Measures, crowd: CoreContention | None) -> Iterable[Evidence]:
    world = len(measures.case.ranks)
    module, logged = measures.case.ranks[0].metadata.ddp, logged_reduction(measures.case.ranks)
    if module is not None and module.parameter_bytes and logged is not None:
        moved = 2 * (world - 1) / world * module.parameter_bytes
        yield Evidence("gradients", module.parameter_bytes, "bytes", None, "process metadata")
        yield Evidence(
            "rate at which a ring would move them (2(n-1)/n of the bytes, both ways)",
            moved / max(logged.communication, 1e-9),
            "bytes/s",
            None,
            "DistributedDataParallel's log",
        )
    if crowd is not None and crowd.queueing is not None:
        source = "scheduler's counters"
        yield Evidence(
            "wait for a core, threads of a rank other than the main one",
            crowd.queueing,
            "s/s",
            None,
            source,
        )
    for call in _called(measures)[:3]:
        taken = measures.case.ranks[0].metadata.steps or 1
        source = "calls from Python, counted by the probe"
        yield Evidence(f"{call.name} per step", call.seconds / taken, "s", None, source, call.site)


def _accumulated(often: Exchanges | None) -> int:
    """Batches per exchange that an update needs, as the job is; 1 if unknown."""
    needed = 0.0 if often is None else min(often.synced, often.updates)
    return max(1, round(often.passes / needed)) if often is not None and needed > 0 else 1


def _fixes(
    measures: Measures, crowd: CoreContention | None, left: float, accumulated: int
) -> Iterable[Fix]:
    if crowd is not None and crowd.short:
        yield Fix(
            "fewer-ranks",
            "Start fewer ranks here, or give them more cores",
            f"Start at most one rank per core ({crowd.cores or 'fewer'} on this host), and set "
            "OMP_NUM_THREADS so that ranks × threads leave cores free for the collectives.",
        )
    module = measures.case.ranks[0].metadata.ddp
    if any(is_own(call.site) for call in _called(measures)) or _has_engine(measures):
        yield Fix(
            "use-ddp",
            "Overlap the gradient exchange with backward",
            "Wrap the model in DistributedDataParallel, which exchanges gradients in buckets "
            "during backward. Or start each collective with async_op=True and wait for it just "
            "before the update. Send many small tensors as one: torch.cat of their views.",
        )
    batches = BATCHES * accumulated
    now = f" instead of {accumulated}" if accumulated > 1 else ""
    yield Fix(
        "accumulate",
        f"Accumulate gradients over {batches} batches per exchange{now}",
        f"{how_to_accumulate(batches)}\n{LARGER_BATCH}",
        Predicted(
            1 - left * (1 - 1 / BATCHES),
            None,
            f"formula: the same number of batches, with an exchange in every {batches}th; fewer "
            "optimizer steps are not counted",
        ),
    )
    backends = {rank.metadata.backend for rank in measures.case.ranks}
    if module is not None and module.comm_hook is None and backends == {"nccl"}:
        yield Fix(
            "compress",
            "Send gradients in 16 bits",
            "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks; "
            "model.register_comm_hook(None, default_hooks.bf16_compress_hook)",
            Predicted(1 - left / 2, None, "formula: half the bytes of float32 in half the time"),
        )
    if len(measures.case.job.hosts) > 1 or backends == {"nccl"}:
        yield Fix(
            "check-link",
            "Check that NCCL uses the fastest link",
            "Set NCCL_DEBUG=INFO to print the transport and interface that NCCL chose. "
            "`NET/Socket` between hosts with InfiniBand or RoCE, and `SHM` between GPUs with "
            "NVLink, are the slow choices. `nvidia-smi topo -m` shows the available links.",
        )


def _has_engine(measures: Measures) -> bool:
    """Whether DeepSpeed exchanges the gradients, which has its own setting for it."""
    return uses_deepspeed(measures.case.job)


RULES = (
    Rule(
        code="communication-bound",
        family="slow",
        summary="Communication takes a large part of every step and is not overlapped with "
        "computation.",
        measured="In each step, the shortest time that any rank spent in collectives: that rank "
        "arrived last and waited for no one. If the host clock cannot measure the device's work, "
        "the communication after backward in DistributedDataParallel's log, on the rank with the "
        "least. On CPUs, the scheduler's counters show whether the communication threads had "
        "cores.",
        thresholds="The limit must still be exceeded after subtracting the cost of needless "
        "exchanges, barriers and large buckets, which have findings of their own. Warning if "
        "accumulation over 4 batches saves 5 % of the step time. Info, with the machine named as "
        "the cause, if communication threads waited for cores for half of the communication time "
        "(or, where that is not measured, if there are as many ranks as cores).",
        fixes="Accumulate gradients with `no_sync`, use larger batches, overlap the buckets, send "
        "gradients in 16 bits, or use a faster link.",
        examine=_bound,
        alternatives=(trace_time.COMMUNICATION_BOUND,),
        needs=("step_seconds",),
        limits=(
            Limit(
                "share",
                0.20,
                "fraction",
                "exposed communication as a share of the step; from 20 % on, accumulation over "
                "four batches saves at least 15 %.",
            ),
        ),
        unverified="on GPUs and between hosts",
    ),
)
