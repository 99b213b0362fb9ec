"""Memory that will run out: because it grows, because nothing is left, because torch has to beg,
because a long batch comes, because a host is full all along."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mgpu_doctor.analysis.capacity.memory_growth import (
    MemoryGrowth,
    find_growing_devices,
    find_growing_hosts,
)
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.allocator import allocator
from mgpu_doctor.case.model import Rank
from mgpu_doctor.findings import Culprit, Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_bytes, format_ranks, format_seconds
from mgpu_doctor.rules import advice
from mgpu_doctor.rules.memory import full_host, long_batch_risk
from mgpu_doctor.rules.memory.leaks import (
    FIRST_EPOCH,
    GROWN,
    ON_DEVICE,
    ON_HOST,
    culprits,
    evidence,
    first_epoch,
    soon_full,
    steepest,
    sureness,
    who,
    with_slowness,
)
from mgpu_doctor.rules.rule import Limit, Limits, Rule

SOON = Limit(
    "soon",
    900.0,
    "s",
    "from then on it is critical: a quarter of an hour is little for a checkpoint and a look.",
)
RETRIES = Limit(
    "retries",
    5,
    "times",
    "that torch gave all its kept memory back to meet a request: none is the aim (torchtune's pull "
    "request 1360), and a few may be of one odd batch.",
)
LIMITED = (
    " It is the process' own limit (`ulimit -v` or `-d`) that it comes to, not the host's end."
)


def _growing(measures: Measures, limits: Limits) -> Iterable[Finding]:
    case, step = measures.case, measures.step_seconds
    yield from _full(measures, find_growing_devices(case, limits["grown"]), "device", limits)
    yield from _full(measures, find_growing_hosts(case, step, limits["grown"]), "host", limits)


def _full(
    measures: Measures, found: Sequence[MemoryGrowth], where: str, limits: Limits
) -> Iterable[Finding]:
    step = measures.step_seconds
    if step is None or not soon_full(measures, found):
        return
    known = [one for one in found if one.left is not None]
    first = min(known, key=lambda one: (one.left or (0.0,))[0])
    expected, earliest, latest = first.left or (0.0, 0.0, 0.0)
    leaking = steepest(found)
    newest = int(first.rank.steps["step"][-1])
    told = Finding(
        code="oom-risk",
        severity=Severity.CRITICAL if earliest * step <= limits["soon"] else Severity.WARNING,
        confidence=sureness(leaking, on_host=where == "host"),
        title=f"The {where} memory of {who(measures, leaking)} is full in about {expected:,.0f} "
        f"steps ({format_seconds(expected * step)}): it grows by "
        f"{format_bytes(first.growth.slope)} a step",
        cause="It has grown in each third of the time that was looked at, and does not stop. "
        f"With 95 % confidence of the slope it is full between step {newest + earliest:,.0f} and "
        f"step {newest + latest:,.0f}; one large batch can be enough before that."
        + (LIMITED if first.limited else "")
        + (FIRST_EPOCH if where == "host" and first_epoch(leaking) else ""),
        culprits=culprits(measures, leaking),
        evidence=(
            *evidence(leaking),
            Evidence(
                f"{where} memory that is left for it",
                first.free,
                "bytes",
                None,
                _source(first, where),
            ),
        ),
        fixes=(
            ON_DEVICE if where == "device" else ON_HOST,
            Fix(
                "save-now",
                "Save before it is full",
                "Write a checkpoint now and at least every "
                f"{max(1, int(earliest / 2)):,} steps; start again from it: what leaks is gone "
                "with the process.",
            ),
        ),
    )
    yield with_slowness(told, measures, leaking) if where == "host" else told


def _source(first: MemoryGrowth, where: str) -> str:
    if where == "device":
        return "NVML samples; what torch keeps unused counts as left"
    if first.limited:
        return "host samples; by its own limit (`ulimit -v` or `-d`)"
    return "host samples; the control group's where it has a limit"


def _begging(measures: Measures, limits: Limits) -> Iterable[Finding]:
    told = [(allocator(rank).retries or 0, rank) for rank in measures.case.ranks]
    begging = [(times, rank) for times, rank in told if times >= limits["retries"]]
    if not begging:
        return
    begging.sort(key=lambda one: -one[0])
    yield Finding(
        code="oom-risk",
        severity=Severity.WARNING,
        confidence=0.8,
        title=f"The device of {format_ranks(rank.rank or 0 for _, rank in begging)} is as full as "
        f"can be: torch had to give back all it kept {begging[0][0]} times",
        cause="A request found no room; torch gave its kept memory back to the device, waiting "
        "for it, and asked again. It costs time each time, and one larger batch ends the job.",
        culprits=tuple(_culprit(rank) for _, rank in begging),
        evidence=tuple(
            Evidence(
                f"retries of rank {rank.rank}",
                times,
                "times",
                limits["retries"],
                "torch's allocator (num_alloc_retries)",
            )
            for times, rank in begging[:8]
        ),
        fixes=(
            Fix(
                "expandable-segments",
                "Let segments grow instead of taking new ones",
                advice.environment(measures, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"),
            ),
            Fix(
                "plan-memory",
                "See what would make room",
                "`mgpu-doctor plan` with your model and this GPU ranks what helps: smaller "
                "micro-batches with accumulation, checkpointing, bf16, sharding.",
            ),
        ),
    )


def _culprit(rank: Rank) -> Culprit:
    return Culprit(rank.rank, rank.host, rank.device, rank.pid)


RULES: tuple[Rule, ...] = (
    Rule(
        code="oom-risk",
        family="memory",
        summary="Memory will run out while the job runs.",
        measured="Of a running job: bytes of each rank at the ends of steps, on its device as its "
        "framework allocates them and on the host as its process holds them, as for leak-device "
        "and leak-host; held against what the device, the process' own limits (`ulimit -v`, `-d`), "
        "the control group or the host has left. All ranks that grow on it are added up. Also, "
        "running or not, how often torch had to give "
        f"back all the memory it kept. {long_batch_risk.MEASURED} {full_host.MEASURED}",
        thresholds="Full within a day; what is full later is leak-device or leak-host. The "
        "interval is that of the slope (Sen, 95 %), not of what else may happen. For a long batch: "
        "five peaks at least by four sizes that differ by a fifth, of which a line explains 95 %; "
        "150 batches, and no size that is the largest came three times (it is a bound then).",
        fixes="Detach what is kept from step to step; save before it is full; make room.",
        examine=_growing,
        also=(_begging, long_batch_risk.examine, full_host.examine),
        limits=(
            GROWN,
            SOON,
            RETRIES,
            long_batch_risk.AHEAD,
            full_host.FULL,
            full_host.PRESSED,
        ),
        unverified="on a GPU",
    ),
)
