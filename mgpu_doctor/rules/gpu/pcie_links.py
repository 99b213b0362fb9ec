"""A GPU whose link to the host is narrower or slower than it could be while it works."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mgpu_doctor.analysis.machines.host_devices import Gpu
from mgpu_doctor.analysis.machines.rank_devices import LEAST_SAMPLES
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.device_samples import Device, Pcie
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.rules.failures.log_rules import log_detector
from mgpu_doctor.rules.gpu.gpu_findings import (
    SURE,
    culprits,
    list_readings,
    loaded,
    named,
    risen,
    where,
)
from mgpu_doctor.rules.gpu.gpu_use import PRETEND
from mgpu_doctor.rules.rule import Limit, Limits, Rule

CODE = "pcie-degraded"
SOURCE = "NVML samples under load"


@dataclass(frozen=True, slots=True)
class _Link:
    """Current and maximum generation and lanes, in most of the samples under load."""

    generation: int
    width: int
    generation_most: int
    width_most: int
    share: float
    samples: int

    @property
    def speed(self) -> float:
        """Share, 0..1, of the possible throughput: each generation doubles it."""
        return self.width / self.width_most / 2.0 ** (self.generation_most - self.generation)


def _examine(measures: Measures, limits: Limits) -> Iterable[Finding]:
    links = {id(gpu): _link(gpu) for gpu in measures.watched.gpus}
    for gpu in measures.watched.gpus:
        link = links[id(gpu)]
        slow = link if link and link.speed < 1 and link.share >= limits["share"] else None
        replays = _replays(gpu, limits)
        if slow is None and replays is None:
            continue
        others = [speed for other in measures.watched.alike(gpu) if (speed := links[id(other)])]
        usual = slow is not None and bool(others) and all(o.speed <= slow.speed for o in others)
        yield _finding(measures, gpu, slow, replays, limits, usual=usual)


def _link(gpu: Gpu) -> _Link | None:
    known = [link for _, device in loaded(gpu) if (link := _whole(device)) is not None]
    if len(known) < LEAST_SAMPLES:
        return None
    low = [link for link in known if link[0] < link[2] or link[1] < link[3]]
    newest = (low or known)[-1]
    return _Link(*newest, share=len(low) / len(known), samples=len(known))


def _whole(device: Device) -> tuple[int, int, int, int] | None:
    pcie: Pcie | None = device.pcie
    if pcie is None:
        return None
    generation, width = pcie.generation, pcie.width
    most, widest = pcie.generation_most, pcie.width_most
    if not generation or not width or not most or not widest or most > 16:
        return None
    return min(generation, most), min(width, widest), most, widest


def _replays(gpu: Gpu, limits: Limits) -> float | None:
    """Replays per minute if there are too many; else None."""
    count, seconds = risen(
        list_readings(gpu, lambda device: device.pcie.replays if device.pcie else None)
    )
    if seconds < limits["seconds"]:
        return None
    rate = count * 60.0 / seconds
    return rate if rate > limits["replays"] else None


def _finding(
    measures: Measures,
    gpu: Gpu,
    slow: _Link | None,
    replays: float | None,
    limits: Limits,
    *,
    usual: bool,
) -> Finding:
    evidence, faults = [], []
    if slow is not None:
        faults.append(
            f"runs at generation {slow.generation} x{slow.width} under load, instead of generation "
            f"{slow.generation_most} x{slow.width_most}"
        )
        evidence.append(
            Evidence(
                "speed of the PCIe link, as a share of what device and slot support",
                slow.speed,
                "fraction",
                1.0,
                SOURCE,
                where(gpu),
            )
        )
        evidence.append(
            Evidence(
                "share of samples in which this was the case",
                slow.share,
                "fraction",
                limits["share"],
                SOURCE,
                where(gpu),
            )
        )
    if replays is not None:
        faults.append(f"repeats {replays:.0f} packets per minute")
        evidence.append(
            Evidence("replays per minute", replays, "1/min", limits["replays"], "NVML", where(gpu))
        )
    cause = (
        "All GPUs of this model here have such a link: usually the slots or the board have no "
        "more lanes. Copies between host and GPU are slower."
        if usual and replays is None
        else "A link that runs below its maximum under load, or repeats packets, usually has a bad "
        "contact: seating, riser, cable, slot, or dust. Copies between host and GPU, and between "
        "GPUs without NVLink, are slower."
    )
    return Finding(
        code=CODE,
        severity=Severity.INFO if usual and replays is None else Severity.WARNING,
        confidence=SURE,
        title=f"The PCIe link of {named(gpu)} {' and '.join(faults)}",
        cause=cause,
        culprits=culprits(measures, (gpu,)),
        evidence=tuple(evidence),
        fixes=(
            Fix(
                "check-link",
                f"Check the slot, riser and BIOS setting of GPU {gpu.index}",
                f"`nvidia-smi -q -i {gpu.index}` (PCI, GPU Link Info) and `sudo lspci -vv -s "
                f"{gpu.device.bus_id or 'ADDRESS'}` (LnkCap, LnkSta) show both; reseat the card, "
                "change the riser or the slot, set the slot's speed in the BIOS. Until then give "
                "the GPU work with few copies.",
            ),
        ),
    )


RULES = (
    Rule(
        code=CODE,
        family="hardware",
        summary="A GPU's connection to the host runs below its rated width or speed, or repeats "
        "packets.",
        measured="Current and maximum PCIe generation and lanes of each GPU (of device and slot "
        "together), in the samples in which it is busy at least half of the time: an idle link "
        "drops to generation 1. Replays by their counter.",
        thresholds="Info if all GPUs of the same model on the host have such a link: then the "
        "slots support no more.",
        fixes="Seating, riser, slot, BIOS setting.",
        examine=_examine,
        alternatives=(log_detector(CODE),),
        limits=(
            Limit(
                "share",
                0.8,
                "fraction",
                "share of the samples under load in which the link must be below its maximum: in "
                "most of them, as a link may wake late.",
            ),
            Limit(
                "replays",
                8,
                "1/min",
                "replays per minute that are still normal (NVIDIA DCGM, health watch of PCIe: at "
                "most 8 per minute are recommended).",
            ),
            Limit(
                "seconds",
                30,
                "s",
                "time over which replays must have been counted: a short burst is not a rate.",
            ),
        ),
        unverified=PRETEND,
    ),
)
