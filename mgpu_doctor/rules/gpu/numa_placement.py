"""Ranks that run on cores far from their GPU."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_doctor.analysis.machines.host_devices import Gpu
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.host_samples import parse_cores
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_cores, format_ranks
from mgpu_doctor.rules.culprits import culprit_of
from mgpu_doctor.rules.gpu.gpu_use import PRETEND
from mgpu_doctor.rules.rule import Limits, Rule

CODE = "numa-misplaced"


def _examine(measures: Measures, _: Limits) -> Iterable[Finding]:
    far = [
        (number, gpu, own, near)
        for gpu in measures.watched.gpus
        for number in gpu.ranks
        if (near := parse_cores(gpu.device.cores or ""))
        and (own := _own(measures, number))
        and not own & near
    ]
    if not far:
        return
    numbers = [number for number, *_ in far]
    reachable = frozenset().union(
        *(surrounding.cores or () for surrounding in measures.surroundings.values())
    )
    fixes = [_fix(number, gpu, near, reachable) for number, gpu, _, near in far]
    yield Finding(
        code=CODE,
        severity=Severity.INFO,
        confidence=0.9,
        title=f"{format_ranks(numbers).capitalize()} may not run on any core near "
        f"{'its GPU' if len(far) == 1 else 'their GPUs'}",
        cause="The cores that the process may use belong to another NUMA node than its GPU, so "
        "every copy and kernel launch crosses the link between the CPUs. The cost was not "
        "measured.",
        culprits=tuple(culprit_of(measures, number) for number in numbers),
        evidence=tuple(
            Evidence(
                "cores that the rank may use, compared with those near its GPU",
                format_cores(own),
                "cores",
                format_cores(near),
                "/proc/PID/status and NVML",
                f"rank {number}, GPU {gpu.index}",
            )
            for number, gpu, own, near in far
        ),
        fixes=tuple({fix.how: fix for fix in fixes}.values()),
    )


def _own(measures: Measures, number: int) -> frozenset[int] | None:
    around = measures.surroundings.get(number)
    return around.cores if around is not None else None


def _fix(number: int, gpu: Gpu, near: frozenset[int], reachable: frozenset[int]) -> Fix:
    summary = f"Run rank {number} on cores near GPU {gpu.index}"
    if not near & reachable:
        return Fix(
            "ask-for-cores",
            summary,
            "No rank of the job may run there, so the scheduler or container assigned other cores: "
            "request cores near the GPUs (Slurm: --gpu-bind=closest or --accel-bind=g; Kubernetes: "
            f"the topology manager; Docker: --cpuset-cpus={format_cores(near)}).",
        )
    node = gpu.device.numa_node
    how = f"taskset -c {format_cores(near)}"
    if node is not None and node >= 0:
        how = f"numactl --cpunodebind={node} --membind={node}, or {how},"
    return Fix(
        "bind-cores",
        summary,
        f"{how} before the rank's Python command. With torchrun, use --no-python and a script that "
        "selects cores by LOCAL_RANK; with Slurm, --cpu-bind. `nvidia-smi topo -m` shows the cores "
        "of each GPU.",
    )


RULES = (
    Rule(
        code=CODE,
        family="hardware",
        summary="A rank may run only on cores that are far from its GPU.",
        measured="The cores that the rank's main thread may use, from /proc, compared with the "
        "cores that NVML reports as near its GPU.",
        thresholds="No core in common. A rank that may run on some near cores is left to the "
        "kernel. Info, because the cost is not measured; if a rank is slow because of its host, "
        "`straggler-host` reports it.",
        fixes="Bind the rank (`numactl`, `taskset`, `--cpu-bind`), or ask the scheduler for cores "
        "near the GPUs.",
        examine=_examine,
        unverified=PRETEND,
    ),
)
