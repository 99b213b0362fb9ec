"""One device of a process that holds or does more than the others (DataParallel), or is slower
(TensorFlow replicas)."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_doctor.analysis.machines.rank_devices import OnDevice, Use
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.statistics.pace_comparison import (
    EXCESS,
    LEAST,
    SURE,
    TOGETHER,
    find_slow_pace,
)
from mgpu_doctor.case.model import Rank
from mgpu_doctor.case.process_metadata import PhaseClock
from mgpu_doctor.case.rank_device import accelerator, phase_clock
from mgpu_doctor.findings import Cost, Culprit, Evidence, Finding, Fix, Predicted, Severity
from mgpu_doctor.formatting import format_seconds, format_share
from mgpu_doctor.rules import advice
from mgpu_doctor.rules.culprits import culprit_of, severity_of_cost
from mgpu_doctor.rules.gpu.gpu_use import PRETEND, middle
from mgpu_doctor.rules.rule import Detector, Limit, Limits, Rule


def _imbalance(measures: Measures, limits: Limits) -> Iterable[Finding]:
    for rank in measures.case.ranks:
        gpu = accelerator(rank)
        on = (measures.devices or {}).get(rank.rank) if rank.rank is not None else None
        if gpu is None or on is None or (gpu.replicas or 1) < 2 or len(on.replicas) < 2:
            continue
        first, others = _parts(on)
        if first is None:
            continue
        memory = _beyond(first.memory_used, middle(other.memory_used for other in others))
        idle = _idle(first, others)
        heavy = memory is not None and memory >= limits["memory"]
        if heavy or (idle is not None and idle >= limits["idle"]):
            yield _finding(measures, rank, first, others, limits)


def _parts(on: OnDevice) -> tuple[Use | None, list[Use]]:
    """The device that the process counts first, and the others."""
    first = next((replica for replica in on.replicas if replica.index == on.use.index), None)
    return first, [replica for replica in on.replicas if replica is not first]


def _beyond(value: float | None, usual: float | None) -> float | None:
    return value / usual - 1 if value is not None and usual else None


def _idle(first: Use, others: Iterable[Use]) -> float | None:
    """Difference of utilization, 0..1, between the first device and the others."""
    usual = middle(other.utilization for other in others)
    return None if first.utilization is None or usual is None else first.utilization - usual


def _finding(
    measures: Measures, rank: Rank, first: Use, others: list[Use], limits: Limits
) -> Finding:
    usual = middle(other.memory_used for other in others)
    more, idle = _beyond(first.memory_used, usual), _idle(first, others)
    full = bool(first.memory_used and first.memory_total) and (
        (first.memory_used or 0) / (first.memory_total or 1) >= limits["full"]
    )
    waits = idle is not None and idle >= limits["idle"]
    sentences = []
    if more is not None and more >= limits["memory"]:
        sentences.append(f"holds {format_share(more)} more memory than the others")
    if waits and idle is not None:
        sentences.append(f"is busy for {format_share(idle)} more of the time than the others")
    count = len(others) + 1
    where = f"rank {rank.rank}, GPU {first.index}" if rank.rank is not None else None
    return Finding(
        code="imbalance-device",
        severity=Severity.WARNING if full or waits else Severity.INFO,
        confidence=0.8,
        title=f"GPU {first.index} {' and '.join(sentences)}",
        cause="DataParallel keeps the parameters' gradients and the optimizer's state on its first "
        "device, copies the model from there before each forward pass and gathers every output "
        "there.",
        culprits=(culprit_of(measures, rank.rank),) if rank.rank is not None else (),
        evidence=(
            Evidence(
                "most memory in use on the first device, compared with the median of the others",
                first.memory_used,
                "bytes",
                usual,
                "NVML samples",
                where,
            ),
            Evidence(
                "its mean utilization, compared with the median of the others",
                first.utilization,
                "fraction",
                middle(other.utilization for other in others),
                "NVML samples",
                where,
            ),
        ),
        since_step=0,
        fixes=(
            Fix(
                "use-ddp",
                "Give every device its own process (DistributedDataParallel)",
                f"{advice.under_torchrun(measures, count)}; in the script: "
                "torch.distributed.init_process_group(); device = int(os.environ['LOCAL_RANK']); "
                "model = DistributedDataParallel(model.to(device), device_ids=[device]); and "
                f"{advice.in_loader('sampler=DistributedSampler(dataset)')}",
            ),
        ),
    )


def _replica(measures: Measures, limits: Limits) -> Iterable[Finding]:
    """A replica of a TensorFlow strategy that all other replicas of its process wait for."""
    for rank in measures.case.ranks:
        names = rank.metadata.replica_devices
        shared = any(name.startswith("cpu") for name in names)
        on_devices = any(not name.startswith("cpu") for name in names)
        if on_devices and phase_clock(rank) is not PhaseClock.DEVICE:
            continue  # it is unknown whether a timestamp in a graph waits for the device
        slow = find_slow_pace(rank.metadata.replica_paces, TOGETHER if shared else EXCESS)
        step = measures.step_seconds
        if slow is None or not step:
            continue
        saved = min(1.0, slow.excess / step)
        if saved < limits["late"]:
            continue
        device = names[slow.index] if slow.index < len(names) else f"replica {slow.index}"
        yield Finding(
            code="imbalance-device",
            severity=severity_of_cost(saved),
            confidence=0.85,
            title=f"Replica {slow.index} ({device}) finishes its gradients "
            f"{format_seconds(slow.excess)} later per step than the other replicas, which wait for "
            "it",
            cause="The replicas of a strategy step together: they sum their gradients when the "
            "last one is ready. This one has more work (a longer part of the batch, or work that "
            "only it does), or its device is slower.",
            culprits=(Culprit(rank.rank, host=rank.host, device=device, pid=rank.pid),),
            evidence=(
                Evidence(
                    "median time from the start of a step to its gradients, compared with the "
                    "median of the other replicas",
                    slow.middle,
                    "s",
                    slow.of_others,
                    f"its newest {slow.times} steps",
                    device,
                ),
            ),
            since_step=0,
            cost=Cost(saved, slow.excess),
            fixes=(
                Fix(
                    "even-replicas",
                    f"Give replica {slow.index} as much work as the others",
                    "`ds.batch(global_batch, drop_remainder=True)`, with a global batch that "
                    "strategy.num_replicas_in_sync divides, and samples of similar length in each "
                    "part; no work by "
                    "`tf.distribute.get_replica_context().replica_id_in_sync_group`; leave out a "
                    "slower device: `tf.distribute.MirroredStrategy(devices=[...])`.",
                    Predicted(
                        1 - saved,
                        None,
                        "measured: its excess over the median of the others, as a share of the "
                        "mean step",
                    ),
                ),
            ),
        )


RULES = (
    Rule(
        code="imbalance-device",
        family="slow",
        summary="One device of a process that drives several holds or does more than the others "
        "(DataParallel's first GPU), or is slower (a replica of a TensorFlow strategy).",
        measured="The devices that list the process (NVML), their memory in use and utilization, "
        "if the process reports that DataParallel spreads its batches over several. Not judged in "
        "containers with their own process numbers.",
        thresholds="A warning if the others are idle because of it, or if its memory is nearly "
        f"full. For a replica: a median {format_share(EXCESS)} above that of the others, by "
        f"{SURE:g} standard errors beyond the next, over {LEAST} steps; {format_share(TOGETHER)} "
        "where replicas are virtual CPUs, which share cores.",
        fixes="DistributedDataParallel: one process per GPU, each with its own gradients.",
        examine=_imbalance,
        needs=("devices",),
        alternatives=(Detector(_replica),),
        limits=(
            Limit(
                "memory",
                0.20,
                "fraction",
                "memory on the first device beyond the median of the others; the usual value was "
                "not measured: gradients and gathered outputs take far more.",
            ),
            Limit(
                "idle",
                0.20,
                "fraction",
                "utilization of the first device beyond the median of the others; the usual value "
                "was not measured.",
            ),
            Limit(
                "late",
                0.05,
                "fraction",
                "minimum delay of a replica's gradients, as a share of the step: replicas that "
                "share cores differ by less.",
            ),
            Limit("full", 0.90, "fraction", "share of the first device's memory that is in use."),
        ),
        unverified=PRETEND,
    ),
)
