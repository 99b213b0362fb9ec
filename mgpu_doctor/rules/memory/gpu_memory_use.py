"""How the ranks fill their devices: hardly, unevenly, or whole from the start."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mgpu_doctor.analysis.machines.rank_devices import Series, held
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.steps.phase_shares import after_warm_up
from mgpu_doctor.case.allocator import allocator
from mgpu_doctor.case.model import Rank
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_bytes, format_share
from mgpu_doctor.rules.blame import culprit_of
from mgpu_doctor.rules.device.gpu import PRETEND, larger_batch, memory_share, uses
from mgpu_doctor.rules.rule import Limit, Limits, Rule

HALF = Limit(
    "used",
    0.5,
    "fraction",
    "of the memory of every rank's device that was in use at most: with less twice the batch may "
    "fit, as what does not grow with the batch is in it.",
)
BEYOND = Limit(
    "beyond",
    0.2,
    "fraction",
    "by which a rank's peak exceeds the median of the others: their allocators differ by some per "
    "cent (rounding, and the order of requests).",
)
LEAST = Limit(
    "least",
    float(1 << 30),
    "bytes",
    "by which it must exceed them: contexts and workspaces of libraries are smaller.",
)
WHOLE = Limit(
    "whole",
    0.85,
    "fraction",
    "of the device's memory that is in use from the first sample to the last: TensorFlow takes "
    "all but a few hundred MiB unless it is told to grow.",
)
STILL = 0.01
"""Share of the device by which what is in use may move while it counts as taken at once."""
FULL = 0.9
"""Share of its device from which the fullest rank is about to run out."""
EXPLAINED = 0.5
"""Share of what a rank holds more that more samples or tokens explain from this on."""


def _headroom(measures: Measures, limits: Limits) -> Iterable[Finding]:
    known = uses(measures)
    most = memory_share(measures)
    if most is None or most >= limits["used"]:
        return
    device = next(iter(known.values()))
    total = device.memory_total or 0
    ranks = len(measures.case.ranks)
    gpu = f"{round(total / (1 << 30))}GiB"
    yield Finding(
        code="memory-headroom",
        severity=Severity.INFO,
        confidence=0.8,
        title=f"No GPU had more than {format_share(most)} of its memory in use: a larger batch "
        "fits",
        cause="A larger batch makes kernels larger and collectives rarer, where the GPUs are not "
        "busy with the small one already.",
        evidence=(
            Evidence(
                "memory of the fullest GPU in use, at most",
                most,
                "fraction",
                limits["used"],
                f"NVML, {device.samples} samples a GPU; caches included",
            ),
        ),
        fixes=(
            larger_batch(measures, "Use it for a larger batch"),
            Fix(
                "plan-batch",
                "Ask what fits before trying",
                f"`mgpu-doctor plan SCRIPT.py:FUNCTION --ranks {ranks} --gpu {gpu}` tells the "
                "largest batch that fits (docs/plan.md).",
            ),
        ),
    )


def _imbalance(measures: Measures, limits: Limits) -> Iterable[Finding]:
    peaks = _peaks(measures)
    if len(peaks) < 2 or len(peaks) < len(measures.case.ranks) or not measures.structure.alike:
        return
    fullest = max(peaks, key=lambda number: peaks[number])
    usual = float(np.median([size_ for number, size_ in peaks.items() if number != fullest]))
    more = peaks[fullest] - usual
    if more < max(limits["least"], limits["beyond"] * usual) or _works_more(
        measures, fullest, more / usual
    ):
        return
    on = uses(measures).get(fullest)
    total = on.memory_total if on is not None else None
    full = bool(total) and peaks[fullest] >= FULL * (total or 0)
    yield Finding(
        code="imbalance-memory",
        severity=Severity.WARNING if full else Severity.INFO,
        confidence=0.75,
        title=f"Rank {fullest} holds {format_bytes(more)} more device memory than the others "
        f"({format_share(more / usual)}), and not for more work",
        cause="It sees as many samples as the others, as far as that is known. What only one rank "
        "keeps is mostly what it gathers from the others, evaluates, logs or loads by itself. It "
        "bounds the batch of all.",
        culprits=(culprit_of(measures, fullest),),
        victims=tuple(sorted(set(peaks) - {fullest})),
        evidence=tuple(
            Evidence(f"peak of rank {number}", peaks[number], "bytes", usual, _SOURCE)
            for number in sorted(peaks, key=lambda one: -peaks[one])[:8]
        ),
        fixes=(
            Fix(
                "share-it-out",
                "Let no rank hold what the others do not",
                "Move to the host what is only kept (`.cpu()`), gather metrics instead of outputs, "
                "load checkpoints with map_location='cpu', evaluate under torch.no_grad() on "
                "every rank.",
            ),
        ),
    )


_SOURCE = "torch's allocator, or NVML's memory of the process"


def _peaks(measures: Measures) -> dict[int, int]:
    """Rank -> the most bytes on its device: as its framework tells, else as NVML does."""
    told = {rank.rank: allocator(rank).allocated_peak for rank in measures.case.ranks}
    if all(told.values()):
        return {number: peak for number, peak in told.items() if number is not None and peak}
    placed = held(measures.case)
    if any(len(keys) != 1 for keys in placed.values()):
        return {}
    pids = {rank.pid: rank.rank for rank in measures.case.ranks if rank.rank in placed}
    peaks: dict[int, int] = {}
    for gpu in measures.watched.gpus:
        for _, device in gpu.series:
            for process in device.processes:
                number = pids.get(process.pid)
                if number is not None and process.memory:
                    peaks[number] = max(process.memory, peaks.get(number, 0))
    return peaks


def _works_more(measures: Measures, number: int, beyond: float) -> bool:
    """Whether it has more samples or tokens a step, by as much as explains what it holds more."""
    for name in ("tokens", "samples"):
        loads = {rank.rank: _load(rank, name) for rank in measures.case.ranks}
        if None not in loads.values():
            others = [load for rank, load in loads.items() if rank != number and load]
            own = loads.get(number)
            if own and others and own / float(np.median(others)) - 1 >= EXPLAINED * beyond:
                return True
    return False


def _load(rank: Rank, name: str) -> float | None:
    """The most of a step, as peaks are of the largest batch."""
    known = after_warm_up(rank.steps)[name]
    return float(known.max()) if len(known) and known.any() else None


def _preallocated(measures: Measures, limits: Limits) -> Iterable[Finding]:
    if measures.case.job.framework not in ("tensorflow", "keras"):
        return
    taken = {
        number: low
        for number, one in (measures.devices or {}).items()
        if (low := _taken_whole(one.series, limits["whole"])) is not None
    }
    if not taken:
        return
    yield Finding(
        code="memory-preallocated",
        severity=Severity.INFO,
        confidence=0.7,
        title=f"TensorFlow took {format_share(max(taken.values()))} of a GPU's memory at once; "
        "how much "
        "of it is needed cannot be seen",
        cause="Unless it is told to grow, TensorFlow takes nearly all of each GPU that it sees as "
        "it starts. Other processes there find none, and no tool can tell how full it is.",
        culprits=tuple(culprit_of(measures, number) for number in sorted(taken)),
        evidence=(
            Evidence(
                "memory in use from the first sample on",
                max(taken.values()),
                "fraction",
                limits["whole"],
                "NVML samples",
            ),
        ),
        fixes=(
            Fix(
                "memory-growth",
                "Let it take what it needs",
                "Before anything else: for gpu in tf.config.list_physical_devices('GPU'): "
                "tf.config.experimental.set_memory_growth(gpu, True); or "
                "TF_FORCE_GPU_ALLOW_GROWTH=true in the environment. Memory may be in more pieces "
                "then.",
            ),
        ),
    )


def _taken_whole(series: Series, whole: float) -> float | None:
    """The least share that was in use; None: not all of it, or it moved."""
    shares = [
        device.memory_used / device.memory_total
        for _, device in series
        if device.memory_used is not None and device.memory_total
    ]
    if not shares or min(shares) < whole or max(shares) - min(shares) > STILL:
        return None
    return min(shares)


RULES: tuple[Rule, ...] = (
    Rule(
        code="memory-headroom",
        family="memory",
        summary="Less than half of every GPU's memory is used all along.",
        measured="The most memory in use on each rank's device while it trained, by NVML: caches "
        "and other processes included, so that less is needed than that.",
        thresholds="A rank whose GPU is not surely known keeps the rule silent.",
        fixes="A larger batch; `mgpu-doctor plan` tells the largest that fits.",
        examine=_headroom,
        needs=("devices",),
        limits=(HALF,),
        unverified=PRETEND,
    ),
    Rule(
        code="imbalance-memory",
        family="memory",
        summary="A rank holds much more device memory than the others, and not for more work.",
        measured="Each rank's peak by torch's allocator, else the most that NVML shows of its "
        "process. Ranks of a pipeline do different work and are not compared; nor is a rank that "
        "has more samples or tokens in its largest step, by half of the difference or more.",
        thresholds=f"A warning where the fullest has {FULL:.0%} of its device, else for "
        "information.",
        fixes="Let no rank keep what the others do not.",
        examine=_imbalance,
        limits=(BEYOND, LEAST),
        unverified=PRETEND,
    ),
    Rule(
        code="memory-preallocated",
        family="memory",
        summary="TensorFlow takes all of a GPU's memory at once.",
        measured="A TensorFlow rank's device is nearly full from the first sample to the last, and "
        "what is in use does not move.",
        thresholds=f"It moves by {STILL:.0%} of the device at most.",
        fixes="`set_memory_growth(gpu, True)` for every GPU before it is used, or "
        "TF_FORCE_GPU_ALLOW_GROWTH=true.",
        examine=_preallocated,
        limits=(WHOLE,),
        replaces=("failed-exception", "failed-killed", "failed-signal"),
        unverified=PRETEND,
    ),
)
