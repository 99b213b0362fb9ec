"""GPUs that the job requested but cannot use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from mgpu_doctor.analysis.machines.host_devices import Gpu
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.rank_device import accelerator
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_ranks
from mgpu_doctor.rules.culprits import culprit_of
from mgpu_doctor.rules.failures.log_rules import log_detector
from mgpu_doctor.rules.gpu.gpu_use import PRETEND
from mgpu_doctor.rules.rule import Limits, Rule

CODE = "gpu-missing"
VARIABLE = "CUDA_VISIBLE_DEVICES"
_CUT = "CUDA reads the list up to the first invalid entry, and hides that one and all after it"
_ONCE = "CUDA accepts each device only once"


def _examine(measures: Measures, _: Limits) -> Iterable[Finding]:
    if not measures.watched.gpus or len({rank.host for rank in measures.case.ranks}) != 1:
        return
    yield from _misused(measures)
    yield from _together(measures)


def _misused(measures: Measures) -> Iterable[Finding]:
    """Finds device lists (CUDA_VISIBLE_DEVICES) of which CUDA accepts only the first entries or
    none."""
    lists: dict[tuple[str, ...], list[int]] = {}
    for rank in measures.case.ranks:
        gpu = accelerator(rank)
        if gpu is not None and gpu.visible is not None and rank.rank is not None:
            lists.setdefault(gpu.visible, []).append(rank.rank)
    for listed, ranks in lists.items():
        wrong = _wrong(listed, measures.watched.gpus)
        if wrong is None or not all(measures.watched.of_rank(number) for number in ranks):
            continue  # if NVML does not list the GPUs in use, it shows another container's
        place, why, cause = wrong
        yield Finding(
            code=CODE,
            severity=Severity.WARNING,
            confidence=0.85,
            title=f"{VARIABLE} of {format_ranks(ranks)} {why}",
            cause=f"{cause}: {place} of {len(listed)} entries can be used.",
            culprits=tuple(culprit_of(measures, number) for number in ranks),
            evidence=(
                Evidence(
                    "entries that CUDA can use", place, "devices", len(listed), "process metadata"
                ),
                Evidence(VARIABLE, ",".join(listed)[:200], "text", None, "process metadata"),
                Evidence("GPUs of the host", len(measures.watched.gpus), "devices", None, "NVML"),
            ),
            fixes=(
                Fix(
                    "fix-list",
                    f"Fix {VARIABLE}",
                    f"`echo ${VARIABLE}` where the job is started, `nvidia-smi -L` for the GPUs of "
                    "the host; list each device once, from 0 on, or unset it. With Slurm leave it "
                    "to --gpus.",
                ),
            ),
        )


def _wrong(listed: tuple[str, ...], gpus: Iterable[Gpu]) -> tuple[int, str, str] | None:
    """The position of the first entry that CUDA rejects, what is wrong with it, and why."""
    known = list(gpus)
    indices = {gpu.index for gpu in known}
    uuids = [gpu.device.uuid for gpu in known if gpu.device.uuid]
    seen: set[str] = set()
    for place, entry in enumerate(listed):
        if entry in seen:
            return len(set(listed)), f"names device {entry[:60]} twice", _ONCE
        seen.add(entry)
        if entry.isdecimal() and int(entry) not in indices:
            return place, f"names device {entry}, but the host has {len(known)}", _CUT
        is_sure = entry.startswith("GPU-") and len(uuids) == len(known)
        if is_sure and not any(uuid.startswith(entry) for uuid in uuids):
            return place, f"names {entry[:60]}, which the host does not have", _CUT
    return None


def _together(measures: Measures) -> Iterable[Finding]:
    """Several ranks on one device while devices that they could use are idle. Equally many ranks on
    every device look intentional."""
    if measures.structure.independent:
        return  # they may share a model in the memory of one GPU
    used = [gpu for gpu in measures.watched.gpus if gpu.ranks]
    counts = Counter(len(gpu.ranks) for gpu in used)
    idle = [gpu for gpu in measures.watched.gpus if not gpu.ranks and _idle(gpu)]
    if max(counts, default=0) < 2 or (len(counts) == 1 and len(used) > 1):
        return
    for gpu in used:
        free = [
            device for device in idle if device.name == gpu.name and _visible(measures, gpu, device)
        ]
        if len(gpu.ranks) < 2 or not free:
            continue
        spare = ", ".join(str(gpu.index) for gpu in free[:16])
        yield Finding(
            code=CODE,
            severity=Severity.WARNING,
            confidence=0.8,
            title=f"{format_ranks(gpu.ranks).capitalize()} share GPU {gpu.index} while GPU {spare} "
            f"{'is' if len(free) == 1 else 'are'} idle",
            cause="Each rank should have its own device. Usually a rank never calls "
            "torch.cuda.set_device(local_rank), or LOCAL_RANK is the same for several.",
            culprits=tuple(culprit_of(measures, number) for number in gpu.ranks),
            evidence=(
                Evidence("ranks on the device", len(gpu.ranks), "ranks", 1, "NVML and black boxes"),
                Evidence("idle devices", len(free), "devices", 0, "NVML"),
            ),
            fixes=(
                Fix(
                    "own-device",
                    "Give each rank its own device",
                    'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before any other '
                    "torch.cuda call, and device_ids=[local_rank] for DistributedDataParallel.",
                ),
            ),
        )


def _idle(gpu: Gpu) -> bool:
    newest = [device for _, device in gpu.series[-3:]]
    return len(newest) == 3 and all(
        not device.pids
        and device.trouble is None
        and device.utilization is not None
        and device.utilization < 0.05
        for device in newest
    )


def _visible(measures: Measures, gpu: Gpu, other: Gpu) -> bool:
    """Whether a rank on the first device may also use the second."""
    for rank in measures.case.ranks:
        facts = accelerator(rank)
        if rank.rank not in gpu.ranks or facts is None:
            continue
        if facts.visible is None or str(other.index) in facts.visible:
            return True
        if any(entry and (other.device.uuid or "").startswith(entry) for entry in facts.visible):
            return True
    return False


RULES = (
    Rule(
        code=CODE,
        family="hardware",
        summary="Fewer GPUs are available than requested, or ranks share one while others are "
        "idle.",
        measured="CUDA_VISIBLE_DEVICES as the ranks had it, against the GPUs that NVML shows on "
        "the host; and the ranks on each GPU, by UUID, pid or index.",
        thresholds="On one host, and only if the GPU of each rank is known. An invalid entry: CUDA "
        "hides it and all after it (CUDA C++ Programming Guide, environment variables); or a "
        "device named twice. Ranks that share a device are blamed only if a device of the same "
        "model that they may use is idle in the three newest samples, and not if all devices have "
        "equally many ranks.",
        fixes="Fix CUDA_VISIBLE_DEVICES; torch.cuda.set_device(local_rank).",
        examine=_examine,
        alternatives=(log_detector(CODE),),
        unverified=PRETEND,
    ),
)
