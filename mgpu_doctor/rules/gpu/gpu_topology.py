"""Ranks that communicate over a slower path than the host has."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_doctor.analysis.machines.host_devices import FAR, Gpu, Wiring, wiring
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.device_samples import Device
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_ranks
from mgpu_doctor.rules.failures.log_rules import log_detector
from mgpu_doctor.rules.gpu.gpu_findings import culprits
from mgpu_doctor.rules.gpu.gpu_use import PRETEND
from mgpu_doctor.rules.rule import Limit, Limits, Rule

CODE = "topology-slow"
SOURCE = "NVML topology"
REASONS = {
    "CNS": "the chipset does not support it",
    "GNS": "the GPU does not support it",
    "TNS": "the topology does not support it",
    "DR": "it is disabled in the driver",
    "NS": "it is not supported",
}
"""NVML's status of peer access, in words."""


def _examine(measures: Measures, limits: Limits) -> Iterable[Finding]:
    ways, used = wiring(measures.watched), _used(measures)
    if ways is None or len(used) < 2:
        return
    yield from _without_peer_access(measures, ways, used)
    indices = [gpu.index for gpu in used]
    slowest = ways.slowest(indices)
    if slowest is None:
        return
    free = [gpu.index for gpu in measures.watched.gpus if _is_free(gpu, used)]
    better = ways.better(indices, free)
    outside = ways.outsiders(indices)
    if better is not None and slowest in FAR:
        yield _slow_choice(measures, used, ways, better, limits)
    elif outside:
        yield _without_nvlink(measures, used, outside, limits)


def _used(measures: Measures) -> list[Gpu]:
    """The devices of the ranks, if the device of every rank is known and none has two."""
    used = [gpu for gpu in measures.watched.gpus if gpu.ranks]
    ranks = [rank.rank for rank in measures.case.ranks]
    known = sorted(number for gpu in used for number in gpu.ranks)
    return used if known == sorted(n for n in ranks if n is not None) and len(ranks) > 1 else []


def _is_free(gpu: Gpu, used: list[Gpu]) -> bool:
    """GPUs of the same model as those in use on which no process computes."""
    device: Device = gpu.device
    quiet = not device.pids and device.trouble is None and gpu.last == gpu.series[-1][0]
    return not gpu.ranks and quiet and gpu.name is not None and gpu.name == used[0].name


def _severity(measures: Measures, limits: Limits) -> Severity:
    moving = measures.moving
    costs = moving is not None and moving.share >= limits["share"]
    return Severity.WARNING if costs else Severity.INFO


def _share(measures: Measures, limits: Limits) -> tuple[Evidence, ...]:
    if measures.moving is None:
        return ()
    measure = "share of the step in which data moves and no rank computes"
    share = measures.moving.share
    return (Evidence(measure, share, "fraction", limits["share"], "black boxes"),)


def _without_peer_access(measures: Measures, ways: Wiring, used: list[Gpu]) -> Iterable[Finding]:
    """GPUs that share an NVLink but cannot use peer access over it."""
    pairs = [
        (device, other)
        for place, device in enumerate(used)
        for other in used[place + 1 :]
        if ways.way(device.index, other.index) == "NVL"
        and frozenset((device.index, other.index)) in ways.barred
    ]
    if not pairs:
        return
    gpus = {gpu.index: gpu for pair in pairs for gpu in pair}
    first, second = pairs[0]
    reason = ways.barred[frozenset((first.index, second.index))]
    yield Finding(
        code=CODE,
        severity=Severity.WARNING,
        confidence=0.8,
        title=f"GPUs {first.index} and {second.index} share an NVLink but cannot access each "
        f"other's memory ({reason})",
        cause=f"NVML reports for peer access: {REASONS.get(reason, 'no')}. NCCL then copies "
        "through host memory.",
        culprits=culprits(measures, gpus.values()),
        evidence=(Evidence("pairs on NVLink without peer access", len(pairs), "pairs", 0, SOURCE),),
        fixes=(
            Fix(
                "allow-peers",
                "Enable peer access between the GPUs",
                "`nvidia-smi topo -p2p r` shows it. Start the fabric manager on NVSwitch hosts; "
                "remove driver options that disable peer access; in a virtual machine or with an "
                "IOMMU, allow it there (ACS off).",
            ),
        ),
    )


def _slow_choice(
    measures: Measures,
    used: list[Gpu],
    ways: Wiring,
    better: tuple[int, ...],
    limits: Limits,
) -> Finding:
    now = ", ".join(str(gpu.index) for gpu in used)
    slowest = ways.slowest([gpu.index for gpu in used])
    then, way = ",".join(map(str, better)), ways.slowest(better)
    return Finding(
        code=CODE,
        severity=_severity(measures, limits),
        confidence=0.8,
        title=f"The ranks use GPUs {now}, whose traffic crosses {slowest}; GPUs {then} are joined "
        f"by {way}",
        cause="The devices were chosen without regard to their links: data between these ranks "
        "goes through the CPU, although enough GPUs with a closer connection are free.",
        culprits=culprits(measures, used),
        evidence=(
            Evidence("slowest path between the ranks' GPUs", slowest, "way", way, SOURCE),
            *_share(measures, limits),
        ),
        fixes=(
            Fix(
                "choose-gpus",
                f"Use GPUs {then}",
                f"CUDA_VISIBLE_DEVICES={then} CUDA_DEVICE_ORDER=PCI_BUS_ID before the launcher; "
                "`nvidia-smi topo -m` shows their links.",
            ),
        ),
    )


def _without_nvlink(
    measures: Measures, used: list[Gpu], outside: tuple[int, ...], limits: Limits
) -> Finding:
    far = [gpu for gpu in used if gpu.index in outside]
    ranks = format_ranks(number for gpu in far for number in gpu.ranks)
    listed = ", ".join(map(str, outside))
    return Finding(
        code=CODE,
        severity=_severity(measures, limits),
        confidence=0.7,
        title=f"GPU {listed} of {ranks} has no NVLink to the other ranks' GPUs, which are linked "
        "to each other",
        cause="A ring of all ranks is as slow as its slowest link.",
        culprits=culprits(measures, far),
        evidence=(
            Evidence("GPUs without an NVLink to the others", listed, "GPUs", None, SOURCE),
            *_share(measures, limits),
        ),
        fixes=(
            Fix(
                "leave-out",
                f"Train without GPU {listed}, or check its bridge",
                "`nvidia-smi topo -m` shows the links; compare a run without these ranks "
                "(`mgpu-doctor compare`).",
            ),
        ),
    )


RULES = (
    Rule(
        code=CODE,
        family="hardware",
        summary="GPUs communicate over a slower path than the machine has.",
        measured="NVML's topology (as `nvidia-smi topo -m` shows it) and peer access between the "
        "GPUs of the ranks, compared with the free GPUs of the same model.",
        thresholds="On one host, and only if the GPU of every rank is known. It reports ranks "
        "whose traffic crosses NODE or SYS although enough nearer GPUs are free, ranks without an "
        "NVLink if most others have one, and pairs on an NVLink without peer access. Limits of "
        "the machine itself are not reported.",
        fixes="Choose GPUs that are linked (`CUDA_VISIBLE_DEVICES`), allow peer access, start the "
        "fabric manager; unset NCCL_P2P_DISABLE and NCCL_IB_DISABLE.",
        examine=_examine,
        alternatives=(log_detector(CODE),),
        limits=(
            Limit(
                "share",
                0.05,
                "fraction",
                "share of the step in which data moves and no rank computes, from which it is a "
                "warning (the usual cost of a warning); otherwise info.",
            ),
        ),
        unverified=PRETEND,
    ),
)
