"""How full the ranks' GPUs are: half empty, uneven, or full from the start."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mgpu_doctor.analysis.machines.rank_devices import Series, list_devices_by_pid
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.steps.warm_up import after_warm_up
from mgpu_doctor.case.model import Rank
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_bytes, format_share
from mgpu_doctor.rules.culprits import culprit_of
from mgpu_doctor.rules.failures.log_rules import log_detector
from mgpu_doctor.rules.gpu.gpu_use import PRETEND, larger_batch, memory_share, uses
from mgpu_doctor.rules.rule import Limit, Limits, Rule

HALF = Limit(
    "used",
    0.5,
    "fraction",
    "memory use that no rank's GPU exceeds. Below it, twice the batch may fit, because part of the "
    "memory does not grow with the batch.",
)
BEYOND = Limit(
    "beyond",
    0.2,
    "fraction",
    "how far a rank's peak exceeds the median of the others. Allocators differ by a few per cent "
    "(rounding, and the order of requests).",
)
LEAST = Limit(
    "least",
    float(1 << 30),
    "bytes",
    "the same in bytes; contexts and library workspaces are smaller.",
)
WHOLE = Limit(
    "whole",
    0.85,
    "fraction",
    "share of the GPU's memory in use from the first sample to the last. TensorFlow takes all but "
    "a few hundred MiB unless memory growth is enabled.",
)
STILL = 0.01
"""Share of the memory by which its use may vary and still count as preallocated."""
FULL = 0.9
"""Share of its memory from which on the fullest rank is about to run out."""
EXPLAINED = 0.5
"""Share of the additional memory from which on more samples or tokens explain it."""


def _find_headroom(measures: Measures, limits: Limits) -> Iterable[Finding]:
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
        title=f"No GPU used more than {format_share(most)} of its memory: a larger batch fits",
        cause="A larger batch makes kernels larger and collectives rarer, unless the small one "
        "already keeps the GPUs busy.",
        evidence=(
            Evidence(
                "highest memory use of the fullest GPU",
                most,
                "fraction",
                limits["used"],
                f"NVML, {device.samples} samples per GPU; caches included",
            ),
        ),
        fixes=(
            larger_batch(measures, "Use the memory for a larger batch"),
            Fix(
                "plan-batch",
                "Check what fits before you try",
                f"`mgpu-doctor plan SCRIPT.py:FUNCTION --ranks {ranks} --gpu {gpu}` finds the "
                "largest batch that fits (docs/plan.md).",
            ),
        ),
    )


def _find_imbalance(measures: Measures, limits: Limits) -> Iterable[Finding]:
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
        f"({format_share(more / usual)}) for the same work",
        cause="As far as known, it gets as many samples as the others. Usually such a rank keeps "
        "what it gathers from the others, evaluates, logs or loads alone. It limits the batch size "
        "of all ranks.",
        culprits=(culprit_of(measures, fullest),),
        victims=tuple(sorted(set(peaks) - {fullest})),
        evidence=tuple(
            Evidence(f"peak of rank {number}", peaks[number], "bytes", usual, _SOURCE)
            for number in sorted(peaks, key=lambda peak: -peaks[peak])[:8]
        ),
        fixes=(
            Fix(
                "share-it-out",
                "Do not keep more on one rank than on the others",
                "Move what is only kept to the host (`.cpu()`), gather metrics instead of outputs, "
                "load checkpoints with map_location='cpu', evaluate under torch.no_grad() on "
                "every rank.",
            ),
        ),
    )


_SOURCE = "torch's allocator, or NVML's memory of the process"


def _peaks(measures: Measures) -> dict[int, int]:
    """Rank -> peak bytes on its GPU, by its framework's allocator, else by NVML."""
    recorded = {
        rank.rank: rank.metadata.device_memory.allocated_peak for rank in measures.case.ranks
    }
    if all(recorded.values()):
        return {number: peak for number, peak in recorded.items() if number is not None and peak}
    placed = list_devices_by_pid(measures.case)
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
    """Whether it gets so many more samples or tokens per step that they explain its memory."""
    for name in ("tokens", "samples"):
        loads = {rank.rank: _load(rank, name) for rank in measures.case.ranks}
        if None not in loads.values():
            others = [load for rank, load in loads.items() if rank != number and load]
            own = loads.get(number)
            if own and others and own / float(np.median(others)) - 1 >= EXPLAINED * beyond:
                return True
    return False


def _load(rank: Rank, name: str) -> float | None:
    """The largest number per step: peaks come from the largest batch."""
    known = after_warm_up(rank.steps)[name]
    return float(known.max()) if len(known) and known.any() else None


def _find_preallocation(measures: Measures, limits: Limits) -> Iterable[Finding]:
    if measures.case.job.framework not in ("tensorflow", "keras"):
        return
    taken = {
        number: low
        for number, device in (measures.devices or {}).items()
        if (low := _taken_whole(device.series, limits["whole"])) is not None
    }
    if not taken:
        return
    yield Finding(
        code="memory-preallocated",
        severity=Severity.INFO,
        confidence=0.7,
        title=f"TensorFlow took {format_share(max(taken.values()))} of a GPU's memory at the "
        "start; how much it needs is unknown",
        cause="Unless memory growth is enabled, TensorFlow takes nearly all memory of each GPU "
        "that it sees at the start. Other processes find none there, and no tool can see how much "
        "of it is in use.",
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
                "Enable memory growth",
                "Before anything else: for gpu in tf.config.list_physical_devices('GPU'): "
                "tf.config.experimental.set_memory_growth(gpu, True); or "
                "TF_FORCE_GPU_ALLOW_GROWTH=true in the environment. Memory may fragment more then.",
            ),
        ),
    )


def _taken_whole(series: Series, whole: float) -> float | None:
    """The least share that was in use; None: not nearly all, or it varied."""
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
        summary="No GPU ever uses more than half of its memory.",
        measured="The highest memory use on each rank's GPU during training, by NVML. It includes "
        "caches and other processes, so the job needs less than that.",
        thresholds="Not reported if the GPU of any rank is uncertain.",
        fixes="Use a larger batch; `mgpu-doctor plan` finds the largest that fits.",
        examine=_find_headroom,
        needs=("devices",),
        limits=(HALF,),
        unverified=PRETEND,
    ),
    Rule(
        code="imbalance-memory",
        family="memory",
        summary="A rank holds much more device memory than the others for the same work.",
        measured="Each rank's peak by torch's allocator, else the most that NVML shows for its "
        "process. Ranks of a pipeline do different work and are not compared; nor is a rank whose "
        "largest step has so many more samples or tokens that they explain half of the difference.",
        thresholds=f"A warning if the fullest rank uses {format_share(FULL)} of its GPU's memory, "
        "otherwise info.",
        fixes="Do not keep more on one rank than on the others.",
        examine=_find_imbalance,
        limits=(BEYOND, LEAST),
        unverified=PRETEND,
    ),
    Rule(
        code="memory-preallocated",
        family="memory",
        summary="TensorFlow takes all memory of a GPU at the start.",
        measured="The GPU of a TensorFlow rank is nearly full from the first sample to the last, "
        "and its use does not vary.",
        thresholds=f"Its use varies by {format_share(STILL)} of the memory at most.",
        fixes="`set_memory_growth(gpu, True)` for every GPU before it is used, or "
        "TF_FORCE_GPU_ALLOW_GROWTH=true.",
        examine=_find_preallocation,
        alternatives=(log_detector("memory-preallocated"),),
        limits=(WHOLE,),
        replaces=("failed-exception", "failed-killed", "failed-signal"),
        unverified=PRETEND,
    ),
)
