"""Who else holds memory on a rank's GPU: other ranks by mistake, or processes of other jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from mgpu_doctor.analysis.machines.host_devices import Gpu
from mgpu_doctor.analysis.machines.rank_devices import (
    LEAST_SAMPLES,
    Series,
    key_of,
    list_devices_by_pid,
    placements,
)
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.model import Outcome, Rank
from mgpu_doctor.case.rank_device import accelerator
from mgpu_doctor.findings import Cost, Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_bytes, format_count, format_ranks, format_share
from mgpu_doctor.rules import advice
from mgpu_doctor.rules.culprits import culprit_of
from mgpu_doctor.rules.failures.log_rules import log_detector
from mgpu_doctor.rules.gpu.gpu_use import PRETEND
from mgpu_doctor.rules.rule import Limit, Limits, Rule

LASTING = Limit(
    "lasting",
    0.5,
    "fraction",
    "minimum share of the samples in which the process is there; a process that comes and goes "
    "does no harm.",
)
SHARE = Limit(
    "share",
    0.05,
    "fraction",
    "minimum share of the GPU's memory that other processes hold; a context alone takes 0.4 GiB.",
)
FULL = 0.9
"""Share of a GPU's memory in use from which on other processes are a warning."""
SEVERAL = frozenset({"dp", "mp", "mirrored"})
"""Strategies in which a process holds several devices on purpose."""


@dataclass(frozen=True, slots=True)
class _Pileup:
    """Ranks on a GPU that is not theirs."""

    gpu: Gpu
    owner: int | None
    guests: tuple[int, ...]
    size: int | None
    """Bytes that the guests hold there; None: unknown."""


def _find_pileup(measures: Measures, limits: Limits) -> Iterable[Finding]:
    for pileup in _find_pileups(measures, limits["lasting"]):
        of_owner = "" if pileup.owner is None else f" of rank {pileup.owner}"
        amount = "memory" if pileup.size is None else format_bytes(pileup.size)
        verb = "holds" if len(pileup.guests) == 1 else "hold"
        yield Finding(
            code="oom-rank0-pileup",
            severity=Severity.WARNING,
            confidence=0.85,
            title=f"{format_ranks(pileup.guests).capitalize()} {verb} {amount} on GPU "
            f"{pileup.gpu.index}{of_owner}",
            cause="A process that uses CUDA before it selects its device uses the first one, and "
            "checkpoints load to the device they were saved from. Each such context takes some "
            "hundred MiB, and that GPU runs out of memory before the others.",
            culprits=tuple(culprit_of(measures, number) for number in pileup.guests),
            victims=() if pileup.owner is None else (pileup.owner,),
            evidence=(
                Evidence(
                    f"ranks on GPU {pileup.gpu.index} that do not belong there",
                    len(pileup.guests),
                    "ranks",
                    0,
                    f"NVML's processes, {format_count(len(pileup.gpu.series), 'sample')}",
                ),
            ),
            cost=Cost(bytes=pileup.size),
            fixes=(
                Fix(
                    "set-device",
                    "Select the device before anything else",
                    "At the start of each rank, before anything else uses CUDA: "
                    "`torch.cuda.set_device(int(os.environ['LOCAL_RANK']))`; then "
                    "`init_process_group(device_id=torch.device('cuda', local_rank))`.",
                ),
                Fix(
                    "map-location",
                    "Load checkpoints to the host",
                    "`torch.load(file, map_location='cpu')`, or "
                    "`map_location=f'cuda:{local_rank}'`.",
                ),
            ),
        )


def _find_pileups(measures: Measures, lasting: float) -> Iterable[_Pileup]:
    case = measures.case
    holding, placed = list_devices_by_pid(case), placements(case)
    single = {rank.rank: rank for rank in case.ranks if not _holds_several(rank)}
    if case.job.framework != "torch" or len(single) < len(case.ranks):
        return
    if measures.structure.independent:
        return  # they may share a model in the memory of one GPU
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
            yield _Pileup(
                gpu, owner, guests, _sum_memory(gpu, {single[guest].pid for guest in guests})
            )


def _holds_several(rank: Rank) -> bool:
    strategy = str(rank.metadata.strategy or "").split("+")
    gpu = accelerator(rank)
    return bool(SEVERAL & set(strategy)) or (gpu is not None and (gpu.replicas or 1) > 1)


def _stays(series: Series, pid: int | None, share: float) -> bool:
    return bool(np.mean([pid in device.pids for _, device in series]) >= share)


def _sum_memory(gpu: Gpu, pids: set[int | None]) -> int | None:
    sizes = [process.memory for process in gpu.device.processes if process.pid in pids]
    return sum(siz for siz in sizes if siz is not None) if sizes and None not in sizes else None


def _find_foreign_processes(measures: Measures, limits: Limits) -> Iterable[Finding]:
    case = measures.case
    if case.job.outcome not in (Outcome.RUNNING, Outcome.COMPLETED) or not list_devices_by_pid(
        case
    ):
        return
    own = {rank.pid for rank in (*case.ranks, *case.earlier)} | _sampled_pids(measures)
    for gpu in measures.watched.gpus:
        total = gpu.device.memory_total
        if not gpu.ranks or not total or len(gpu.series) < LEAST_SAMPLES:
            continue
        there = _find_foreign(gpu, own, limits["lasting"])
        taken = sum(there.values())
        if taken < limits["share"] * total:
            continue
        full = (gpu.device.memory_used or 0) >= FULL * total
        yield Finding(
            code="oom-foreign-process",
            severity=Severity.WARNING if full else Severity.INFO,
            confidence=0.9,
            title=f"{_name_processes(len(there))} {format_bytes(taken)} of GPU {gpu.index} "
            f"({format_share(taken / total)})",
            cause="They were there in most samples. That memory is unavailable to the job"
            + ("; the GPU is nearly full." if full else "."),
            victims=gpu.ranks,
            evidence=tuple(
                Evidence(f"memory of process {pid}", bytes_, "bytes", None, "NVML samples")
                for pid, bytes_ in sorted(there.items(), key=lambda item: -item[1])[:8]
            ),
            cost=Cost(bytes=taken),
            fixes=(
                Fix(
                    "free-device",
                    "Find out whose they are; wait, ask, or use another GPU",
                    f"`ps -o pid,user,lstart,args -p {','.join(str(pid) for pid in there)}`; "
                    + advice.environment(measures, CUDA_VISIBLE_DEVICES="…"),
                ),
            ),
        )


def _name_processes(count: int) -> str:
    if count == 1:
        return "A process outside the job holds"
    return f"{count} processes outside the job hold"


def _sampled_pids(measures: Measures) -> set[int | None]:
    """All pids of the job: the host samples contain no other processes."""
    return {pid for sample in measures.case.host_samples for pid in sample.processes}


def _find_foreign(gpu: Gpu, own: set[int | None], lasting: float) -> Mapping[int, int]:
    """Pid -> bytes of each process that is not the job's and whose memory is known."""
    return {
        process.pid: process.memory
        for process in gpu.device.processes
        if process.memory and process.pid not in own and _stays(gpu.series, process.pid, lasting)
    }


RULES: tuple[Rule, ...] = (
    Rule(
        code="oom-rank0-pileup",
        family="memory",
        summary="Ranks hold memory on the GPU of another rank.",
        measured="NVML's processes on each device, joined with the ranks and the devices they "
        "compute on. Only if every rank is found among them, because NVML's pids differ in a "
        "container; not if a process holds several devices on purpose, and not for TensorFlow, "
        "which takes every GPU that it sees (`memory-preallocated`).",
        thresholds="One such rank is enough.",
        fixes="`torch.cuda.set_device(local_rank)` before anything else; `map_location` when "
        "loading checkpoints.",
        examine=_find_pileup,
        alternatives=(log_detector("oom-rank0-pileup"),),
        limits=(LASTING,),
        unverified=PRETEND,
    ),
    Rule(
        code="oom-foreign-process",
        family="memory",
        summary="A process of another job holds memory on a rank's GPU.",
        measured="NVML's processes on the devices of the ranks, except the job's own. Only if "
        "every rank is found among them, because NVML's pids differ in a container.",
        thresholds=f"A warning if {format_share(FULL)} of the GPU's memory is in use, otherwise "
        "info.",
        fixes="Find the other process with `nvidia-smi`; wait for it or use another GPU.",
        examine=_find_foreign_processes,
        alternatives=(log_detector("oom-foreign-process"),),
        limits=(LASTING, SHARE),
        replaces=("failed-exception", "failed-killed", "failed-signal"),
        unverified=PRETEND,
    ),
)
