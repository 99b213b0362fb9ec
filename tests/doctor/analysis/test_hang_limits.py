"""Both sides of every limit that decides whether a job hangs and which rank is behind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mgpu_doctor.analysis.stacks.hang_analysis import (
    Kind,
    analyse_hang,
    list_unclear_processes,
)
from mgpu_doctor.analysis.stacks.progress import measure_progress
from tests.support import job_snapshots
from tests.support.job_snapshots import (
    LOCKED,
    LOOP,
    ProcessState,
    SnapshotSeries,
    blocked_process,
    collective,
    snapshot_series,
)


def behind(job: SnapshotSeries) -> list[int | None]:
    hang = analyse_hang(job.snapshots())
    assert hang is not None
    assert hang.kind is Kind.BEHIND
    return [culprit.state.rank for culprit in hang.culprits]


def spaced(job: SnapshotSeries, every: float) -> SnapshotSeries:
    return replace(job, every=every)


def drifting(seen: ProcessState, **more: float) -> list[ProcessState]:
    """Three looks at it, between which these fields of it grow."""
    return [
        replace(seen, **{name: getattr(seen, name) + at * more[name] for name in more})
        for at in range(3)
    ]


POLLS = ProcessState((*LOOP, "f util.py:3"), syscall="clock_nanosleep")
CHILD = ProcessState((*LOOP, "wait subprocess.py:9"), child_cpu=5.0)
BACKWARD = ProcessState(job_snapshots.BACKWARD)
LIMITS: dict[str, tuple[SnapshotSeries, SnapshotSeries]] = {
    "seconds that looks span": (
        spaced(snapshot_series({1: LOCKED}), 0.41),
        spaced(snapshot_series({1: LOCKED}), 0.39),
    ),
    "CPU time of the culprit": (
        snapshot_series({1: drifting(LOCKED[0], cpu=0.0019)}),
        snapshot_series({1: drifting(LOCKED[0], cpu=0.0021)}),
    ),
    "CPU time of it in a short time": (
        spaced(snapshot_series({1: drifting(LOCKED[0], cpu=0.0009)}), 0.45),
        spaced(snapshot_series({1: drifting(LOCKED[0], cpu=0.0011)}), 0.45),
    ),
    "CPU time of a child": (
        snapshot_series({1: drifting(CHILD, child_cpu=0.019)}),
        snapshot_series({1: drifting(CHILD, child_cpu=0.021)}),
    ),
    "CPU time of who polls": (
        snapshot_series({1: drifting(POLLS, cpu=0.049)}),
        snapshot_series({1: drifting(POLLS, cpu=0.051)}),
    ),
    "CPU time of other threads in a backward pass": (
        snapshot_series({1: LOCKED}, others=drifting(BACKWARD, others_cpu=0.69)),
        snapshot_series({1: LOCKED}, others=drifting(BACKWARD, others_cpu=0.71)),
    ),
    "CPU time of who spins in a collective": (
        snapshot_series({1: LOCKED}, others=drifting(ProcessState(collective()), cpu=0.71)),
        snapshot_series({1: LOCKED}, others=drifting(ProcessState(collective()), cpu=0.69)),
    ),
    "seconds since it last ran": (
        snapshot_series({1: drifting(replace(LOCKED[0], rested=0.51), cpu=0.1)}),
        snapshot_series({1: drifting(replace(LOCKED[0], rested=0.49), cpu=0.1)}),
    ),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_on_one_side_of_a_limit_a_rank_is_behind_on_the_other_the_job_may_move(limit: str) -> None:
    stands, may_move = LIMITS[limit]
    assert behind(stands) == [1]
    assert analyse_hang(may_move.snapshots()) is None


@pytest.mark.parametrize(
    ("rested", "cores", "snapshots", "state", "works"),
    [
        (10.1, 0.71, 3, "S", True),
        (9.9, 0.71, 3, "S", False),
        (10.1, 0.69, 3, "S", False),
        (10.1, 0.71, 2, "S", False),
        (10.1, 0.0021, 3, "R", True),
        (10.1, 0.0019, 3, "R", False),
        (9.9, 0.1, 3, "R", False),
    ],
)
def test_from_which_wait_and_use_a_rank_that_works_is_behind(
    rested: float, cores: float, snapshots: int, state: str, works: bool
) -> None:
    """On busy cores it runs a little, and is ready to run in every snapshot."""
    calls = (*LOOP, "clean util.py:9", "match re/__init__.py:166")
    works_on = ProcessState(calls, state=state, syscall=None, active=True, gil=True)
    seen = drifting(works_on, cpu=cores)
    job = snapshot_series({1: seen}, others=[ProcessState(collective(), rested=rested)])
    hang = analyse_hang(replace(job, count=snapshots).snapshots())
    assert (hang is not None and any(culprit.computing for culprit in hang.culprits)) is works


def test_one_rank_of_several_that_wait_for_it_makes_no_poll_a_hang_if_it_runs() -> None:
    others = {rank: drifting(ProcessState(collective()), cpu=0.75) for rank in (0, 2)}
    polls = {1: drifting(POLLS, cpu=0.01)}
    assert behind(snapshot_series(polls)) == [1]
    assert analyse_hang(snapshot_series({**others, **polls}).snapshots()) is None


def test_of_many_doubtful_culprits_four_are_worth_a_pause() -> None:
    doubtful = {rank: blocked_process(f"f util.py:{rank}") for rank in range(1, 7)}
    assert list_unclear_processes(snapshot_series(doubtful, ranks=8).snapshots()) == (
        1001,
        1002,
        1003,
        1004,
    )


def test_cores_are_those_of_the_main_thread_else_of_the_process() -> None:
    threads = drifting(ProcessState(collective()), cpu=0.25, others_cpu=0.5)
    snapshots = snapshot_series({0: threads}, ranks=1).snapshots()
    unknown = [
        replace(
            snapshot, processes=tuple(replace(p, main_cpu_seconds=None) for p in snapshot.processes)
        )
        for snapshot in snapshots
    ]
    nothing = [
        replace(snapshot, processes=tuple(replace(p, cpu_seconds=None) for p in snapshot.processes))
        for snapshot in unknown
    ]
    found = [measure_progress(seen) for seen in (snapshots, unknown, nothing, snapshots[:1])]
    cores = [(one.ranks[0].cores, one.ranks[0].process_cores) for one in found if one is not None]
    assert cores == [(0.25, 0.75), (0.75, 0.75), (None, None), (None, None)]


@pytest.mark.parametrize(("used", "idle"), [(0.039, True), (0.041, False)])
def test_an_idle_process_may_seem_to_have_used_a_tick_per_second(used: float, idle: bool) -> None:
    snapshots = snapshot_series(
        {0: [ProcessState(collective()), ProcessState(collective(), others_cpu=used)]}, ranks=1
    ).snapshots()
    found = measure_progress(snapshots)
    assert found is not None
    assert found.ranks[0].process_idle is idle
