"""How host memory ended a rank: as evidence and in words."""

from __future__ import annotations

from mgpu_doctor.analysis.postmortem.out_of_memory import limit_of
from mgpu_doctor.analysis.postmortem.rank_failures import FullMemory, MemoryProof, OutOfMemory
from mgpu_doctor.case.ending_records import MemoryGroup
from mgpu_doctor.findings import Evidence
from mgpu_doctor.formatting import format_bytes

ULIMITS = {"address_space": "ulimit -v", "data": "ulimit -d"}


def make_evidence(memory: OutOfMemory) -> tuple[Evidence, ...]:
    """Evidence that memory ran out, the most informative first."""
    counted = () if memory.counted is None else _group_counters(memory.counted)
    if memory.proof is MemoryProof.KERNEL_LOG:
        taken = "process killed by the kernel's OOM killer"
        evidence = [Evidence(taken, memory.pid, "pid", source="kernel log")]
        if memory.resident is not None:
            measure = "its resident memory then"
            evidence.append(Evidence(measure, memory.resident, "bytes", source="kernel log"))
        return (*evidence, *counted)
    if memory.machine_kills is not None:
        measure = "processes killed by the OOM killer on this host meanwhile"
        return (Evidence(measure, memory.machine_kills, "processes", 0, "/proc/vmstat"),)
    if memory.sampled is not None:
        used, total = memory.sampled
        measure = "memory in use in the last sample before"
        return (Evidence(measure, used, "bytes", total, "host samples"),)
    limits = (
        Evidence(
            f"limit of its {name.replace('_', ' ')}",
            limit,
            "bytes",
            source=f"/proc/PID/limits ({ULIMITS[name]})",
        )
        for name, limit in memory.process_limits
    )
    return (*counted, *limits)


def describe_full_memory(memory: OutOfMemory) -> str:
    """What was full, as a sentence without its first capital and its full stop."""
    limit = None if memory.limit is None else format_bytes(memory.limit)
    match memory.full:
        case FullMemory.PROCESS_LIMIT:
            tightest = min(memory.process_limits, key=lambda named: named[1])
            return f"its limit of {limit} (`{ULIMITS[tightest[0]]}`) was reached"
        case FullMemory.REFUSED:
            return "the system refused to allocate memory"
        case FullMemory.GROUP if memory.group is not None:
            return f"the {limit} of its control group were full"
        case FullMemory.GROUP:
            return "the memory of its control group was full"
        case FullMemory.MACHINE:
            return "the whole machine had no memory left"
        case FullMemory.UNKNOWN:
            return "memory was full"


def _group_counters(group: MemoryGroup) -> tuple[Evidence, ...]:
    source = f"control group {group.name}"
    counters = []
    if group.killed:
        measure = "processes killed there meanwhile"
        counters.append(Evidence(measure, group.killed, "processes", 0, source))
    limit, peak = limit_of(group), group.now.peak or group.now.used
    if limit is not None:
        counters.append(Evidence("most memory in use there", peak, "bytes", limit, source))
    return tuple(counters)
