"""Host samples of synthetic jobs in which each process has a known CPU load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mgpu_probes.inprocess.layout import PHASES

from mgpu_doctor.case.host_samples import Cores, Group, HostSample, Task, TaskState
from mgpu_doctor.case.model import Case, Rank
from tests.support.metadata import with_metadata

EVERY = 0.25


@dataclass(frozen=True)
class ProcessLoad:
    """The load of one process; seconds per second unless noted."""

    running: float = 0.7
    """CPU time of all its threads."""
    ran: float | None = 0.7
    """CPU time of its main thread."""
    queued: float | None = 0.0
    """Time that its main thread waited for a core."""
    others_queued: float = 0.0
    """The same of its other threads."""
    faults: float = 10.0
    """Page faults per second."""
    kernel: float | None = 0.05
    throttled: float | None = None
    """Throttled time of its own control group; None: it has no group of its own."""
    quota: float = 1.0
    cores: tuple[int, ...] | None = (0, 1)
    state: TaskState = "S"
    children: tuple[ProcessLoad, ...] = ()


USUAL_LOAD = ProcessLoad()


def sampled(
    case: Case,
    doing: Mapping[int, ProcessLoad],
    *,
    outside: float = 0.0,
    cpu_percent: float | None = 50.0,
    since: float = 0.0,
) -> Case:
    """The case with host samples. Ranks that are not in `doing` have the usual load, and so have
    all ranks before `since` seconds. `outside`: cores used by other processes."""
    begin, end = _span(case.ranks)
    moments = [begin + EVERY * n for n in range(int((end - begin) / EVERY) + 1)]
    samples = [
        _sample(
            case,
            doing,
            at,
            passed=at - begin,
            outside=outside,
            cpu_percent=cpu_percent,
            since=since,
        )
        for at in moments
    ]
    return replace(case, host_samples=tuple(samples))


def on_host(case: Case) -> Case:
    """The same case, with ranks that compute on the CPU."""
    ranks = [
        rank if rank.metadata.clock is not None else with_metadata(rank, clock="cpu")
        for rank in case.ranks
    ]
    return replace(case, ranks=tuple(ranks))


def with_worker_threads(case: Case) -> Case:
    """The same case, with ranks of TensorFlow, whose main thread waits for its worker threads."""
    ranks = [with_metadata(rank, framework="tensorflow") for rank in case.ranks]
    return on_host(replace(case, ranks=tuple(ranks)))


def computing(case: Case, idle: Mapping[int, float] | None = None) -> Case:
    """The case with ranks whose main thread runs during all of their own work, except for `idle`
    seconds per step of some ranks."""
    ranks = []
    for rank in case.ranks:
        assert rank.rank is not None
        steps = rank.steps.copy()
        slept = (idle or {}).get(rank.rank, 0.0)
        standing = steps["phases"][:, PHASES.index("wait")]
        steps["cpu_s"] = steps["wall_ns"] * 1e-9 - standing - slept
        ranks.append(replace(rank, steps=steps))
    return replace(case, ranks=tuple(ranks))


def _span(ranks: tuple[Rank, ...]) -> tuple[float, float]:
    ends = [float(end) * 1e-9 for rank in ranks for end in rank.steps["end_ns"][[0, -1]]]
    return min(ends), max(ends)


def _sample(
    case: Case,
    doing: Mapping[int, ProcessLoad],
    at: float,
    *,
    passed: float,
    outside: float,
    cpu_percent: float | None,
    since: float,
) -> HostSample:
    before, after = min(passed, since), max(0.0, passed - since)
    tasks: dict[int, Task] = {}
    processes: dict[int, tuple[float, int]] = {}
    groups: dict[str, Group] = {}
    for rank in case.ranks:
        assert rank.pid is not None
        assert rank.rank is not None
        what = doing.get(rank.rank, USUAL_LOAD)

        def grown(name: str, one: ProcessLoad = what) -> float | None:
            usual, own = getattr(USUAL_LOAD, name), getattr(one, name)
            return None if own is None else 5 + before * (usual or 0.0) + after * own

        group = f"/group-{rank.rank}" if what.throttled is not None else None
        if group:
            groups[group] = Group(what.quota, grown("throttled"))
        ran, queued, others_queued = grown("ran"), grown("queued"), grown("others_queued")
        tasks[rank.pid] = Task(
            parent=1,
            state=what.state,
            threads=4,
            age=100 + passed,
            ran=ran,
            queued=queued,
            all_queued=None if queued is None else queued + (others_queued or 0.0),
            faults=int(grown("faults") or 0),
            kernel=grown("kernel"),
            cores=None if what.cores is None else Cores(what.cores),
            limits=(group,) if group else (),
        )
        processes[rank.pid] = (grown("running") or 0.0, 1 << 20)
        for number, child in enumerate(what.children):
            pid = 10 * rank.pid + number
            processes[pid] = (passed * child.running, 1 << 20)
            tasks[pid] = Task(
                parent=rank.pid, state=child.state, queued=passed * (child.queued or 0)
            )
    used = sum(cpu for cpu, _ in processes.values())
    return HostSample(
        at=at,
        cpu_percent=cpu_percent,
        cores=2,
        load1=None,
        memory_used=None,
        memory_total=None,
        processes=processes,
        host="node",
        tasks=tasks,
        groups=groups,
        busy=1000 + used + passed * outside,
    )
