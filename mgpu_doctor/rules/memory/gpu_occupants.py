"""Who else is on a rank's device: other ranks that came there by mistake, or strangers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from mgpu_doctor.analysis.machines.host_devices import Gpu
from mgpu_doctor.analysis.machines.rank_devices import (
    LEAST_SAMPLES,
    Series,
    held,
    key_of,
    placements,
)
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.accelerator import accelerator
from mgpu_doctor.case.model import Outcome, Rank
from mgpu_doctor.findings import Cost, Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_bytes, format_count, format_ranks, format_share
from mgpu_doctor.rules import advice
from mgpu_doctor.rules.blame import culprit_of
from mgpu_doctor.rules.device.gpu import PRETEND
from mgpu_doctor.rules.rule import Limit, Limits, Rule

LASTING = Limit(
    "lasting",
    0.5,
    "fraction",
    "share of the samples in which it must be there: a process that only comes by is no trouble.",
)
SHARE = Limit(
    "share",
    0.05,
    "fraction",
    "of the device's memory that strangers hold: a context alone takes some 0.4 GiB.",
)
FULL = 0.9
"""Share of a device's memory in use from which strangers are in the way."""
SEVERAL = frozenset({"dp", "mp", "mirrored"})
"""Strategies in which a process is meant to hold several devices."""


@dataclass(frozen=True, slots=True)
class _Pile:
    gpu: Gpu
    owner: int | None
    guests: tuple[int, ...]
    size: int | None
    """Bytes that the guests hold there; None: unknown."""


def _pileup(measures: Measures, limits: Limits) -> Iterable[Finding]:
    for pile in _piles(measures, limits["lasting"]):
        most = "" if pile.size is None else f" and take {format_bytes(pile.size)} there"
        whose = "" if pile.owner is None else f", which is rank {pile.owner}'s"
        yield Finding(
            code="oom-rank0-pileup",
            severity=Severity.WARNING,
            confidence=0.85,
            title=f"{format_ranks(pile.guests).capitalize()} hold memory on GPU {pile.gpu.index}"
            f"{whose}{most}",
            cause="A process that touches CUDA before it has chosen its device does so on the "
            "first one, and checkpoints load to the device they were saved from: each such "
            "context takes some hundred MiB, and the device runs out of memory before the others.",
            culprits=tuple(culprit_of(measures, number) for number in pile.guests),
            victims=() if pile.owner is None else (pile.owner,),
            evidence=(
                Evidence(
                    f"ranks on GPU {pile.gpu.index} that do not belong there",
                    len(pile.guests),
                    "ranks",
                    0,
                    f"NVML's processes, {format_count(len(pile.gpu.series), 'sample')}",
                ),
            ),
            cost=Cost(bytes=pile.size),
            fixes=(
                Fix(
                    "set-device",
                    "Choose the device first of all",
                    "At the top of each rank: torch.cuda.set_device(int(os.environ['LOCAL_RANK'])),"
                    " before anything else touches CUDA; init_process_group(device_id="
                    "torch.device('cuda', local_rank)).",
                ),
                Fix(
                    "map-location",
                    "Load checkpoints to the host",
                    "torch.load(file, map_location='cpu'), or map_location=f'cuda:{local_rank}'.",
                ),
            ),
        )


def _piles(measures: Measures, lasting: float) -> Iterable[_Pile]:
    case = measures.case
    holding, placed = held(case), placements(case)
    single = {rank.rank: rank for rank in case.ranks if not _holds_several(rank)}
    if case.job.framework != "torch" or len(single) < len(case.ranks):
        return
    if len(measures.watched.gpus) < 2:
        return
    for gpu in measures.watched.gpus:
        key = key_of(gpu.device)
        here = [number for number, keys in holding.items() if key in keys]
        at_home = [number for number in here if number in placed and placed[number].device == key]
        owner = min(at_home, default=None)
        guests = tuple(
            number
            for number in sorted(here)
            if number != owner and _stays(gpu.series, single[number].pid, lasting)
        )
        if guests:
            yield _Pile(gpu, owner, guests, _held_by(gpu, {single[one].pid for one in guests}))


def _holds_several(rank: Rank) -> bool:
    strategy = str(rank.birth.get("strategy") or "").split("+")
    gpu = accelerator(rank)
    return bool(SEVERAL & set(strategy)) or (gpu is not None and (gpu.replicas or 1) > 1)


def _stays(series: Series, pid: int | None, share: float) -> bool:
    return bool(np.mean([pid in device.pids for _, device in series]) >= share)


def _held_by(gpu: Gpu, pids: set[int | None]) -> int | None:
    sizes = [one.memory for one in gpu.device.processes if one.pid in pids]
    return sum(one for one in sizes if one is not None) if sizes and None not in sizes else None


def _foreign(measures: Measures, limits: Limits) -> Iterable[Finding]:
    case = measures.case
    if case.job.outcome not in (Outcome.RUNNING, Outcome.COMPLETED) or not held(case):
        return
    own = {rank.pid for rank in (*case.ranks, *case.earlier)} | _seen_on_host(measures)
    for gpu in measures.watched.gpus:
        total = gpu.device.memory_total
        if not gpu.ranks or not total or len(gpu.series) < LEAST_SAMPLES:
            continue
        there = _strangers(gpu, own, limits["lasting"])
        taken = sum(there.values())
        if taken < limits["share"] * total:
            continue
        full = (gpu.device.memory_used or 0) >= FULL * total
        yield Finding(
            code="oom-foreign-process",
            severity=Severity.WARNING if full else Severity.INFO,
            confidence=0.9,
            title=f"{format_bytes(taken)} of GPU {gpu.index}, {format_share(taken / total)} of "
            "it, are taken "
            f"by {'a process' if len(there) == 1 else f'{len(there)} processes'} that the job did "
            "not start",
            cause="They were there in most samples. What they hold is missing to the job"
            + ("; the device is nearly full." if full else "."),
            victims=gpu.ranks,
            evidence=tuple(
                Evidence(f"memory of process {pid}", bytes_, "bytes", None, "NVML samples")
                for pid, bytes_ in sorted(there.items(), key=lambda one: -one[1])[:8]
            ),
            cost=Cost(bytes=taken),
            fixes=(
                Fix(
                    "free-device",
                    "Find out whose they are, and wait, ask, or take another GPU",
                    f"`ps -o pid,user,lstart,args -p {','.join(str(pid) for pid in there)}`; "
                    + advice.environment(measures, CUDA_VISIBLE_DEVICES="…"),
                ),
            ),
        )


def _seen_on_host(measures: Measures) -> set[int | None]:
    """The job's processes, ranks or not: the host samples hold no others."""
    return {pid for sample in measures.case.host_samples for pid in sample.processes}


def _strangers(gpu: Gpu, own: set[int | None], lasting: float) -> Mapping[int, int]:
    """Pid -> bytes, of those whose memory is known."""
    return {
        one.pid: one.memory
        for one in gpu.device.processes
        if one.memory and one.pid not in own and _stays(gpu.series, one.pid, lasting)
    }


RULES: tuple[Rule, ...] = (
    Rule(
        code="oom-rank0-pileup",
        family="memory",
        summary="Ranks hold memory on a device that is another rank's.",
        measured="NVML's processes on each device, joined with the ranks and the devices they "
        "compute on. Only where every rank is found among them, as in a container NVML counts "
        "pids otherwise; not where a process is meant to hold several devices, and not for "
        "TensorFlow, which takes all that it sees (`memory-preallocated`).",
        thresholds="One such rank is enough.",
        fixes="`torch.cuda.set_device(local_rank)` first of all; `map_location` when loading.",
        examine=_pileup,
        limits=(LASTING,),
        unverified=PRETEND,
    ),
    Rule(
        code="oom-foreign-process",
        family="memory",
        summary="Another process holds a part of a rank's GPU.",
        measured="NVML's processes on the devices of the ranks, without the job's own processes. "
        "Only where every rank is found among them, as in a container NVML counts pids otherwise.",
        thresholds=f"A warning where {FULL:.0%} of the device are in use, else for information.",
        fixes="Find the other process with `nvidia-smi`; wait for it or choose another GPU.",
        examine=_foreign,
        limits=(LASTING, SHARE),
        replaces=("failed-exception", "failed-killed", "failed-signal"),
        unverified=PRETEND,
    ),
)
