"""Host samples of synthetic jobs: what the scheduler did to each rank, at known rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mgpu_probes.inprocess.layout import PHASES

from mgpu_doctor.case.host_samples import Cores, Group, HostSample, Task, TaskState
from mgpu_doctor.case.model import Case, Rank
from tests.support.metadata import with_metadata

EVERY = 0.25


@dataclass(frozen=True)
class Doing:
    """Of one process; seconds a second."""

    running: float = 0.7
    """All its threads."""
    ran: float | None = 0.7
    """Its main thread."""
    queued: float | None = 0.0
    others_queued: float = 0.0
    """Its threads beside the main one."""
    faults: float = 10.0
    """Pages a second."""
    kernel: float | None = 0.05
    throttled: float | None = None
    """Of a control group of its own; None: it has none."""
    quota: float = 1.0
    cores: tuple[int, ...] | None = (0, 1)
    state: TaskState = "S"
    children: tuple[Doing, ...] = ()


USUAL = Doing()


def sampled(
    case: Case,
    doing: Mapping[int, Doing],
    *,
    outside: float = 0.0,
    cpu_percent: float | None = 50.0,
    since: float = 0.0,
) -> Case:
    """The case with host samples. Ranks that are not named do the usual; `since`: seconds before
    which all of them do."""
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
    """The same case with ranks whose work the CPU does."""
    ranks = [
        rank if rank.metadata.clock is not None else with_metadata(rank, clock="cpu")
        for rank in case.ranks
    ]
    return replace(case, ranks=tuple(ranks))


def pooled(case: Case) -> Case:
    """The same case with ranks whose main thread waits for those that compute."""
    ranks = [with_metadata(rank, framework="tensorflow") for rank in case.ranks]
    return on_host(replace(case, ranks=tuple(ranks)))


def computing(case: Case, idle: Mapping[int, float] | None = None) -> Case:
    """The case with ranks whose main thread runs for all of its own work, but `idle` seconds a
    step of some."""
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
    doing: Mapping[int, Doing],
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
        what = doing.get(rank.rank, USUAL)

        def grown(name: str, one: Doing = what) -> float | None:
            usual, own = getattr(USUAL, name), getattr(one, name)
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
