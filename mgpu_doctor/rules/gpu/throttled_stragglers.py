"""A rank that slows down the others because its GPU is clocked down."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mgpu_doctor.analysis.machines.rank_devices import Use
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.stragglers.persistent_stragglers import Straggler
from mgpu_doctor.case.device_samples import CLOCK_REASONS, HARD_CLOCK_REASONS
from mgpu_doctor.case.device_times import BoundBy
from mgpu_doctor.findings import Evidence, Finding, Fix
from mgpu_doctor.rules.gpu.gpu_use import PRETEND, middle, uses_since
from mgpu_doctor.rules.rule import Limit, Limits, Rule
from mgpu_doctor.rules.slow.straggler_finding import COST, FAMILIES, MEASURED, THRESHOLDS, family_of
from mgpu_doctor.rules.slow.straggler_finding import straggler_finding as finding_of

RARE = 0.1
"""Largest share of samples in which the other GPUs may have the same reason."""
EXPLAINS = 0.5
"""Share of the excess that the lower clock must be able to explain."""


@dataclass(frozen=True, slots=True)
class _Slowed:
    own: Use
    clock_of_others: float | None
    power_limit_of_others: float | None
    reasons: tuple[str, ...]
    """The reasons, most informative first; empty: the driver reports none."""

    @property
    def by_clock(self) -> bool:
        return self.own.clock is not None and self.clock_of_others is not None


def _throttled(measures: Measures, limits: Limits) -> Iterable[Finding]:
    for straggler in measures.stragglers or ():
        family = family_of(straggler)
        waits_for_host = measures.bound_by.get(straggler.rank) is BoundBy.HOST
        if straggler.saved < limits["cost"] or family == "input" or waits_for_host:
            continue
        slowed = _slowed(measures, straggler, limits)
        if slowed is None:
            continue
        why = f" ({CLOCK_REASONS[slowed.reasons[0]]})" if slowed.reasons else ""
        finding = finding_of(
            measures,
            straggler,
            code="straggler-throttled",
            what="its work on the GPU",
            phases=FAMILIES[family],
            cause=_cause(slowed),
            fixes=_fixes(slowed),
        )
        yield replace(
            finding,
            title=f"{finding.title}; its GPU {slowed.own.index} {_clocks(slowed)}{why}",
            confidence=min(finding.confidence, 0.9 if slowed.by_clock else 0.6),
            evidence=(*_evidence(slowed, straggler.rank), *finding.evidence),
        )


def _slowed(measures: Measures, straggler: Straggler, limits: Limits) -> _Slowed | None:
    """The rank's device and how it compares, if it is slower in a way that explains the excess."""
    uses = uses_since(measures, straggler.since)
    own = uses.pop(straggler.rank, None)
    named = {other.rank for other in measures.stragglers or ()}
    devices = measures.devices or {}
    others = [
        use
        for rank, use in uses.items()
        if own is not None
        and rank not in named
        and use.name == own.name
        and not devices[rank].beside
    ]
    if own is None or not others or devices[straggler.rank].beside:
        return None
    clock, power = middle(o.clock for o in others), middle(o.power_limit for o in others)
    reasons = tuple(
        name
        for name in CLOCK_REASONS
        if own.reasons.get(name, 0.0) >= limits["share"]
        and (middle(other.reasons.get(name, 0.0) for other in others) or 0.0) <= RARE
    )
    slowed = _Slowed(own, clock, power, reasons)
    if own.clock and clock:
        could = straggler.own_of_others * (clock / own.clock - 1)
        low = own.clock <= (1 - limits["clock"]) * clock
        return slowed if low and could >= EXPLAINS * straggler.excess else None
    return slowed if any(name in HARD_CLOCK_REASONS for name in reasons) else None


def _clocks(slowed: _Slowed) -> str:
    if slowed.own.clock is None or slowed.clock_of_others is None:
        return "is slowed down"
    return f"runs at {slowed.own.clock:.0f} MHz, the others' at {slowed.clock_of_others:.0f} MHz"


def _cause(slowed: _Slowed) -> str:
    reasons = " and ".join(CLOCK_REASONS[name] for name in slowed.reasons[:2])
    heat = "" if slowed.own.temperature is None else f" It reached {slowed.own.temperature:.0f} °C."
    if reasons:
        return f"The driver reports the reason: {reasons}.{heat}"
    return f"The driver reports no reason for the lower clock.{heat}"


def _evidence(slowed: _Slowed, rank: int) -> Iterable[Evidence]:
    own, where = slowed.own, f"rank {rank}, GPU {slowed.own.index}"
    source = f"{own.samples} NVML samples"
    if own.clock is not None:
        yield Evidence(
            "SM clock under load, compared with the median of the other GPUs",
            own.clock * 1e6,
            "Hz",
            None if slowed.clock_of_others is None else slowed.clock_of_others * 1e6,
            source,
            where,
        )
    for name in slowed.reasons:
        yield Evidence(
            f"share of samples slowed by {CLOCK_REASONS[name]}",
            own.reasons[name],
            "fraction",
            RARE,
            source,
            where,
        )
    if own.power_limit is not None:
        yield Evidence(
            "power limit, compared with the median of the other GPUs",
            own.power_limit,
            "W",
            slowed.power_limit_of_others,
            source,
            where,
        )


def _fixes(slowed: _Slowed) -> list[Fix]:
    gpu, first = slowed.own.index, next(iter(slowed.reasons), None)
    own, usual = slowed.own.power_limit, slowed.power_limit_of_others
    if first in ("hw_thermal", "sw_thermal"):
        fix = Fix(
            "cool-device",
            f"Cool GPU {gpu}",
            f"nvidia-smi -i {gpu} -q -d TEMPERATURE,PERFORMANCE shows the temperature and its "
            "limits: check fans, airflow, dust and inlet air; move the job meanwhile.",
        )
    elif first == "power_cap" and own is not None and usual is not None and own < usual:
        fix = Fix(
            "raise-power-limit",
            f"Give GPU {gpu} the power limit of the others",
            f"As root: nvidia-smi -i {gpu} -pl {usual:.0f} (it is {own:.0f} W now). If it was set "
            "on purpose, set all GPUs to the same limit.",
        )
    elif first == "clocks_setting":
        fix = Fix(
            "reset-clocks",
            f"Reset the clock setting of GPU {gpu}",
            f"As root: nvidia-smi -i {gpu} -rgc and nvidia-smi -i {gpu} -rac",
        )
    else:
        fix = Fix(
            "replace-device",
            f"Have the power and cooling of GPU {gpu} checked, or the card replaced",
            f"nvidia-smi -i {gpu} -q -d PERFORMANCE,POWER,CLOCK shows the reason, if there is one. "
            "A power brake comes from the host's supply. If it stays slow without heat, return it "
            "to the vendor (RMA).",
        )
    return [fix]


RULES = (
    Rule(
        code="straggler-throttled",
        family="slow",
        summary="A rank's GPU is clocked down (heat, power, hardware), and all other ranks wait "
        "for it.",
        measured=MEASURED.format(
            phases="If work other than input is slower on a rank, the median SM clock of its GPU "
            "and NVML's clock event reasons, sampled in the compared steps, are compared with "
            "those of the other ranks' GPUs of the same model."
        ),
        thresholds=f"{THRESHOLDS} The lower clock must be able to explain half of the excess, if "
        "work took longer in proportion. If clocks are unknown, a thermal, power brake or hardware "
        "slowdown that the other GPUs do not have decides (NVML: a hardware slowdown halves the "
        "clock at least). A power cap alone does not: it is normal under full load. Ranks that "
        "share a GPU are not judged, nor ranks whose phases were stamped on the host while the GPU "
        "ran on, nor a host-bound rank, whose GPU waits for its host.",
        fixes="Cooling; the power limit (`nvidia-smi -pl`); a clock setting; otherwise the power "
        "supply or the card.",
        examine=_throttled,
        needs=("stragglers", "devices"),
        replaces=(
            "straggler-compute",
            "straggler-other",
            "straggler-optimizer",
            "straggler-host",
            "gpu-throttled",
        ),
        limits=(
            COST,
            Limit(
                "clock",
                0.10,
                "fraction",
                "how far the clock is below the median of the other GPUs: GPUs of one model "
                "differ by 8 % on average (Sinha et al. 2022, arXiv 2208.11035).",
            ),
            Limit(
                "share",
                0.5,
                "fraction",
                "share of samples in which a reason must apply to be named: most of the time.",
            ),
        ),
        unverified=PRETEND,
    ),
)
