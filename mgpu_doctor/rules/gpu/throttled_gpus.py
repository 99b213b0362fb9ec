"""A GPU that heat or its power supply slows down, whether or not other ranks wait for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mgpu_doctor.analysis.machines.host_devices import Gpu
from mgpu_doctor.analysis.machines.rank_devices import LEAST_SAMPLES, Use, use_of
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.device_samples import CLOCK_REASONS, HARD_CLOCK_REASONS
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_share
from mgpu_doctor.rules.gpu.gpu_findings import SURE, culprits, loaded, named, where
from mgpu_doctor.rules.gpu.gpu_use import PRETEND, middle
from mgpu_doctor.rules.rule import Limit, Limits, Rule

CODE = "gpu-throttled"


@dataclass(frozen=True, slots=True)
class _Slowed:
    use: Use
    reason: str
    usual: float | None
    """MHz of the other GPUs of its model under load, else its own maximum; None: unknown."""
    power_usual: float | None

    @property
    def loss(self) -> float | None:
        """Share, 0..1, of the usual clock that is lost; None: unknown."""
        if self.use.clock is None or not self.usual:
            return None
        return max(0.0, 1 - self.use.clock / self.usual)


def _examine(measures: Measures, limits: Limits) -> Iterable[Finding]:
    uses = {id(gpu): _use(gpu) for gpu in measures.watched.gpus}
    for gpu in measures.watched.gpus:
        own = uses[id(gpu)]
        reason = _reason(own, limits) if own is not None else None
        if own is None or reason is None:
            continue
        others = [use for peer in measures.watched.alike(gpu) if (use := uses[id(peer)])]
        well = [use for use in others if _reason(use, limits) is None] or others
        usual = middle(use.clock for use in well)
        slowed = _Slowed(
            own,
            reason,
            own.clock_most if usual is None else usual,
            middle(use.power_limit for use in well),
        )
        costs = slowed.loss is not None and slowed.loss >= limits["clock"]
        if reason in HARD_CLOCK_REASONS:
            grave = costs or slowed.loss is None
            yield _finding(
                measures, gpu, slowed, Severity.WARNING if grave else Severity.INFO, limits
            )
        elif costs and _capped(slowed):
            yield _finding(measures, gpu, slowed, Severity.INFO, limits)


def _use(gpu: Gpu) -> Use | None:
    busy = loaded(gpu)
    return use_of(busy) if len(busy) >= LEAST_SAMPLES else None


def _reason(use: Use, limits: Limits) -> str | None:
    """The most severe reason that applies in enough of the samples under load."""
    named_ = (*HARD_CLOCK_REASONS, "power_cap")
    return next((name for name in named_ if use.reasons.get(name, 0.0) >= limits["share"]), None)


def _capped(slowed: _Slowed) -> bool:
    """Whether its own power cap is lower than the others': the usual cap of a model is normal."""
    own, usual = slowed.use.power_limit, slowed.power_usual
    return own is not None and usual is not None and own < 0.95 * usual


def _finding(
    measures: Measures, gpu: Gpu, slowed: _Slowed, severity: Severity, limits: Limits
) -> Finding:
    use, reason = slowed.use, slowed.reason
    share = use.reasons[reason]
    clock = f", at {use.clock:.0f} MHz" if use.clock is not None else ""
    usual = f" instead of {slowed.usual:.0f}" if use.clock is not None and slowed.usual else ""
    evidence = [
        Evidence(
            f"share of samples under load slowed by {CLOCK_REASONS[reason]}",
            share,
            "fraction",
            limits["share"],
            f"{use.samples} NVML samples",
            where(gpu),
        )
    ]
    if use.clock is not None:
        evidence.append(
            Evidence(
                "SM clock under load, compared with the others of its model or its own maximum",
                use.clock * 1e6,
                "Hz",
                slowed.usual * 1e6 if slowed.usual else None,
                f"{use.samples} NVML samples",
                where(gpu),
            )
        )
    if use.temperature is not None:
        evidence.append(Evidence("highest temperature", use.temperature, "°C", None, "NVML"))
    return Finding(
        code=CODE,
        severity=severity,
        confidence=SURE,
        title=f"{named(gpu)} is clocked down by {CLOCK_REASONS[reason]} {format_share(share)} of "
        f"the time under load{clock}{usual}",
        cause=_cause(reason),
        culprits=culprits(measures, (gpu,)),
        evidence=tuple(evidence),
        fixes=(_fix(gpu, slowed),),
    )


def _cause(reason: str) -> str:
    if reason in ("hw_thermal", "sw_thermal"):
        return (
            "It is too hot for its full clock: fans, airflow, dust, inlet air or a neighbour's "
            "heat."
        )
    if reason == "hw_power_brake":
        return "The host's power supply signals a slowdown: it lacks power for all GPUs."
    if reason == "power_cap":
        return "Its power limit was set lower than that of the other GPUs."
    return "The hardware slows itself down (to half of the clock or less) because of heat or power."


def _fix(gpu: Gpu, slowed: _Slowed) -> Fix:
    index = gpu.index
    if slowed.reason in ("hw_thermal", "sw_thermal"):
        return Fix(
            "cool-device",
            f"Cool GPU {index}",
            f"nvidia-smi -i {index} -q -d TEMPERATURE,PERFORMANCE shows the temperature and its "
            "limits: check fans, airflow, dust and inlet air; move the job meanwhile.",
        )
    if slowed.reason == "power_cap" and slowed.power_usual is not None:
        return Fix(
            "raise-power-limit",
            f"Give GPU {index} the power limit of the others",
            f"As root: nvidia-smi -i {index} -pl {slowed.power_usual:.0f}, unless it was set on "
            "purpose.",
        )
    return Fix(
        "check-power",
        f"Have the power and cooling of GPU {index} checked",
        f"nvidia-smi -i {index} -q -d PERFORMANCE,POWER,CLOCK shows the reason. A power brake "
        "comes from the host's supply: check its units and cables; return a GPU that stays slow "
        "without heat to the vendor (RMA).",
    )


RULES = (
    Rule(
        code=CODE,
        family="hardware",
        summary="A GPU is clocked down under load by heat, by the power supply's brake or by its "
        "hardware.",
        measured="NVML's clock event reasons and SM clock in the samples in which the GPU works at "
        "half of the time at least, compared with the other GPUs of its model on the host. If a "
        "rank slows down the others because of it, `straggler-throttled` is reported instead.",
        thresholds="Heat, a power brake and hardware slowdown are a warning if they lower the "
        "clock or if the clock is unknown, otherwise info. Reaching the power cap is normal under "
        "full load: info if this GPU's cap and clock are lower than the others', otherwise not "
        "reported.",
        fixes="Cooling; power supply and cables; the power limit (`nvidia-smi -pl`).",
        examine=_examine,
        limits=(
            Limit(
                "share",
                0.2,
                "fraction",
                "share of the samples under load in which a reason must apply: short spells are "
                "normal when load begins.",
            ),
            Limit(
                "clock",
                0.10,
                "fraction",
                "how far the clock is below the usual one: GPUs of one model differ by 8 % on "
                "average (Sinha et al. 2022, arXiv 2208.11035).",
            ),
        ),
        unverified=PRETEND,
    ),
)
