"""Memory that grows step after step: on a device, or on the host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mgpu_doctor.analysis.growth import Growth, growth
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.shares import after_warm_up
from mgpu_doctor.case.model import Case, Rank
from mgpu_doctor.findings import Culprit, Evidence, Finding, Fix, Severity
from mgpu_doctor.rules.rule import Limit, Limits, Rule
from mgpu_doctor.rules.words import ranks as name_ranks
from mgpu_doctor.rules.words import seconds, size

GROWN = Limit(
    "grown",
    64 * 1024 * 1024,
    "bytes",
    "what it must have grown at least, by the lower bound of the slope: allocators and caches of "
    "healthy jobs stay below it (200 simulated healthy series of each kind).",
)
SOON = 3 * 86_400.0
"""Seconds: what is full later than that is only worth knowing, as few jobs run for so long."""
LIKE = 0.5
"""Ranks with at least this share of the steepest slope leak, too."""


@dataclass(frozen=True, slots=True)
class _Leak:
    rank: Rank
    growth: Growth
    """By step on a device, by second on the host."""
    left: float | None
    """Steps or seconds until it is full; None: not known when."""


def _device(measures: Measures, limits: Limits) -> Iterable[Finding]:
    found = []
    for rank in measures.case.ranks:
        steps = after_warm_up(rank.steps)
        taken = steps["device_bytes"].astype(np.float64)
        taken[taken == 0] = np.nan
        grown = growth(steps["step"].astype(np.float64), taken)
        if grown is not None and grown.sure >= limits["grown"]:
            whole = _capacity(measures.case, rank)
            found.append(_Leak(rank, grown, None if whole is None else grown.until(whole)))
    if found:
        yield _finding(measures, found, "leak-device")


def _host(measures: Measures, limits: Limits) -> Iterable[Finding]:
    case = measures.case
    found = []
    for rank in case.ranks:
        at, resident = _resident(case, rank)
        grown = growth(at, resident)
        if grown is not None and grown.sure >= limits["grown"]:
            found.append(_Leak(rank, grown, None))
    if not found:
        return
    free = _free(case, found[0].rank.host)
    together = sum(leak.growth.slope for leak in found)
    left = free / together if free is not None and together > 0 else None
    yield _finding(measures, [_Leak(one.rank, one.growth, left) for one in found], "leak-host")


def _resident(case: Case, rank: Rank) -> tuple[np.ndarray, np.ndarray]:
    """Seconds and bytes of its process, from the moment on at which it was warm."""
    steps = after_warm_up(rank.steps)
    warm = float(steps["end_ns"][0]) * 1e-9 + rank.clock_offset if len(steps) else np.inf
    rows = [
        (sample.at, process[1])
        for sample in case.host_samples
        if rank.pid is not None
        and (process := sample.processes.get(rank.pid)) is not None
        and sample.host in (None, rank.host)
        and sample.at >= warm
        and (rank.ended is None or sample.at < rank.ended)
    ]
    return np.array([at for at, _ in rows]), np.array([float(size_) for _, size_ in rows])


def _free(case: Case, host: str) -> float | None:
    for sample in reversed(case.host_samples):
        known = sample.memory_used is not None and sample.memory_total is not None
        if known and sample.host in (None, host):
            return float((sample.memory_total or 0) - (sample.memory_used or 0))
    return None


def _capacity(case: Case, rank: Rank) -> float | None:
    wanted = rank.birth.get("device_uuid")
    for sample in reversed(case.device_samples):
        for device in sample.devices:
            if device.uuid is not None and device.uuid == wanted:
                return None if device.memory_total is None else float(device.memory_total)
    return None


def _finding(measures: Measures, found: Sequence[_Leak], code: str) -> Finding:
    steepest = max(leak.growth.slope for leak in found)
    leaking = [leak for leak in found if leak.growth.slope >= LIKE * steepest]
    everybody = len(leaking) == len(measures.case.ranks)
    on_host = code == "leak-host"
    what = "host memory" if on_host else "device memory"
    who = "every rank" if everybody else name_ranks(one.rank.rank or 0 for one in leaking)
    step = measures.step_seconds
    a_step = steepest * (step or 0.0) if on_host else steepest
    pace = f"{size(steepest)} a second" if on_host and not step else f"{size(a_step)} a step"
    left = min((one.left for one in leaking if one.left is not None), default=None)
    lasts = left if on_host or left is None else left * (step or 0.0)
    full = f"; it is full in about {seconds(lasts)}" if lasts else ""
    return Finding(
        code=code,
        severity=Severity.INFO if lasts is not None and lasts > SOON else Severity.WARNING,
        confidence=0.9,
        title=f"The {what} of {who} grows by {pace} and does not stop{full}",
        cause="It has grown throughout the run, in each third of it, which caches that fill and "
        "allocators that warm up do not.",
        culprits=()
        if everybody
        else tuple(
            Culprit(one.rank.rank, one.rank.host, one.rank.device, one.rank.pid) for one in leaking
        ),
        evidence=tuple(
            Evidence(
                f"growth of rank {one.rank.rank} {'a second' if on_host else 'a step'}, at least",
                one.growth.low,
                "bytes",
                one.growth.slope,
                "host samples" if on_host else "allocated at each step's end",
            )
            for one in sorted(leaking, key=lambda one: -one.growth.slope)[:8]
        ),
        fixes=(_ON_HOST if on_host else _ON_DEVICE,),
    )


_ON_DEVICE = Fix(
    "let-go",
    "Find what keeps tensors from step to step",
    "A loss that is added up with its graph (`total += loss`: write `total += loss.item()`), "
    "outputs kept in a list, hooks that store activations, retain_graph=True. "
    "`torch.cuda.memory._record_memory_history()`, a hundred steps, `_dump_snapshot(file)`, and "
    "`mgpu-doctor diagnose file` says whose code holds it.",
)
_ON_HOST = Fix(
    "let-go",
    "Find what keeps objects from step to step",
    "Lists of metrics or samples that only grow, a dataset that caches what it has decoded, "
    "losses kept with their graphs. `python -X tracemalloc=10` or memray shows the lines that "
    "hold most after some minutes.",
)
_HOW = (
    "Theil's and Sen's slope with its 95 % interval, where Mann's and Kendall's test is beyond "
    "four standard deviations and each third of the run grows, too."
)
RULES: tuple[Rule, ...] = (
    Rule(
        code="leak-device",
        family="memory",
        summary="A device's allocated memory grows step after step.",
        measured=f"Allocated bytes at the end of each step after warm-up. {_HOW}",
        thresholds="The limit below, and the certainty of the test (facts of simulation).",
        fixes="Detach what is kept from step to step.",
        examine=_device,
        limits=(GROWN,),
        unverified="on a GPU",
    ),
    Rule(
        code="leak-host",
        family="memory",
        summary="A rank's memory on the host grows all the time.",
        measured=f"Resident memory of the rank's process in the host samples after warm-up, 30 of "
        f"them at least. {_HOW}",
        thresholds="The limit below, and the certainty of the test (facts of simulation).",
        fixes="Find what keeps objects from step to step.",
        examine=_host,
        limits=(GROWN,),
    ),
)
